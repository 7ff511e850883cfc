"""A comparison from its options to its report."""

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from bistoch.lab.compare.cells import CPU, Cell, run_all, time_once
from bistoch.lab.compare.plan import Comparison
from bistoch.lab.compare.report import Found, write_report
from bistoch.lab.compare.summary import rows_of, score_text
from bistoch.lab.data import AS_THEY_ARE, Pictures
from bistoch.lab.drawing import import_figure
from bistoch.lab.progress import progress
from bistoch.lab.train import Setup, StepInfo, Task, import_safetensors, new_model, open_task
from bistoch.lab.train.log import NO_TENSORBOARD, has_tensorboard
from bistoch.models import operators


def run_compare(
    comparison: Comparison,
    out: Path,
    console: Console,
    *,
    command: str,
    length: int | None = None,
    pictures: Pictures = AS_THEY_ARE,
    device: torch.device = CPU,
    tensorboard: bool = True,
    notes: Sequence[str] = (),
) -> Path:
    """Train what is missing, write report.html, report.md and report.json; the path of the first.

    Args:
        comparison: what is compared.
        out: folder for reports and runs. Finished runs are not repeated.
        console: where to show progress and results.
        command: makes the report again, for its last section.
        length, pictures: as for `open_task`.
        device: where models are trained and timed.
        tensorboard: whether to write files for TensorBoard.
        notes: paragraphs at the beginning of the report.
    """
    validation = comparison.needs_validation
    task = open_task(
        comparison.data, comparison.model, hold_out=validation, length=length, pictures=pictures
    )
    for note in task.facts.get("notes", ()):
        console.print(note, style="dim", highlight=False, markup=False)
    notes = [*notes, *task.facts.get("notes", ())]
    cells = train_all(comparison, task, out, console, device=device, tensorboard=tensorboard)
    times = time_once(comparison, task, out, device)
    found = Found(comparison, task, rows_of(comparison, cells), times, command, notes)
    return write_report(found, out, console)


def train_all(
    comparison: Comparison,
    task: Task,
    out: Path,
    console: Console,
    *,
    device: torch.device = CPU,
    tensorboard: bool = False,
) -> list[Cell]:
    """Train every run that is missing; what does not fit is refused before the first."""
    # missing packages are reported before hours of training, not after them
    import_safetensors()
    import_figure()
    for operator in comparison.operators:
        check_operator(comparison, operator, task, device)
    if tensorboard and not has_tensorboard():
        console.print(NO_TENSORBOARD, style="dim", highlight=False, markup=False)
    cells: list[Cell] = []
    with progress(console, comparison.run_count) as shown:

        def on_step(setup: Setup, info: StepInfo) -> None:
            text = f"epoch {info.epoch}/{setup.recipe.epochs}, training loss {info.loss:.3f}"
            shown.start(_name(setup))
            shown.step(info.step, info.steps, text)

        for cell in run_all(
            comparison, task, out, device=device, tensorboard=tensorboard, on_step=on_step
        ):
            # of several learning rates the chosen one comes again at the end
            if all(cell.folder != other.folder for other in cells):
                shown.finish(_name(cell.setup), _result(cell, task), kept=cell.kept)
            cells.append(cell)
    return cells


def _name(setup: Setup) -> str:
    return f"{setup.operator}, seed {setup.seed}, lr {setup.recipe.lr:g}"


def _result(cell: Cell, task: Task) -> str:
    if cell.diverged:
        return cell.diverged
    name = task.score_name
    percent = " %" if name == "accuracy" else ""
    return f"test {name} {score_text([cell.result['test'][name]], task)}{percent}"


def check_operator(
    comparison: Comparison, operator: str, task: Task, device: torch.device = CPU
) -> None:
    """Run one sample through the model, so that an operator that does not fit is refused early."""
    model = new_model(comparison.setup(operator, comparison.seeds[0]), task).to(device).eval()
    if not operators(model):
        raise ValueError(
            f"compare: the model {comparison.model} has no attention, so that no operator makes a "
            "difference; use another model or other options"
        )
    with torch.no_grad():
        model(*task.batch("test", torch.tensor([0])).to(device).inputs)
