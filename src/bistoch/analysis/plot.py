"""Pictures of plans. Functions here take data and return a figure; saving is up to the caller."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.analysis.sums import PlanSums, add_up

if TYPE_CHECKING:
    import matplotlib.figure

# of the palette of Okabe and Ito, which colour-blind eyes can tell apart
OVERLOADED, IN_REACH, NEGLECTED = "#d55e00", "#8a8a8a", "#56b4e9"
INK, RULE = "#222222", "#b8b8b8"
# one hue from light to dark, read by its lightness alone; an empty cell is paper
COLOURS, NEGATIVE = "Blues", "Reds"
# columns beyond this share of their target are coloured as overloaded or neglected
REACH = 0.1
PER_LINE = 4

# the page, in inches: margins, then the parts of a panel
LEFT, RIGHT, EDGE, GAP = 0.42, 0.72, 0.06, 0.28
TITLE, BARS, CAPTION, WIDTH, SIDE, PAD = 0.3, 0.62, 0.3, 2.3, 0.17, 0.05
# titles: the sizes of letters in points, and how wide one is for its size, rounded up to pixels
LARGE, SMALL, LETTER = 11, 7.5, 0.67
# names of tokens: their size in points, letters that are shown, inches of one, and the widest plan
TINY, LETTERS, PER_NAME, WIDEST = 7.5, 12, 0.15, 5.0


def draw_plans(
    plans: Mapping[str, Float[Tensor, "n m"]],
    *,
    queries: Sequence[str] = (),
    keys: Sequence[str] = (),
    across: int = PER_LINE,
) -> "matplotlib.figure.Figure":
    """Plans side by side, each under the bars of its column sums and beside those of its row sums.

    All panels share one scale of colours and one of bars. A dashed line marks the balanced column
    sum n/m: bars well above it are orange, well below it light blue, close to it grey. Negative
    weights are red, on a scale of their own, since they are small.

    Args:
        plans: one matrix per label.
        queries, keys: names of the tokens along the axes; of many, only some are shown.
        across: plans side by side, at most.

    >>> import torch
    >>> figure = draw_plans({"even": torch.full((3, 3), 1 / 3), "hard": torch.eye(3)})
    >>> [axes.get_label() for axes in figure.axes]
    ['even', 'even columns', 'even rows', 'hard', 'hard columns', 'hard rows', 'scale']
    """
    figure_module = _import_matplotlib()
    if not plans:
        raise ValueError("draw_plans: plans must hold at least one plan, but it is empty")
    by_name = {name: add_up(name, plan) for name, plan in plans.items()}
    # six plans look better as three and three than as four and two
    lines = math.ceil(len(by_name) / across)
    per_line = math.ceil(len(by_name) / lines)
    n, m = next(iter(by_name.values())).plan.shape
    width = min(max(WIDTH, PER_NAME * m), WIDEST) if keys else WIDTH
    height = min(max(width * n / m, PER_NAME * n if queries else 0.8, 0.8), 2 * width)
    beside, below = _room(queries), _room(keys)
    panel_width, panel_height = width + PAD + SIDE + GAP, TITLE + BARS + PAD + height + CAPTION
    panel_width, panel_height = panel_width + beside, panel_height + below
    page = (LEFT + per_line * panel_width + RIGHT, 2 * EDGE + lines * panel_height)
    figure = figure_module.Figure(figsize=page)

    def place(left: float, bottom: float, width: float, tall: float, label: str) -> Any:
        box = (left / page[0], bottom / page[1], width / page[0], tall / page[1])
        return figure.add_axes(box, label=label)

    heaviest = max(sums.plan.max().item() for sums in by_name.values()) or 1.0
    deepest = min(sums.plan.min().item() for sums in by_name.values())
    tallest = max(sums.columns.max().item() for sums in by_name.values()) or 1.0
    lowest = min(0.0, *(sums.columns.min().item() for sums in by_name.values()))
    for number, (name, sums) in enumerate(by_name.items()):
        left = LEFT + beside + (number % per_line) * panel_width
        bottom = page[1] - EDGE - (1 + number // per_line) * panel_height + CAPTION + below
        plan = place(left, bottom, width, height, name)
        columns = place(left, bottom + height + PAD, width, BARS, f"{name} columns")
        rows = place(left + width + PAD, bottom, SIDE, height, f"{name} rows")
        image = _draw_plan(plan, sums, heaviest, deepest)
        _name_tokens(plan, queries, keys, height / n, width / m)
        _draw_columns(columns, sums, lowest, tallest)
        _draw_rows(rows, sums)
        title, size = _fit_title(name, panel_width - beside - PAD)
        columns.set_title(
            title, fontsize=size, color=INK, pad=5, fontfamily="monospace", linespacing=1.0
        )
        if number % per_line == 0:
            plan.set_ylabel("queries", fontsize=9, color=INK)
            columns.set_yticks([sums.target], [f"{sums.target:.3g}"], fontsize=8, color=INK)
    scale = place(page[0] - RIGHT + 0.08, bottom, 0.11, min(height, 1.5), "scale")
    _draw_scale(scale, image)
    return figure


def _room(names: Sequence[str]) -> float:
    """Inches that the longest of some names takes."""
    return max((min(len(name), LETTERS) for name in names), default=0) * LETTER * TINY / 72


def _name_tokens(
    axes: Any, queries: Sequence[str], keys: Sequence[str], tall: float, wide: float
) -> None:
    """Names along the axes of a plan; where cells are smaller than names, every second, third..."""
    for axis, names, inches in ((axes.yaxis, queries, tall), (axes.xaxis, keys, wide)):
        every = max(1, math.ceil(1.25 * TINY / 72 / inches)) if names else 1
        shown = range(0, len(names), every)
        turn = 90 if axis is axes.xaxis else 0
        # a dollar would begin a formula
        words = [names[i][:LETTERS].replace("$", r"\$") for i in shown]
        axis.set_ticks(list(shown), words, fontsize=TINY, color=INK, rotation=turn)


def _import_matplotlib() -> Any:
    try:
        import matplotlib.figure
    except ImportError:
        raise ImportError(
            'drawing a picture needs matplotlib; install it with: pip install "bistoch[plot]"'
        ) from None
    return matplotlib.figure


def _fit_title(name: str, width: float) -> tuple[str, float]:
    """A title that stays above its own panel, and the size of its letters."""
    lines = textwrap.wrap(name, int(72 * width / (LETTER * SMALL)), max_lines=2) or [name]
    longest = max(1, *(len(line) for line in lines))
    size = SMALL if len(lines) > 1 else min(LARGE, 72 * width / (LETTER * longest))
    return "\n".join(lines), size


def _draw_plan(axes: Any, sums: PlanSums, heaviest: float, deepest: float) -> Any:
    from matplotlib.colors import PowerNorm

    # small weights are many and tell much: the root lifts them off the paper
    norm = PowerNorm(0.6, vmin=0, vmax=heaviest)
    image = axes.imshow(sums.plan.numpy(), cmap=COLOURS, norm=norm, aspect="auto")
    low, high = sums.columns.min().item(), sums.columns.max().item()
    caption = f"column sums {low:.2f} to {high:.2f}"
    if sums.has_negative:
        below = -sums.plan.masked_fill(sums.plan >= 0, torch.nan).numpy()
        norm = PowerNorm(0.6, vmin=0, vmax=-deepest)
        axes.imshow(below, cmap=NEGATIVE, norm=norm, aspect="auto")
        caption += f", red to {sums.plan.min().item():.2g}"
    axes.set_xlabel(caption, fontsize=9, color=INK, labelpad=4)
    _tidy(axes, keep=("left", "right", "top", "bottom"))
    return image


def _draw_columns(axes: Any, sums: PlanSums, lowest: float, tallest: float) -> None:
    totals = sums.columns.tolist()
    colours = [_bar_colour(total, sums.target) for total in totals]
    axes.bar(range(len(totals)), totals, width=0.84, color=colours)
    axes.axhline(sums.target, color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
    axes.set(xlim=(-0.5, len(totals) - 0.5), ylim=(lowest, 1.04 * max(tallest, sums.target)))
    _tidy(axes, keep=("bottom",))


def _draw_rows(axes: Any, sums: PlanSums) -> None:
    totals = sums.rows.tolist()
    axes.barh(range(len(totals)), totals, height=1.0, color="#cfcfcf")
    axes.axvline(1, color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
    axes.set(ylim=(len(totals) - 0.5, -0.5), xlim=(0, 1.1 * max(1.0, *totals)))
    _tidy(axes, keep=("left",))


def _bar_colour(total: float, target: float) -> str:
    if total > (1 + REACH) * target:
        return OVERLOADED
    return NEGLECTED if total < (1 - REACH) * target else IN_REACH


def _draw_scale(axes: Any, image: Any) -> None:
    bar = axes.figure.colorbar(image, cax=axes)
    bar.set_ticks([tick for tick in (0.0, 0.1, 0.25, 0.5, 1.0) if tick <= image.norm.vmax])
    bar.ax.set_yticklabels([f"{tick:g}" for tick in bar.get_ticks()])
    bar.ax.tick_params(labelsize=8, length=2, color=RULE, labelcolor=INK)
    bar.ax.set_title("weight", fontsize=9, color=INK, loc="left", pad=6)
    bar.outline.set(linewidth=0.6, edgecolor=RULE)


def _tidy(axes: Any, keep: tuple[str, ...]) -> None:
    axes.set(xticks=[], yticks=[])
    axes.tick_params(length=2, color=RULE)
    for side, spine in axes.spines.items():
        spine.set(visible=side in keep, linewidth=0.6, edgecolor=RULE)
