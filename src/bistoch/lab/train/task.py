"""What is learned: batches of data as a model takes them, a loss, and a score."""

from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional


class Batch(NamedTuple):
    """What goes into a model, argument by argument, and what should come out."""

    inputs: tuple[Tensor, ...]
    target: Tensor

    def to(self, device: torch.device) -> "Batch":
        """The same on a device."""
        return Batch(tuple(x.to(device) for x in self.inputs), self.target.to(device))


class Task(Protocol):
    """Data with a question.

    `sizes` is what the data decide of a model, under the names of its config. `facts` is what must
    be known to use the model without the data, as JSON.

    `score_name` says what the score is, `larger_is_better` which way it is better. Splits are
    "train", "test", and "valid" if some samples are held out to choose by.
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
        """One loss per sample; their mean is what is trained on."""

    def scores(self, output: Tensor, target: Tensor) -> Float[Tensor, "b"]:
        """One score per sample; their mean is what is reported."""


def class_losses(output: Float[Tensor, "b c"], target: Int[Tensor, "b"]) -> Float[Tensor, "b"]:
    """Cross-entropy, for tasks that ask for a class."""
    return functional.cross_entropy(output.float(), target, reduction="none")


def class_scores(output: Float[Tensor, "b c"], target: Int[Tensor, "b"]) -> Float[Tensor, "b"]:
    """1 where the likeliest class is the right one, else 0."""
    return (output.argmax(-1) == target).float()


def watched_split(task: Task) -> str:
    """The split whose score is followed while training: held-out samples, if there are any."""
    return "valid" if task.count("valid") else "test"


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Matrices, which decay, and vectors (biases, norms, a lam per head), which do not.

    >>> [len(group["params"]) for group in parameter_groups(nn.Linear(2, 3), 0.1)]
    [1, 1]
    """
    learned = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in learned if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in learned if p.ndim < 2], "weight_decay": 0.0},
    ]
