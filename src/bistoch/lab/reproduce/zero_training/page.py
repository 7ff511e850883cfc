"""The table, the picture and the report of the study."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bistoch.lab.files import write_whole
from bistoch.lab.report import Report

if TYPE_CHECKING:
    from rich.console import Console

HEAD = ("heads", "lam", "cosine", "lowest", "Spearman", "neighbour", "topic")
STYLES = {"all heads": "#d55e00", "tolerant half": "#0072b2", "other half": "#8a8a8a"}


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


def write_report(out: Path, found: dict[str, Any]) -> Path:
    """The page, and its picture as a file of its own."""
    report = Report("Balance without training")
    report.text(
        f"The elastic operator with {found['iters']} iterations in place of softmax in "
        f"{found['model']}, with all weights as they are."
    )
    if found["smoke"]:
        report.text("A smoke run on a few sentences of our own: it shows that all works, no more.")
    report.text(
        "Cosine: between the embedding of a sentence and that of the model as it is, mean and "
        "lowest. Spearman: rank correlation of the similarities of all pairs of sentences. "
        "Neighbour: how often the nearest sentence stays the nearest. Topic: how often the nearest "
        "sentence has the topic of the sentence, which does not ask the original model. The "
        "tolerant half of the heads was chosen on other sentences, each head balanced alone."
    )
    picture = draw(found)
    content = io.BytesIO()
    picture.savefig(content, format="png", dpi=110, bbox_inches="tight")
    write_whole(out / "zero-training.png", content.getvalue())
    report.image(content.getvalue(), "What is left as lam grows.")
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
    report.heading("Again")
    report.code(f"bistoch reproduce zero-training{' --smoke' if found['smoke'] else ''}")
    return report.write(out / "report.html")


def draw(found: dict[str, Any]) -> Any:
    """Cosine and rank correlation over lam, one line per choice of heads, one row per set."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            'a report needs matplotlib; install it with: pip install "bistoch[plot]"'
        ) from None
    sets = _sets(found)
    panels = (("cosine", "cosine with the original"), ("spearman", "Spearman of similarities"))
    figure = Figure(figsize=(8.8, 3.0 * len(sets)))
    for line, name in enumerate(sets):
        for column, (key, label) in enumerate(panels):
            axes = figure.add_subplot(len(sets), 2, 2 * line + column + 1)
            for scope, colour in STYLES.items():
                rows = [r for r in found["rows"] if r["set"] == name and r["scope"] == scope]
                axes.plot([r["lam"] for r in rows], [r[key] for r in rows], color=colour,
                          marker="o", markersize=3.5, label=scope)  # fmt: skip
            axes.set_title(f"{name}: {label}", fontsize=10, color="#222222", loc="left")
            axes.set_xlabel("lam", fontsize=9)
            axes.tick_params(labelsize=8)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", color="#b8b8b8", linewidth=0.4, alpha=0.6)
            if line == column == 0:
                axes.legend(fontsize=8, frameon=False, loc="lower left")
    figure.tight_layout()
    return figure


def _sets(found: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["set"] for row in found["rows"]))
