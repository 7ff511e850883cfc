"""The forecasters of the OLinear study: published settings and numbers, axes, models, errors."""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from bistoch.lab.data import Series, load
from bistoch.lab.train import Forecast, Recipe
from bistoch.lab.train.loop import EVALUATION_BATCH
from bistoch.models import (
    DLinear,
    DLinearConfig,
    ForecastConfig,
    Forecaster,
    ITransformer,
    ITransformerConfig,
)
from bistoch.nn import OrthoTrans
from bistoch.nn.orthotrans import lag_correlation

LONG, WEEKS = (96, 192, 336, 720), (24, 36, 48, 60)


class Setting(NamedTuple):
    """How OLinear is trained on a data set, as its scripts say; `share` of the rows make its axes.

    A tuple of four is by horizon. `linear_lr` is the learning rate of DLinear's own scripts.
    """

    depth: int = 2
    lr: float | tuple[float, ...] = 1e-4
    dropout: float | tuple[float, ...] = 0.0
    schedule: Any = "halving"
    patience: int = 8
    batch_size: int = 32
    epochs: int | None = None
    lookback: int = 96
    horizons: tuple[int, ...] = LONG
    share: float = 0.7
    linear_lr: float = 5e-3


SETTINGS = {
    "etth1": Setting(lr=(5e-4, 5e-4, 5e-4, 1e-4), dropout=0.2, share=0.6),
    "etth2": Setting(3, 2e-4, (0.2, 0.2, 0.2, 0.3), share=0.6, linear_lr=0.05),
    "ettm1": Setting(2, 1e-4, (0.1, 0.1, 0.1, 0.2), share=0.6, linear_lr=1e-4),
    "ettm2": Setting(1, 1e-4, (0.2, 0.2, 0.2, 0.3), share=0.6, linear_lr=1e-3),
    "weather": Setting(2, 1e-3, schedule="decay", patience=5, linear_lr=1e-4),
    "exchange": Setting(epochs=1, linear_lr=5e-4),
    "illness": Setting(
        schedule="decay", patience=10, batch_size=4, lookback=36, horizons=WEEKS, linear_lr=0.01
    ),
    # a smoke run: two waves and their sum, from no file
    "waves": Setting(1, 1e-3, lookback=12, horizons=(4,)),
}  # fmt: skip
NAMES = {"etth1": "ETTh1", "etth2": "ETTh2", "ettm1": "ETTm1", "ettm2": "ETTm2"}
NAMES |= {"weather": "Weather", "exchange": "Exchange", "illness": "ILI", "waves": "waves"}

# MSE and MAE with a window of 96, by horizon: OLinear, Table 15, where baselines are quoted
Numbers = dict[str, tuple[tuple[float, float], ...]]
OLINEAR: Numbers = {
    "etth1": ((0.360, 0.382), (0.416, 0.414), (0.457, 0.438), (0.463, 0.462)),
    "etth2": ((0.284, 0.329), (0.360, 0.379), (0.409, 0.415), (0.415, 0.431)),
    "ettm1": ((0.302, 0.334), (0.357, 0.363), (0.387, 0.385), (0.452, 0.426)),
    "ettm2": ((0.169, 0.249), (0.232, 0.290), (0.291, 0.328), (0.389, 0.387)),
}
ITRANSFORMER: Numbers = {
    "etth1": ((0.386, 0.405), (0.441, 0.436), (0.487, 0.458), (0.503, 0.491)),
    "etth2": ((0.297, 0.349), (0.380, 0.400), (0.428, 0.432), (0.427, 0.445)),
    "ettm1": ((0.334, 0.368), (0.377, 0.391), (0.426, 0.420), (0.491, 0.459)),
    "ettm2": ((0.180, 0.264), (0.250, 0.309), (0.311, 0.348), (0.412, 0.407)),
}
DLINEAR: Numbers = {
    "etth1": ((0.386, 0.400), (0.437, 0.432), (0.481, 0.459), (0.519, 0.516)),
    "etth2": ((0.333, 0.387), (0.477, 0.476), (0.594, 0.541), (0.831, 0.657)),
    "ettm1": ((0.345, 0.372), (0.380, 0.389), (0.413, 0.413), (0.474, 0.453)),
    "ettm2": ((0.193, 0.292), (0.284, 0.362), (0.369, 0.427), (0.554, 0.522)),
}
# averages over the four horizons, and those of another group's run of the published code
AVERAGES = {
    "etth1": (0.424, 0.424), "etth2": (0.367, 0.388), "ettm1": (0.374, 0.377),
    "ettm2": (0.270, 0.313), "weather": (0.237, 0.260), "exchange": (0.355, 0.399),
    "illness": (1.764, None),
}  # fmt: skip
RERUNS = {"etth1": (0.444, 0.435), "ettm1": (0.383, 0.384), "exchange": (0.489, 0.468)}

# the mixers that are swapped, everything else being equal
MIXERS = {
    "NormLin": "mixing",
    "no mixing": None,
    "softmax attention": "softmax",
    "elastic NormLin": "mixing(lam=0.5)",
    "balanced NormLin": "mixing(lam=1.0)",
    "learned lam": "mixing(lam=0.5, learn_lam=True)",
}
PUBLISHED_AXES, AS_PUBLISHED = "NormLin, published axes", "NormLin as published"
BASELINES = ("DLinear", "DLinear, weighted L1", "iTransformer", "iTransformer, weighted L1")
# the width of the published models
WIDE = 512


@dataclass(frozen=True)
class Sizes:
    """The width, and the most epochs: of a rate that halves, and of one that decays slowly."""

    dim: int = 128
    epochs: int = 5
    slow_epochs: int = 10


def at_horizon(value: Any, data: str, horizon: int) -> Any:
    """A setting that may differ between horizons.

    >>> at_horizon((1, 2, 3, 4), "etth1", 336), at_horizon(0.2, "etth1", 336)
    (3, 0.2)
    """
    return value[SETTINGS[data].horizons.index(horizon)] if isinstance(value, tuple) else value


@functools.cache
def read_data(name: str) -> Series:
    """A data set, or the waves of a smoke run."""
    if name != "waves":
        return load(name)
    time = np.arange(400.0)
    one, two = np.sin(time / 3), np.cos(time / 7)
    values = np.stack([one, two, one + two], -1)
    return Series("waves", "series", values, time, ("a", "b", "c"), "c", (240, 320, 400))


def open_forecast(data: str, horizon: int, *, weighted: bool) -> Forecast:
    """The task with the loss of OLinear, or with the squared error of the baselines."""
    lookback = SETTINGS[data].lookback
    return Forecast(
        read_data(data), lookback=lookback, horizon=horizon,
        loss="weighted_l1" if weighted else "mse",
    )  # fmt: skip


def recipe_of(data: str, horizon: int, model: str, sizes: Sizes) -> Recipe:
    """The published recipe of a model, in no more epochs than the sizes say.

    >>> [recipe_of("etth1", 720, model, Sizes()).lr for model in ("NormLin", "DLinear")]
    [0.0001, 0.005]
    """
    setting = SETTINGS[data]
    lr, schedule, epochs = at_horizon(setting.lr, data, horizon), setting.schedule, setting.epochs
    batch_size = setting.batch_size
    if model in BASELINES:
        # both were published with a rate that halves, and iTransformer with this one everywhere
        lr = setting.linear_lr if model.startswith("DLinear") else 1e-4
        schedule, epochs = "decay" if data == "illness" else "halving", None
        batch_size = 32 if model.startswith("DLinear") else batch_size
    most = sizes.slow_epochs if schedule == "decay" else sizes.epochs
    return Recipe(
        epochs=min(most, epochs or most), batch_size=batch_size, lr=lr, optimizer="adam",
        weight_decay=0.0, schedule=schedule, warmup=0.0, clip=None, patience=setting.patience,
    )  # fmt: skip


def make_model(data: str, horizon: int, model: str, sizes: Sizes) -> nn.Module:
    """A new model: OLinear with a mixer, or a baseline."""
    setting, series = SETTINGS[data], read_data(data)
    channels, lookback = series.values.shape[1], setting.lookback
    if model.startswith("DLinear"):
        return DLinear(DLinearConfig(channels, lookback, horizon))
    if model.startswith("iTransformer"):
        return ITransformer(
            ITransformerConfig(channels, lookback, horizon, dim=sizes.dim), "softmax"
        )
    published = model in (PUBLISHED_AXES, AS_PUBLISHED)
    operator = "mixing" if published else MIXERS[model]
    dropout = at_horizon(setting.dropout, data, horizon)
    config = ForecastConfig(
        channels, lookback, horizon, depth=setting.depth, dropout=dropout, mix=operator is not None,
        dim=WIDE if model == AS_PUBLISHED else sizes.dim,
        plan_dropout=dropout if model == AS_PUBLISHED else 0.0,
    )  # fmt: skip
    made = Forecaster(config, operator or "softmax")
    for axes in (made.axes_in, made.axes_out):
        axes.basis.copy_(find_axes(data, len(axes.basis), published=published))
    return made


@functools.cache
def find_axes(data: str, length: int, *, published: bool) -> Float[Tensor, "length length"]:
    """The axes of a data set: from its training rows by the Pearson matrix, or as published."""
    series = read_data(data)
    values = torch.from_numpy(series.values)
    if not published:
        return OrthoTrans.fit(values, length=length, train_rows=series.borders[0]).basis
    rows = int(SETTINGS[data].share * len(values))
    found = torch.linalg.eigh(published_correlation(values, length, rows))[1].flip(-1)
    largest = found.gather(0, found.abs().argmax(0, keepdim=True))
    return (found * torch.where(largest < 0, -1.0, 1.0)).T.float()


def published_correlation(
    values: Float[Tensor, "rows channels"], length: int, rows: int
) -> Float[Tensor, "length length"]:
    """The matrix of the published notebook, from the first rows of the file.

        R_ab = mean over channels of  cov(x_a, x_b) / var(x_b)

    It is not symmetric, and a share of all rows reaches beyond the training rows where these end
    earlier, as for ETT: 60 % of 17420 rows are 10452, but 8640 are for training.

    >>> wave = torch.arange(50.0).mul(0.3).sin()[:, None]
    >>> published_correlation(wave, 2, 40).diagonal()
    tensor([1., 1.], dtype=torch.float64)
    """
    found = []
    for channel in values[:rows].double().unbind(-1):
        covariance = channel.unfold(0, length, 1).T.cov()
        if bool((covariance.diagonal() >= 1e-4).all()):
            found.append(covariance / covariance.diagonal())
    return torch.stack(found).mean(0)


def compare_axes(data: str, length: int) -> dict[str, float]:
    """How far published axes are from clean ones, and what either leaves of the correlations.

    `left` is the share of the squared correlations of the test rows that is off the diagonal in
    the new axes; `alike` the mean absolute cosine of the ten largest axes of both.
    """
    series = read_data(data)
    values = torch.from_numpy(series.values)
    test = values[series.borders[1] : series.borders[2]]
    correlation = lag_correlation(test, length, train_rows=len(test))
    clean, published = (find_axes(data, length, published=p).double() for p in (False, True))
    found = {"alike": (clean[:10] * published[:10]).sum(-1).abs().mean().item()}
    for name, axes in (("clean", clean), ("published", published)):
        turned = (axes @ correlation @ axes.T).square()
        found[f"left_{name}"] = 1 - (turned.trace() / turned.sum()).item()
    return found


@torch.no_grad()
def errors_on_test(model: nn.Module, task: Forecast, device: torch.device) -> dict[str, float]:
    """MSE and MAE over all test windows, in units of the training deviation."""
    squared = absolute = 0.0
    for rows in torch.arange(task.count("test")).split(EVALUATION_BATCH):
        batch = task.batch("test", rows).to(device)
        miss = (model(*batch.inputs) - batch.target).double().flatten(1)
        squared += miss.square().mean(-1).sum().item()
        absolute += miss.abs().mean(-1).sum().item()
    count = task.count("test")
    return {"mse": squared / count, "mae": absolute / count}
