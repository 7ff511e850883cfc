"""The figures of flows. Functions take data and return a figure; saving is up to the caller."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bistoch.lab.drawing import INK, PALETTE, QUIET, RULE, legend, sheet, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# curves of what is known exactly
REFERENCES = {"exact": "--", "exact heat": "--", "1 + t": "--"}


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
    axes: Any,
    x: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    title: str,
    xlabel: str = "time",
    dashes: Mapping[str, str] = REFERENCES,
) -> None:
    """Several curves over one x; those named in `dashes` are broken, and grey if they are exact."""
    for number, (name, y) in enumerate(curves.items()):
        colour = QUIET if name in REFERENCES else PALETTE[number % len(PALETTE)]
        axes.plot(x, y, color=colour, linewidth=1.5, linestyle=dashes.get(name, "-"), label=name)
    legend(axes)
    tidy(axes, title, xlabel)


def draw_points(
    axes: Any, x: Sequence[float], curves: Mapping[str, Sequence[float]], title: str, xlabel: str
) -> None:
    """Points joined by lines over a logarithmic axis."""
    for colour, (name, y) in zip(PALETTE, curves.items(), strict=False):
        axes.semilogx(x, y, "o-", color=colour, markersize=3, label=name)
    legend(axes)
    tidy(axes, title, xlabel)


def draw_order(
    axes: Any, x: Sequence[float], y: Sequence[float], name: str, colour: str, predicted: float
) -> float:
    """Points on two logarithmic scales with the predicted slope; returns the fitted one."""
    order = fitted_order(x, y)
    axes.loglog(x, y, "o", color=colour, markersize=4, label=f"{name}: order {order:.2f}")
    line = [y[0] * (value / x[0]) ** predicted for value in x]
    axes.loglog(x, line, color=colour, linewidth=0.9, linestyle=(0, (4, 2)))
    name_places(axes, x)
    legend(axes)
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
    options = {} if colours is None else {"cmap": _shades()}
    axes.scatter(flat[:, 0], flat[:, 1], s=size, c=shade, linewidths=0, **options)
    axes.set(xticks=[], yticks=[], aspect="equal")
    if limits is not None:
        axes.set(xlim=limits, ylim=limits)
    for spine in axes.spines.values():
        spine.set(linewidth=0.6, edgecolor=RULE)


def _shades() -> Any:
    """Colours of the same lightness, which are seen on white paper and on a dark page."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("shades", [PALETTE[place] for place in (0, 3, 1)])


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


def animate(
    frames: Iterable[Any],
    paint: Callable[[Any, Any], None],
    *,
    milliseconds: int = 90,
    size: tuple[float, float] = (4.4, 3.3),
) -> bytes:
    """A GIF with one frame per item; `paint(axes, item)` draws each on an empty panel.

    >>> content = animate([1, 2], lambda axes, item: axes.plot([0, item]) and None)
    >>> content[:6]
    b'GIF89a'
    """
    try:
        from PIL import Image
    except ImportError:
        raise ImportError(
            'a moving picture needs Pillow; install it with: pip install "bistoch[images]"'
        ) from None
    pictures = []
    for item in frames:
        figure, axes = sheet(1, 1, width=size[0], height=size[1])
        paint(axes[0][0], item)
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=80)
        # few colours: a GIF has 256, and line drawings need less
        pictures.append(Image.open(content).convert("RGB").quantize(64))
    result = io.BytesIO()
    pictures[0].save(
        result, format="GIF", save_all=True, append_images=pictures[1:], duration=milliseconds,
        loop=0,
    )  # fmt: skip
    return result.getvalue()
