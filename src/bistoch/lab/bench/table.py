"""Results for the terminal: ratios, growth and memory, and under them all that needs a word."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import linear_regression
from typing import Any

from rich.console import Console

from bistoch.lab.bench.cases import SCORES
from bistoch.lab.bench.contenders import SDPA
from bistoch.lab.bench.measure import Cell
from bistoch.lab.machine import DISTURBED
from bistoch.lab.report import Table, print_table

MIB = 1 << 20
# shorter sequences mostly show the price of a call
SHORTEST = 256
DIRECTIONS = ("forward", "forward+backward")


def print_results(cells: Sequence[Cell], notes: Sequence[str], console: Console) -> None:
    """Print one table per kind of scores and direction, one for memory, and the notes.

    Args:
        cells: what was measured.
        notes: sentences for the end.
        console: where to print.
    """
    marks = Marks()
    lengths = [cell for cell in cells if cell.case.startswith("n=")]
    kinds = list(dict.fromkeys(cell.scores for cell in lengths))
    for scores in kinds:
        for direction in DIRECTIONS:
            some = [c for c in lengths if (c.scores, c.direction) == (scores, direction)]
            if some:
                what = f"heat step, {scores}" if some[0].task == "heat" else f"{scores} scores"
                over = " or ".join(dict.fromkeys(c.baseline or SDPA for c in some))
                title = f"{direction}, {what}: time over {over}"
                print_table(console, _over_n(some, marks, _time, "time", title))
    for direction in DIRECTIONS:
        # the kind of scores does not change what is allocated
        some = [c for c in lengths if (c.scores, c.direction) == (kinds[0], direction)]
        if some:
            title = f"{direction}: peak memory beyond the inputs, MiB"
            print_table(console, _over_n(some, marks, _memory, "memory", title))
    for name in dict.fromkeys(c.case for c in cells if not c.case.startswith("n=")):
        print_table(console, _one_shape([cell for cell in cells if cell.case == name], marks))
    for line in (*_legend(cells), *marks.lines(), *notes):
        console.print(line, highlight=False, markup=False)


class Marks:
    """Footnotes: cells that need a word share the number of their sentence.

    >>> marks = Marks()
    >>> marks.number("too slow"), marks.number("wrong"), marks.number("too slow")
    (1, 2, 1)
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, sentence: str) -> int:
        """The number of a sentence."""
        return self._numbers.setdefault(sentence, len(self._numbers) + 1)

    def lines(self) -> Iterator[str]:
        """All sentences with their numbers."""
        for sentence, number in self._numbers.items():
            yield f"[{number}] {sentence}"


def label(cell: Cell, cells: Sequence[Cell]) -> str:
    """The name of a contender, with its options where others bear the same name.

    >>> cell = Cell("n=4", "attention", [1, 1, 4, 2], "random", "forward", "OTT", 1.0, 10, "ott")
    >>> label(cell, [cell])
    'OTT'
    """
    if len({(c.lam, c.iters) for c in cells if c.contender == cell.contender}) < 2:
        return cell.contender
    return f"{cell.contender} {_options(cell)}"


def _options(cell: Cell) -> str:
    return f"lam={cell.lam:g} iters={cell.iters}"


def _over_n(
    cells: Sequence[Cell],
    marks: Marks,
    show: Callable[[Cell, Marks], str],
    growth: str,
    title: str,
) -> Table:
    """One row per contender, one column per n."""
    sizes = sorted({cell.shape[-2] for cell in cells})
    heads = {cell.shape[-2]: cell.shape[-3] for cell in cells}
    usual = max(heads.values())
    head = [str(n) if heads[n] == usual else f"{n} ({heads[n]} head)" for n in sizes]
    grown = {
        (line["contender"], line["lam"], line["iters"]): line[growth] for line in growth_rows(cells)
    }
    found: dict[tuple[Any, ...], dict[int, Cell]] = {}
    for cell in cells:
        found.setdefault((cell.contender, cell.lam, cell.iters), {})[cell.shape[-2]] = cell
    rows = []
    for key, row in found.items():
        shown = [_cell(row.get(n), marks, show) for n in sizes]
        power = grown.get(key)
        name = label(next(iter(row.values())), cells)
        rows.append([name, *shown, "" if power is None else f"{power:.1f}"])
    return Table(["contender", *head, "~n^"], rows, title)


def _one_shape(cells: Sequence[Cell], marks: Marks) -> Table:
    """One row per contender, time and memory of each direction."""
    directions = tuple(dict.fromkeys(cell.direction for cell in cells))
    shape = " x ".join(map(str, cells[0].shape))
    rows = []
    for name in dict.fromkeys(label(cell, cells) for cell in cells):
        row = {cell.direction: cell for cell in cells if label(cell, cells) == name}
        rows.append(
            [name, *(_cell(row.get(d), marks, f) for d in directions for f in (_time, _memory))]
        )
    head = ["contender", *(title for way in directions for title in (way, "MiB"))]
    return Table(head, rows, f"{cells[0].case} ({shape}): time over {cells[0].baseline}")


def _cell(cell: Cell | None, marks: Marks, show: Callable[[Cell, Marks], str]) -> str:
    if cell is None:
        return ""
    if cell.status not in ("measured", "extrapolated"):
        word = "wrong" if cell.status == "wrong" else "-"
        return f"{word} [{marks.number(f'{cell.contender}: {cell.reason}')}]"
    return show(cell, marks)


def _time(cell: Cell, marks: Marks) -> str:
    if cell.ratio is None or cell.seconds is None:
        return ""
    if cell.contender == cell.baseline:
        seconds = f"{'~' * (cell.status == 'extrapolated')}{_seconds(cell.seconds)}"
        if cell.status == "measured" and cell.reason:
            seconds += f" [{marks.number(f'{cell.contender}: {cell.reason}')}]"
        return seconds
    digits = 1 if cell.ratio >= 10 else 2 if cell.ratio >= 0.2 else 3
    ratio = f"{cell.ratio:.{digits}f}"
    if cell.iterations_taken != cell.iters:
        number = marks.number(
            f"{cell.contender}: with {cell.iterations_taken} iterations, the fewest tried that are "
            "accurate enough"
        )
        ratio += f" [{number}]"
    ratio = f"~{ratio}" if cell.baseline_extrapolated else ratio
    return f"{ratio}*" if cell.timed_once else ratio


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _memory(cell: Cell, marks: Marks) -> str:
    if cell.memory is None:
        return "?"
    return f"{cell.memory / MIB:.3g}" if cell.memory < 1000 * MIB else f"{cell.memory / MIB:.0f}"


def _legend(cells: Sequence[Cell]) -> Iterator[str]:
    for scores in dict.fromkeys(cell.scores for cell in cells):
        yield f"{scores}: {SCORES[scores]}"
    if allowed := _allowed(cells):
        yield (
            "every time is of a result verified against float64, largest error at most "
            f"{allowed}; best of several interleaved rounds; "
            f"{SDPA} is scaled_dot_product_attention; the row of a baseline shows its own time; "
            "~n^ is the exponent of growth"
        )
    doubtful = sum((cell.others or 0) > DISTURBED for cell in cells if cell.seconds)
    if doubtful:
        yield (
            f"doubtful: {doubtful} of {sum(bool(cell.seconds) for cell in cells)} times were taken "
            f"while other programs used more than {DISTURBED:.0%} of the cores"
        )
    if any(cell.status == "extrapolated" for cell in cells):
        yield (
            "~ the baseline is extrapolated from the longest sequence at which it was timed, by "
            "the number of pairs"
        )
    if any(cell.timed_once for cell in cells):
        yield "* one slow call, timed once"


def _allowed(cells: Sequence[Cell]) -> str:
    """What results were allowed to be off by, with the names of those that were allowed more.

    >>> cells = [
    ...     Cell("n=4", "attention", [1, 1, 4, 2], "random", "forward", name, 1.0, 10, None)
    ...     for name in ("elastic", "elastic bf16", "sdpa bf16")
    ... ]
    >>> cells[0].tolerance, cells[1].tolerance, cells[2].tolerance = 1e-5, 0.02, 0.02
    >>> _allowed(cells)
    '1e-05 of the largest entry (0.02 for elastic bf16, sdpa bf16)'
    """
    largest: dict[str, float] = {}
    for cell in cells:
        if cell.tolerance is not None:
            largest[cell.contender] = max(cell.tolerance, largest.get(cell.contender, 0.0))
    if not largest:
        return ""
    names = defaultdict(list)
    for name, tolerance in sorted(largest.items(), key=lambda item: item[1]):
        names[f"{tolerance:.2g}"].append(name)
    usual, *others = names
    more = "; ".join(f"{tolerance} for {', '.join(names[tolerance])}" for tolerance in others)
    return f"{usual} of the largest entry" + (f" ({more})" if more else "")


def growth_rows(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """The growth with n of every contender, setting, scores and direction measured at several n."""
    groups = defaultdict(list)
    for cell in cells:
        if cell.case.startswith("n=") and cell.seconds and cell.status == "measured":
            # other heads or features would not be the same curve
            *batch, _, d = cell.shape
            groups[
                cell.contender, cell.lam, cell.iters, cell.scores, cell.direction, *batch, d
            ].append(cell)
    rows = []
    for (contender, lam, iters, scores, direction, *_), group in groups.items():
        time = exponent([(cell.shape[-2], cell.seconds) for cell in group])
        memory = exponent([(cell.shape[-2], cell.memory) for cell in group])
        if time is not None:
            rows.append({
                "contender": contender, "lam": lam, "iters": iters, "scores": scores,
                "direction": direction, "time": time, "memory": memory,
            })  # fmt: skip
    return rows


def exponent(points: Sequence[tuple[int, float | None]]) -> float | None:
    """The slope of the best line through log(value) over log(n); None for fewer than two sizes.

    >>> exponent([(256, 1.0), (512, 4.0), (1024, 16.0)])
    2.0
    """
    known = [(n, value) for n, value in points if value]
    long = [(n, value) for n, value in known if n >= SHORTEST]
    used = long if len(long) >= 2 else known
    if len({n for n, _ in used}) < 2:
        return None
    x, y = [math.log(n) for n, _ in used], [math.log(value) for _, value in used]
    return round(linear_regression(x, y).slope, 2)
