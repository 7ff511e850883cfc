"""A comparison from words to report."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bistoch.lab.compare.cells import CPU, Cell, run_all, time_once
from bistoch.lab.compare.draw import new_figure
from bistoch.lab.compare.live import board
from bistoch.lab.compare.page import Found, write_report
from bistoch.lab.compare.plan import Comparison
from bistoch.lab.compare.record import write_record
from bistoch.lab.compare.summary import rows_of, score_table
from bistoch.lab.compare.verdict import verdict
from bistoch.lab.train import Task, new_model, open_task
from bistoch.lab.train.checkpoint import import_safetensors
from bistoch.lab.train.log import NO_TENSORBOARD, has_tensorboard
from bistoch.models import operators

# columns of the table of scores that a terminal has no room for
IN_REPORT = ("each seed", "test loss", "parameters")
# letters of a line of a head, at least
HEAD = 10


def run_compare(
    comparison: Comparison,
    out: Path,
    console: Console,
    *,
    command: str,
    length: int | None = None,
    device: torch.device = CPU,
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
        device: where models are trained and timed.
        tensorboard: whether to write files for TensorBoard.
        notes: paragraphs to put first in the report.
    """
    task = open_task(comparison.data, comparison.model, hold_out=comparison.chooses, length=length)
    cells = train_all(comparison, task, out, console, device=device, tensorboard=tensorboard)
    times = time_once(comparison, task, out, device)
    found = Found(comparison, task, rows_of(comparison, cells), times, command, notes)
    print_scores(found, console)
    return write_all(found, out, console)


def train_all(
    comparison: Comparison,
    task: Task,
    out: Path,
    console: Console,
    *,
    device: torch.device = CPU,
    tensorboard: bool = False,
) -> list[Cell]:
    """Train every run that is missing, with a board; what does not fit is said before the first."""
    # what is missing is said before hours of training, not after them
    import_safetensors()
    new_figure((1, 1))
    for operator in comparison.operators:
        check_operator(comparison, operator, task, device)
    if tensorboard and not has_tensorboard():
        console.print(NO_TENSORBOARD, style="dim", highlight=False, markup=False)
        tensorboard = False
    cells: list[Cell] = []
    try:
        with board(comparison, task, console) as shown:
            for cell in run_all(
                comparison, task, out, device=device, tensorboard=tensorboard, watch=shown.step
            ):
                cells.append(cell)
                shown.finish(cell)
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on from here")
        raise
    return cells


def write_all(found: Found, out: Path, console: Console) -> Path:
    """Say who is ahead, write report.html, report.md and report.json; the path of the first."""
    if said := verdict(found.rows, found.task):
        console.print(said, highlight=False, markup=False)
    page = write_report(found, out)
    write_record(found, out)
    console.print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)
    return page


def check_operator(
    comparison: Comparison, operator: str, task: Task, device: torch.device = CPU
) -> None:
    """Run one sample through the model, so that an operator that does not fit is said at once."""
    model = new_model(comparison.setup(operator, comparison.seeds[0]), task).to(device).eval()
    if not operators(model):
        raise ValueError(
            f"compare: the model {comparison.model} attends nowhere, so that no operator makes a "
            "difference; take another model or other options"
        )
    with torch.no_grad():
        model(*task.batch("test", torch.tensor([0])).to(device).inputs)


def print_scores(found: Found, console: Console) -> None:
    """The table of scores, as the report has it."""
    head, rows = score_table(found.rows, found.task, found.times)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    # what is left out here is in the report
    kept = [place for place, name in enumerate(head) if name not in IN_REPORT]
    for place in kept:
        # heads are as narrow as their numbers, so that names of operators have the room
        width = max(HEAD, *(len(row[place]) for row in rows))
        table.add_column(
            fill(head[place], width), justify="left" if place == 0 else "right", no_wrap=place > 0,
            overflow="fold",
        )  # fmt: skip
    for row in rows:
        table.add_row(*(escape(row[place]) for place in kept))
    console.print(table)
