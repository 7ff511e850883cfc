"""How a model is trained: everything besides the model, the data and the seed."""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

Optimizer = Literal["adamw", "adam", "sgd"]
Schedule = Literal["cosine", "steps", "constant"]
Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Recipe:
    """The protocol of a training run; the same for all that are to be compared.

    Args:
        epochs: passes over the training data.
        batch: samples of a step, over all processes together.
        rate: learning rate at its highest.
        optimizer: "adamw", "adam" or "sgd" (with momentum 0.9).
        weight_decay: pull towards zero of matrices; vectors, such as biases and a learned lam,
            are left alone.
        schedule: "cosine" falls to `floor` times the rate along half a cosine, "steps" divides it
            by ten after each epoch of `decays`, "constant" keeps it.
        warmup: share of all steps in which the rate rises from zero.
        floor: share of the rate that a cosine ends at.
        decays: epochs, counted from one, from which on the rate is a tenth of what it was.
        clip: largest norm of all gradients together; None leaves them as they are.
        patience: stop when the held-out score was not better for so many epochs, and keep the best
            weights; None trains to the end and keeps the last.
        precision: "fp32", or "bf16" for matrix products in bfloat16 (weights stay fp32).

    >>> Recipe(epochs=3, rate=1e-2).schedule
    'cosine'
    """

    epochs: int = 10
    batch: int = 64
    rate: float = 1e-3
    optimizer: Optimizer = "adamw"
    weight_decay: float = 0.01
    schedule: Schedule = "cosine"
    warmup: float = 0.05
    floor: float = 0.0
    decays: tuple[int, ...] = ()
    clip: float | None = 1.0
    patience: int | None = None
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        _check_words("optimizer", self.optimizer, get_args(Optimizer))
        _check_words("schedule", self.schedule, get_args(Schedule))
        _check_words("precision", self.precision, get_args(Precision))
        for name in ("epochs", "batch"):
            _check(name, getattr(self, name) >= 1, "at least 1", getattr(self, name))
        _check("rate", 0 < self.rate < math.inf, "above 0", self.rate)
        _check("weight_decay", self.weight_decay >= 0, "at least 0", self.weight_decay)
        _check("warmup", 0 <= self.warmup < 1, "a share in [0, 1)", self.warmup)
        _check("floor", 0 <= self.floor <= 1, "a share in [0, 1]", self.floor)
        _check("clip", self.clip is None or self.clip > 0, "above 0, or None", self.clip)
        patience = self.patience
        _check("patience", patience is None or patience >= 1, "at least 1, or None", patience)
        if bool(self.decays) != (self.schedule == "steps"):
            raise ValueError(
                f"train: decays belong to schedule='steps', but schedule is {self.schedule!r} and "
                f"decays are {self.decays or 'missing'}"
            )


def rate_at(recipe: Recipe, step: int, per_epoch: int) -> float:
    """The learning rate of a step, counted from zero: a function, so there is no state to keep.

    >>> recipe = Recipe(epochs=2, rate=1.0, warmup=0.0)
    >>> [round(rate_at(recipe, step, per_epoch=2), 3) for step in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    >>> recipe = Recipe(epochs=3, rate=1.0, schedule="steps", decays=(2, 3), warmup=0.0)
    >>> [round(rate_at(recipe, step, per_epoch=1), 3) for step in range(3)]
    [1.0, 0.1, 0.01]
    """
    total = recipe.epochs * per_epoch
    rising = math.ceil(recipe.warmup * total)
    if step < rising:
        return recipe.rate * (step + 1) / (rising + 1)
    if recipe.schedule == "cosine":
        share = (step - rising) / max(total - rising, 1)
        fall = (1 + math.cos(math.pi * min(share, 1.0))) / 2
        return recipe.rate * (recipe.floor + (1 - recipe.floor) * fall)
    if recipe.schedule == "steps":
        epoch = step // per_epoch + 1
        return recipe.rate * 0.1 ** sum(epoch >= decay for decay in recipe.decays)
    return recipe.rate


def _check(name: str, right: bool, wanted: str, value: Any) -> None:
    if not right:
        raise ValueError(f"train: {name} must be {wanted}, but it is {value}")


def _check_words(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"train: {name} must be one of {', '.join(known)}, but it is {value!r}")
