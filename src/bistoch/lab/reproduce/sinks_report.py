"""What the study of sinks found: verdicts beside the claims, a table, a picture and a page."""

import io
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from bistoch.lab.files import write_whole
from bistoch.lab.report import Report
from bistoch.lab.reproduce.study import Cells, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, RULE = "#222222", "#e4e4e4"
COLOURS = {
    "softmax": "#000000", "elastic 0.25": "#0072b2", "elastic 0.5": "#009e73",
    "elastic 0.75": "#56b4e9", "sinkhorn": "#d55e00",
}  # fmt: skip
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


def write_report(cells: Cells, folder: Path, console: Console, *, smoke: bool) -> Path:
    """Print the verdicts, and write the picture and the page; the path of the page."""
    found = read(cells)
    rows, verdicts = table_rows(found), judge(found)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in HEADS:
        # names stay whole, numbers are as wide as they are
        table.add_column(head, justify="left" if head in HEADS[:2] else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    said = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in Verdict._fields:
        said.add_column(head)
    for verdict in verdicts:
        said.add_row(*verdict)
    console.print(said)
    report = Report("Sinks and switches")
    report.text(
        "Where heads look when they have nothing to say. In the task \"lookup\" one token of a "
        "sequence must fetch a word and all others must return zeros; \"pictures\" are classifiers "
        "of FashionMNIST, rows of pixels as tokens; \"encoder\" is all-MiniLM-L6-v2, trained with "
        "softmax and not trained again. A sink is a key with a mean attention above "
        "0.3; a head is off for a query to which it gives less than a twentieth of a mean value."
    )  # fmt: skip
    if smoke:
        note = "This is a smoke run: it shows that everything works, and no result."
        console.print(note)
        report.text(note)
    report.heading("Claims and measurements")
    report.table(("claim", "measured here", "holds"), verdicts)
    report.heading("All operators")
    report.table(HEADS, rows, caption=CAPTION)
    _add_picture(report, found, folder, console)
    report.heading("To run it again")
    report.code("bistoch reproduce sinks" + (" --smoke" if smoke else ""))
    path = report.write(folder / "report.html")
    console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
    return path


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
        if sink > 0.3
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


def _add_picture(report: Report, found: Found, folder: Path, console: Console) -> None:
    try:
        figure = draw(found)
    except ImportError as missing:
        console.print(f"no picture: {missing}", highlight=False, markup=False)
        return
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    write_whole(folder / "sinks.png", content.getvalue())
    report.image(
        content.getvalue(), "Every head of every network: its strongest sink, its diagonal."
    )


def draw(found: Found) -> "Figure":
    """One panel per task: a dot per head, its strongest sink across, its diagonal up."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            'drawing a picture needs matplotlib; install it with: pip install "bistoch[plot]"'
        ) from None
    tasks = list(dict.fromkeys(task for task, _ in found))
    figure = Figure(figsize=(2.2 + 3.8 * len(tasks), 3.8), layout="constrained")
    axes = figure.subplots(1, len(tasks), squeeze=False, sharex=True, sharey=True)[0]
    for panel, task in zip(axes, tasks, strict=True):
        for operator, colour in COLOURS.items():
            for number, seed in enumerate(found.get((task, operator), [])):
                panel.scatter(
                    seed["sink"], seed["diagonal"], s=26, color=colour, alpha=0.75, linewidths=0,
                    label=None if number else operator,
                )  # fmt: skip
        panel.axvline(0.3, color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
        panel.set_title(task, loc="left", fontsize=10, color=INK)
        panel.set_xlabel("strongest sink of the head", color=INK)
        panel.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
        panel.grid(color=RULE, linewidth=0.6)
        panel.tick_params(length=2, colors=INK, labelsize=9)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    axes[0].set_ylabel("diagonal score of the head", color=INK)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9)
    return figure
