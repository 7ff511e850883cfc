"""The pictures of flows. Functions take data and return a figure; saving is up to the caller."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bistoch.lab.drawing import INK, PALETTE, RULE, legend, sheet, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_densities(
    snapshots: Mapping[float, Tensor], density: Callable[[float, Tensor], Tensor], title: str
) -> "Figure":
    """Histograms of particles on the line, one panel per time, with the true density over them.

    >>> law = lambda t, x: torch.exp(-x**2 / 2 / (1 + t))
    >>> len(draw_densities({0.0: torch.randn(9), 1.0: torch.randn(9)}, law, "").axes)
    2
    """
    reach = 1.05 * max(points.abs().max().item() for points in snapshots.values())
    grid = torch.linspace(-reach, reach, 400, dtype=torch.float64)
    figure, axes = sheet(1, len(snapshots), width=2.7, height=2.5, sharey=True, sharex=True)
    for panel, (time, points) in zip(axes[0], snapshots.items(), strict=True):
        panel.hist(
            points.flatten().numpy(), bins=60, range=(-reach, reach), density=True,
            color=PALETTE[5], label="particles",
        )  # fmt: skip
        panel.plot(grid, density(time, grid), color=PALETTE[1], linewidth=1.4, label="exact")
        tidy(panel, f"t = {time:.3g}", "x")
    # room for the legend above what it explains
    axes[0][0].set_ylim(0, 1.35 * axes[0][0].get_ylim()[1])
    legend(axes[0][0])
    figure.suptitle(title, fontsize=10, color=INK)
    return figure


def draw_curves(
    axes: Any, x: Sequence[float], curves: Mapping[str, Sequence[float]], styles: Mapping[str, Any]
) -> None:
    """Several curves over one x; a style may be named for each."""
    for number, (name, y) in enumerate(curves.items()):
        style = {"color": PALETTE[number % len(PALETTE)], "linewidth": 1.5} | styles.get(name, {})
        axes.plot(x, y, label=name, **style)
    legend(axes)


def draw_order(
    axes: Any, x: Sequence[float], y: Sequence[float], name: str, colour: str, predicted: float
) -> float:
    """Points on two logarithmic scales with the predicted slope; returns the fitted one."""
    order = fitted_order(x, y)
    axes.loglog(x, y, "o", color=colour, markersize=4, label=f"{name}: order {order:.2f}")
    line = [y[0] * (value / x[0]) ** predicted for value in x]
    axes.loglog(x, line, color=colour, linewidth=0.9, linestyle=(0, (4, 2)))
    name_places(axes, x)
    return order


def name_places(axes: Any, x: Sequence[float]) -> None:
    """Say where the points are on a logarithmic axis, and nothing else."""
    axes.set_xticks(list(x), [f"{value:g}" for value in x])
    axes.set_xticks([], minor=True)


def fitted_order(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of a straight line through points on two logarithmic scales.

    >>> round(fitted_order([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    a, b = (torch.tensor(values, dtype=torch.float64).log() for values in (x, y))
    a = a - a.mean()
    return ((a * b).sum() / (a * a).sum()).item()


def draw_clouds(
    clouds: Mapping[str, Mapping[float, Tensor]], colours: Tensor | None = None
) -> "Figure":
    """Clouds in the plane: one row per name, one column per time; the third dimension is turned in.

    >>> len(draw_clouds({"heat": {0.0: torch.randn(5, 2), 1.0: torch.randn(5, 3)}}).axes)
    2
    """
    columns = max(len(snapshots) for snapshots in clouds.values())
    figure, axes = sheet(len(clouds), columns, width=2.2, height=2.3)
    for line, (name, snapshots) in zip(axes, clouds.items(), strict=True):
        # one scale per row: what shrinks is seen to shrink
        flat = [torch.from_numpy(flatten(points)) for points in snapshots.values()]
        reach = 1.08 * max(points.abs().max().item() for points in flat)
        for number, (time, points) in enumerate(snapshots.items()):
            scatter(line[number], points, colours, (-reach, reach))
            line[number].set_title(f"t = {time:.3g}", fontsize=9, color=INK)
        line[0].set_ylabel(name, fontsize=9, color=INK)
        for empty in line[len(snapshots) :]:
            empty.set_axis_off()
    return figure


def scatter(axes: Any, points: Tensor, colours: Tensor | None, limits: Any = None) -> None:
    """One cloud in a square panel without ticks."""
    flat = flatten(points)
    size = max(0.4, min(8.0, 4000 / max(len(flat), 1)))
    shade = PALETTE[0] if colours is None else colours.numpy()
    options = {} if colours is None else {"cmap": "viridis"}
    axes.scatter(flat[:, 0], flat[:, 1], s=size, c=shade, linewidths=0, **options)
    axes.set(xticks=[], yticks=[], aspect="equal")
    if limits is not None:
        axes.set(xlim=limits, ylim=limits)
    for spine in axes.spines.values():
        spine.set(linewidth=0.6, edgecolor=RULE)


def flatten(points: Tensor) -> Any:
    """Two coordinates for the paper: those of the plane, or a fixed view of space."""
    if points.shape[-1] == 1:
        return torch.cat((points, torch.zeros_like(points)), -1).numpy()
    if points.shape[-1] == 2:
        return points.numpy()
    x, y, z = (points[..., axis] for axis in range(3))
    return torch.stack((0.87 * x - 0.5 * y, 0.25 * x + 0.43 * y + 0.87 * z), -1).numpy()


def draw_pictures(strips: Mapping[str, Sequence[Tensor]], heads: Sequence[str]) -> "Figure":
    """Rows of grey pictures, each with its own scale from black to white.

    >>> len(draw_pictures({"a": [torch.rand(4, 4)] * 3}, ["1", "2", "3"]).axes)
    3
    """
    figure, axes = sheet(len(strips), len(heads), width=1.15, height=1.25)
    for line, (name, pictures) in zip(axes, strips.items(), strict=True):
        for panel, picture in zip(line, pictures, strict=True):
            panel.imshow(picture.numpy(), cmap="gray")
            panel.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, fontsize=8, color=INK)
    for panel, head in zip(axes[0], heads, strict=True):
        panel.set_title(head, fontsize=8, color=INK)
    return figure
