"""Tasks with classes: images, point clouds, token ids and texts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bistoch.lab.data import Dataset
from bistoch.lab.text import Vocabulary
from bistoch.lab.train.seeds import seed_of
from bistoch.lab.train.task import Batch, class_losses, class_scores

# one sample in so many is held out for validation where the source has no such split
HOLD_OUT = 10
# by default, tokens that are read of a text, and the size of the vocabulary
MAX_LENGTH, VOCABULARY = 256, 20000


class Classification:
    """Samples and their classes; the vocabulary of texts is made from the training texts alone.

    Args:
        data: what was loaded.
        hold_out: whether to hold out a tenth of train, always the same, if there is no valid split.
        length: tokens that are read of a text (256 by default), or points of a cloud, always the
            same (all by default). Other data are read whole.

    >>> from bistoch.lab.data import load
    >>> task = Classification(load("fashion-mnist-small"), hold_out=True)
    >>> task.count("train"), task.count("valid"), task.count("test"), task.sizes["image"]
    (3600, 400, 1000, (28, 28))
    >>> batch = task.batch("train", torch.arange(3))
    >>> batch.inputs[0].shape, batch.inputs[0].min().item(), batch.target.shape
    (torch.Size([3, 28, 28]), -1.0, torch.Size([3]))
    >>> y = np.array([1, 0])
    >>> texts = Dataset("mine", "text", ["so good", "bad"], y, ["good"], y[:1], ("no", "yes"))
    >>> task = Classification(texts)
    >>> task.sizes, task.batch("train", torch.tensor([0, 1])).inputs
    ({'classes': 2, 'vocabulary': 5}, (tensor([[4, 3],
            [2, 0]]),))
    """

    score_name, larger_is_better = "accuracy", True
    losses = staticmethod(class_losses)
    scores = staticmethod(class_scores)

    def __init__(self, data: Dataset, *, hold_out: bool = False, length: int | None = None):
        self.name = data.name
        self.kind: str = data.kind
        self.samples, self.labels = _splits_of(data, hold_out)
        self.facts: dict[str, Any] = {"classes": list(data.classes)}
        self.sizes = {"classes": len(data.classes), **_sizes_of(data)}
        if self.kind == "text":
            self.facts["length"] = length or MAX_LENGTH
            self.use_vocabulary(Vocabulary.from_texts(self.samples["train"], size=VOCABULARY))
        elif self.kind == "points" and length is not None:
            self.facts["length"] = length
            self.samples = {split: draw_points(x, length) for split, x in self.samples.items()}

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Encode all texts with a vocabulary: their own, or that of a trained model."""
        self.encoded = {
            split: encode_texts(vocabulary, texts, self.facts["length"])
            for split, texts in self.samples.items()
        }
        self.sizes["vocabulary"] = len(vocabulary)
        self.facts |= {"unit": vocabulary.unit, "tokens": list(vocabulary.tokens)}

    def count(self, split: str) -> int:
        """The number of samples; 0 if there is no such split."""
        return len(self.labels.get(split, ()))

    def batch(self, split: str, rows: Int[Tensor, "b"]) -> Batch:
        """Some samples of a split."""
        if self.kind == "text":
            samples = pad([self.encoded[split][row] for row in rows.tolist()])
        else:
            samples = encode_arrays(self.kind, self.samples[split][rows.numpy()])
        return Batch((samples,), torch.from_numpy(self.labels[split][rows.numpy()]))


def encode_arrays(kind: str, samples: np.ndarray) -> Tensor:
    """Images from uint8 to [-1, 1], points to float32, token ids from 1 on: 0 is padding.

    >>> encode_arrays("images", np.array([[[0, 255]]], np.uint8))
    tensor([[[-1.,  1.]]])
    """
    x = torch.from_numpy(np.ascontiguousarray(samples))
    if kind == "images":
        return x.float() / 127.5 - 1
    return x.float() if kind == "points" else x.long() + 1


def encode_texts(vocabulary: Vocabulary, texts: Sequence[str], length: int) -> list[np.ndarray]:
    """The token ids of texts; a text without tokens is one unknown token."""
    encoded = (vocabulary.encode_one(text)[:length] for text in texts)
    return [ids if len(ids) else np.ones(1, np.int64) for ids in encoded]


def pad(texts: Sequence[np.ndarray]) -> Int[Tensor, "b n"]:
    """Texts of different lengths as one tensor, padded with zeros at the end."""
    return pad_sequence([torch.from_numpy(text) for text in texts], batch_first=True)


def draw_points(clouds: np.ndarray, length: int) -> np.ndarray:
    """`length` points of every cloud (..., points, coordinates), if there are more, in their order.

    Which ones follows from the number of points alone: the same for all clouds, in every run.

    >>> draw_points(np.arange(8).reshape(1, 4, 2), 2).shape, draw_points(np.ones((3, 2)), 5).shape
    ((1, 2, 2), (3, 2))
    """
    count = clouds.shape[-2]
    order = np.random.default_rng(seed_of("points", count)).permutation(count)
    return clouds[..., np.sort(order[:length]), :]


def _splits_of(data: Dataset, hold_out: bool) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Samples and labels by split; what is held out is the same for every model and seed."""
    samples = {"train": data.x_train, "test": data.x_test}
    labels = {"train": np.asarray(data.y_train), "test": np.asarray(data.y_test)}
    if data.x_valid is not None and data.y_valid is not None:
        samples["valid"], labels["valid"] = data.x_valid, np.asarray(data.y_valid)
    elif hold_out:
        count = len(labels["train"])
        if count < HOLD_OUT:
            raise ValueError(
                f"{data.name}: a validation split needs at least {HOLD_OUT} training samples, but "
                f"there are {count}"
            )
        order = np.random.default_rng(seed_of("hold out")).permutation(count)
        valid, train = np.sort(order[: count // HOLD_OUT]), np.sort(order[count // HOLD_OUT :])
        for split, rows in (("valid", valid), ("train", train)):
            whole = data.x_train
            samples[split] = (
                whole[rows] if isinstance(whole, np.ndarray) else [whole[row] for row in rows]
            )
            labels[split] = np.asarray(data.y_train)[rows]
    return samples, {split: y.astype(np.int64) for split, y in labels.items()}


def _sizes_of(data: Dataset) -> dict[str, Any]:
    """The fields of a model's config that the data decide."""
    if data.kind == "images":
        _, height, width, *channels = data.x_train.shape
        return {"image": (height, width), "channels": channels[0] if channels else 1}
    if data.kind == "points":
        return {"coordinates": data.x_train.shape[2]}
    if data.kind == "tokens":
        # one more, for padding
        return {"vocabulary": 2 + max(int(x.max()) for x in (data.x_train, data.x_test))}
    return {}
