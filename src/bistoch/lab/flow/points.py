"""`bistoch flow points`: a cloud of points spreads and clusters, against its own heat flow."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from bistoch.flows import FlowState, w2_exact, w2_sliced
from bistoch.lab.device import CPU
from bistoch.lab.drawing import row
from bistoch.lab.flow.figures import draw_clouds, draw_curves, scatter
from bistoch.lab.flow.report import FlowReport, check_index
from bistoch.lab.flow.trajectory import Trajectory

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
    device: torch.device = CPU,
) -> Path:
    """A cloud in both directions; its exact heat flow is the cloud with Gaussian noise added."""
    generator = torch.Generator().manual_seed(seed)
    x = read_cloud(source, n, index, generator)
    report = FlowReport(
        f"points {source}", "A cloud of points under attention", out, console, device, n=n, eps=eps,
        time=time, lam=lam, index=index, seed=seed,
    )  # fmt: skip
    found = {
        way: report.follow(
            f"points-{way}", x, time, eps, _spread, keep=12, direction=way, lam=lam
        )
        for way in ("heat", "cluster")
    }  # fmt: skip
    heat = found["heat"]
    kind = "W2" if len(x) <= EXACT else "sliced W2"
    distances = distance_rows(x, heat.some(5), generator)
    head = ["t", "flow to noisy points", "two draws of noisy points"]
    report.numbers(f"{kind} to the exact heat flow of the points", head, distances)
    shown = {way: one.some(5) for way, one in found.items()}
    _, flow, draws = distances[-1]
    report.finding(
        f"At t = {time:g} the flow is {flow:.3g} away from the exact heat flow of the points "
        f"({kind}); two draws of that are {draws:.3g} apart.",
        draw_clouds(shown, x[:, 0]), "The cloud over time, in both directions.",
    )  # fmt: skip
    _curves(report, x, found)
    reach = 1.05 * heat.last.abs().max().item()

    def paint(axes: Any, frame: tuple[float, Tensor]) -> None:
        scatter(axes, frame[1], x[:, 0], (-reach, reach))

    frames = [*reversed(found["cluster"].snapshots.items()), *heat.snapshots.items()]
    report.animation("points", "From clusters to the cloud to heat.", frames, paint, size=(4, 4))
    return report.finish()


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
        line: list[Any] = [f"{time:.3g}"]
        if len(x) <= EXACT:
            line += [w2_exact(points, first), w2_exact(second, first)]
        else:
            seeds = (torch.Generator().manual_seed(0) for _ in range(2))
            line += [w2_sliced(cloud, first, generator=g)
                    for cloud, g in zip((points, second), seeds, strict=True)]  # fmt: skip
        rows.append(line)
    return rows


def _spread(state: FlowState) -> dict[str, float]:
    return {"variance": state.particles.var(0).sum().item()}


def _curves(report: FlowReport, x: Tensor, found: dict[str, Trajectory]) -> None:
    curves = {way: one.curve("variance") for way, one in found.items()}
    times = found["heat"].times
    curves["exact heat"] = [curves["heat"][0] + x.shape[1] * t for t in times]
    figure, (left, right) = row(2)
    draw_curves(left, times, curves, "total variance")
    passes = {way: one.curve("passes")[1:] for way, one in found.items()}
    draw_curves(right, times[1:], passes, "passes over all pairs per step")
    report.figure(figure, "Variance, and the work of each step.")
    report.numbers(
        "Work", ["direction", "steps", "passes in all", "largest error", "variance at the end"],
        [[way, len(one.times) - 1, sum(one.curve("passes")), max(one.curve("error")),
          one.curve("variance")[-1]] for way, one in found.items()],
    )  # fmt: skip
