"""Rigid registration of ModelNet10 shapes: how much balance an assignment of points should have.

The target has other points of the same surface, rotated, shifted and noisy; some of them may be
outliers, or a part of the shape may be missing. Clean clouds want every point of the target to
be used; outliers must be left alone. All methods get the same clouds.
"""

import functools
import math
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.lab.data import load
from bistoch.lab.drawing import PALETTE, QUIET, legend_beside, row, tidy
from bistoch.lab.registration import (
    Assign,
    Motion,
    angle,
    anneal,
    elastic,
    nearest,
    register,
    slack,
    turn,
)
from bistoch.lab.study import Cell, Context, Result, Results, Study, Table, Verdict
from bistoch.lab.study.results import Metric

LAMS = (0.0, 0.5, 0.75, 0.9, 1.0)
METHODS = ("ICP", *(f"lam {lam:g}" for lam in LAMS), "slack")
# a registration is a success if its rotation is wrong by less than this, in degrees
SUCCESS = 10.0


@dataclass(frozen=True)
class Setting:
    """What makes a registration hard: degrees, and shares of outliers and of what is missing."""

    degrees: int
    outliers: int = 0
    crop: int = 0
    both: bool = False

    def __str__(self) -> str:
        where = " in both" if self.both else ""
        outliers = f", {self.outliers} % outliers{where}" if self.outliers else ""
        return f"{self.degrees} degrees{outliers}{f', {self.crop} % missing' * bool(self.crop)}"


CLEAN, OUTLIERS, MISSING = Setting(60), Setting(60, 25), Setting(60, crop=25)
SETTINGS = (
    CLEAN, OUTLIERS, Setting(60, 40), MISSING, Setting(60, 25, both=True), Setting(90),
    Setting(30), Setting(60, 10),
)  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """Shapes, points of a cloud, and the protocol of all methods."""

    data: str = "modelnet10"
    shapes: int | None = None
    points: int = 128
    noise: float = 0.01
    sigmas: tuple[float, float] = (0.5, 0.02)
    steps: int = 30
    iters: int = 10
    # the distance of a pair that is worth as much as staying single; chosen on training shapes
    reach: float = 0.5
    batch: int = 32


def cells(smoke: bool) -> list[Cell]:
    """All methods for every setting; a smoke run has three settings."""
    return [
        Cell(f"{setting}: {method}", {"setting": str(setting), "method": method})
        for setting in (SETTINGS[:3] if smoke else SETTINGS)
        for method in METHODS
    ]


def run(cell: Cell, seed: int, context: Context) -> Result:
    """The error of every shape, in degrees."""
    sizes: Sizes = context.sizes
    shapes = _shapes(sizes)
    setting = next(one for one in SETTINGS if str(one) == cell.options["setting"])
    source, target, truth = draw_pairs(shapes, setting, sizes, seed)
    sigmas, assign = anneal(*sizes.sigmas, sizes.steps), _method(cell.options["method"], sizes)
    errors: list[float] = []
    pairs = zip(*(x.split(sizes.batch) for x in (source, target, truth)), strict=True)
    for some, others, rotation in pairs:
        found = register(some, others, assign, sigmas).rotation
        errors += angle(found, rotation).tolist()
        context.step(len(errors), len(shapes))
    # as one text, since a record has a line for every number of a list
    return {"errors": " ".join(f"{error:.2f}" for error in errors)}


def degrees(result: Result) -> Any:
    """The error of every shape."""
    return [float(error) for error in result["errors"].split()]


def success(result: Result) -> Any:
    """Which shapes were registered, as ones and zeros."""
    return [int(error < SUCCESS) for error in degrees(result)]


def log_error(result: Result) -> Any:
    """The logarithm of every error, which a few upside-down shapes do not decide."""
    return [math.log(max(error, 0.1)) for error in degrees(result)]


def _method(name: str, sizes: Sizes) -> Assign:
    if name == "ICP":
        return nearest
    if name == "slack":
        return slack(sizes.reach, sizes.iters)
    return elastic(float(name.removeprefix("lam ")), sizes.iters)


@functools.cache
def _shapes(sizes: Sizes) -> Float[Tensor, "b p 3"]:
    return torch.from_numpy(load(sizes.data).x_test[: sizes.shapes])


def draw_pairs(
    shapes: Float[Tensor, "b p 3"], setting: Setting, sizes: Sizes, seed: int
) -> tuple[Float[Tensor, "b n 3"], Float[Tensor, "b n 3"], Float[Tensor, "b 3 3"]]:
    """Sources, targets that share no point with them, and the rotations between them."""
    generator = torch.Generator().manual_seed(seed)
    count, n = len(shapes), sizes.points

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    axis, towards = torch.randn(2, count, 3, generator=generator)
    points = _take(shapes, uniform(*shapes.shape[:2]).argsort(-1))
    source, rest = points[:, :n].clone(), points[:, n:]
    if setting.crop:
        # what lies farthest in a random direction is missing
        kept = (1 - setting.crop / 100) * rest.shape[1]
        near = (rest @ towards[..., None]).squeeze(-1).argsort(-1)[:, : round(kept)]
        rest = _take(rest, near.gather(1, uniform(*near.shape).argsort(-1)))
    target = rest[:, :n].clone()
    wrong = round(setting.outliers / 100 * n)
    target[:, :wrong] = 2 * uniform(count, wrong, 3) - 1
    if setting.both:
        source[:, :wrong] = 2 * uniform(count, wrong, 3) - 1
    truth = Motion(turn(axis, math.radians(setting.degrees)), uniform(count, 1, 3) - 0.5)
    noise = sizes.noise * torch.randn(target.shape, generator=generator)
    return source, truth(target) + noise, truth.rotation


def _take(points: Float[Tensor, "b p 3"], places: Tensor) -> Float[Tensor, "b n 3"]:
    return points.gather(1, places[..., None].expand(-1, -1, 3))


def settings_of(results: Results) -> list[str]:
    """The settings that were run, in order."""
    return list(dict.fromkeys(results.options(name)["setting"] for name in results.names))


def values(results: Results, setting: str, method: str, metric: Metric) -> list[float]:
    """A number of every shape, over all seeds."""
    return [x for one in results.values(f"{setting}: {method}", metric) for x in one]


def tables(results: Results) -> list[Table]:
    """Success and median error of all methods, a line per setting; then differences to lam 0."""
    settings = settings_of(results)

    def shown(setting: str, method: str) -> str:
        found = values(results, setting, method, success)
        if not found:
            return ""
        error = median(values(results, setting, method, degrees))
        return f"{100 * mean(found):.1f} / {error:.1f}"

    lines = [[setting, *(shown(setting, method) for method in METHODS)] for setting in settings]
    others = [method for method in METHODS if method != "lam 0"]
    differences = []
    for setting in settings:
        line = [setting]
        for method in others:
            found = results.difference(f"{setting}: {method}", f"{setting}: lam 0", success)
            line.append("" if found is None else found.text(".1f", 100))
        differences.append(line)
    return [
        Table(["setting", *METHODS], lines, "Success in percent / median error in degrees."),
        Table(["setting", *others], differences, "Success less that of lam 0, in points."),
    ]


def checks(results: Results) -> list[Verdict]:
    """What balance gains on clean clouds, what it costs with outliers, and what avoids both."""
    clean, dirty, worse, missing, both, *_ = map(str, SETTINGS)

    def more(text: str, setting: str, ours: str, baseline: str, *, larger: bool = True) -> Verdict:
        return results.claim(
            f"{setting}: {text}", f"{setting}: {ours}", f"{setting}: {baseline}", success,
            larger=larger, unit="points of success", form=".1f", scale=100,
        )  # fmt: skip

    error = results.claim(
        f"{clean}: full balance has a smaller logarithmic error than softmax", f"{clean}: lam 1",
        f"{clean}: lam 0", log_error, larger=False,
    )  # fmt: skip
    return [
        error,
        more("full balance succeeds more often than softmax", clean, "lam 1", "lam 0"),
        more("softmax succeeds more often than ICP", clean, "lam 0", "ICP"),
        more("full balance fails more often than softmax", dirty, "lam 1", "lam 0", larger=False),
        more("lam 0.9 succeeds more often than softmax", dirty, "lam 0.9", "lam 0"),
        more("slack succeeds more often than softmax", dirty, "slack", "lam 0"),
        more("slack succeeds more often than lam 0.9", dirty, "slack", "lam 0.9"),
        more("lam 0.9 succeeds more often than softmax", worse, "lam 0.9", "lam 0"),
        more("slack succeeds more often than lam 0.9", worse, "slack", "lam 0.9"),
        more("full balance fails more often than softmax", missing, "lam 1", "lam 0", larger=False),
        more("slack succeeds more often than lam 0.9", missing, "slack", "lam 0.9"),
        more("slack succeeds more often than lam 0.9", both, "slack", "lam 0.9"),
    ]


def figure(results: Results) -> Any:
    """Success over lam for the settings at 60 degrees, with slack and ICP beside it."""
    shown = [setting for setting in settings_of(results) if setting.startswith("60")]
    made, (axes, beside) = row(2, width=4.6, height=3.6, sharey=True, width_ratios=(3, 1))
    for setting, colour in zip(shown, (*PALETTE, QUIET), strict=False):
        found = {method: values(results, setting, method, success) for method in METHODS}
        rates = {method: 100 * mean(hits) for method, hits in found.items() if hits}
        lams = [lam for lam in LAMS if f"lam {lam:g}" in rates]
        curve = [rates[f"lam {lam:g}"] for lam in lams]
        label = setting.removeprefix("60 degrees").removeprefix(", ") or "clean"
        axes.plot(lams, curve, color=colour, marker="o", markersize=4, label=label)
        others = [method for method in ("slack", "ICP") if method in rates]
        beside.plot(others, [rates[method] for method in others], "o", color=colour)
    tidy(axes, "rotations found within 10 degrees (%)", "lam: 0 is softmax, 1 is full balance")
    tidy(beside, "other methods")
    beside.set_xlim(-0.5, 1.5)
    legend_beside(made, axes)
    return made


STUDY = Study(
    name="registration",
    title="Registration of point clouds",
    question="How strongly should the points of the target be balanced?",
    source="Granger, Pennec, EM-ICP, ECCV 2002; Yew, Lee, RPM-Net, CVPR 2020; this library",
    about="All test shapes of ModelNet10. The source is drawn from the surface; the target has "
    "other points of it, rotated about a random axis, shifted, with noise. Outliers replace points "
    "of the target by points drawn evenly from the cube around the shape; where a part is missing, "
    "it is what lies farthest in a random direction. All methods but ICP assign softly, with a "
    "length scale that falls step by step, and find the motion by Kabsch's formula. A success is "
    "an error of the rotation below 10 degrees. Intervals are those of the bootstrap over shapes.",
    sizes=lambda settings: (
        Sizes("shapes", shapes=12, points=24, steps=12) if settings.smoke else Sizes()
    ),
    cells=cells,
    run=run,
    checks=checks,
    tables=tables,
    figure=figure,
    caption="Success over lam. Clean clouds gain from full balance; outliers are forced into it.",
    seeds=(0,),
)
