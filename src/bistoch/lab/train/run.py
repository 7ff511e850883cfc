"""One training run: data, model, operator, recipe and seed, and the folder it is kept in.

The folder of a run holds `config.json` (the setup, and what is needed to use the model without the
data), `checkpoint.safetensors`, `metrics.jsonl`, and `tensorboard` if that is installed.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from bistoch.functional import read_call
from bistoch.lab.data import AS_THEY_ARE, DATASETS, DataError, Dataset, Pictures, load
from bistoch.lab.device import CPU
from bistoch.lab.text import Vocabulary
from bistoch.lab.train.checkpoint import CheckpointError, load_checkpoint, load_weights, part
from bistoch.lab.train.classification import Classification
from bistoch.lab.train.loop import (
    CHECKPOINT,
    CONFIG,
    SAVE_EVERY,
    Fitted,
    Observe,
    StepInfo,
    evaluate,
    fit,
)
from bistoch.lab.train.patches import chosen_patch
from bistoch.lab.train.ranks import Ranks
from bistoch.lab.train.recipe import Recipe
from bistoch.lab.train.seeds import preserved_random_state, seed_all
from bistoch.lab.train.sequences import Forecast, NextCharacter
from bistoch.lab.train.task import Task
from bistoch.lab.train.tasks import check_model, open_task
from bistoch.models import Forecaster, build_model, default_operator


@dataclass(frozen=True)
class Setup:
    """Everything that a run depends on.

    Args:
        data: a name of `bistoch data list`, or a path.
        model: a name of `bistoch.models.MODELS` or `PRESETS`, with options: "vit(depth=2)".
        operator: text for `bistoch.nn.Attention`; by default, or if it is None, that of the model.
        recipe: how to train.
        seed: of initial weights, order of the samples and dropout.

    >>> Setup("ETTh1", "forecast").operator, Setup("shapes", "set_transformer").operator
    ('mixing', 'softmax')
    """

    data: str
    model: str
    operator: str | None = None
    recipe: Recipe = Recipe()  # noqa: RUF009 (it is frozen)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.operator is None:
            # written out, so that a run that is kept says what it was trained with
            object.__setattr__(self, "operator", default_operator(self.model))


class Restored(NamedTuple):
    """A trained model in evaluation mode, and the config and epoch of its run."""

    model: nn.Module
    config: dict[str, Any]
    setup: Setup
    epoch: int
    finished: bool


def new_model(setup: Setup, task: Task) -> nn.Module:
    """The model before training; for one seed all operators start from the same weights."""
    sizes = {name: task.sizes[name] for name in check_model(setup.model, task.kind, task.name)}
    _, written = read_call(setup.model, "model", "vit(depth=2, dim=128)")
    for name in sizes.keys() & written.keys():
        if written[name] != sizes[name]:
            raise ValueError(
                f"train: the data decide {name}, {sizes[name]} for {task.name}, but the model says "
                f"{name}={written[name]}; leave it out"
            )
    with preserved_random_state():
        seed_all("weights", setup.seed)
        patch = chosen_patch(setup.model, sizes)
        model = build_model(setup.model, setup.operator, **sizes, **patch)
    if isinstance(model, Forecaster) and isinstance(task, Forecast):
        # its axes come from the data, not from gradients
        model.fit_axes(task.values, train_rows=task.train_rows)
    return model


def train_run(
    setup: Setup,
    task: Task,
    folder: Path,
    *,
    ranks: Ranks | None = None,
    tensorboard: bool = False,
    on_step: Callable[[StepInfo], None] | None = None,
    observe: Observe | None = None,
) -> tuple[nn.Module, Fitted]:
    """Train a model in a folder, or resume there; the folder of another run is refused.

    The task is made from the data of the setup; `ranks`, `tensorboard`, `on_step` and `observe` are
    those of `fit`.
    """
    model = new_model(setup, task)
    config = {
        "setup": asdict(setup), "kind": task.kind, "name": task.name,
        "model": asdict(cast(Any, model.config)), "facts": task.facts,
        "samples": {split: task.count(split) for split in ("train", "valid", "test")},
    }  # fmt: skip
    config = json.loads(json.dumps(config))
    ranks = ranks or Ranks(0, 1, torch.device("cpu"))
    _check_forward(model, task)
    ranks.check_same(_flat(config))
    # what the main process is refused ends the others too
    ranks.from_main(lambda: _refuse_another_run(folder, config))
    fitted = fit(
        model, task, setup.recipe, folder=folder, seed=setup.seed, config=config, ranks=ranks,
        tensorboard=tensorboard, on_step=on_step, observe=observe,
    )  # fmt: skip
    return model, fitted


def _check_forward(model: nn.Module, task: Task) -> None:
    """One sample through the model: what does not fit is refused before anything is written."""
    with preserved_random_state(), torch.no_grad():
        model.eval()(*task.batch("train", torch.tensor([0])).inputs)
    model.train()


def _refuse_another_run(folder: Path, config: dict[str, Any]) -> None:
    # without a checkpoint there is nothing to lose
    if not all((folder / name).exists() for name in (CHECKPOINT, CONFIG)):
        return
    before, now = _flat(read_config(folder)), _flat(config)
    # of a series these are words about its dates, which a run of an earlier version lacks
    ignored = {"facts.notes"} if config["kind"] == "series" else set()
    for name in [*now, *before]:
        if name not in ignored and before.get(name) != now.get(name):
            raise ValueError(
                f"train: {folder} holds a run with {name} = {before.get(name)!r}, but now it is "
                f"{now.get(name)!r}; give another folder, or remove that one"
            )


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}".removeprefix("setup.").removeprefix("recipe.")] = value
    return found


def read_config(folder: Path) -> dict[str, Any]:
    """The config of a run."""
    path = folder / CONFIG
    if not path.is_file():
        there = "" if folder.is_dir() else ", and there is no such folder"
        raise CheckpointError(
            f"{folder} is not the folder of a training run: it has no {CONFIG}{there}; give the "
            "folder that `bistoch train --out` wrote"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        setup_of(config["setup"])
        sections = {name: dict(config[name]) for name in ("model", "facts")}
        return {**config, **sections, "kind": config["kind"]}
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(
            f"{path} is damaged, or of another version: it is not what bistoch train writes; "
            "train again in another folder"
        ) from None


def setup_of(fields: dict[str, Any]) -> Setup:
    """A setup from its JSON.

    >>> setup = Setup("shapes", "set_transformer", recipe=Recipe(epochs=2))
    >>> setup_of(json.loads(json.dumps(asdict(setup)))) == setup
    True
    """
    recipe = fields["recipe"] | {"milestones": tuple(fields["recipe"]["milestones"])}
    return Setup(**{**fields, "recipe": Recipe(**recipe)})


def is_run(folder: Path) -> bool:
    """Whether a folder holds a training run, finished or not."""
    try:
        read_config(folder)
    except (CheckpointError, OSError):
        return False
    return True


def describe_kept(folder: Path) -> str:
    """What an interrupted run left in its folder, and how to resume it."""
    path = folder / CHECKPOINT
    if not path.exists():
        return (
            f"interrupted before the first checkpoint, which is written after {SAVE_EVERY:g} s or "
            "an epoch: nothing is kept"
        )
    state, _ = load_checkpoint(path)
    return (
        f"interrupted; step {state.step} ({len(state.curve)} epochs finished) is kept in {path}: "
        "give the same command again to resume"
    )


def restore_run(folder: Path, device: torch.device = CPU) -> Restored:
    """The model of a run: with early stopping its best weights, else its last."""
    config, path = read_config(folder), folder / CHECKPOINT
    if not path.is_file():
        raise CheckpointError(
            f"{folder} has no {CHECKPOINT}: the run ended before its first one; give the same "
            "command again"
        )
    setup = setup_of(config["setup"])
    model = build_model(setup.model, setup.operator, **config["model"])
    state, tensors = load_checkpoint(path)
    has_best = bool(part(tensors, "best"))
    load_weights(path, tensors, model, "best" if has_best else "model")
    epoch = state.best_epoch if has_best else len(state.curve)
    return Restored(model.eval().to(device), config, setup, epoch, bool(state.finished))


def evaluate_run(
    folder: Path, data: str | None = None, device: torch.device = CPU
) -> dict[str, float | str | int]:
    """Loss and score of the model of a run on the test split of its data, or of other data."""
    run = restore_run(folder, device)
    task = task_of(run, data or run.setup.data)
    scores = evaluate(run.model, task, "test", run.setup.recipe.precision)
    return {
        "data": task.name, "samples": task.count("test"), "epoch": run.epoch,
        "finished": "yes" if run.finished else "no", **scores,
    }  # fmt: skip


def pictures_of(run: Restored, data: str) -> Pictures:
    """How the images of a run were read; for a folder of other images the same, in its size."""
    facts = run.config["facts"]
    if not Path(data).expanduser().is_dir() or data in DATASETS:
        return AS_THEY_ARE
    size = tuple(run.config["model"]["image"]) if facts.get("resize") else None
    return Pictures(facts.get("resize"), size, facts.get("corrupt", "refuse"))


def task_of(run: Restored, data: str) -> Task:
    """The task of a run on perhaps other data: the same classes, encoded by its vocabulary."""
    facts, pictures = run.config["facts"], pictures_of(run, data)
    found = load(data, pictures=pictures)
    if found.kind != run.config["kind"]:
        raise DataError(
            f"eval: the model was trained on {run.config['kind']}, but {data} is {found.kind}"
        )
    if isinstance(found, Dataset) and list(found.classes) != facts.get("classes"):
        raise DataError(
            f"eval: the model has the classes {', '.join(facts.get('classes') or ['none'])}, but "
            f"{data} has {', '.join(found.classes)}"
        )
    task = open_task(found, run.setup.model, length=facts.get("length"))
    if isinstance(task, Classification) and task.kind == "text":
        task.use_vocabulary(Vocabulary(facts["unit"], tuple(facts["tokens"])))
    if isinstance(task, NextCharacter):
        vocabulary = Vocabulary("character", tuple(facts["tokens"]))
        task.use_vocabulary(vocabulary, as_bytes=facts.get("bytes", False))
    # the model itself says what does not fit, before all samples are read
    device = next(run.model.parameters()).device
    with torch.no_grad():
        run.model(*task.batch("test", torch.tensor([0])).to(device).inputs)
    return task
