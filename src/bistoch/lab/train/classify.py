"""Tasks that ask for a class: pictures, points and sequences of tokens."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from bistoch.lab.data import Dataset
from bistoch.lab.train.order import seed_of
from bistoch.lab.train.task import Batch, class_losses, class_scores

# one sample in so many is held out where something is to be chosen and the source has no such split
HELD_OUT = 10


class Classify:
    """Pictures in [-1, 1], points or tokens, and their classes.

    Args:
        data: what was loaded.
        hold_out: whether to hold out a tenth of train, always the same, if there is no valid split.
        length: points that are read of a cloud, always the same draw; None reads all. Other data
            are read whole.

    >>> from bistoch.lab.data import load
    >>> task = Classify(load("fashion-mnist-small"), hold_out=True)
    >>> task.count("train"), task.count("valid"), task.count("test"), task.sizes["image"]
    (3600, 400, 1000, (28, 28))
    >>> batch = task.batch("train", torch.arange(3))
    >>> batch.inputs[0].shape, batch.inputs[0].min().item(), batch.target.shape
    (torch.Size([3, 28, 28]), -1.0, torch.Size([3]))
    """

    score_name, larger_is_better = "accuracy", True

    def __init__(self, data: Dataset, *, hold_out: bool = False, length: int | None = None):
        self.name, self.classes = data.name, data.classes
        self.kind: str = data.kind
        self.samples, self.labels = splits_of(data, hold_out)
        self.sizes = _sizes(data)
        self.facts: dict[str, Any] = {"classes": list(data.classes)}
        if length is not None and self.kind == "points":
            self.facts["length"] = length
            self.samples = {
                split: draw_points(clouds, length) for split, clouds in self.samples.items()
            }

    def count(self, split: str) -> int:
        """The number of samples of a split."""
        return len(self.labels.get(split, ()))

    def batch(self, split: str, rows: Int[Tensor, "b"]) -> Batch:
        """Some samples of a split."""
        samples = self.encode(self.samples[split][rows.numpy()])
        return Batch(samples, torch.from_numpy(self.labels[split][rows.numpy()]))

    def encode(self, samples: Any) -> tuple[Tensor, ...]:
        """Samples as they lie in the data, as the model takes them."""
        return encode_arrays(self.kind, samples)

    losses = staticmethod(class_losses)
    scores = staticmethod(class_scores)


def encode_arrays(kind: str, samples: np.ndarray) -> tuple[Tensor, ...]:
    """Pictures from uint8 to [-1, 1], points to float32, tokens to numbers from 1 on: 0 is padding.

    >>> encode_arrays("images", np.array([[[0, 255]]], np.uint8))
    (tensor([[[-1.,  1.]]]),)
    """
    x = torch.from_numpy(np.ascontiguousarray(samples))
    if kind == "images":
        return (x.float() / 127.5 - 1,)
    return (x.float() if kind == "points" else x.long() + 1,)


def draw_points(clouds: np.ndarray, length: int) -> np.ndarray:
    """Some points of every cloud (..., points, coordinates), spread over the order they lie in.

    The draw follows from the number of points alone: all clouds of a data set have the same places
    drawn, in every run. A cloud with fewer points than `length` is left whole.

    >>> draw_points(np.arange(8).reshape(1, 4, 2), 2).shape, draw_points(np.ones((3, 2)), 5).shape
    ((1, 2, 2), (3, 2))
    """
    count = clouds.shape[-2]
    order = np.random.default_rng(seed_of("points", count)).permutation(count)
    return clouds[..., np.sort(order[:length]), :]


def splits_of(data: Dataset, hold_out: bool) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Samples and labels by split; what is held out is the same for every model and seed."""
    samples = {"train": data.x_train, "test": data.x_test}
    labels = {"train": np.asarray(data.y_train), "test": np.asarray(data.y_test)}
    if data.x_valid is not None and data.y_valid is not None:
        samples["valid"], labels["valid"] = data.x_valid, np.asarray(data.y_valid)
    elif hold_out:
        count = len(labels["train"])
        if count < HELD_OUT:
            raise ValueError(
                f"{data.name}: to choose by held-out samples at least {HELD_OUT} of train are "
                f"needed, but there are {count}"
            )
        order = np.random.default_rng(seed_of("hold out")).permutation(count)
        out, rest = np.sort(order[: count // HELD_OUT]), np.sort(order[count // HELD_OUT :])
        for split, rows in (("valid", out), ("train", rest)):
            samples[split] = _take(data.x_train, rows)
            labels[split] = np.asarray(data.y_train)[rows]
    return samples, {split: y.astype(np.int64) for split, y in labels.items()}


def _take(samples: Any, rows: np.ndarray) -> Any:
    if isinstance(samples, np.ndarray):
        return samples[rows]
    return [samples[row] for row in rows.tolist()]


def _sizes(data: Dataset) -> dict[str, Any]:
    """What the data decide of a model."""
    sizes: dict[str, Any] = {"classes": len(data.classes)}
    if data.kind == "images":
        shape = data.x_train.shape
        sizes |= {"image": (shape[1], shape[2]), "channels": shape[3] if len(shape) == 4 else 1}
    elif data.kind == "points":
        sizes |= {"coordinates": data.x_train.shape[2]}
    elif data.kind == "tokens":
        # one more, for padding
        sizes |= {"vocabulary": 2 + max(int(x.max()) for x in (data.x_train, data.x_test))}
    return sizes
