"""How a model is trained: everything besides the model, the data and the seed."""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

Optimizer = Literal["adamw", "adam", "sgd"]
Schedule = Literal["cosine", "steps", "constant", "halving", "decay"]
Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Recipe:
    """The hyperparameters of a training run; the same for all operators that are compared.

    Args:
        epochs: passes over the training data.
        batch_size: samples per step, over all processes together.
        lr: the highest learning rate.
        optimizer: "adamw", "adam" or "sgd" (with momentum 0.9).
        weight_decay: of matrices; vectors, such as biases and a learned lam, do not decay.
        schedule: "cosine" decays to `min_lr`, "steps" divides the learning rate by ten at each of
            the `milestones`, "constant" keeps it, "halving" keeps it for two epochs and then halves
            it at the start of each, "decay" keeps it for four and then takes nine tenths. The last
            two are usual for time series.
        warmup: fraction of all steps in which the learning rate rises linearly.
        min_lr: where a cosine schedule ends, as a fraction of `lr`.
        milestones: epochs, counted from one, at whose start the learning rate is divided by ten.
        clip: largest norm of the gradient; None does not clip.
        patience: early stopping: end after so many epochs without a better validation score, and
            keep the best weights. None trains all epochs and keeps the last weights.
        precision: "fp32", or "bf16" for autocast to bfloat16 (weights stay fp32).

    >>> Recipe(epochs=3, lr=1e-2).schedule
    'cosine'
    """

    epochs: int = 10
    batch_size: int = 64
    lr: float = 1e-3
    optimizer: Optimizer = "adamw"
    weight_decay: float = 0.01
    schedule: Schedule = "cosine"
    warmup: float = 0.05
    min_lr: float = 0.0
    milestones: tuple[int, ...] = ()
    clip: float | None = 1.0
    patience: int | None = None
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        choices = {"optimizer": Optimizer, "schedule": Schedule, "precision": Precision}
        for name, choice in choices.items():
            known = get_args(choice)
            _check(name, getattr(self, name) in known, f"one of {', '.join(known)}", self)
        for name in ("epochs", "batch_size"):
            _check(name, getattr(self, name) >= 1, "at least 1", self)
        _check("lr", 0 < self.lr < math.inf, "above 0", self)
        _check("weight_decay", self.weight_decay >= 0, "at least 0", self)
        _check("warmup", 0 <= self.warmup < 1, "a fraction in [0, 1)", self)
        _check("min_lr", 0 <= self.min_lr <= 1, "a fraction in [0, 1]", self)
        _check("clip", self.clip is None or self.clip > 0, "above 0, or None", self)
        _check("patience", self.patience is None or self.patience >= 1, "at least 1, or None", self)
        if bool(self.milestones) != (self.schedule == "steps"):
            raise ValueError(
                "train: milestones belong to schedule='steps', but schedule is "
                f"{self.schedule!r} and milestones are {self.milestones or 'missing'}"
            )


def lr_at(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """The learning rate of a step, counted from zero: a function, so there is no state to save.

    >>> recipe = Recipe(epochs=2, lr=1.0, warmup=0.0)
    >>> [round(lr_at(recipe, step, 2), 3) for step in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    >>> recipe = Recipe(epochs=3, lr=1.0, schedule="steps", milestones=(2, 3), warmup=0.0)
    >>> [round(lr_at(recipe, step, 1), 3) for step in range(3)]
    [1.0, 0.1, 0.01]
    >>> recipe = Recipe(epochs=4, lr=1.0, schedule="halving", warmup=0.0)
    >>> [lr_at(recipe, step, 1) for step in range(4)]
    [1.0, 1.0, 0.5, 0.25]
    """
    total = recipe.epochs * steps_per_epoch
    warmup = math.ceil(recipe.warmup * total)
    if step < warmup:
        return recipe.lr * (step + 1) / (warmup + 1)
    if recipe.schedule == "cosine":
        done = (step - warmup) / max(total - warmup, 1)
        cosine = (1 + math.cos(math.pi * min(done, 1.0))) / 2
        return recipe.lr * (recipe.min_lr + (1 - recipe.min_lr) * cosine)
    if recipe.schedule == "halving":
        return recipe.lr * 0.5 ** max(step // steps_per_epoch - 1, 0)
    if recipe.schedule == "decay":
        return recipe.lr * 0.9 ** max(step // steps_per_epoch - 3, 0)
    if recipe.schedule == "steps":
        epoch = step // steps_per_epoch + 1
        return recipe.lr * 0.1 ** sum(epoch >= milestone for milestone in recipe.milestones)
    return recipe.lr


def _check(name: str, is_right: bool, expected: str, recipe: Any) -> None:
    if not is_right:
        value = getattr(recipe, name)
        raise ValueError(f"train: {name} must be {expected}, but it is {value!r}")
