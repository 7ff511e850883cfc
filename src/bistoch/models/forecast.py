"""A forecaster of multivariate series: linear in time, channels mixed by an operator."""

import copy
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bistoch.functional import OPERATORS, inputs, parse_operator
from bistoch.models.build import check_sizes
from bistoch.nn import Attention, Mixing, OrthoTrans
from bistoch.nn.block import feed_forward


@dataclass(frozen=True)
class ForecastConfig:
    """The sizes of a `Forecaster`.

    Args:
        channels: number of series.
        lookback, horizon: time steps of the input and of the forecast.
        extend: number of learned factors that every series is multiplied by.
        depth, dim: blocks, features of a channel.
        heads: heads of attention between channels; NormLin has none.
        mlp: hidden features of the MLP of a block in units of `dim`.
        mix: whether channels are mixed at all.
        dropout: probability of dropping an output of mixer, MLP or head.
    """

    channels: int
    lookback: int = 96
    horizon: int = 96
    extend: int = 16
    depth: int = 2
    dim: int = 512
    heads: int = 8
    mlp: int = 1
    mix: bool = True
    dropout: float = 0.1

    def __post_init__(self) -> None:
        names = ("channels", "lookback", "horizon", "extend", "depth", "mlp")
        check_sizes("Forecaster", self, *names)


class Forecaster(nn.Module):
    """OLinear: windows in a basis where time steps are uncorrelated, channels mixed by an operator.

    Every channel is one token. With "mixing", the default, the mixer is NormLin: a learned matrix
    that does not depend on the tokens. Any other operator mixes by attention, and `mix=False` not
    at all. There is no dropout on the plan, which would change its sums.

    Call `fit_axes` with the training rows before the first step: until then the basis is the
    identity.

    Args:
        config: its sizes.
        operator: "mixing", "mixing(lam=1.0)" and the like for NormLin, which learns a matrix of as
            many rows as channels; or text or module for `bistoch.nn.Attention`.

    >>> import torch
    >>> config = ForecastConfig(channels=7, lookback=24, horizon=12, dim=16, heads=2)
    >>> model = Forecaster(config, "mixing(lam=0.5)")
    >>> model.fit_axes(torch.randn(200, 7).cumsum(0), train_rows=120)
    >>> model(torch.randn(3, 24, 7)).shape
    torch.Size([3, 12, 7])

    Reference: Yue et al., OLinear, NeurIPS 2025.
    """

    def __init__(self, config: ForecastConfig, operator: str | nn.Module = "mixing") -> None:
        super().__init__()
        self.config = config
        channels, dim, extend = config.channels, config.dim, config.extend
        self.scale = RevIN(channels)
        self.factors = nn.Parameter(torch.randn(extend, 1))
        self.axes_in, self.axes_out = OrthoTrans(config.lookback), OrthoTrans(config.horizon)
        self.shift_in = nn.Parameter(torch.zeros(channels, 1, config.lookback))
        self.shift_out = nn.Parameter(torch.zeros(channels, 1, config.horizon))
        self.embed = nn.Linear(extend * config.lookback, dim)
        self.blocks = nn.ModuleList(ForecastBlock(config, operator) for _ in range(config.depth))
        self.norm = nn.LayerNorm(dim)
        self.unfold = nn.Linear(dim, extend * config.horizon)
        self.head = nn.Sequential(
            nn.Linear(extend * config.horizon, config.mlp * dim), nn.GELU(),
            nn.Linear(config.mlp * dim, config.horizon), nn.Dropout(config.dropout),
        )  # fmt: skip

    def fit_axes(self, series: Float[Tensor, "rows channels"], *, train_rows: int) -> None:
        """Take the axes from the first `train_rows` rows of the series; later ones are not read."""
        for axes, length in (
            (self.axes_in, self.config.lookback),
            (self.axes_out, self.config.horizon),
        ):
            fitted = OrthoTrans.fit(series, length=length, train_rows=train_rows)
            axes.load_state_dict(fitted.state_dict())

    def forward(
        self, windows: Float[Tensor, "b lookback channels"]
    ) -> Float[Tensor, "b horizon channels"]:
        """The next time steps of every channel."""
        config = self.config
        inputs.check_floating(
            "Forecaster", "windows", windows, axes="(batch, lookback, channels)", rank=3
        )
        if windows.shape[1:] != (config.lookback, config.channels):
            raise ValueError(
                f"Forecaster: windows must be (batch, lookback, channels) = (batch, "
                f"{config.lookback}, {config.channels}), but their shape is "
                f"{tuple(windows.shape)}; build the model for that lookback and channels"
            )
        scaled, level = self.scale(windows)
        # (batch, channels, extend, lookback)
        x = self.factors * scaled.transpose(-1, -2).unsqueeze(-2)
        x = self.embed((self.axes_in(x) + self.shift_in).flatten(-2))
        for block in self.blocks:
            x = block(x)
        x = self.unfold(self.norm(x)).unflatten(-1, (config.extend, config.horizon))
        x = self.head((self.axes_out.inverse(x) + self.shift_out).flatten(-2))
        return self.scale.undo(x.transpose(-1, -2), level)


class ForecastBlock(nn.Module):
    """A mixer of channels and a network for each, beside skips and before norms."""

    def __init__(self, config: ForecastConfig, operator: str | nn.Module):
        super().__init__()
        self.attention = _mixer(config, operator) if config.mix else None
        self.attention_norm = nn.LayerNorm(config.dim) if config.mix else None
        self.dropout = nn.Dropout(config.dropout)
        self.mlp = feed_forward(config.dim, config.mlp * config.dim, config.dropout)
        self.mlp_norm = nn.LayerNorm(config.dim)

    def forward(self, x: Float[Tensor, "b channels d"]) -> Float[Tensor, "b channels d"]:
        """The channels after the block."""
        if self.attention is not None and self.attention_norm is not None:
            x = self.attention_norm(x + self.dropout(self.attention(x)))
        return self.mlp_norm(x + self.mlp(x))


class StaticMixer(nn.Module):
    """A mixer whose plan does not depend on the tokens: out(plan @ value(x))."""

    def __init__(self, dim: int, operator: nn.Module):
        super().__init__()
        self.value = nn.Linear(dim, dim)
        self.operator = operator
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Float[Tensor, "b channels d"]) -> Float[Tensor, "b channels d"]:
        """The mixed channels."""
        return self.out(self.operator(x, x, self.value(x)))


class RevIN(nn.Module):
    """Reversible instance normalization: standardise every window, and undo it on the forecast.

        z = (x - mean) / sqrt(var + eps) * factor + shift,    mean and var over the time steps of x

    Mean and deviation receive no gradient.

    >>> import torch
    >>> scale, x = RevIN(3), 5 + 2 * torch.randn(2, 11, 3)
    >>> z, level = scale(x)
    >>> bool(torch.allclose(scale.undo(z, level), x, atol=1e-5)), bool(z.mean(1).abs().max() < 1e-5)
    (True, True)

    Reference: Kim et al., Reversible instance normalization, ICLR 2022.
    """

    def __init__(self, channels: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.factor = nn.Parameter(torch.ones(channels))
        self.shift = nn.Parameter(torch.zeros(channels))

    def forward(
        self, x: Float[Tensor, "b n channels"]
    ) -> tuple[Float[Tensor, "b n channels"], tuple[Tensor, Tensor]]:
        """The scaled window, and its mean and deviation."""
        mean = x.mean(-2, keepdim=True).detach()
        deviation = (x.var(-2, keepdim=True, correction=0) + self.eps).sqrt().detach()
        return (x - mean) / deviation * self.factor + self.shift, (mean, deviation)

    def undo(
        self, z: Float[Tensor, "b n channels"], level: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "b n channels"]:
        """A scaled forecast in the units of its window."""
        mean, deviation = level
        # a learned factor of zero must not divide
        return (z - self.shift) / (self.factor + self.eps**2) * deviation + mean


def _mixer(config: ForecastConfig, operator: str | nn.Module) -> nn.Module:
    if isinstance(operator, str):
        row, options = parse_operator(operator, OPERATORS)
        if row.name == "mixing":
            return StaticMixer(config.dim, Mixing(**{"tokens": config.channels} | options))
    elif isinstance(operator, Mixing):
        return StaticMixer(config.dim, copy.deepcopy(operator))
    return Attention(config.dim, config.heads, copy.deepcopy(operator))
