"""DLinear: the forecast is linear in the window, its trend and the rest with a matrix each."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import avg_pool1d, pad

from bistoch.functional import inputs
from bistoch.models.build import check_windows


@dataclass(frozen=True)
class DLinearConfig:
    """The sizes of a `DLinear`.

    Args:
        channels: number of series.
        lookback, horizon: time steps of the input and of the forecast.
        average: time steps of the moving average that is the trend; odd.
    """

    channels: int
    lookback: int = 96
    horizon: int = 96
    average: int = 25

    def __post_init__(self) -> None:
        for name in ("channels", "lookback", "horizon", "average"):
            inputs.check_count("DLinear", name, getattr(self, name), least=1)
        if self.average % 2 == 0:
            raise ValueError(
                f"DLinear: average must be odd, so that it has a middle, but it is {self.average}; "
                f"use for example {self.average + 1}"
            )


class DLinear(nn.Module):
    """One matrix for the trend of a window and one for the rest, the same for all channels.

        forecast = A trend(x) + B (x - trend(x)) + biases,    trend: moving average, ends repeated

    It mixes no channels and has no operator: a baseline for those that do.

    Args:
        config: its sizes.

    >>> import torch
    >>> model = DLinear(DLinearConfig(channels=3, lookback=24, horizon=12))
    >>> model(torch.randn(2, 24, 3)).shape
    torch.Size([2, 12, 3])

    Reference: Zeng et al., Are Transformers effective for time series forecasting?, AAAI 2023.
    """

    def __init__(self, config: DLinearConfig) -> None:
        super().__init__()
        self.config = config
        self.trend = nn.Linear(config.lookback, config.horizon)
        self.rest = nn.Linear(config.lookback, config.horizon)

    def forward(
        self, windows: Float[Tensor, "b lookback channels"]
    ) -> Float[Tensor, "b horizon channels"]:
        """The next time steps of every channel."""
        check_windows("DLinear", windows, self.config.lookback, self.config.channels)
        x = windows.mT
        trend = moving_average(x, self.config.average)
        return (self.trend(trend) + self.rest(x - trend)).mT


def moving_average(x: Float[Tensor, "b channels n"], length: int) -> Float[Tensor, "b channels n"]:
    """The mean of the values around every value; the first and the last are repeated outside.

    >>> import torch
    >>> moving_average(torch.tensor([[[0.0, 3.0, 6.0, 6.0]]]), 3)
    tensor([[[1., 3., 5., 6.]]])
    """
    return avg_pool1d(pad(x, (length // 2, length // 2), mode="replicate"), length, stride=1)
