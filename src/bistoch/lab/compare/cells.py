"""The runs of a comparison: each is trained once, measured once, and then only read."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bistoch.lab.compare.look import measure
from bistoch.lab.compare.plan import Comparison, cell_folder
from bistoch.lab.compare.timing import time_steps
from bistoch.lab.files import digest, write_whole
from bistoch.lab.train import DivergedError, Ranks, Setup, StepInfo, Task, evaluate, train_run
from bistoch.lab.train.task import validation_split

RESULT = "result.json"
CPU = torch.device("cpu")


class Cell(NamedTuple):
    """One run and what came of it: JSON with test scores, its curve and what attention does."""

    setup: Setup
    folder: Path
    result: dict[str, Any]

    @property
    def diverged(self) -> str:
        """Why the run came to nothing, or an empty text."""
        return str(self.result.get("diverged", ""))


Watch = Callable[[Setup, StepInfo], None]


def run_cell(
    setup: Setup,
    task: Task,
    out: Path,
    *,
    device: torch.device = CPU,
    tensorboard: bool = False,
    watch: Watch | None = None,
) -> Cell:
    """Train and measure a run; one that is finished is read, one that was killed goes on."""
    folder = cell_folder(out, setup, task)
    path = folder / RESULT
    if path.exists():
        return Cell(setup, folder, json.loads(path.read_text(encoding="utf-8")))
    told = None if watch is None else lambda moment: watch(setup, moment)
    try:
        model, fitted = train_run(
            setup, task, folder, ranks=Ranks(0, 1, device), tensorboard=tensorboard, on_step=told
        )
    except DivergedError as mistake:
        result: dict[str, Any] = {"diverged": str(mistake)}
    else:
        result = {
            "test": evaluate(model, task, "test", setup.recipe.precision),
            "watched": validation_split(task),
            "chosen": fitted.curve[fitted.epoch - 1],
            "curve": fitted.curve,
            "epoch": fitted.epoch,
            "steps": fitted.steps,
            "seconds": fitted.seconds,
            "parameters": sum(p.numel() for p in model.parameters()),
            "attention": measure(model, task),
        }
    write_whole(path, json.dumps(result).encode())
    return Cell(setup, folder, result)


def run_all(
    comparison: Comparison,
    task: Task,
    out: Path,
    *,
    device: torch.device = CPU,
    tensorboard: bool,
    watch: Watch | None,
) -> Iterator[Cell]:
    """All runs, seed by seed, so that an early look at the report compares like with like."""
    chosen: dict[str, float | None] = dict.fromkeys(comparison.operators)
    for operator in comparison.operators if comparison.rates else ():
        tried = []
        for rate in comparison.rates:
            setup = comparison.setup(operator, comparison.seeds[0], rate)
            cell = run_cell(setup, task, out, device=device, tensorboard=tensorboard, watch=watch)
            tried.append(cell)
            yield cell
        chosen[operator] = _best_rate(tried, task)
    for seed in comparison.seeds:
        for operator in comparison.operators:
            setup = comparison.setup(operator, seed, chosen[operator])
            yield run_cell(setup, task, out, device=device, tensorboard=tensorboard, watch=watch)


def _best_rate(tried: list[Cell], task: Task) -> float:
    whole = [cell for cell in tried if not cell.diverged]
    if not whole:
        return tried[0].setup.recipe.lr
    sign = 1 if task.larger_is_better else -1
    best = max(whole, key=lambda cell: sign * cell.result["chosen"][task.score_name])
    return best.setup.recipe.lr


def time_once(
    comparison: Comparison, task: Task, out: Path, device: torch.device = CPU
) -> dict[str, Any]:
    """The time of a step by operator, measured once for a comparison and then read."""
    facts: tuple[object, ...] = (
        asdict(comparison), task.facts.get("length"), torch.get_num_threads(),
    )  # fmt: skip
    if device != CPU:
        facts += (str(device),)
    path = out / "runs" / f"times-{digest(*facts)}.json"
    if path.exists():
        return dict(json.loads(path.read_text(encoding="utf-8")))
    found = time_steps(comparison, task, device)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(found).encode())
    return found
