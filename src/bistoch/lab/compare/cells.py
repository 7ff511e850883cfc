"""The runs of a comparison: each is trained and measured once, and then read."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bistoch.lab.compare.attention import column_deviations, drift_of, measure
from bistoch.lab.compare.plan import Comparison, configuration_of
from bistoch.lab.store import Run, Store
from bistoch.lab.train import (
    DivergedError,
    Ranks,
    Setup,
    StepInfo,
    Task,
    evaluate,
    new_model,
    time_steps,
    train_run,
)
from bistoch.lab.train.task import validation_split

CPU = torch.device("cpu")
ROUNDS = 9
OnStep = Callable[[Setup, StepInfo], None]


class Cell(NamedTuple):
    """One run and its result: test scores, metrics by epoch, and numbers about attention.

    `kept` says that it was finished before.
    """

    setup: Setup
    folder: Path
    result: dict[str, Any]
    kept: bool = False

    @property
    def diverged(self) -> str:
        """The diagnosis of a run with a NaN loss, or an empty text."""
        return str(self.result.get("diverged", ""))


def stored_run(out: Path, setup: Setup, task: Task) -> Run:
    """Where a run is kept."""
    name = f"{setup.operator} seed {setup.seed}"
    return Store(out / "runs").run(name, configuration_of(setup, task))


def run_cell(
    setup: Setup,
    task: Task,
    out: Path,
    *,
    device: torch.device = CPU,
    tensorboard: bool = False,
    on_step: OnStep | None = None,
) -> Cell:
    """Train and measure a run, resume it, or read its result."""
    stored = stored_run(out, setup, task)
    known = stored.read()
    if known is not None:
        return Cell(setup, stored.folder, known, kept=True)
    try:
        model, fitted = train_run(
            setup, task, stored.folder, ranks=Ranks(0, 1, device), tensorboard=tensorboard,
            on_step=None if on_step is None else lambda info: on_step(setup, info),
            observe=lambda model: column_deviations(model, task),
        )  # fmt: skip
    except DivergedError as error:
        result: dict[str, Any] = {"diverged": str(error)}
    else:
        result = {
            "test": evaluate(model, task, "test", setup.recipe.precision),
            "validation_split": validation_split(task),
            "chosen": fitted.curve[fitted.epoch - 1],
            "curve": fitted.curve,
            "epoch": fitted.epoch,
            "steps": fitted.steps,
            "seconds": fitted.seconds,
            "parameters": sum(p.numel() for p in model.parameters()),
            "attention": measure(model, task),
            "drift": drift_of(fitted.observed),
        }
    return Cell(setup, stored.folder, stored.write(result))


def run_all(
    comparison: Comparison,
    task: Task,
    out: Path,
    *,
    device: torch.device = CPU,
    tensorboard: bool = False,
    on_step: OnStep | None = None,
) -> Iterator[Cell]:
    """All runs, seed by seed, so that an early look compares equal numbers of seeds."""

    def run(operator: str, seed: int, lr: float | None) -> Cell:
        setup = comparison.setup(operator, seed, lr)
        return run_cell(
            setup, task, out, device=device, tensorboard=tensorboard, on_step=on_step
        )  # fmt: skip

    chosen: dict[str, float | None] = dict.fromkeys(comparison.operators)
    for operator in comparison.operators if comparison.lrs else ():
        tried = []
        for lr in comparison.lrs:
            tried.append(run(operator, comparison.seeds[0], lr))
            yield tried[-1]
        chosen[operator] = _best_lr(tried, task)
    for seed in comparison.seeds:
        for operator in comparison.operators:
            yield run(operator, seed, chosen[operator])


def _best_lr(tried: list[Cell], task: Task) -> float:
    whole = [cell for cell in tried if not cell.diverged]
    sign = 1 if task.larger_is_better else -1
    best = max(
        whole, key=lambda cell: sign * cell.result["chosen"][task.score_name], default=tried[0]
    )
    return best.setup.recipe.lr


def time_once(
    comparison: Comparison, task: Task, out: Path, device: torch.device = CPU
) -> dict[str, Any]:
    """The time of a training step by operator, and always of softmax; measured once, then read."""
    facts = {
        "comparison": comparison, "length": task.facts.get("length"), "device": str(device),
        "threads": torch.get_num_threads(),
    }  # fmt: skip

    def measure_times() -> dict[str, Any]:
        models = {
            operator: new_model(comparison.setup(operator, comparison.seeds[0]), task).to(device)
            for operator in ("softmax", *comparison.operators)
        }
        return time_steps(models, task, comparison.recipe, rounds=ROUNDS)

    return Store(out / "runs").run("times", facts).once(measure_times)
