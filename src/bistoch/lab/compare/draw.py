"""Pictures of a comparison."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from bistoch.analysis.plot import COLOURS, INK, RULE
from bistoch.lab.compare.look import EDGES

# of the palette of Okabe and Ito; softmax is black wherever it stands
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a")

# tokens that are named beside a plan, and panels side by side: more would be too small to read
NAMED, ACROSS = 24, 4
# letters of an operator's name over or beside a panel
ROOM = 30


def colours_of(operators: Sequence[str]) -> dict[str, str]:
    """A colour for every operator, the same in all pictures.

    >>> colours_of(["sinkhorn", "softmax"])
    {'sinkhorn': '#0072b2', 'softmax': '#000000'}
    """
    others = [name for name in operators if name != "softmax"]
    found = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(others)}
    return {name: found.get(name, "#000000") for name in operators}


def new_figure(size: tuple[float, float]) -> Any:
    """A figure that belongs to no window."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            'a report needs matplotlib; install it with: pip install "bistoch[lab]"'
        ) from None
    return Figure(figsize=size)


def draw_curves(curves: Mapping[str, Mapping[str, np.ndarray]], panels: Mapping[str, str]) -> Any:
    """Learning curves by epoch: one line per operator, and a band from the lowest to the highest.

    Args:
        curves: for every operator, under every name of `panels`, an array (seeds, epochs).
        panels: what is drawn, and what stands above it.
    """
    colours = colours_of(list(curves))
    figure = new_figure((4.1 * len(panels), 3.1))
    for place, (name, title) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(1, len(panels), place)
        for operator, found in curves.items():
            values = found[name]
            epochs = np.arange(1, values.shape[1] + 1)
            axes.plot(epochs, values.mean(0), color=colours[operator], label=operator, marker="o",
                      markersize=2.5, linewidth=1.4)  # fmt: skip
            axes.fill_between(epochs, values.min(0), values.max(0), color=colours[operator],
                              alpha=0.15, linewidth=0)  # fmt: skip
        # one epoch is one tick
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        _dress(axes, title, "epoch")
    _legend(figure, len(curves))
    return figure


def draw_layers(found: Mapping[str, Mapping[str, np.ndarray]], panels: Mapping[str, str]) -> Any:
    """Numbers by layer: the mean over seeds, one line per operator.

    Args:
        found: for every operator, under every name of `panels`, an array (seeds, layers).
        panels: what is drawn, and what stands above it.
    """
    colours = colours_of(list(found))
    figure = new_figure((3.2 * len(panels), 3.0))
    for place, (name, title) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(1, len(panels), place)
        # ranks begin before the first layer
        first = 0 if name == "rank" else 1
        for operator, numbers in found.items():
            values = numbers[name]
            layers = np.arange(first, first + values.shape[1])
            axes.plot(layers, values.mean(0), color=colours[operator], label=operator, marker="o",
                      markersize=3.5, linewidth=1.4)  # fmt: skip
            axes.set_xticks(layers)
        top = max(float(numbers[name].max()) for numbers in found.values())
        axes.set_ylim(0, 1.08 * top or 1.0)
        _dress(axes, title, "layer")
    _legend(figure, len(found))
    return figure


def draw_loads(loads: Mapping[str, np.ndarray]) -> Any:
    """How many columns receive how much: one histogram per operator, on one scale."""
    colours = colours_of(list(loads))
    across = min(len(loads), ACROSS)
    down = -(-len(loads) // across)
    figure = new_figure((3.0 * across, 2.5 * down))
    top = max(float(counts.max()) for counts in loads.values())
    widths = np.diff([*EDGES, EDGES[-1] + 0.1])
    for place, (operator, counts) in enumerate(loads.items(), 1):
        axes = figure.add_subplot(down, across, place)
        axes.bar(EDGES, counts, width=widths, align="edge", color=colours[operator])
        axes.axvline(1, color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
        axes.set(xlim=(0, EDGES[-1] + 0.1), ylim=(0, 1.05 * top))
        _dress(axes, short_name(operator), "column mass over its share")
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    figure.tight_layout()
    return figure


def draw_plans_by_layer(plans: Mapping[str, Sequence[Tensor]], tokens: Sequence[str] = ()) -> Any:
    """The plans of one sample, the mean of all heads: operators below each other, layers across.

    Args:
        plans: for every operator, one plan (heads, n, m) per layer.
        tokens: what the tokens are called, if they are few.
    """
    depth = max(len(layers) for layers in plans.values())
    figure = new_figure((2.3 * depth + 1.4, 2.35 * len(plans)))
    means = {name: [plan.mean(0) for plan in layers] for name, layers in plans.items()}
    for row, (name, layers) in enumerate(means.items()):
        for column, plan in enumerate(layers):
            # one scale for all operators; layers may have different numbers of keys
            top = max(float(others[column].max()) for others in means.values())
            axes = figure.add_subplot(len(plans), depth, row * depth + column + 1)
            axes.imshow(plan.numpy(), cmap=COLOURS, vmin=0, vmax=top, aspect="auto",
                        interpolation="nearest")  # fmt: skip
            axes.set(xticks=[], yticks=[])
            if column == 0:
                _name_row(axes, name)
            if row == 0:
                axes.set_title(f"layer {column + 1}", fontsize=9, color=INK)
            if plan.shape[-1] == len(tokens) <= NAMED:
                if row == len(plans) - 1:
                    axes.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=6)
                if column == depth - 1:
                    axes.yaxis.tick_right()
                    axes.set_yticks(range(len(tokens)), tokens, fontsize=6)
            for spine in axes.spines.values():
                spine.set(linewidth=0.6, edgecolor=RULE)
    figure.tight_layout()
    return figure


def draw_pictures(
    pictures: Sequence[np.ndarray], titles: Sequence[str], loads: Mapping[str, Sequence[np.ndarray]]
) -> Any:
    """Pictures, and below each the mass that its patches receive with every operator.

    Args:
        pictures: (h, w) or (h, w, 3), uint8.
        titles: what stands above each.
        loads: for every operator, one array (rows, columns) of patches per picture.
    """
    figure = new_figure((1.5 * len(pictures) + 1.2, 1.45 * (1 + len(loads))))
    shape = (1 + len(loads), len(pictures))
    for column, (picture, title) in enumerate(zip(pictures, titles, strict=True)):
        axes = figure.add_subplot(*shape, column + 1)
        axes.imshow(picture, cmap="gray")
        axes.set_title(title, fontsize=8, color=INK)
        axes.set(xticks=[], yticks=[])
        for row, (name, maps) in enumerate(loads.items(), 1):
            axes = figure.add_subplot(*shape, row * len(pictures) + column + 1)
            # patches lie over the picture as they were cut from it
            image = axes.imshow(maps[column], cmap="RdBu_r", vmin=0, vmax=2,
                                extent=(0, picture.shape[1], picture.shape[0], 0))  # fmt: skip
            axes.set(xticks=[], yticks=[])
            if column == 0:
                _name_row(axes, name)
    _mass_bar(figure, image)
    return figure


def draw_clouds(
    clouds: Sequence[np.ndarray], titles: Sequence[str], loads: Mapping[str, Sequence[np.ndarray]]
) -> Any:
    """Clouds of points seen from the side, coloured by the mass that each point receives.

    Args:
        clouds: (points, 3).
        titles: what stands above each.
        loads: for every operator, one array (points,) per cloud.
    """
    figure = new_figure((1.6 * len(clouds) + 1.2, 1.6 * len(loads) + 0.2))
    for row, (name, masses) in enumerate(loads.items()):
        for column, (cloud, mass) in enumerate(zip(clouds, masses, strict=True)):
            axes = figure.add_subplot(len(loads), len(clouds), row * len(clouds) + column + 1)
            across, up, depth = _from_the_side(np.asarray(cloud, np.float64))
            # far points first, so that near ones lie on top
            order = np.argsort(depth)
            points = axes.scatter(
                across[order], up[order], c=mass[order], cmap="coolwarm", vmin=0, vmax=2, s=8,
                linewidths=0,
            )  # fmt: skip
            axes.set(xticks=[], yticks=[], aspect="equal")
            axes.spines[:].set_visible(False)
            if row == 0:
                axes.set_title(titles[column], fontsize=8, color=INK)
            if column == 0:
                _name_row(axes, name)
    _mass_bar(figure, points)
    return figure


def _mass_bar(figure: Any, coloured: Any) -> None:
    """What a colour means, beside all panels."""
    figure.tight_layout(rect=(0, 0, 0.93, 1))
    bar = figure.colorbar(coloured, cax=figure.add_axes((0.94, 0.2, 0.015, 0.5)))
    bar.ax.tick_params(labelsize=7, length=2, color=RULE)
    bar.ax.set_title("mass", fontsize=7, color=INK)


def _name_row(axes: Any, operator: str) -> None:
    """The operator of a row of panels, beside its first."""
    axes.set_ylabel(short_name(operator).replace(", ", ",\n"), fontsize=7, color=INK)


def _from_the_side(cloud: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points turned by 35 degrees about the last axis and seen from 20 above: across, up, near."""
    (x, y, z), turn, rise = cloud.T, np.radians(35), np.radians(20)
    away = np.sin(turn) * x + np.cos(turn) * y
    return (
        np.cos(turn) * x - np.sin(turn) * y,
        np.cos(rise) * z + np.sin(rise) * away,
        np.sin(rise) * z - np.cos(rise) * away,
    )


def short_name(operator: str) -> str:
    """An operator where there is little room; its backend goes first, which changes no plan.

    >>> short_name("elastic(learn='head', backend='cpu')"), short_name("sinkhorn(backend='cpu')")
    ("elastic(learn='head')", "sinkhorn(backend='cpu')")
    """
    if len(operator) > ROOM:
        operator = re.sub(r", backend='\w+'|backend='\w+'(, )?", "", operator)
    return operator if len(operator) <= ROOM else f"{operator[: ROOM - 2]}..."


def _dress(axes: Any, title: str, below: str) -> None:
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.set_xlabel(below, fontsize=9, color=INK)
    axes.tick_params(labelsize=8, length=2, color=RULE, labelcolor=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=RULE, linewidth=0.4, alpha=0.6)


def _legend(figure: Any, count: int) -> None:
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.legend(handles, labels, loc="lower center", ncols=min(count, 4), fontsize=8,
                  frameon=False)  # fmt: skip
