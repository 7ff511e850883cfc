"""The table, the picture and the report of the study."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bistoch.lab.drawing import PALETTE, QUIET, legend, sheet, tidy
from bistoch.lab.report import Report
from bistoch.lab.reproduce.study import Settings
from bistoch.lab.reproduce.telling import SMOKE, add_picture, finish

if TYPE_CHECKING:
    from rich.console import Console

HEAD = ("heads", "lam", "cosine", "lowest", "Spearman", "neighbour", "topic")
STYLES = {"all heads": PALETTE[1], "tolerant half": PALETTE[0], "other half": QUIET}


def table_rows(found: dict[str, Any], name: str) -> list[tuple[str, ...]]:
    """The rows of one set of sentences."""
    return [
        (
            row["scope"],
            f"{row['lam']:g}",
            f"{row['cosine']:.4f}",
            f"{row['lowest']:.4f}",
            f"{row['spearman']:.4f}",
            f"{row['neighbour']:.3f}",
            "-" if row["topic"] is None else f"{row['topic']:.3f}",
        )
        for row in found["rows"]
        if row["set"] == name
    ]


def print_table(console: "Console", found: dict[str, Any]) -> None:
    """The tables, and what a swap costs."""
    from rich import box
    from rich.table import Table

    for name in _sets(found):
        table = Table(box=box.SIMPLE_HEAD, title=name, title_justify="left", pad_edge=False)
        for place, head in enumerate(HEAD):
            table.add_column(head, justify="right" if place else "left", no_wrap=True)
        for row in table_rows(found, name):
            table.add_row(*row, end_section=row[1] == "1")
        console.print(table)
    exact = max(row["largest_difference"] for row in found["rows"] if row["lam"] == 0)
    console.print(f"lam = 0 differs from the model by at most {exact:.1e}", highlight=False)
    for name, ratio in found["time"]["ratios"].items():
        console.print(f"time over the model as it is: {ratio:.2f} ({name})", highlight=False)


def write_report(out: Path, found: dict[str, Any], settings: Settings, console: "Console") -> Path:
    """The page, and its picture as a file of its own."""
    report = Report("Balance without training", settings.command("zero-training"))
    report.text(
        f"The elastic operator with {found['iters']} iterations in place of softmax in "
        f"{found['model']}, with all weights as they are."
    )
    if found["smoke"]:
        report.text(SMOKE)
    report.text(
        "Cosine: between the embedding of a sentence and that of the model as it is, mean and "
        "lowest. Spearman: rank correlation of the similarities of all pairs of sentences. "
        "Neighbour: how often the nearest sentence stays the nearest. Topic: how often the nearest "
        "sentence has the topic of the sentence, which does not ask the original model. The "
        "tolerant half of the heads was chosen on other sentences, each head balanced alone."
    )
    picture = functools.partial(draw, found)
    add_picture(report, picture, "What is left as lam grows.", out / "zero-training.png", console)
    for name in _sets(found):
        report.heading(name)
        report.table(HEAD, table_rows(found, name))
    exact = max(row["largest_difference"] for row in found["rows"] if row["lam"] == 0)
    report.text(f"At lam = 0 no entry of an embedding differs by more than {exact:.1e}.")
    report.heading("Time")
    took, threads = found["time"]["seconds"], found["time"]["threads"]
    rows = [(name, f"{ratio:.2f}") for name, ratio in found["time"]["ratios"].items()]
    report.table(("swap", "time over the model as it is"), rows, "Best of interleaved rounds; the "
                 f"model as it is took {took:.3f} s (threads: {threads}).")  # fmt: skip
    return finish(report, out, console)


def draw(found: dict[str, Any]) -> Any:
    """Cosine and rank correlation over lam, one line per choice of heads, one row per set."""
    sets = _sets(found)
    panels = (("cosine", "cosine with the original"), ("spearman", "Spearman of similarities"))
    figure, rows_of_axes = sheet(len(sets), 2, width=4.4, height=3.0)
    for line, name in zip(rows_of_axes, sets, strict=True):
        for axes, (key, label) in zip(line, panels, strict=True):
            for scope, colour in STYLES.items():
                rows = [r for r in found["rows"] if r["set"] == name and r["scope"] == scope]
                axes.plot([r["lam"] for r in rows], [r[key] for r in rows], color=colour,
                          marker="o", markersize=3.5, label=scope)  # fmt: skip
            tidy(axes, f"{name}: {label}", "lam")
    legend(rows_of_axes[0][0])
    return figure


def _sets(found: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["set"] for row in found["rows"]))
