"""The report of a comparison: one HTML file, and the same as Markdown with pictures beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from bistoch.lab.compare.draw import draw_curves, draw_layers, draw_loads
from bistoch.lab.compare.examples import example_figures
from bistoch.lab.compare.plan import Comparison
from bistoch.lab.compare.summary import Row, base_of, lam_table, layer_table, score_table
from bistoch.lab.compare.verdict import verdict
from bistoch.lab.drawing import to_png
from bistoch.lab.files import write_whole
from bistoch.lab.machine import DISTURBED
from bistoch.lab.report import Report
from bistoch.lab.train import Task

PANELS = {
    "entropy": "entropy of rows (1 = uniform)", "sink": "largest sink score",
    "peak": "largest column mass", "rank": "effective rank of states",
}  # fmt: skip


class Found(NamedTuple):
    """All that a report tells."""

    comparison: Comparison
    task: Task
    rows: list[Row]
    times: Mapping[str, Any]
    command: str
    notes: Sequence[str] = ()
    tables: Mapping[str, tuple[tuple[str, ...], list[tuple[str, ...]]]] = {}


class _Both:
    """A page that is written in two languages at once."""

    def __init__(self, title: str, folder: Path):
        self.report, self.folder = Report(title), folder
        self.lines = [f"# {_markdown(title)}", ""]

    def heading(self, text: str) -> None:
        self.report.heading(text)
        self.lines += [f"## {_markdown(text)}", ""]

    def text(self, text: str) -> None:
        self.report.text(text)
        self.lines += [_markdown(text), ""]

    def code(self, text: str) -> None:
        self.report.code(text)
        self.lines += ["```console", text, "```", ""]

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> None:
        self.report.table(head, rows, caption)
        cells = [[_markdown(cell).replace("|", "\\|") for cell in row] for row in (head, *rows)]
        cells.insert(1, ["---"] * len(head))
        self.lines += ["| " + " | ".join(row) + " |" for row in cells]
        self.lines += ["", *([_markdown(caption), ""] if caption else [])]

    def figure(self, name: str, figure: Any, caption: str) -> None:
        content = to_png(figure)
        self.report.image(content, caption)
        self.folder.joinpath("figures").mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / "figures" / f"{name}.png", content)
        self.lines += [f"![{_markdown(caption)}](figures/{name}.png)", ""]

    def write(self) -> Path:
        write_whole(self.folder / "report.md", "\n".join(self.lines).encode())
        return self.report.write(self.folder / "report.html")


def _markdown(text: str) -> str:
    """Text as Markdown shows it: names of classes and files may hold HTML.

    >>> _markdown("class <b>cat</b> & co")
    'class &lt;b&gt;cat&lt;/b&gt; &amp; co'
    """
    return escape(text, quote=False)


def write_report(found: Found, folder: Path) -> Path:
    """Write report.html and report.md; the path of the first."""
    task, whole = found.task, [row for row in found.rows if row.cells]
    count = len(found.rows)
    words = "operators in the same model" if count > 1 else "operator"
    page = _Both(f"{task.name}: {count} {words}", folder)
    for note in found.notes:
        page.text(note)
    page.text(_intro(found))
    if said := verdict(found.rows, task):
        page.heading("In short")
        page.text(said)
    for caption, (head, lines) in found.tables.items():
        page.table(head, lines, caption)
    rates = len(found.comparison.rates) > 1
    page.table(*score_table(found.rows, task, found.times, rates=rates), _caption(found))
    for row in found.rows:
        for cell in row.diverged:
            page.text(f"{row.operator}, seed {cell.setup.seed}: {cell.diverged}")
    if whole:
        _add_curves(page, found, whole)
        _add_attention(page, found, whole)
    page.heading("Protocol")
    page.table(("what", "value"), _protocol(found))
    page.heading("To run it again")
    page.code(found.command)
    return page.write()


def _add_curves(page: _Both, found: Found, rows: Sequence[Row]) -> None:
    watched, score = rows[0].cells[0].result["watched"], found.task.score_name
    page.heading("Learning curves")
    percent, scale = (" (%)", 100) if score == "accuracy" else ("", 1)
    panels = {"train_loss": "training loss", "loss": f"{watched} loss",
              score: f"{watched} {score}{percent}"}  # fmt: skip
    curves = {
        row.operator: {name: row.curve(name) * (scale if name == score else 1) for name in panels}
        for row in rows
    }
    stops = found.comparison.recipe.patience is not None
    cut = " A line ends where the first of its seeds does." if stops else ""
    page.figure(
        "curves", draw_curves(curves, panels),
        f"Mean over seeds by epoch; the band reaches from the lowest seed to the highest.{cut}",
    )  # fmt: skip


def _add_attention(page: _Both, found: Found, rows: Sequence[Row]) -> None:
    page.heading("What attention does")
    page.text(
        "Column mass is what a key receives from all queries, over its even share: 1 for every key "
        "of a balanced plan. A sink score is the mean attention on one key. Entropy is how widely "
        "a query looks, from 0 (one key) to 1 (all alike). The effective rank counts the "
        "directions that the states of a sample fill. All are means over test samples, heads and "
        "seeds."
    )
    loads = {row.operator: row.layers("loads").mean(0) for row in rows}
    page.figure("columns", draw_loads(loads), "How many columns receive how much, in all layers "
                "and heads; the last bar holds all above four.")  # fmt: skip
    layers = {row.operator: {name: row.layers(name) for name in PANELS} for row in rows}
    page.figure("layers", draw_layers(layers, PANELS), "Layer by layer; ranks begin with the "
                "states before the first layer.")  # fmt: skip
    page.table(*layer_table(rows))
    lams = lam_table(rows)
    if lams is not None:
        page.heading("What was learned of lam")
        page.text("The elasticity of every head: 0 is softmax, 1 is fully balanced.")
        page.table(*lams)
    page.heading("Attention on real samples")
    page.text(f"Models of seed {rows[0].cells[0].setup.seed}, on samples of the test split.")
    for name, figure, caption in example_figures(found.task, rows):
        page.figure(name, figure, caption)


def _intro(found: Found) -> str:
    comparison, task = found.comparison, found.task
    seeds = len(comparison.seeds)
    counts = " + ".join(
        f"{task.count(split):,} {split}"
        for split in ("train", "valid", "test")
        if task.count(split)
    )
    # patience stops each run when it is due
    steps = "" if comparison.recipe.patience else ", the same number of steps"
    return (
        f"The model {comparison.model} on {task.name} ({counts} samples), trained with each "
        f"operator on {seeds} {'seed' if seeds == 1 else 'seeds'}: the same weights to start from, "
        f"the same order of samples{steps}."
    )


def _caption(found: Found) -> str:
    recipe, task = found.comparison.recipe, found.task
    kept = "the epoch with the best valid score" if recipe.patience else "the last epoch"
    better = "larger" if task.larger_is_better else "smaller"
    seeds = len(found.comparison.seeds)
    if seeds > 1:
        scores = (
            f"Mean ± standard deviation over {seeds} seeds, after {kept}; {better} is better. "
            "Differences are taken seed by seed, with their 95 % interval."
        )
    else:
        scores = f"The score of one seed, after {kept}; {better} is better."
    threads, others = found.times["threads"], found.times.get("others")
    busy = ""
    if others is not None and others > DISTURBED:
        busy = (
            f" Meanwhile other programs used {others:.0%} of the cores: these times are doubtful."
        )
    return (
        f"{scores}{_doubt(found)} Steps of {found.times['batch']} samples (forward, backward, "
        f"update) were timed taking turns on {threads} "
        f"{'thread' if threads == 1 else 'threads'}, the best of several; softmax takes "
        f"{1000 * found.times['seconds']['softmax']:.3g} ms.{busy}"
    )


def _doubt(found: Found) -> str:
    """How well the test samples tell an accuracy at all: something that seeds do not show."""
    count, base = found.task.count("test"), base_of(found.rows)
    if base is None or found.task.score_name != "accuracy":
        return ""
    # one sample more of either kind: a perfect score on few samples is not certain
    share = (mean(base.test("accuracy")) * count + 1) / (count + 2)
    error = 100 * (share * (1 - share) / count) ** 0.5
    return f" {count:,} test samples tell an accuracy to ±{error:.1f} points (standard error)."


def _protocol(found: Found) -> list[tuple[str, str]]:
    comparison = found.comparison
    facts = {"data": comparison.data, "model": comparison.model, "seeds": comparison.seeds}
    if (length := found.task.facts.get("length")) is not None:
        facts["length"] = length
    facts |= asdict(comparison.recipe)
    if len(comparison.rates) > 1:
        facts["rate"] = f"the best of {_plain(comparison.rates)} by valid score, on the first seed"
    steps = {cell.result["steps"] for row in found.rows for cell in row.cells}
    if steps:
        facts["steps of a run"] = " to ".join(map(str, sorted({min(steps), max(steps)})))
    return [(name.replace("_", " "), _plain(value)) for name, value in facts.items()]


def _plain(value: object) -> str:
    """A value of the protocol in words.

    >>> _plain((0, 1)), _plain(()), _plain(None), _plain(0.05)
    ('0, 1', 'none', 'none', '0.05')
    """
    if isinstance(value, tuple):
        value = ", ".join(map(str, value))
    return str(value) if value not in (None, "") else "none"
