"""One training run from words: data, model, operator, recipe and seed, kept beside the checkpoint.

A folder of a run holds `config.json` (what was asked for, and what is needed to use the model
without the data), `checkpoint.safetensors`, `metrics.jsonl`, and `tensorboard` if it is installed.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, cast

from torch import nn

from bistoch.functional import read_call
from bistoch.lab.train.checkpoint import CheckpointError, load_checkpoint, load_weights, part
from bistoch.lab.train.loop import CHECKPOINT, CONFIG, SAVE_EVERY, Fitted, Moment, fit
from bistoch.lab.train.open import check_model
from bistoch.lab.train.order import borrowed_randomness, seed_all
from bistoch.lab.train.ranks import Ranks
from bistoch.lab.train.recipe import Recipe
from bistoch.lab.train.running import Forecast
from bistoch.lab.train.task import Task
from bistoch.models import Forecaster, build_model


@dataclass(frozen=True)
class Setup:
    """All that a run depends on, in words and numbers.

    Args:
        data: a name of `bistoch data list`, or a path.
        model: a name of `bistoch.models.MODELS` or `PRESETS`, with options if wanted:
            "vit(depth=2)".
        operator: text for `bistoch.nn.Attention`.
        recipe: how to train.
        seed: of weights, order and dropout.
    """

    data: str
    model: str
    operator: str = "softmax"
    recipe: Recipe = Recipe()  # noqa: RUF009 (it is frozen)
    seed: int = 0


class Trained(NamedTuple):
    """A trained model, and what its run left."""

    model: nn.Module
    fitted: Fitted


def new_model(setup: Setup, task: Task) -> nn.Module:
    """The model before training: for one seed all operators start from the same weights."""
    names = check_model(setup.model, task.kind, task.name)
    sizes = {name: task.sizes[name] for name in names}
    _, written = read_call(setup.model, "model", "vit(depth=2, dim=128)")
    for name in sizes.keys() & written.keys():
        if written[name] != sizes[name]:
            raise ValueError(
                f"train: the data decide {name}, {sizes[name]} for {task.name}, but the model says "
                f"{name}={written[name]}; leave it out"
            )
    with borrowed_randomness():
        seed_all("weights", setup.seed)
        model = build_model(setup.model, setup.operator, **sizes)
    if isinstance(model, Forecaster) and isinstance(task, Forecast):
        # its axes come from the data, not from gradients
        model.fit_axes(task.values, train_rows=task.train_rows)
    return model


def train_one(
    setup: Setup,
    task: Task,
    folder: Path,
    *,
    ranks: Ranks | None = None,
    tensorboard: bool = False,
    watch: Callable[[Moment], None] | None = None,
) -> Trained:
    """Train a model in a folder, or go on there; a folder of another run is refused.

    Args:
        setup: what to train, and how.
        task: made from its data.
        folder: for everything that is written.
        ranks, tensorboard, watch: as for `fit`.
    """
    model = new_model(setup, task)
    config = {
        "setup": asdict(setup), "kind": task.kind, "name": task.name,
        "model": asdict(cast(Any, model.config)), "facts": task.facts,
        "samples": {split: task.count(split) for split in ("train", "valid", "test")},
    }  # fmt: skip
    config = json.loads(json.dumps(config))
    _refuse_another_run(folder, config)
    fitted = fit(
        model, task, setup.recipe, folder=folder, seed=setup.seed, config=config, ranks=ranks,
        tensorboard=tensorboard, watch=watch,
    )  # fmt: skip
    return Trained(model, fitted)


def _refuse_another_run(folder: Path, config: dict[str, Any]) -> None:
    # every process looks, so that none waits for one that was refused; without a checkpoint there
    # is nothing to lose
    if not all((folder / name).exists() for name in (CHECKPOINT, CONFIG)):
        return
    before = read_config(folder)
    if before != config:
        raise ValueError(
            f"train: {folder} holds a run with {_difference(before, config)}; give another folder, "
            "or remove that one"
        )


def read_config(folder: Path) -> dict[str, Any]:
    """What is kept beside a checkpoint."""
    path = folder / CONFIG
    if not path.is_file():
        there = "" if folder.is_dir() else ", and there is no such folder"
        raise CheckpointError(
            f"{folder} is not the folder of a training run: {CONFIG} was looked for in it{there}; "
            "give the folder that `bistoch train --out` wrote"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        setup_of(config["setup"])
        return {**config, **{part: dict(config[part]) for part in ("model", "facts")},
                "kind": config["kind"]}  # fmt: skip
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(
            f"{path} is damaged, or of another version: it is not what bistoch train writes; "
            "train again in another folder"
        ) from None


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, finished or not, rather than anything else."""
    try:
        read_config(folder)
    except (CheckpointError, OSError):
        return False
    return True


def describe_kept(folder: Path) -> str:
    """What a stopped run left in its folder, and how to resume it."""
    path = folder / CHECKPOINT
    if not path.exists():
        return (
            f"stopped before the first checkpoint, which is written after {SAVE_EVERY:g} s or an "
            "epoch: nothing is kept"
        )
    state, _ = load_checkpoint(path)
    return (
        f"stopped; step {state.step} ({len(state.curve)} epochs finished) is kept in {path}: give "
        "the same command again to resume"
    )


class Restored(NamedTuple):
    """A model that was trained, ready to use, what is known of its data, and where it stood."""

    model: nn.Module
    config: dict[str, Any]
    setup: Setup
    epoch: int
    finished: bool


def restore_run(folder: Path) -> Restored:
    """The model in the folder of a run: its best weights if it had patience, else its last."""
    config = read_config(folder)
    path = folder / CHECKPOINT
    if not path.is_file():
        raise CheckpointError(
            f"{folder} has no {CHECKPOINT}: the run was stopped before its first one; give the "
            "same command again"
        )
    setup = setup_of(config["setup"])
    model = build_model(setup.model, setup.operator, **config["model"])
    state, tensors = load_checkpoint(path)
    has_best = bool(part(tensors, "best"))
    load_weights(path, tensors, model, "best" if has_best else "model")
    epoch = state.best_epoch if has_best else len(state.curve)
    return Restored(model.eval(), config, setup, epoch, bool(state.finished))


def setup_of(words: dict[str, Any]) -> Setup:
    """A setup as it was before it became JSON.

    >>> setup = Setup("shapes", "set_transformer", recipe=Recipe(epochs=2))
    >>> setup_of(json.loads(json.dumps(asdict(setup)))) == setup
    True
    """
    known = {field.name for field in fields(Recipe)}
    recipe = {name: x for name, x in words["recipe"].items() if name in known}
    recipe["decays"] = tuple(recipe["decays"])
    return Setup(**{**words, "recipe": Recipe(**recipe)})


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """The first thing in which two configs differ, in words."""
    old, new = _flat(before), _flat(now)
    for name in [*new, *old]:
        if old.get(name) != new.get(name):
            return f"{name} = {old.get(name)!r}, but now it is {new.get(name)!r}"
    return "other options"


def _flat(config: dict[str, Any], head: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{head}{name}.")
        else:
            found[f"{head}{name}".removeprefix("setup.").removeprefix("recipe.")] = value
    return found
