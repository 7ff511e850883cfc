"""A trained model on data once more."""

from pathlib import Path

import torch

from bistoch.lab.data import DataError, Dataset, load
from bistoch.lab.train.open import open_task
from bistoch.lab.train.running import NextCharacter
from bistoch.lab.train.score import evaluate
from bistoch.lab.train.sentences import Sentences
from bistoch.lab.train.setup import Restored, restore_run
from bistoch.lab.train.task import Task


def evaluate_again(folder: Path, data: str | None = None) -> dict[str, float | str | int]:
    """Loss and score of the model in a folder on the test split of its data, or of others."""
    run = restore_run(folder)
    task = _same_task(run, data or run.setup.data)
    scores = evaluate(run.model, task, "test", run.setup.recipe.precision)
    return {
        "data": task.name, "samples": task.count("test"), "epoch": run.epoch,
        "finished": "yes" if run.finished else "no", **scores,
    }  # fmt: skip


def _same_task(run: Restored, data: str) -> Task:
    """The task of a run on perhaps other data: the same classes, and the words it knows."""
    facts = run.config["facts"]
    found = load(data)
    if found.kind != run.config["kind"]:
        raise DataError(
            f"eval: the model was trained on {run.config['kind']}, but {data} is {found.kind}"
        )
    classes = facts.get("classes")
    if isinstance(found, Dataset) and list(found.classes) != classes:
        raise DataError(
            f"eval: the model knows the classes {', '.join(classes or ['none'])}, but {data} has "
            f"{', '.join(found.classes)}"
        )
    task = open_task(data, run.setup.model, length=facts.get("length"))
    if isinstance(task, Sentences):
        task.read_with(facts["unit"], facts["pieces"])
    if isinstance(task, NextCharacter):
        task.read_with(facts["pieces"], as_bytes=facts.get("bytes", False))
    # what does not fit is said by the model itself, before all samples are read
    with torch.no_grad():
        run.model(*task.batch("test", torch.tensor([0])).inputs)
    return task
