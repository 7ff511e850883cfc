"""The report of a comparison: one HTML file, and the same as Markdown with pictures beside it."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from bistoch.lab.bench.machine import DISTURBED
from bistoch.lab.compare.draw import draw_curves, draw_layers, draw_loads
from bistoch.lab.compare.examples import example_figures
from bistoch.lab.compare.plan import Comparison
from bistoch.lab.compare.summary import Row, lam_table, layer_table, score_table
from bistoch.lab.files import write_whole
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
        self.lines = [f"# {title}", ""]

    def heading(self, text: str) -> None:
        self.report.heading(text)
        self.lines += [f"## {text}", ""]

    def text(self, text: str) -> None:
        self.report.text(text)
        self.lines += [text, ""]

    def code(self, text: str) -> None:
        self.report.code(text)
        self.lines += ["```console", text, "```", ""]

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> None:
        self.report.table(head, rows, caption)
        cells = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
        cells.insert(1, ["---"] * len(head))
        self.lines += ["| " + " | ".join(row) + " |" for row in cells]
        self.lines += ["", *([caption, ""] if caption else [])]

    def figure(self, name: str, figure: Any, caption: str) -> None:
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=110, bbox_inches="tight")
        self.report.image(content.getvalue(), caption)
        self.folder.joinpath("figures").mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / "figures" / f"{name}.png", content.getvalue())
        self.lines += [f"![{caption}](figures/{name}.png)", ""]

    def write(self) -> Path:
        write_whole(self.folder / "report.md", "\n".join(self.lines).encode())
        return self.report.write(self.folder / "report.html")


def write_report(found: Found, folder: Path) -> Path:
    """Write report.html and report.md; the path of the first."""
    task, whole = found.task, [row for row in found.rows if row.cells]
    page = _Both(f"{task.name}: {len(found.rows)} operators in the same model", folder)
    for note in found.notes:
        page.text(note)
    page.text(_intro(found))
    for caption, (head, lines) in found.tables.items():
        page.table(head, lines, caption)
    page.table(*score_table(found.rows, task, found.times), _caption(found))
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
    panels = {"train_loss": "training loss", "loss": f"{watched} loss", score: f"{watched} {score}"}
    curves = {row.operator: {name: row.curve(name) for name in panels} for row in rows}
    page.figure(
        "curves", draw_curves(curves, panels),
        "Mean over seeds by epoch; the band reaches from the lowest seed to the highest.",
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
    return (
        f"The model {comparison.model} on {task.name} ({counts} samples), trained with each "
        f"operator on {seeds} {'seed' if seeds == 1 else 'seeds'}: the same weights to start from, "
        "the same order of samples, the same number of steps."
    )


def _caption(found: Found) -> str:
    recipe, task = found.comparison.recipe, found.task
    kept = "the epoch with the best valid score" if recipe.patience else "the last epoch"
    better = "larger" if task.larger_is_better else "smaller"
    threads, others = found.times["threads"], found.times.get("others")
    busy = ""
    if others is not None and others > DISTURBED:
        busy = (
            f" Meanwhile other programs used {others:.0%} of the cores: these times are doubtful."
        )
    return (
        f"Mean ± standard deviation over seeds, after {kept}; {better} is better. Steps of "
        f"{found.times['batch']} samples (forward, backward, update) were timed taking turns on "
        f"{threads} {'thread' if threads == 1 else 'threads'}, the best of several; softmax takes "
        f"{1000 * found.times['seconds']['softmax']:.3g} ms.{busy}"
    )


def _protocol(found: Found) -> list[tuple[str, str]]:
    comparison = found.comparison
    facts = {"data": comparison.data, "model": comparison.model, "seeds": comparison.seeds}
    whole = next((row.cells[0] for row in found.rows if row.cells), None)
    if (length := found.task.facts.get("length")) is not None:
        facts["length"] = length
    facts |= asdict(comparison.recipe)
    if len(comparison.rates) > 1:
        facts["rate"] = f"the best of {comparison.rates} by valid score, on the first seed"
    if whole is not None:
        facts["steps of a run"] = whole.result["steps"]
    return [(name, str(value)) for name, value in facts.items()]
