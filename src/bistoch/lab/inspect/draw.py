"""Pictures of an inspected model."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bistoch.analysis.plot import COLOURS, INK, RULE
from bistoch.lab.inspect.measure import Measured

LINES = ("#0072b2", "#d55e00")


def draw_heads(measured: Measured, tolerance: Tensor | None) -> Any:
    """Layers by heads: entropy, the fullest key, and the cosine left when a head is balanced."""
    panels: list[tuple[str, Tensor, dict[str, float]]] = [
        ("entropy of rows (1 = uniform)", measured.entropy, {"vmin": 0.0, "vmax": 1.0}),
        ("load of the fullest key (1 = even)", measured.peak, {"vmin": 1.0}),
    ]
    if tolerance is not None:
        panels.append(("cosine left when balanced alone", tolerance, {"vmax": 1.0}))
    layers, heads = measured.entropy.shape
    figure = _figure((4.4 * len(panels), max(2.2, 0.34 * layers + 1.3)))
    for place, (title, table, limits) in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), place)
        # dark is what to look at: narrow rows, full keys, heads that matter
        colours = COLOURS if place == 2 else f"{COLOURS}_r"
        image = axes.imshow(table.numpy(), cmap=colours, aspect="auto", **limits)
        axes.set_title(title, fontsize=10, color=INK, loc="left")
        axes.set_xlabel("head", fontsize=9, color=INK)
        axes.set_ylabel("layer", fontsize=9, color=INK)
        axes.set_xticks(range(0, table.shape[1], max(1, heads // 12)))
        axes.set_yticks(range(0, table.shape[0], max(1, layers // 12)))
        axes.tick_params(labelsize=8, length=2, color=RULE, labelcolor=INK)
        bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.03)
        bar.ax.tick_params(labelsize=8, length=2, color=RULE)
    figure.tight_layout()
    return figure


def draw_depth(measured: Measured) -> Any:
    """How many directions the states fill, and how alike they are, layer by layer."""
    figure = _figure((8.8, 2.9))
    depth = range(len(measured.rank))
    panels = (
        ("effective rank, as a share of the largest", measured.rank),
        ("mean cosine between tokens", measured.cosine),
    )
    for place, (title, values) in enumerate(panels, 1):
        axes = figure.add_subplot(1, 2, place)
        axes.plot(depth, values.numpy(), color=LINES[place - 1], marker="o", markersize=3.5)
        axes.set_title(title, fontsize=10, color=INK, loc="left")
        axes.set_xlabel("after layer (0 = embeddings)", fontsize=9, color=INK)
        axes.set_ylim(min(0.0, float(values.min()) * 1.1), 1.02)
        axes.set_xticks(range(0, len(measured.rank), max(1, len(measured.rank) // 12)))
        axes.tick_params(labelsize=8, length=2, color=RULE, labelcolor=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=RULE, linewidth=0.4, alpha=0.6)
    figure.tight_layout()
    return figure


def draw_swap(effects: Mapping[float, Mapping[str, float]]) -> Any:
    """The cosine with the model as it is, over the elasticity of all its heads."""
    figure = _figure((4.6, 2.9))
    axes = figure.add_subplot(1, 1, 1)
    lams = list(effects)
    for colour, (name, label) in zip(
        LINES, (("cosine", "mean over samples"), ("lowest", "lowest")), strict=True
    ):
        values = [effects[lam][name] for lam in lams]
        axes.plot(lams, values, color=colour, marker="o", markersize=4, label=label)
    axes.set_xlabel("lam of all heads", fontsize=9, color=INK)
    axes.set_ylabel("cosine with the original", fontsize=9, color=INK)
    axes.tick_params(labelsize=8, length=2, color=RULE, labelcolor=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=RULE, linewidth=0.4, alpha=0.6)
    axes.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    return figure


def _figure(size: tuple[float, float]) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            'a report needs matplotlib; install it with: pip install "bistoch[plot]"'
        ) from None
    return Figure(figsize=size)
