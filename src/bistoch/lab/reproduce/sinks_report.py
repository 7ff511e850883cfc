"""What the study of sinks found: verdicts beside the claims, a table, a picture and a page."""

import functools
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from bistoch.analysis.metrics import SINK
from bistoch.lab.drawing import INK, legend_beside, sheet, tidy
from bistoch.lab.report import Report
from bistoch.lab.reproduce.study import Cells, Settings, Verdict
from bistoch.lab.reproduce.telling import COLOURS, SMOKE, add_picture, finish, tell_verdicts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = (
    "task", "operator", "right", "rate", "sink", "diagonal", "drain", "off", "gini", "entropy",
)  # fmt: skip
CAPTION = (
    "Means over heads, sequences and seeds. right: accuracy (pictures), explained share of the "
    "wanted result (lookup), cosine with the result of softmax (encoder); rate: plans with a sink; "
    "sink: the attention on the strongest one; drain: the size of its value over the median; off: "
    "queries for whom the head is off; gini: of the column sums."
)
# what counts as a head that has become a diagonal, and as a value that is drained
DIAGONAL, DRAINED = 0.5, 0.5

Found = Mapping[tuple[str, str], list[dict[str, Any]]]


def read(cells: Cells) -> Found:
    """The cells by task and operator, their seeds together."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for name, cell in cells.found.items():
        task, operator, _ = name.split("/")
        found[task, operator].append(cell)
    return found


def write_report(cells: Cells, folder: Path, console: Console, settings: Settings) -> Path:
    """Print the verdicts, and write the picture and the page; the path of the page."""
    found = read(cells)
    rows = table_rows(found)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in HEADS:
        # names stay whole, numbers are as wide as they are
        table.add_column(head, justify="left" if head in HEADS[:2] else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    report = Report("Sinks and switches", settings.command("sinks"))
    report.text(
        "Where heads look when they have nothing to say. In the task \"lookup\" one token of a "
        "sequence must fetch a word and all others must return zeros; \"pictures\" are classifiers "
        "of FashionMNIST, rows of pixels as tokens; \"encoder\" is all-MiniLM-L6-v2, trained with "
        "softmax and not trained again. A sink is a key with a mean attention "
        f"above {SINK}; a head is off for a query to which it gives less than a twentieth of a "
        "mean value."
    )  # fmt: skip
    tell_verdicts(console, report, judge(found))
    if settings.smoke:
        console.print(SMOKE)
        report.text(SMOKE)
    report.heading("All operators")
    report.table(HEADS, rows, caption=CAPTION)
    caption = "Every head of every network: its strongest sink, its diagonal."
    add_picture(report, functools.partial(draw, found), caption, folder / "sinks.png", console)
    return finish(report, folder, console)


def table_rows(found: Found) -> list[tuple[str, ...]]:
    """One row per task and operator."""
    rows = []
    for (task, operator), seeds in found.items():
        values = [mean(seed[name] for seed in seeds) for name in ("right", "sink_rate")]
        lists = ("sink", "diagonal", "drain", "off", "gini", "entropy")
        values += [mean(mean(seed[name]) for seed in seeds) for name in lists]
        rows.append((task, operator, *(f"{value:.2f}" for value in values)))
    return sorted(rows, key=lambda row: (row[0], list(COLOURS).index(row[1])))


def judge(found: Found) -> list[Verdict]:
    """The claims beside what was measured, task by task."""
    tasks = dict.fromkeys(task for task, _ in found)
    return [verdict for task in tasks for verdict in _judge_task(task, found)]


def _judge_task(task: str, found: Found) -> list[Verdict]:
    soft, hard = found[task, "softmax"], found[task, "sinkhorn"]

    def rate(seeds: list[dict[str, Any]]) -> float:
        return mean(seed["sink_rate"] for seed in seeds)

    def heads(seeds: list[dict[str, Any]], name: str) -> list[float]:
        return [value for seed in seeds for value in seed[name]]

    drained = [
        drain
        for sink, drain in zip(heads(soft, "sink"), heads(soft, "drain"), strict=True)
        if sink > SINK
    ]
    diagonals = [mean(d > DIAGONAL for d in heads(side, "diagonal")) for side in (soft, hard)]
    removed = "no sinks to remove"
    if rate(soft) > 0.05:
        removed = "yes" if rate(hard) < 0.1 * rate(soft) else "no"
    drain = f"mean value of the sink, over the median: {mean(drained):.2f}" if drained else "-"
    gain = diagonals[1] - diagonals[0]
    return [
        Verdict(
            f"{task}: balance removes sinks",
            f"sink rate: softmax {rate(soft):.2f}, sinkhorn {rate(hard):.2f}",
            removed,
        ),
        Verdict(
            f"{task}: a sink switches a head off, by a small value",
            drain,
            "no sinks to ask" if not drained else "yes" if mean(drained) < DRAINED else "no",
        ),
        Verdict(
            f"{task}: where sinks are forbidden, diagonal heads take over",
            "heads that look at themselves: "
            f"softmax {diagonals[0]:.0%}, sinkhorn {diagonals[1]:.0%}",
            "yes" if gain > 0.1 else "no",
        ),
    ]


def draw(found: Found) -> "Figure":
    """One panel per task: a dot per head, its strongest sink across, its diagonal up."""
    tasks = list(dict.fromkeys(task for task, _ in found))
    figure, axes = sheet(1, len(tasks), width=3.7, height=3.4, sharex=True, sharey=True)
    for panel, task in zip(axes[0], tasks, strict=True):
        for operator, colour in COLOURS.items():
            for number, seed in enumerate(found.get((task, operator), [])):
                panel.scatter(
                    seed["sink"], seed["diagonal"], s=26, color=colour, alpha=0.75, linewidths=0,
                    label=None if number else operator,
                )  # fmt: skip
        panel.axvline(SINK, color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
        panel.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
        ylabel = "diagonal score of the head" if task == tasks[0] else ""
        tidy(panel, task, "strongest sink of the head", ylabel)
    legend_beside(figure, axes[0][0])
    return figure
