"""`bistoch flow points`: a cloud of points spreads and clusters, against its own heat flow."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from bistoch.flows import FlowState, w2_exact, w2_sliced
from bistoch.lab.drawing import QUIET, sheet, tidy
from bistoch.lab.flow.animate import animate
from bistoch.lab.flow.draw import draw_clouds, draw_curves, scatter
from bistoch.lab.flow.page import Page, check_index
from bistoch.lab.flow.track import Track, follow

SHAPES = ("spiral", "rings")
# an exact plan between clouds of this size takes seconds
EXACT = 1500


def shape(name: str, count: int, generator: torch.Generator) -> Tensor:
    """Points of a drawn shape in the plane, about one unit wide.

    >>> shape("rings", 10, torch.Generator().manual_seed(0)).shape
    torch.Size([10, 2])
    """
    turn = torch.rand(count, dtype=torch.float64, generator=generator)
    noise = 0.02 * torch.randn(count, 2, dtype=torch.float64, generator=generator)
    if name == "spiral":
        angle = 3 * math.pi * turn.sqrt()
        radius = angle / (3 * math.pi)
    else:
        angle = 2 * math.pi * turn
        inner = torch.rand(count, dtype=torch.float64, generator=generator) < 1 / 3
        radius = torch.where(inner, 0.5, 1.0)
    return torch.stack((radius * angle.cos(), radius * angle.sin()), -1) + noise


def read_cloud(source: str, count: int, index: int, generator: torch.Generator) -> Tensor:
    """A drawn shape, a shape of ModelNet10, or a file of numbers: .npy, .csv or .txt."""
    if source in SHAPES:
        return shape(source, count, generator)
    if source == "modelnet10":
        from bistoch.lab.data import load

        shapes = load("modelnet10").x_train
        check_index("flow points", index, len(shapes))
        points = torch.from_numpy(np.asarray(shapes[index], np.float64))
    else:
        points = _read_file(Path(source))
    chosen = torch.randperm(len(points), generator=generator)[:count]
    return points[chosen]


def _read_file(path: Path) -> Tensor:
    if not path.exists():
        raise ValueError(
            f"flow points: {str(path)!r} is neither one of {', '.join(SHAPES)}, modelnet10, nor a "
            "file; give a .npy, .csv or .txt file with one point per line"
        )
    try:
        if path.suffix == ".npy":
            numbers = np.load(path)
        else:
            numbers = np.loadtxt(path, delimiter="," if path.suffix == ".csv" else None, ndmin=2)
        numbers = np.asarray(numbers, np.float64)
    except (ValueError, OSError) as reason:
        raise ValueError(f"flow points: cannot read numbers from {path.name}: {reason}") from None
    if numbers.ndim != 2 or len(numbers) < 2 or not numbers.shape[1]:
        raise ValueError(
            f"flow points: {path.name} must hold two points or more, one point per line, but its "
            f"shape is {numbers.shape}"
        )
    return torch.from_numpy(numbers)


def run_points(
    *,
    source: str,
    n: int,
    eps: float,
    time: float,
    index: int,
    lam: float,
    seed: int,
    out: Path,
    console: Console,
) -> Path:
    """A cloud in both directions; its exact heat flow is the cloud with Gaussian noise added."""
    out.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    x = read_cloud(source, n, index, generator)
    words = f"--n {n} --eps {eps:g} --time {time:g} --lam {lam:g} --index {index} --seed {seed}"
    page = Page("A cloud of points under attention", f"bistoch flow points {source} {words}", out,
                console)  # fmt: skip
    keep = [time * share / 12 for share in range(13)]
    tracks = {
        way: follow(
            f"points-{way}", x, time, eps, measure=_spread, keep=keep, console=console, folder=out,
            direction=way, lam=lam,
        )
        for way in ("heat", "cluster")
    }  # fmt: skip
    for track in tracks.values():
        page.warn(track.warnings)
    _numbers(page, x, tracks["heat"], generator)
    shown = {way: track.some(5) for way, track in tracks.items()}
    page.figure(draw_clouds(shown, x[:, 0]), "The cloud over time, in both directions.")
    _curves(page, x, tracks)
    frames = [*reversed(tracks["cluster"].snapshots.items()), *tracks["heat"].snapshots.items()]
    reach = 1.05 * tracks["heat"].last.abs().max().item()

    def paint(axes: Any, frame: tuple[float, Tensor]) -> None:
        scatter(axes, frame[1], x[:, 0], (-reach, reach))

    page.animation(
        animate(frames, paint, size=(4, 4)), "points.gif", "From clusters to the cloud to heat."
    )
    return page.write()


def noisy(x: Tensor, time: float, generator: torch.Generator) -> Tensor:
    """Particles of the exact heat flow of the cloud itself: Gaussian noise of this variance."""
    noise = torch.randn(x.shape, dtype=torch.float64, generator=generator).to(x.dtype)
    return x + math.sqrt(time) * noise


def distance_rows(
    x: Tensor, snapshots: dict[float, Tensor], generator: torch.Generator
) -> list[list[Any]]:
    """For some times: flow to noisy cloud, and one noisy cloud to another, by exact or sliced W2.

    The flow spreads the density behind the points, the noisy cloud the points themselves: they
    agree once the noise is wider than the spacing.
    """
    rows = []
    for time, points in snapshots.items():
        first, second = noisy(x, time, generator), noisy(x, time, generator)
        row: list[Any] = [f"{time:.3g}"]
        if len(x) <= EXACT:
            row += [w2_exact(points, first), w2_exact(second, first)]
        else:
            seeds = (torch.Generator().manual_seed(0) for _ in range(2))
            row += [w2_sliced(cloud, first, generator=g)
                    for cloud, g in zip((points, second), seeds, strict=True)]  # fmt: skip
        rows.append(row)
    return rows


def _numbers(page: Page, x: Tensor, track: Track, generator: torch.Generator) -> None:
    kind = "W2" if len(x) <= EXACT else "sliced W2"
    rows = distance_rows(x, track.some(5), generator)
    page.table(
        f"{kind} to the exact heat flow of the points",
        ["t", "flow to noisy points", "two draws of noisy points"], rows,
    )  # fmt: skip


def _spread(state: FlowState) -> dict[str, float]:
    return {"variance": state.particles.var(0).sum().item()}


def _curves(page: Page, x: Tensor, tracks: dict[str, Track]) -> None:
    figure, axes = sheet(1, 2)
    left, right = axes[0]
    heat = tracks["heat"]
    exact = [heat.curve("variance")[0] + x.shape[1] * t for t in heat.times]
    curves = {way: track.curve("variance") for way, track in tracks.items()} | {"exact heat": exact}
    draw_curves(left, heat.times, curves, {"exact heat": {"color": QUIET, "linestyle": "--"}})
    tidy(left, "total variance", "time")
    passes = {way: track.curve("passes")[1:] for way, track in tracks.items()}
    draw_curves(right, heat.times[1:], passes, {})
    tidy(right, "passes over all pairs per step", "time")
    page.figure(figure, "Variance, and the work of each step.")
    page.table(
        "Work", ["direction", "steps", "passes in all", "largest error", "variance at the end"],
        [[way, len(track.times) - 1, sum(track.curve("passes")), max(track.curve("error")),
          track.curve("variance")[-1]] for way, track in tracks.items()],
    )  # fmt: skip
