"""What the reports of studies share: colours, verdicts on the terminal, pictures, smoke runs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from bistoch.lab.drawing import to_png
from bistoch.lab.files import write_whole
from bistoch.lab.report import Report
from bistoch.lab.reproduce.study import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# from free columns to balanced ones: dark to bright, of the palette of Okabe and Ito
COLOURS = {
    "softmax": "#000000", "elastic 0.25": "#0072b2", "elastic 0.5": "#009e73",
    "elastic 0.75": "#56b4e9", "sinkhorn": "#d55e00",
}  # fmt: skip
SMOKE = "This is a smoke run: it shows that everything works, and no result."


def tell_verdicts(console: Console, report: Report, verdicts: Sequence[Verdict]) -> None:
    """Claims beside measurements, on the terminal and in the page."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in Verdict._fields:
        table.add_column(head)
    for verdict in verdicts:
        table.add_row(*verdict)
    console.print(table)
    report.heading("Claims and measurements")
    report.table(("claim", "measured here", "holds"), verdicts)


def add_picture(
    report: Report,
    draw: Callable[[], "Figure"],
    caption: str,
    path: Path,
    console: Console,
) -> None:
    """A picture in the page and as a file of its own; without matplotlib, one sentence instead."""
    try:
        content = to_png(draw())
    except ImportError as missing:
        console.print(f"no picture: {missing}", highlight=False, markup=False)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)
    report.image(content, caption)


def finish(report: Report, folder: Path, console: Console) -> Path:
    """Write the page, and say where it is."""
    path = report.write(folder / "report.html")
    console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
    return path
