"""The picture of a benchmark: time over softmax attention, and memory, over n."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bistoch.lab.bench.contenders import CAUSAL_SDPA, SDPA
from bistoch.lab.bench.measure import Cell
from bistoch.lab.bench.table import MIB, label
from bistoch.lab.drawing import GRID, INK, PALETTE, import_figure

if TYPE_CHECKING:
    import matplotlib.figure

# the palette of Okabe and Ito, which colour-blind eyes can tell apart; one colour per family
FAMILIES = {
    "elastic cpu": "#d55e00", "elastic streaming": "#0072b2", "elastic reference": "#56b4e9",
    "dense": "#000000", "POT": "#009e73", "OTT": "#cc79a7", "GeomLoss": "#e69f00",
}  # fmt: skip
SPARE = ("#d55e00", *(colour for colour in PALETTE if colour != "#d55e00"))
DASHES = ((0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 1.5, 1, 1.5)))
SECONDS = "seconds"
# what is drawn of a cell, by the title of its axis
ROWS: dict[str, Callable[[Cell], float | None]] = {
    "time over {baseline}": lambda cell: cell.ratio,
    "peak memory beyond the inputs, MiB": lambda cell: (cell.memory or 0) / MIB,
}
FILLED, SMALL = ("o", "s", "D", "^"), ("v", "^", "<", ">")


def draw_bench(
    cells: Sequence[Cell], caption: str = "", *, growth: bool = False
) -> "matplotlib.figure.Figure":
    """Ratios above, memory below, one column per direction; saving is up to the caller.

    Args:
        cells: what was measured; of several kinds of scores the first is drawn.
        caption: a line on what they have in common.
        growth: whether to draw seconds too, above all.

    >>> cell = Cell("n=4", "attention", [1, 1, 4, 2], "random", "forward", "OTT", 1.0, 10, "ott")
    >>> cell.seconds, cell.ratio, cell.memory = 1.0, 2.0, 1024
    >>> len(draw_bench([cell]).axes)
    2
    """
    lengths = [cell for cell in cells if cell.case.startswith("n=") and cell.ratio]
    drawn = [cell for cell in lengths if cell.scores == lengths[0].scores]
    known = {cell.direction for cell in drawn}
    directions = [way for way in ("forward", "forward+backward") if way in known] or ["forward"]
    rows = {**({SECONDS: lambda cell: cell.seconds} if growth else {}), **ROWS}
    size = (3.4 + 4.2 * len(directions), 3.7 * len(rows))
    figure = import_figure()(figsize=size, layout="constrained")
    axes = figure.subplots(len(rows), len(directions), squeeze=False, sharey="row", sharex=True)
    styles = _styles(drawn)
    usual = max((cell.shape[-3] for cell in drawn), default=1)
    for panels, direction in zip(axes.T, directions, strict=True):
        some = [cell for cell in drawn if cell.direction == direction]
        for name, style in styles.items():
            mine = [cell for cell in some if label(cell, drawn) == name]
            for panel, value in zip(panels, rows.values(), strict=True):
                _line(panel, mine, usual, name, style, value)
        panels[0].set_title(direction, loc="left", fontsize=11, color=INK)
        panels[-1].set_xlabel("n, tokens", color=INK)
    baselines = dict.fromkeys(cell.baseline or SDPA for cell in drawn)
    for panel, title in zip(axes[:, 0], rows, strict=True):
        title = title.format(baseline=" or ".join(baselines) or SDPA)
        panel.set_ylabel(title, color=INK)
    for panel in axes.flat:
        _tidy(panel, sorted({cell.shape[-2] for cell in drawn}))
    _legend(figure, axes, styles)
    if any(cell.shape[-3] != usual for cell in drawn):
        caption += "; hollow marks: one head"
    if any(cell.status == "extrapolated" for cell in drawn):
        caption += "; hollow marks: softmax is extrapolated"
    figure.suptitle(caption, x=0.01, ha="left", fontsize=10, color=INK)
    return figure


def _styles(cells: Sequence[Cell]) -> dict[str, dict[str, Any]]:
    """Ours in full thick lines, softmax thin and grey, others broken; one colour per family."""
    styles: dict[str, dict[str, Any]] = {}
    seen: dict[str, int] = {}
    colours: dict[str, str] = {}
    for cell in cells:
        name = label(cell, cells)
        if name in styles:
            continue
        if cell.contender in (SDPA, CAUSAL_SDPA):
            styles[name] = {"color": "#777777", "linewidth": 1.5, "marker": "o", "markersize": 3}
            if cell.contender == CAUSAL_SDPA:
                styles[name]["linestyle"] = DASHES[0]
            continue
        family = next((known for known in FAMILIES if cell.contender.startswith(known)), None)
        if family is None:
            family = cell.contender
            # more contenders than colours: the next lap through them has other dashes and marks
            seen.setdefault(family, len(colours) // len(SPARE) - 1)
            colours.setdefault(family, SPARE[len(colours) % len(SPARE)])
        turn = seen[family] = seen.get(family, -1) + 1
        ours = cell.package is None and family != "dense"
        styles[name] = {
            "color": FAMILIES.get(family) or colours[family],
            "linewidth": 2.0 if ours else 1.3,
            "linestyle": _dashes(turn, ours, family in colours),
            "marker": (FILLED if ours else SMALL)[turn % 4],
            "markersize": 5.5 if ours else 4,
        }
    return styles


def _dashes(turn: int, ours: bool, numbered: bool) -> Any:
    """Full lines for us, and dashes for a lap of colours that has to be told from the first."""
    if ours and (turn == 0 or not numbered):
        return "-"
    return DASHES[(turn - 1 if ours else turn) % len(DASHES)]


def _line(
    axes: Any, cells: Sequence[Cell], usual: int, name: str, style: dict[str, Any], value: Any
) -> None:
    """A line through the usual number of heads, and hollow marks where there are others."""
    known = [cell for cell in cells if value(cell)]
    points = sorted((c.shape[-2], value(c)) for c in known if _is_usual(c, usual))
    others = sorted((c.shape[-2], value(c)) for c in known if not _is_usual(c, usual))
    if points:
        axes.plot(*zip(*points, strict=True), label=name, **style)
    if others:
        hollow = {**style, "linestyle": "", "markerfacecolor": "white"}
        axes.plot(*zip(*others, strict=True), **hollow)


def _is_usual(cell: Cell, heads: int) -> bool:
    """Whether a cell is measured against a measured baseline, with as many heads as most."""
    predicted = cell.baseline_extrapolated or cell.status == "extrapolated"
    return cell.shape[-3] == heads and not predicted


def _legend(figure: Any, axes: Any, styles: dict[str, dict[str, Any]]) -> None:
    handles: dict[str, Any] = {}
    for panel in axes.flat:
        lines, names = panel.get_legend_handles_labels()
        handles |= dict(zip(names, lines, strict=True))
    shown = [handles[name] for name in styles if name in handles]
    if shown:
        figure.legend(
            handles=shown, loc="outside right center", frameon=False, fontsize=9, handlelength=3.2
        )


def _tidy(axes: Any, sizes: Sequence[int]) -> None:
    from matplotlib.ticker import LogLocator

    axes.set(xscale="log", yscale="log")
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.minorticks_off()
    low, high = axes.get_ylim()
    # a short range has no power of ten inside it to be read by
    steps = (1, 2, 5) if high / low < 2000 else (1,)
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(color=GRID, linewidth=0.6)
    axes.tick_params(length=2, colors=INK, labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
