"""What is learned: batches of samples and targets, a loss, and a score."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

PerSample = Callable[[Tensor, Tensor], Float[Tensor, "b"]]


class Batch(NamedTuple):
    """The arguments of the model, and the targets."""

    inputs: tuple[Tensor, ...]
    target: Tensor

    def to(self, device: torch.device) -> "Batch":
        """The same on a device."""
        return Batch(tuple(x.to(device) for x in self.inputs), self.target.to(device))


class Task(Protocol):
    """Data with a loss and a score.

    Attributes:
        name, kind: of the data.
        sizes: fields of a model's config that the data decide.
        facts: what must be known to use the model without the data, as JSON.
        score_name, larger_is_better: what the score is.

    Splits are "train", "test", and "valid" if some samples are held out for validation.
    """

    name: str
    kind: str
    sizes: dict[str, Any]
    facts: dict[str, Any]
    score_name: str
    larger_is_better: bool

    def count(self, split: str) -> int:
        """The number of samples; 0 if there is no such split."""

    def batch(self, split: str, rows: Int[Tensor, "b"]) -> Batch:
        """Some samples of a split."""

    def losses(self, output: Tensor, target: Tensor) -> Float[Tensor, "b"]:
        """One loss per sample; training minimises the mean."""

    def scores(self, output: Tensor, target: Tensor) -> Float[Tensor, "b"]:
        """One score per sample; the mean is reported."""


def class_losses(output: Float[Tensor, "b c"], target: Int[Tensor, "b"]) -> Float[Tensor, "b"]:
    """Cross-entropy of every sample."""
    return functional.cross_entropy(output.float(), target, reduction="none")


def class_scores(output: Float[Tensor, "b c"], target: Int[Tensor, "b"]) -> Float[Tensor, "b"]:
    """1 where the most likely class is the right one, else 0."""
    return (output.argmax(-1) == target).float()


class TensorTask:
    """Samples and targets that are tensors already; by default the targets are classes.

    Args:
        name: of the data.
        splits: inputs and targets of "train", "test" and, if there is one, "valid".
        losses, scores, score_name, larger_is_better: as for `Task`.

    >>> x, y = torch.randn(7, 3), torch.arange(7) % 2
    >>> task = TensorTask("mine", {"train": (x[:5], y[:5]), "test": (x[5:], y[5:])})
    >>> task.count("train"), task.count("valid"), task.batch("test", torch.tensor([1])).target
    (5, 0, tensor([0]))
    """

    def __init__(
        self,
        name: str,
        splits: Mapping[str, tuple[Tensor, Tensor]],
        *,
        losses: PerSample = class_losses,
        scores: PerSample = class_scores,
        score_name: str = "accuracy",
        larger_is_better: bool = True,
    ):
        self.name, self.kind, self.splits = name, "tensors", splits
        self.sizes: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        self.losses, self.scores = losses, scores
        self.score_name, self.larger_is_better = score_name, larger_is_better

    def count(self, split: str) -> int:
        """The number of samples; 0 if there is no such split."""
        return len(self.splits[split][1]) if split in self.splits else 0

    def batch(self, split: str, rows: Int[Tensor, "b"]) -> Batch:
        """Some samples of a split."""
        inputs, target = self.splits[split]
        return Batch((inputs[rows],), target[rows])


def validation_split(task: Task) -> str:
    """The split that is scored after every epoch: "valid" if there is one, else "test"."""
    return "valid" if task.count("valid") else "test"
