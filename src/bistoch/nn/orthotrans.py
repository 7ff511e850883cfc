"""OrthoTrans: axes in which the entries of a time window are uncorrelated, from training rows."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bistoch.functional import inputs

# a channel whose values vary by less than this share of their size is constant, up to rounding
CONSTANT = 1e-6


class OrthoTrans(nn.Module):
    """An orthogonal change of axes for windows of a time series, fitted once and then fixed.

        R = Q^T diag(e) Q,   z = Q x,   x = Q^T z       (R: mean Pearson matrix of the windows)

    Rows of `basis` are the axes, the one with the largest eigenvalue first; until it is fitted or
    loaded it is the identity. Both tensors are buffers, so a `state_dict` carries them.

    Args:
        length: entries of a window.

    >>> import torch
    >>> steps = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    >>> trans = OrthoTrans.fit(steps.cumsum(0), length=8, train_rows=300)
    >>> x = torch.randn(2, 3, 8)
    >>> trans(x).shape, bool(torch.allclose(trans.inverse(trans(x)), x, atol=1e-5))
    (torch.Size([2, 3, 8]), True)

    Reference: Yue et al., OLinear, NeurIPS 2025.
    """

    basis: Tensor
    eigenvalues: Tensor

    def __init__(self, length: int) -> None:
        super().__init__()
        inputs.check_count("OrthoTrans", "length", length, least=1)
        self.basis = nn.Buffer(torch.eye(length))
        self.eigenvalues = nn.Buffer(torch.ones(length))

    @classmethod
    def fit(
        cls, series: Float[Tensor, "rows channels"], *, length: int, train_rows: int
    ) -> "OrthoTrans":
        """The transform of the first `train_rows` rows; later rows are not looked at.

        Args:
            series: one row per time, one column per channel; the units do not matter.
            length: entries of a window.
            train_rows: how many rows the model is trained on: the border of the data loader itself,
                not a share of the rows.
        """
        made = cls(length)
        values, axes = torch.linalg.eigh(lag_correlation(series, length, train_rows=train_rows))
        axes = axes.flip(-1)
        # an axis and its opposite are the same: choose the one whose largest entry is positive
        largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
        axes = axes * torch.where(largest < 0, -1.0, 1.0)
        made.basis.copy_(axes.T)
        made.eigenvalues.copy_(values.flip(-1))
        return made

    def forward(self, x: Float[Tensor, "*b length"]) -> Float[Tensor, "*b length"]:
        """The windows on the last axis in the new axes."""
        self._check("x", x)
        return x @ self.basis.T.to(x.dtype)

    def inverse(self, z: Float[Tensor, "*b length"]) -> Float[Tensor, "*b length"]:
        """Back to time: the inverse of `forward`."""
        self._check("z", z)
        return z @ self.basis.to(z.dtype)

    def _check(self, name: str, windows: Tensor) -> None:
        inputs.check_floating("OrthoTrans", name, windows, axes="(*b, length)", rank=1)
        if windows.shape[-1] != len(self.basis):
            raise ValueError(
                f"OrthoTrans: {name} must have windows of {len(self.basis)} entries in its last "
                f"axis, but its shape is {tuple(windows.shape)}; fit a transform of that length"
            )

    def extra_repr(self) -> str:
        """The length of a window."""
        return f"length={len(self.basis)}"


def lag_correlation(
    series: Float[Tensor, "rows channels"], length: int, *, train_rows: int
) -> Float[Tensor, "length length"]:
    """The Pearson correlations between the entries of a window, averaged over channels.

        R_ab = mean over channels of  cov(x_a, x_b) / sqrt(var(x_a) var(x_b))

    Over all windows of the training rows, in float64. A channel that is constant in all windows at
    some place has no correlation there, and is left out.

    >>> import torch
    >>> wave = torch.arange(101.0).mul(0.3).sin()[:, None]
    >>> lag_correlation(wave, 2, train_rows=101).diagonal()
    tensor([1.0000, 1.0000], dtype=torch.float64)
    """
    series = _training_rows(series, length, train_rows)
    total, count = series.new_zeros(length, length), 0
    for channel in series.unbind(-1):
        windows = channel.unfold(0, length, 1)
        centred = windows - windows.mean(0)
        deviation = centred.square().mean(0).sqrt()
        if bool((deviation <= CONSTANT * channel.abs().max()).any()):
            continue
        standard = centred / deviation
        total += standard.T @ standard / len(windows)
        count += 1
    if count == 0:
        raise ValueError(
            f"OrthoTrans: at least one channel must vary, but all {series.shape[-1]} are constant "
            f"over the {len(series)} training rows; use OrthoTrans(length), the identity, instead"
        )
    correlation = total / count
    # rounding must not leave a matrix that differs from its transpose
    return (correlation + correlation.T) / 2


def _training_rows(series: Tensor, length: int, train_rows: int) -> Float[Tensor, "rows channels"]:
    inputs.check_floating("OrthoTrans", "series", series, axes="(rows, channels)", rank=2)
    inputs.check_count("OrthoTrans", "length", length, least=1)
    inputs.check_count("OrthoTrans", "train_rows", train_rows, least=1)
    if series.ndim != 2 or not length < train_rows <= len(series):
        raise ValueError(
            "OrthoTrans: series must be (rows, channels) with more training rows than a window is "
            f"long, but its shape is {tuple(series.shape)}, train_rows is {train_rows} and length "
            f"is {length}"
        )
    series = series[:train_rows].detach().double()
    if not bool(series.isfinite().all()):
        raise ValueError(
            "OrthoTrans: series must be finite in its training rows, but some entries are not; "
            "fill the gaps first"
        )
    return series
