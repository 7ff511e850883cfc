"""Results for the terminal: ratios, growth and memory, and under them all that needs a word."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bistoch.lab.bench.cases import SCORES
from bistoch.lab.bench.contenders import SDPA
from bistoch.lab.bench.growth import growth_rows
from bistoch.lab.bench.measure import Cell
from bistoch.lab.machine import DISTURBED

MIB = 1 << 20


def print_results(cells: Sequence[Cell], notes: Sequence[str], console: Console) -> None:
    """Print one table per kind of scores and direction, one for memory, and the notes.

    Args:
        cells: what was measured.
        notes: sentences for the end.
        console: where to print.
    """
    marks = Marks()
    lengths = [cell for cell in cells if cell.case.startswith("n=")]
    for scores in SCORES:
        for direction in ("forward", "forward+backward"):
            some = [c for c in lengths if (c.scores, c.direction) == (scores, direction)]
            if some:
                title = f"{direction}, {scores} scores: time over {SDPA}"
                _print(console, title, _over_n(some, marks, _time, "time"))
    for direction in ("forward", "forward+backward"):
        # the kind of scores does not change what is allocated
        some = [c for c in lengths if (c.scores, c.direction) == ("random", direction)]
        if some:
            title = f"{direction}: peak memory beyond the inputs, MiB"
            _print(console, title, _over_n(some, marks, _memory, "memory"))
    for name in dict.fromkeys(c.case for c in cells if not c.case.startswith("n=")):
        some = [cell for cell in cells if cell.case == name]
        shape = " x ".join(map(str, some[0].shape))
        title = f"{name} ({shape}): time over {some[0].baseline}"
        _print(console, title, _one_shape(some, marks))
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


def _print(console: Console, title: str, table: Table) -> None:
    # a title of the table itself would be broken to its width
    console.print(f"\n[bold]{title}[/bold]", highlight=False)
    console.print(table)


def _over_n(cells: Sequence[Cell], marks: Marks, show: Any, growth: str) -> Table:
    """One row per contender, one column per n."""
    sizes = sorted({cell.shape[-2] for cell in cells})
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("contender", no_wrap=True)
    heads = {cell.shape[-2]: cell.shape[-3] for cell in cells}
    usual = max(heads.values())
    for n in sizes:
        table.add_column(str(n) if heads[n] == usual else f"{n} ({heads[n]} head)", justify="right")
    table.add_column("~n^", justify="right")
    grown = {
        (row["contender"], row["lam"], row["iters"]): row[growth] for row in growth_rows(cells)
    }
    rows: dict[tuple[Any, ...], dict[int, Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.contender, cell.lam, cell.iters), {})[cell.shape[-2]] = cell
    for key, row in rows.items():
        shown = [_cell(row.get(n), marks, show) for n in sizes]
        exponent = grown.get(key)
        name = label(next(iter(row.values())), cells)
        table.add_row(name, *shown, "" if exponent is None else f"{exponent:.1f}")
    return table


def _one_shape(cells: Sequence[Cell], marks: Marks) -> Table:
    """One row per contender, time and memory of each direction."""
    directions = tuple(dict.fromkeys(cell.direction for cell in cells))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("contender", no_wrap=True)
    for direction in directions:
        table.add_column(direction, justify="right")
        table.add_column("MiB", justify="right")
    for name in dict.fromkeys(label(cell, cells) for cell in cells):
        row = {cell.direction: cell for cell in cells if label(cell, cells) == name}
        shown = [_cell(row.get(d), marks, show) for d in directions for show in (_time, _memory)]
        table.add_row(name, *shown)
    return table


def _cell(cell: Cell | None, marks: Marks, show: Any) -> str:
    if cell is None:
        return ""
    if cell.status != "measured":
        word = "wrong" if cell.status == "wrong" else "-"
        return rf"{word} \[{marks.number(f'{cell.contender}: {cell.reason}')}]"
    return show(cell, marks)


def _time(cell: Cell, marks: Marks) -> str:
    if cell.ratio is None or cell.seconds is None:
        return ""
    if cell.contender == cell.baseline:
        return f"{_seconds(cell.seconds)}"
    digits = 1 if cell.ratio >= 10 else 2 if cell.ratio >= 0.2 else 3
    ratio = f"{cell.ratio:.{digits}f}"
    if cell.iterations_taken != cell.iters:
        number = marks.number(
            f"{cell.contender}: with {cell.iterations_taken} of its own iterations, which come as "
            f"close to the limit as {cell.iters} of ours"
        )
        ratio += rf" \[{number}]"
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
    tolerances = [cell.tolerance for cell in cells if cell.tolerance is not None]
    if tolerances:
        yield (
            "every time is of a result proven against float64, largest error at most "
            f"{min(tolerances):.0e} of the largest entry; best of several interleaved rounds; "
            f"{SDPA} is scaled_dot_product_attention; the row of a baseline shows its own time; "
            "~n^ is the exponent of growth"
        )
    doubtful = sum((cell.others or 0) > DISTURBED for cell in cells if cell.seconds)
    if doubtful:
        yield (
            f"doubtful: {doubtful} of {sum(bool(cell.seconds) for cell in cells)} times were taken "
            f"while other programs used more than {DISTURBED:.0%} of the cores"
        )
    if any(cell.timed_once for cell in cells):
        yield "* one slow call, timed once"
