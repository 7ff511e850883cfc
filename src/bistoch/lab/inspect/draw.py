"""Pictures of an inspected model."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bistoch.analysis.plot import COLOURS
from bistoch.lab.drawing import INK, PALETTE, RULE, legend, sheet, tidy
from bistoch.lab.inspect.measure import Measured


def draw_heads(measured: Measured, tolerance: Tensor | None) -> Any:
    """Layers by heads: entropy, the fullest key, and the cosine left when a head is balanced."""
    panels: list[tuple[str, Tensor, dict[str, float]]] = [
        ("entropy of rows (1 = uniform)", measured.entropy, {"vmin": 0.0, "vmax": 1.0}),
        ("load of the fullest key (1 = even)", measured.peak, {"vmin": 1.0}),
    ]
    if tolerance is not None:
        panels.append(("cosine left when balanced alone", tolerance, {"vmax": 1.0}))
    layers, heads = measured.entropy.shape
    figure, row = sheet(1, len(panels), width=4.0, height=max(2.2, 0.34 * layers + 1.3))
    for place, (axes, (title, table, limits)) in enumerate(zip(row[0], panels, strict=True), 1):
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
    return figure


def draw_depth(measured: Measured) -> Any:
    """How many directions the states fill, and how alike they are, layer by layer."""
    figure, axes = sheet(1, 2, width=4.4)
    depth = range(len(measured.rank))
    panels = (
        ("effective rank, as a share of the largest", measured.rank),
        ("mean cosine between tokens", measured.cosine),
    )
    for panel, colour, (title, values) in zip(axes[0], PALETTE, panels, strict=False):
        panel.plot(depth, values.numpy(), color=colour, marker="o", markersize=3.5)
        panel.set_ylim(min(0.0, float(values.min()) * 1.1), 1.02)
        panel.set_xticks(range(0, len(measured.rank), max(1, len(measured.rank) // 12)))
        tidy(panel, title, "after layer (0 = embeddings)")
    return figure


def draw_swap(effects: Mapping[float, Mapping[str, float]]) -> Any:
    """The cosine with the model as it is, over the elasticity of all its heads."""
    figure, axes = sheet(1, 1, width=4.6)
    panel, lams = axes[0][0], list(effects)
    curves = {"mean over samples": "cosine", "lowest": "lowest"}
    for colour, (label, name) in zip(PALETTE, curves.items(), strict=False):
        values = [effects[lam][name] for lam in lams]
        panel.plot(lams, values, color=colour, marker="o", markersize=4, label=label)
    tidy(panel, "", "lam of all heads", "cosine with the original")
    legend(panel)
    return figure
