"""A forecaster of multivariate series: linear in time, channels mixed by an operator."""

import copy
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bistoch.functional import OPERATORS, inputs, parse_operator
from bistoch.models.build import check_sizes, check_windows
from bistoch.models.folding import embed_folded, folding_pays, read_out, read_out_folded
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
        plan_dropout: probability of dropping an entry of the matrix of NormLin in training, as the
            published code does; its sums are then no longer those of the operator.
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
    plan_dropout: float = 0.0

    def __post_init__(self) -> None:
        names = ("channels", "lookback", "horizon", "extend", "depth", "mlp")
        check_sizes("Forecaster", self, *names)
        inputs.check_probability("Forecaster", "plan_dropout", self.plan_dropout)


class Forecaster(nn.Module):
    """OLinear: windows in a basis where time steps are uncorrelated, channels mixed by an operator.

    Every channel is one token. With "mixing", the default, the mixer is NormLin: a learned matrix
    that does not depend on the tokens. Any other operator mixes by attention, and `mix=False` not
    at all. By default there is no dropout on the plan, which would change its sums.

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
        check_windows("Forecaster", windows, config.lookback, config.channels)
        scaled, level = self.scale(windows)
        x = embed_folded(scaled.mT, self.factors, self.axes_in, self.shift_in, self.embed)
        for block in self.blocks:
            x = block(x)
        first: nn.Linear = self.head[0]  # type: ignore[assignment]
        pays = folding_pays(
            len(x) * config.channels, config.extend, config.horizon, config.dim, first.out_features
        )
        last = read_out_folded if pays else read_out
        x = last(self.norm(x), self.unfold, self.axes_out, self.shift_out, first)
        for layer in list(self.head)[1:]:
            x = layer(x)
        return self.scale.undo(x.mT, level)


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

    def __init__(self, dim: int, operator: Mixing, plan_dropout: float = 0.0):
        super().__init__()
        self.value = nn.Linear(dim, dim)
        self.operator = operator
        self.plan_dropout = nn.Dropout(plan_dropout)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Float[Tensor, "b channels d"]) -> Float[Tensor, "b channels d"]:
        """The mixed channels."""
        if self.training and self.plan_dropout.p:
            # one draw for the batch: there is one plan
            plan = self.plan_dropout(self.operator.plan(x[0], x[0]))
            return self.out(plan @ self.value(x))
        return self.out(self.operator(x, x, self.value(x)))


class RevIN(nn.Module):
    """Reversible instance normalization: standardise every window, and undo it on the forecast.

        z = (x - mean) / sqrt(var + eps) * factor + shift,    mean and var over the time steps of x

    Mean and deviation receive no gradient.

    Args:
        channels: number of series.
        eps: added to the variance.
        learned: whether factor and shift, one and zero at first, are parameters.

    >>> import torch
    >>> scale, x = RevIN(3), 5 + 2 * torch.randn(2, 11, 3)
    >>> z, level = scale(x)
    >>> bool(torch.allclose(scale.undo(z, level), x, atol=1e-5)), bool(z.mean(1).abs().max() < 1e-5)
    (True, True)

    Reference: Kim et al., Reversible instance normalization, ICLR 2022.
    """

    factor: Tensor
    shift: Tensor

    def __init__(self, channels: int, eps: float = 1e-5, *, learned: bool = True):
        super().__init__()
        self.eps = eps
        keep = nn.Parameter if learned else nn.Buffer
        self.factor = keep(torch.ones(channels))
        self.shift = keep(torch.zeros(channels))

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
            mixing = Mixing(**{"tokens": config.channels} | options)
            return StaticMixer(config.dim, mixing, config.plan_dropout)
    elif isinstance(operator, Mixing):
        return StaticMixer(config.dim, copy.deepcopy(operator), config.plan_dropout)
    if config.plan_dropout:
        raise ValueError(
            f"Forecaster: plan_dropout belongs to the operator mixing, but it is "
            f"{config.plan_dropout} and the operator is {operator}; leave it out"
        )
    return Attention(config.dim, config.heads, copy.deepcopy(operator))
