"""A comparison from words to report."""

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bistoch.lab.compare.cells import Cell, run_all, time_once
from bistoch.lab.compare.draw import new_figure
from bistoch.lab.compare.live import board
from bistoch.lab.compare.page import Found, write_report
from bistoch.lab.compare.plan import Comparison
from bistoch.lab.compare.record import write_record
from bistoch.lab.compare.summary import rows_of, score_table
from bistoch.lab.train import Task, new_model, open_task
from bistoch.lab.train.checkpoint import import_safetensors
from bistoch.lab.train.log import MISSING, has_tensorboard


def run_compare(
    comparison: Comparison,
    out: Path,
    console: Console,
    *,
    command: str,
    length: int | None = None,
    tensorboard: bool = True,
    notes: Sequence[str] = (),
) -> Path:
    """Train what is missing, write report.html, report.md and report.json; the path of the first.

    Args:
        comparison: what is compared.
        out: folder for reports and runs. Runs that are finished there are not trained again.
        console: where to show progress and results.
        command: what makes the report again, for its last line.
        length: as for `open_task`.
        tensorboard: whether to write files for TensorBoard.
        notes: paragraphs to put first in the report.
    """
    # what is missing is said before hours of training, not after them
    import_safetensors()
    new_figure((1, 1))
    task = open_task(comparison.data, comparison.model, hold_out=comparison.chooses, length=length)
    for operator in comparison.operators:
        check_operator(comparison, operator, task)
    if tensorboard and not has_tensorboard():
        console.print(MISSING, style="dim", highlight=False, markup=False)
        tensorboard = False
    cells: list[Cell] = []
    try:
        with board(comparison, task, console) as shown:
            for cell in run_all(comparison, task, out, tensorboard=tensorboard, watch=shown.step):
                cells.append(cell)
                shown.finish(cell)
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on from here")
        raise
    times = time_once(comparison, task, out)
    found = Found(comparison, task, rows_of(comparison, cells), times, command, notes)
    print_scores(found, console)
    page = write_report(found, out)
    write_record(found, out)
    console.print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)
    return page


def check_operator(comparison: Comparison, operator: str, task: Task) -> None:
    """Run one sample through the model, so that an operator that does not fit is said at once."""
    import torch

    model = new_model(comparison.setup(operator, comparison.seeds[0]), task).eval()
    with torch.no_grad():
        model(*task.batch("test", torch.tensor([0])).inputs)


def print_scores(found: Found, console: Console) -> None:
    """The table of scores, as the report has it."""
    head, rows = score_table(found.rows, found.task, found.times)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    kept = [0, 1, 3, 4]
    for place in kept:
        table.add_column(head[place], justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*(escape(row[place]) for place in kept))
    console.print(table)
