"""iTransformer: every series is one token, and attention mixes the series."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from bistoch.models.build import check_sizes, check_windows
from bistoch.models.forecast import ForecastBlock, ForecastConfig, RevIN


@dataclass(frozen=True)
class ITransformerConfig:
    """The sizes of an `ITransformer`.

    Args:
        channels: number of series.
        lookback, horizon: time steps of the input and of the forecast.
        depth, dim, heads: blocks, features of a channel, heads of attention between channels.
        mlp: hidden features of the MLP of a block in units of `dim`.
        dropout: probability of dropping an output of the embedding, of attention or of the MLP.
    """

    channels: int
    lookback: int = 96
    horizon: int = 96
    depth: int = 2
    dim: int = 128
    heads: int = 8
    mlp: int = 1
    dropout: float = 0.1

    def __post_init__(self) -> None:
        names = ("channels", "lookback", "horizon", "depth", "mlp")
        check_sizes("ITransformer", self, *names)


class ITransformer(nn.Module):
    """A window of every channel is embedded by one linear layer; attention mixes the channels.

    The encoder is that of `Forecaster`. Windows are standardised one by one, and forecasts are put
    back to their level.

    Args:
        config: its sizes.
        operator: text or module for `bistoch.nn.Attention`.

    >>> import torch
    >>> config = ITransformerConfig(channels=7, lookback=24, horizon=12, dim=16, heads=2)
    >>> ITransformer(config, "elastic(lam=0.5)")(torch.randn(3, 24, 7)).shape
    torch.Size([3, 12, 7])

    Reference: Liu et al., iTransformer, ICLR 2024.
    """

    def __init__(self, config: ITransformerConfig, operator: str | nn.Module = "softmax") -> None:
        super().__init__()
        self.config = config
        self.scale = RevIN(config.channels, learned=False)
        self.embed = nn.Linear(config.lookback, config.dim)
        self.dropout = nn.Dropout(config.dropout)
        sizes = ForecastConfig(
            channels=config.channels, depth=config.depth, dim=config.dim, heads=config.heads,
            mlp=config.mlp, dropout=config.dropout,
        )  # fmt: skip
        self.blocks = nn.ModuleList(ForecastBlock(sizes, operator) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, config.horizon)

    def forward(
        self, windows: Float[Tensor, "b lookback channels"]
    ) -> Float[Tensor, "b horizon channels"]:
        """The next time steps of every channel."""
        check_windows("ITransformer", windows, self.config.lookback, self.config.channels)
        scaled, level = self.scale(windows)
        x = self.dropout(self.embed(scaled.mT))
        for block in self.blocks:
            x = block(x)
        return self.scale.undo(self.head(self.norm(x)).mT, level)
