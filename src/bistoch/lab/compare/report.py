"""The report of a comparison: HTML, Markdown with figures beside it, and JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import mean
from textwrap import fill
from typing import Any, NamedTuple, cast

import numpy as np
from rich.console import Console
from torch import Tensor

from bistoch.analysis import influence_warning
from bistoch.lab.compare.cells import Cell
from bistoch.lab.compare.draw import draw_curves, draw_lam, draw_layers, draw_loads, draw_opening
from bistoch.lab.compare.examples import example_figures
from bistoch.lab.compare.opening import finding, split_panels
from bistoch.lab.compare.plan import Comparison
from bistoch.lab.compare.summary import (
    Row,
    baseline_of,
    drift_curves,
    drift_panels,
    drift_table,
    has_drift,
    lam_table,
    lams_of,
    layer_table,
    score_table,
    verdict,
)
from bistoch.lab.machine import DISTURBED, provenance
from bistoch.lab.report import Report, Table, print_table
from bistoch.lab.train import Task, new_model
from bistoch.models import operators

PANELS = {
    "entropy": "entropy of rows (1 = uniform)", "sink": "largest sink score",
    "peak": "largest column mass", "rank": "effective rank of states",
}  # fmt: skip
# columns of the table of scores that a terminal has no room for
ONLY_IN_REPORT = ("each seed", "test loss", "parameters")
# what the record keeps of a run; the seconds of a training depend on what else the machine did
KEPT = ("test", "validation_split", "epoch", "steps", "parameters", "curve", "attention", "drift",
        "diverged")  # fmt: skip


class Found(NamedTuple):
    """All that a report shows; `tables` come first, by caption."""

    comparison: Comparison
    task: Task
    rows: list[Row]
    times: Mapping[str, Any]
    command: str
    notes: Sequence[str] = ()
    tables: Mapping[str, Table] = {}


def write_report(found: Found, folder: Path, console: Console | None = None) -> Path:
    """Write report.html, report.md and report.json, and print the scores; the path of the first."""
    task, whole = found.task, [row for row in found.rows if row.cells]
    count = len(found.rows)
    words = "operators in the same model" if count > 1 else "operator"
    report = Report(f"{task.name}: {count} {words}", found.command, console=console)
    scores = score_table(found.rows, task, found.times, lrs=len(found.comparison.lrs) > 1)
    if console is not None:
        print_scores(scores, console)
    _open(report, found, whole)
    for note in found.notes:
        report.text(note)
    report.text(_intro(found))
    if sentence := verdict(found.rows, task):
        report.text(sentence, printed=True)
    for caption, table in found.tables.items():
        report.table(table.head, table.rows, caption)
    report.table(scores.head, scores.rows, _caption(found))
    for row in whole:
        # a record of an earlier version has none
        attention = row.cells[0].result["attention"]
        warning = influence_warning(attention.get("influence", {}), attention.get("balanced", ()))
        if warning is not None:
            report.text(f"{row.operator}: {warning}", printed=True)
    for row in found.rows:
        for cell in row.diverged:
            report.text(f"{row.operator}, seed {cell.setup.seed}: {cell.diverged}")
    if whole:
        _add_attention(report, found, whole)
        _add_curves(report, found, whole)
        _add_drift(report, whole)
    report.heading("Protocol")
    report.table(("option", "value"), _protocol(found))
    report.table(("option", "value"), model_options(found), "The model with all its options.")
    return report.write(folder / "report.html", markdown=True, record=record_of(found))


def _open(report: Report, found: Found, whole: Sequence[Row]) -> None:
    """What was found, and a picture of it."""
    score = found.task.score_name
    percent, scale = (" (%)", 100) if score == "accuracy" else ("", 1)
    draw = None
    if whole:
        draw = partial(
            draw_opening,
            {row.operator: [scale * x for x in row.test(score)] for row in whole},
            {row.operator: float(row.layers("peak").mean()) for row in whole},
            f"test {score}{percent}",
        )
    report.finding(
        finding(found.rows, found.task), draw,
        "First the test score of every seed (dots) and their mean (line), then what the key that "
        "receives most gets, over its even share; a mean over layers, heads, samples and seeds.",
        "opening", narrow=draw and partial(draw, across=1),
    )  # fmt: skip


def print_scores(scores: Table, console: Console) -> None:
    """The columns of the table of scores that fit a terminal."""
    kept = [i for i, name in enumerate(scores.head) if name not in ONLY_IN_REPORT]
    rows = [[str(row[i]) for i in kept] for row in scores.rows]
    # heads are as narrow as their numbers, so that names of operators are not broken
    widths = [max(10, *map(len, column)) for column in zip(*rows, strict=True)]
    head = [fill(scores.head[i], width) for i, width in zip(kept, widths, strict=True)]
    print_table(console, Table(head, rows))


def _add_curves(report: Report, found: Found, rows: Sequence[Row]) -> None:
    split, score = rows[0].cells[0].result["validation_split"], found.task.score_name
    report.heading("Learning curves")
    percent, scale = (" (%)", 100) if score == "accuracy" else ("", 1)
    panels = {"train_loss": "training loss", "loss": f"{split} loss",
              score: f"{split} {score}{percent}"}  # fmt: skip
    curves = {
        row.operator: {name: row.curve(name) * (scale if name == score else 1) for name in panels}
        for row in rows
    }
    stops = found.comparison.recipe.patience is not None
    cut = " A line ends with the first of its seeds." if stops else ""
    caption = f"Mean over seeds by epoch, with a band from the lowest seed to the highest.{cut}"
    _add_panels(report, draw_curves, curves, panels, caption, "curves")


def _add_drift(report: Report, rows: Sequence[Row]) -> None:
    """Column masses while the models were trained."""
    if not has_drift(rows):
        return
    report.heading("Column masses while training")
    panels = drift_panels(rows)
    draw = partial(draw_curves, {row.operator: drift_curves(row) for row in rows}, panels)
    report.figure(
        draw, "Mean distance of a column mass from its even share: 0 for a doubly stochastic plan. "
        "Epoch 0 is before the first step. Mean over seeds, with a band from the lowest to the "
        "highest.", "drift", narrow=partial(draw, across=1),
    )  # fmt: skip
    with report.folded("Distances from even column masses by layer"):
        report.table(*drift_table(rows))


def _add_panels(
    report: Report,
    draw: Callable[..., Any],
    values: Mapping[str, Mapping[str, np.ndarray]],
    panels: Mapping[str, str],
    caption: str,
    name: str,
) -> None:
    """Panels that show a difference between operators, and the others folded away."""
    shown, same = split_panels(values, panels)
    if shown:
        figure = partial(draw, values, shown)
        report.figure(figure, caption, name, narrow=partial(figure, across=1))
    if same:
        words = ", ".join(same.values())
        with report.folded(f"No difference beyond seeds: {words}"):
            figure = partial(draw, values, same)
            report.figure(figure, caption, f"{name}_alike", narrow=partial(figure, across=1))


def _add_attention(report: Report, found: Found, rows: Sequence[Row]) -> None:
    examples = list(example_figures(found.task, rows))
    report.heading("Attention on test samples")
    report.text(f"Models of seed {rows[0].cells[0].setup.seed}.")
    for one in examples:
        if not one.folded:
            report.figure(one.draw, one.caption, one.name, narrow=one.narrow, photos=one.photos)
    with report.folded("All layers, the mean of all heads"):
        for one in (one for one in examples if one.folded):
            report.figure(one.draw, one.caption, one.name)
    report.heading("Attention")
    report.text(
        "Column mass is what a key receives from all queries, relative to its even share: 1 for "
        "every key of a balanced plan. A sink score is the mean attention on one key. Entropy is "
        "how widely a query attends, from 0 (one key) to 1 (all alike). The effective rank is the "
        "number of directions that the states of a sample span. All are means over test samples, "
        "heads and seeds."
    )
    loads = partial(draw_loads, {row.operator: row.layers("loads").mean(0) for row in rows})
    report.figure(
        loads, "Histogram of column masses in all layers and heads; the last bar holds all above "
        "four.", "columns", narrow=partial(loads, across=1),
    )  # fmt: skip
    values = {r.operator: {name: r.layers(name) for name in PANELS} for r in rows}
    caption = "By layer; ranks begin with the states before the first layer."
    _add_panels(report, draw_layers, values, PANELS, caption, "layers")
    lams = lams_of(rows)
    if lams:
        report.heading("Learned lam")
        report.figure(
            partial(draw_lam, lams),
            "The elasticity of every head, the mean over seeds: 0 is softmax, 1 is fully balanced.",
            "lam", narrow=partial(draw_lam, lams, across=1),
        )  # fmt: skip
    with report.folded("Numbers by layer" + (", and of every seed" if lams else "")):
        report.table(*layer_table(rows))
        if (table := lam_table(rows)) is not None:
            report.table(*table)


def _intro(found: Found) -> str:
    comparison, task = found.comparison, found.task
    seeds = len(comparison.seeds)
    counts = " + ".join(
        f"{task.count(split):,} {split}"
        for split in ("train", "valid", "test")
        if task.count(split)
    )
    # early stopping ends each run in its own time
    steps = "" if comparison.recipe.patience else ", the same number of steps"
    return (
        f"The model {comparison.model} on {task.name} ({counts} samples), trained with each "
        f"operator on {seeds} {'seed' if seeds == 1 else 'seeds'}: the same initial weights, the "
        f"same order of samples{steps}."
    )


def _caption(found: Found) -> str:
    recipe, task, times = found.comparison.recipe, found.task, found.times
    epoch = "the epoch with the best validation score" if recipe.patience else "the last epoch"
    better = "larger" if task.larger_is_better else "smaller"
    seeds = len(found.comparison.seeds)
    sentences = [f"The score of one seed, after {epoch}; {better} is better."]
    if seeds > 1:
        sentences = [
            f"Mean ± standard deviation over {seeds} seeds, after {epoch}; {better} is better.",
            "Differences are paired by seed, with their 95 % interval.",
        ]
    count, baseline = task.count("test"), baseline_of(found.rows)
    if baseline is not None and task.score_name == "accuracy":
        # one sample more of either kind: a perfect score on few samples is not certain
        share = (mean(baseline.test("accuracy")) * count + 1) / (count + 2)
        error = 100 * (share * (1 - share) / count) ** 0.5
        sentences.append(
            f"With {count:,} test samples an accuracy has a standard error of {error:.1f} points."
        )
    threads = f"{times['threads']} {'thread' if times['threads'] == 1 else 'threads'}"
    sentences.append(
        f"Steps of {times['batch_size']} samples (forward, backward, update) were timed in turns "
        f"on {threads}, the best of several; softmax takes "
        f"{1000 * times['seconds']['softmax']:.3g} ms."
    )
    others = times.get("others")
    if others is not None and others > DISTURBED:
        sentences.append(
            f"Meanwhile other programs used {others:.0%} of the cores: these times are doubtful."
        )
    return " ".join(sentences)


def _protocol(found: Found) -> list[tuple[str, str]]:
    comparison = found.comparison
    facts = {"data": comparison.data, "model": comparison.model, "seeds": comparison.seeds}
    if (length := found.task.facts.get("length")) is not None:
        facts["length"] = length
    facts |= asdict(comparison.recipe)
    if len(comparison.lrs) > 1:
        facts["lr"] = f"the best of {_plain(comparison.lrs)} by validation score, on the first seed"
    steps = {cell.result["steps"] for row in found.rows for cell in row.cells}
    if steps:
        facts["steps of a run"] = " to ".join(map(str, sorted({min(steps), max(steps)})))
    return [(name.replace("_", " "), _plain(value)) for name, value in facts.items()]


def model_options(found: Found) -> list[tuple[str, str]]:
    """The config of the model and the options of every operator, defaults included."""
    comparison = found.comparison
    rows: list[tuple[str, str]] = []
    for operator in comparison.operators:
        model = new_model(comparison.setup(operator, comparison.seeds[0]), found.task)
        if not rows:
            sizes = asdict(cast(Any, model.config))
            rows = [(name.replace("_", " "), _plain(value)) for name, value in sizes.items()]
        module = next(iter(operators(model).values()), None)
        if module is not None:
            options = {
                name: "learned" if isinstance(value, Tensor) else value
                for name, value in module.options().items()
            }
            text = ", ".join(f"{name} {_plain(value)}" for name, value in options.items())
            rows.append((operator, text or "no options"))
    return rows


def _plain(value: object) -> str:
    """A value of the protocol as text.

    >>> _plain((0, 1)), _plain(()), _plain(None), _plain(0.05)
    ('0, 1', 'none', 'none', '0.05')
    """
    if isinstance(value, tuple):
        value = ", ".join(map(str, value))
    return str(value) if value not in (None, "") else "none"


def record_of(found: Found) -> dict[str, Any]:
    """All numbers of a report, as JSON."""
    task = found.task
    return {
        **provenance(found.command),
        "comparison": asdict(found.comparison),
        "length": task.facts.get("length"),
        "samples": {split: task.count(split) for split in ("train", "valid", "test")},
        "score": task.score_name,
        "larger_is_better": task.larger_is_better,
        "times": dict(found.times),
        "notes": list(found.notes),
        "model_options": dict(model_options(found)),
        "verdict": verdict(found.rows, task),
        "runs": [_run(cell) for row in found.rows for cell in (*row.cells, *row.diverged)],
    }


def _run(cell: Cell) -> dict[str, Any]:
    facts = {"operator": cell.setup.operator, "seed": cell.setup.seed, "lr": cell.setup.recipe.lr}
    return facts | {name: cell.result[name] for name in KEPT if name in cell.result}
