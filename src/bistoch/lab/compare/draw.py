"""Figures of a comparison."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from bistoch.analysis.plot import COLOURS
from bistoch.lab.compare.attention import EDGES
from bistoch.lab.drawing import INK, PALETTE, RULE, grid, sheet, tidy

# tokens that are named beside a plan, and panels side by side: more would be too small to read
NAMED, ACROSS = 24, 4
# characters of an operator's name above or beside a panel
MAX_NAME = 30
# the least width of an axis of scores, over the largest score
SPAN = 0.04


def colours_of(operators: Sequence[str]) -> dict[str, str]:
    """A colour for every operator, the same in all figures; softmax is black.

    >>> colours_of(["sinkhorn", "softmax"])
    {'sinkhorn': '#0072b2', 'softmax': '#000000'}
    """
    others, colours = [name for name in operators if name != "softmax"], PALETTE[:-1]
    found = {name: colours[i % len(colours)] for i, name in enumerate(others)}
    return {name: found.get(name, "#000000") for name in operators}


def repeats_of(operators: Sequence[str]) -> set[str]:
    """The operators whose colour another one has already, since there are more than colours.

    >>> repeats_of(["softmax", *"abcdefg"])
    {'g'}
    """
    colours = list(colours_of(operators).items())
    return {name for i, (name, colour) in enumerate(colours)
            if colour in [other for _, other in colours[:i]]}  # fmt: skip


def draw_opening(
    scores: Mapping[str, Sequence[float]],
    peaks: Mapping[str, float],
    title: str,
    *,
    across: int = 2,
) -> Any:
    """Test scores, one dot per seed and a line at the mean, and the load of the fullest key.

    Args:
        scores: for every operator, one score per seed.
        peaks: for every operator, the largest column mass.
        title: what the score is.
        across: panels side by side.
    """
    names, colours = list(scores), colours_of(list(scores))
    figure, (left, right) = grid(2, across, width=4.6, height=1.1 + 0.36 * len(names))
    for place, name in enumerate(names):
        values, colour = np.asarray(scores[name]), colours[name]
        left.plot(values, [place] * len(values), "o", color=colour, markersize=5, alpha=0.55)
        left.plot([values.mean()] * 2, [place - 0.28, place + 0.28], color=colour, linewidth=2.5)
        right.barh(place, peaks[name], height=0.55, color=colour)
        right.annotate(f"{peaks[name]:.1f}", (peaks[name], place), xytext=(4, 0), va="center",
                       textcoords="offset points", fontsize=9, color=INK)  # fmt: skip
    low, high = (edge(edge(values) for values in scores.values()) for edge in (min, max))
    # a small difference is not drawn large
    spare = max(0.0, max(SPAN * abs(high), 1e-3) - (high - low)) / 2
    left.set_xlim(low - spare - 0.06 * (high - low), high + spare + 0.06 * (high - low))
    right.axvline(1, color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
    right.set_xlim(0, 1.15 * max(1.0, *peaks.values()))
    for panel, words in ((left, title), (right, "largest column mass (1 = even)")):
        tidy(panel, words)
        shown = panel is left or across == 1
        labels = [short_name(name).replace(", ", ",\n") if shown else "" for name in names]
        panel.set_yticks(range(len(names)), labels, fontsize=8)
        panel.set_ylim(len(names) - 0.4, -0.6)
        panel.grid(axis="y", visible=False)
    return figure


def draw_lam(lams: Mapping[str, np.ndarray], *, across: int = 3, first: int = 1) -> Any:
    """Learned elasticities, the mean over seeds: one heatmap per operator, layers by heads.

    Args:
        lams: for every operator, an array (seeds, layers, heads).
        across: heatmaps side by side.
        first: the number of the first layer.

    >>> len(draw_lam({"elastic(learn='head')": np.full((2, 3, 4), 0.5)}).axes)
    2
    """
    layers, heads = next(iter(lams.values())).shape[1:]
    size = {"width": max(2.6, 0.62 * heads + 1.2), "height": max(1.8, 0.42 * layers + 1.0)}
    figure, panels = grid(len(lams), across, **size)
    for panel, (name, values) in zip(panels, lams.items(), strict=True):
        means = values.mean(0)
        image = panel.imshow(means, cmap=COLOURS, vmin=0, vmax=1, aspect="auto")
        for (layer, head), lam in np.ndenumerate(means):
            panel.text(head, layer, f"{lam:.2f}", ha="center", va="center", fontsize=8,
                       color="white" if lam > 0.6 else INK)  # fmt: skip
        tidy(panel, short_name(name), "head", "layer")
        panel.grid(visible=False)
        panel.set_xticks(range(means.shape[1]))
        panel.set_yticks(range(means.shape[0]), range(first, first + means.shape[0]))
    bar = figure.colorbar(image, ax=panels, shrink=0.8, aspect=20, pad=0.02)
    bar.ax.tick_params(labelsize=8, length=2, color=RULE)
    bar.set_label("lam", fontsize=8, color=INK)
    return figure


def draw_curves(
    curves: Mapping[str, Mapping[str, np.ndarray]], panels: Mapping[str, str], *, across: int = 4
) -> Any:
    """Learning curves by epoch: one line per operator, and a band from lowest to highest seed.

    Args:
        curves: for every operator, under every name of `panels`, an array (seeds, epochs).
        panels: what is drawn, and the titles.
    """
    figure, axes = _draw_lines(curves, panels, "epoch", across, band=True)
    for panel in axes:
        # one epoch is one tick
        panel.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    return figure


def draw_layers(
    found: Mapping[str, Mapping[str, np.ndarray]], panels: Mapping[str, str], *, across: int = 4
) -> Any:
    """Numbers by layer: the mean over seeds, one line per operator.

    Args:
        found: for every operator, under every name of `panels`, an array (seeds, layers).
        panels: what is drawn, and the titles.
    """
    figure, axes = _draw_lines(found, panels, "layer", across, band=False)
    for panel, name in zip(axes, panels, strict=True):
        first = _first(name)
        count = max(values[name].shape[1] for values in found.values())
        panel.set_xticks(range(first, first + count))
        panel.set_ylim(0, 1.08 * max(float(v[name].max()) for v in found.values()) or 1.0)
    return figure


def _first(name: str) -> int:
    # ranks begin before the first layer, deviations before the first epoch
    return 0 if name.startswith(("rank", "deviation")) else 1


def _draw_lines(
    found: Mapping[str, Mapping[str, np.ndarray]],
    panels: Mapping[str, str],
    xlabel: str,
    across: int,
    *,
    band: bool,
) -> tuple[Any, list[Any]]:
    colours, dashed = colours_of(list(found)), repeats_of(list(found))
    figure, axes = grid(len(panels), across, width=3.6, height=3.1)
    for panel, (name, title) in zip(axes, panels.items(), strict=True):
        for operator, numbers in found.items():
            values, colour = numbers[name], colours[operator]
            x = np.arange(_first(name), _first(name) + values.shape[1])
            panel.plot(x, values.mean(0), color=colour, label=operator, marker="o", markersize=3,
                       linewidth=1.4, linestyle="--" if operator in dashed else "-")  # fmt: skip
            if band:
                panel.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.15,
                                   linewidth=0)  # fmt: skip
        tidy(panel, title, xlabel)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center",
                  ncols=min(len(found), 2 * min(across, len(panels))),
                  fontsize=8, frameon=False)  # fmt: skip
    return figure, axes


def draw_loads(loads: Mapping[str, np.ndarray], *, across: int = ACROSS) -> Any:
    """Histograms of column masses: one panel per operator, on one scale."""
    colours = colours_of(list(loads))
    figure, axes = grid(len(loads), across, width=3.0, height=2.5)
    top = max(float(counts.max()) for counts in loads.values())
    widths = np.diff([*EDGES, EDGES[-1] + 0.1])
    for panel, (operator, counts) in zip(axes, loads.items(), strict=True):
        panel.bar(EDGES, counts, width=widths, align="edge", color=colours[operator])
        panel.axvline(1, color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
        panel.set(xlim=(0, EDGES[-1] + 0.1), ylim=(0, 1.05 * top))
        tidy(panel, short_name(operator), "column mass over its share")
        panel.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    return figure


def draw_plans_by_layer(plans: Mapping[str, Sequence[Tensor]], tokens: Sequence[str] = ()) -> Any:
    """The plans of one sample, the mean of all heads: operators are rows, layers are columns.

    Args:
        plans: for every operator, one plan (heads, n, m) per layer.
        tokens: names of the tokens, shown if they are few.
    """
    depth = max(len(layers) for layers in plans.values())
    figure, axes = sheet(len(plans), depth, width=2.4, height=2.35)
    means = {name: [plan.mean(0) for plan in layers] for name, layers in plans.items()}
    for row, (name, layers) in enumerate(means.items()):
        for column, plan in enumerate(layers):
            # one scale for all operators; layers may have different numbers of keys
            top = max(float(others[column].max()) for others in means.values())
            panel = axes[row, column]
            panel.imshow(plan.numpy(), cmap=COLOURS, vmin=0, vmax=top, aspect="auto",
                         interpolation="nearest")  # fmt: skip
            _label(panel, name if column == 0 else "", f"layer {column + 1}" if row == 0 else "")
            panel.spines[:].set(linewidth=0.6, edgecolor=RULE)
            if plan.shape[-1] == len(tokens) <= NAMED:
                if row == len(plans) - 1:
                    panel.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=6)
                if column == depth - 1:
                    panel.yaxis.tick_right()
                    panel.set_yticks(range(len(tokens)), tokens, fontsize=6)
    return figure


def draw_images(
    images: Sequence[np.ndarray], titles: Sequence[str], loads: Mapping[str, Sequence[np.ndarray]]
) -> Any:
    """Images, and below each the mass that its patches receive with every operator.

    Args:
        images: (h, w) or (h, w, 3), uint8.
        titles: of the images.
        loads: for every operator, one array (rows, columns) of patches per image.
    """
    figure, axes = sheet(1 + len(loads), len(images), width=1.55, height=1.5)
    for column, (image, title) in enumerate(zip(images, titles, strict=True)):
        axes[0, column].imshow(image, cmap="gray")
        _label(axes[0, column], "", title)
        for row, (name, maps) in enumerate(loads.items(), 1):
            # patches lie over the image as they were cut from it
            extent = (0, image.shape[1], image.shape[0], 0)
            panel = axes[row, column]
            mass = panel.imshow(maps[column], cmap="RdBu_r", vmin=0, vmax=2, extent=extent)
            _label(panel, name if column == 0 else "", "")
    _mass_bar(figure, axes, mass)
    return figure


def draw_clouds(
    clouds: Sequence[np.ndarray], titles: Sequence[str], loads: Mapping[str, Sequence[np.ndarray]]
) -> Any:
    """Point clouds in perspective, coloured by the mass that each point receives.

    Args:
        clouds: (points, 3).
        titles: of the clouds.
        loads: for every operator, one array (points,) per cloud.
    """
    figure, axes = sheet(len(loads), len(clouds), width=1.65, height=1.65)
    for row, (name, masses) in enumerate(loads.items()):
        for column, (cloud, mass) in enumerate(zip(clouds, masses, strict=True)):
            panel = axes[row, column]
            across, up, depth = _projected(np.asarray(cloud, np.float64))
            # far points first, so that near ones lie on top
            order = np.argsort(depth)
            points = panel.scatter(
                across[order], up[order], c=mass[order], cmap="coolwarm", vmin=0, vmax=2, s=8,
                linewidths=0,
            )  # fmt: skip
            panel.set_aspect("equal", adjustable="datalim")
            panel.spines[:].set_visible(False)
            _label(panel, name if column == 0 else "", titles[column] if row == 0 else "")
    _mass_bar(figure, axes, points)
    return figure


def _mass_bar(figure: Any, axes: Any, coloured: Any) -> None:
    bar = figure.colorbar(coloured, ax=axes, shrink=0.6, aspect=30, pad=0.01)
    bar.ax.tick_params(labelsize=7, length=2, color=RULE)
    bar.ax.set_title("mass", fontsize=7, color=INK)


def _label(panel: Any, operator: str, title: str) -> None:
    """A panel without ticks, with its operator on the left and a title."""
    panel.set(xticks=[], yticks=[])
    panel.set_title(title, fontsize=8, color=INK)
    panel.set_ylabel(short_name(operator).replace(", ", ",\n"), fontsize=7, color=INK)


def _projected(cloud: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points rotated by 35 degrees about the last axis and seen from 20 above: x, y, nearness."""
    (x, y, z), turn, rise = cloud.T, np.radians(35), np.radians(20)
    away = np.sin(turn) * x + np.cos(turn) * y
    return (
        np.cos(turn) * x - np.sin(turn) * y,
        np.cos(rise) * z + np.sin(rise) * away,
        np.sin(rise) * z - np.cos(rise) * away,
    )


def short_name(operator: str) -> str:
    """An operator where there is little room: without its backend, which changes no plan.

    >>> short_name("elastic(learn='head', backend='cpu')"), short_name("sinkhorn(backend='cpu')")
    ("elastic(learn='head')", "sinkhorn(backend='cpu')")
    """
    if len(operator) > MAX_NAME:
        operator = re.sub(r", backend='\w+'|backend='\w+'(, )?", "", operator)
    return operator if len(operator) <= MAX_NAME else f"{operator[: MAX_NAME - 2]}..."
