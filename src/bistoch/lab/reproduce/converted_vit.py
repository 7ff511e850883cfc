"""A vision Transformer trained with softmax, and what is left of it with cheaper attention."""

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bistoch.analysis import capture
from bistoch.functional import softmax_plan
from bistoch.lab.reproduce.cheap_attention import make_form, softmax_work, work_of
from bistoch.lab.stats import bootstrap_difference
from bistoch.lab.study import Context, Result
from bistoch.lab.timing import best_times
from bistoch.lab.train import (
    Recipe,
    Setup,
    StepInfo,
    Task,
    fit,
    load_checkpoint,
    new_model,
    open_task,
    restore_run,
    train_run,
)
from bistoch.lab.train.loop import CHECKPOINT
from bistoch.lab.train.run import is_run
from bistoch.models.vit import ViT

# pictures that are classified at once, and those whose plans are compared
AT_ONCE, PLANS = 125, 8


@dataclass(frozen=True)
class Vision:
    """Data, models and training.

    The model that is converted ends after `epochs` of its recipe, whose learning rate falls over
    more. The small ones see so many `samples`. `pictures` are tested, `tuned` are trained on after
    a swap.
    """

    data: str = "cifar10"
    model: str = 'vit(patch=(2,2),depth=4,dim=64,heads=2,mlp=2,pool="mean")'
    small: str = "vit(patch=(4,4),depth=2,dim=32,heads=2,mlp=2)"
    recipe: Recipe = Recipe(epochs=3, lr=2e-3)  # noqa: RUF009 (it is frozen)
    epochs: int = 2
    small_recipe: Recipe = Recipe(epochs=1, lr=2e-3)  # noqa: RUF009 (it is frozen)
    samples: int = 19200
    pictures: int = 1000
    tuned: int = 1600
    rounds: int = 7


SMOKE = Vision(
    "fashion-mnist-small", 'vit(patch=(7,7),depth=2,dim=16,heads=2,pool="mean")',
    "vit(patch=(7,7),depth=1,dim=16,heads=2)", Recipe(epochs=2), 1, Recipe(epochs=1), 640, 100,
    128, 2,
)  # fmt: skip


@functools.cache
def _task(data: str) -> Task:
    return open_task(data)


class EnoughError(Exception):
    """The epochs that are wanted are done."""


def train(sizes: Vision, context: Context) -> tuple[Any, Any]:
    """The model that is converted, and its metrics by epoch; it is trained once and then read."""
    setup = Setup(sizes.data, sizes.model, "softmax", sizes.recipe, context.seed)
    folder = context.folder_of("trained")

    def on_step(info: StepInfo) -> None:
        context.on_step(info)
        # the checkpoint of this epoch is written
        if info.epoch == sizes.epochs < sizes.recipe.epochs:
            raise EnoughError

    if not is_run(folder) or restore_run(folder).epoch < sizes.epochs:
        with contextlib.suppress(EnoughError):
            train_run(setup, _task(sizes.data), folder, on_step=on_step)
    return restore_run(folder).model, load_checkpoint(folder / CHECKPOINT)[0].curve


def trained(sizes: Vision, context: Context) -> ViT:
    """The model that is converted."""
    # its cell has run, or runs now
    context.result("trained")
    return train(sizes, context)[0]


def put(model: ViT, form: str) -> nn.Module:
    """Swap a form into all layers of a model; one of them."""
    config = model.config
    for block in model.blocks:
        attention: Any = block.attention
        attention.operator = make_form(form, config.heads, config.dim // config.heads, *config.grid)
    return attention.operator


@torch.no_grad()
def hits(model: ViT, sizes: Vision) -> list[float]:
    """One for every test picture that is classified correctly, zero for the others."""
    task, found = _task(sizes.data), list[float]()
    for rows in torch.arange(min(sizes.pictures, task.count("test"))).split(AT_ONCE):
        batch = task.batch("test", rows)
        found += task.scores(model(*batch.inputs), batch.target).tolist()
    return found


def _hits_before(sizes: Vision, context: Context) -> list[float]:
    folder = context.folder_of("trained")
    if folder not in _BEFORE:
        _BEFORE[folder] = hits(trained(sizes, context), sizes)
    return _BEFORE[folder]


# what models as they are get right, by the folder of their training
_BEFORE: dict[Path, list[float]] = {}


def convert_vit(sizes: Vision, form: str, context: Context) -> Result:
    """Accuracy after a swap without training, its work over softmax, and the error of the plans."""
    model = trained(sizes, context)
    before, (query, key) = _hits_before(sizes, context), tokens_of(model, sizes)
    operator: Any = put(model, form)
    n, d = query.shape[-2:]
    softmax, after = softmax_plan(query, key), hits(model, sizes)
    wrong = (operator.plan(query, key) - softmax).flatten(-2).norm(dim=-1)
    return {
        "accuracy": sum(after) / len(after),
        "difference": _difference(after, before),
        "work": work_of(operator, n, d) / softmax_work(n, d),
        "error": (wrong / softmax.flatten(-2).norm(dim=-1)).mean().item(),
    }


def _difference(after: list[float], before: list[float]) -> list[float]:
    """The mean difference over pictures, and its 95 % interval."""
    found = bootstrap_difference([a - b for a, b in zip(after, before, strict=True)])
    return [found.mean, found.low, found.high]


@torch.no_grad()
def tokens_of(model: ViT, sizes: Vision) -> tuple[Float[Tensor, "x n d"], Float[Tensor, "x n d"]]:
    """Queries and keys of all layers and heads on some test pictures."""
    found: list[tuple[Tensor, Tensor]] = []
    blocks: Any = model.blocks
    hooks = [
        block.attention.operator.register_forward_pre_hook(
            lambda _module, tokens: found.append((tokens[0], tokens[1]))
        )
        for block in blocks
    ]
    model(*_task(sizes.data).batch("test", torch.arange(PLANS)).inputs)
    for hook in hooks:
        hook.remove()
    query, key = (torch.stack(some).flatten(0, 2) for some in zip(*found, strict=True))
    return query, key


class First:
    """A task with the first training samples only."""

    def __init__(self, task: Task, samples: int):
        self.task, self.samples = task, samples

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def count(self, split: str) -> int:
        """The number of samples; of test there are none, since nothing is chosen by them."""
        return min(self.samples, self.task.count(split)) if split == "train" else 0


def tune_vit(sizes: Vision, form: str, context: Context) -> Result:
    """Accuracy after a swap and some training, with a tenth of the learning rate."""
    model, before = trained(sizes, context), _hits_before(sizes, context)
    put(model, form)
    recipe = replace(sizes.recipe, epochs=1, lr=sizes.recipe.lr / 10)
    task: Any = First(_task(sizes.data), sizes.tuned)
    fit(model, task, recipe, folder=context.folder, seed=context.seed, on_step=context.on_step)
    after = hits(model.eval(), sizes)
    return {"accuracy": sum(after) / len(after), "difference": _difference(after, before)}


def train_small(sizes: Vision, operator: str, context: Context) -> Result:
    """Accuracy of a model that was trained with an operator, and how uneven its columns are."""
    task: Any = First(_task(sizes.data), sizes.samples)
    setup = Setup(sizes.data, sizes.small, operator, sizes.small_recipe, context.seed)
    model: Any = new_model(setup, task)
    fitted = fit(
        model, task, setup.recipe, folder=context.folder, seed=context.seed,
        on_step=context.on_step,
    )  # fmt: skip
    found, deviations = hits(model.eval(), sizes), []
    with torch.no_grad(), capture(model, states=None) as captured:
        model(*_task(sizes.data).batch("test", torch.arange(PLANS)).inputs)
    for layer in captured.plans:
        deviations.append((layer.plan.sum(-2) - 1).abs().mean().item())
    return {
        "accuracy": sum(found) / len(found),
        "deviation": sum(deviations) / len(deviations),
        "by_layer": deviations,
        "train_loss": fitted.curve[-1]["train_loss"],
    }


def time_forms(sizes: Vision, forms: Mapping[str, str], operators: Mapping[str, str]) -> Result:
    """Seconds of attention with the forms, and of training steps with the operators."""
    task = _task(sizes.data)
    model: Any = new_model(Setup(sizes.data, sizes.model), task)
    query, key = tokens_of(model, sizes)
    calls = {}
    for name, form in forms.items():
        operator: Any = make_form(form, 2, query.shape[-1], *model.config.grid)
        calls[name] = functools.partial(torch.no_grad()(operator), query, key, key)
    models = {
        name: new_model(Setup(sizes.data, sizes.small, operator), task)
        for name, operator in operators.items()
    }
    rows = torch.arange(32)
    batch = task.batch("train", rows)

    def step(model: nn.Module) -> None:
        task.losses(model(*batch.inputs), batch.target).mean().backward()

    steps = {name: functools.partial(step, model) for name, model in models.items()}
    return {
        "attention": best_times(calls, sizes.rounds),
        "training": best_times(steps, sizes.rounds),
    }
