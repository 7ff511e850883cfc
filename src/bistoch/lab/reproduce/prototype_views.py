"""Pictures, their augmented views, and the small network of the study of prototypes."""

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

import bistoch
from bistoch.lab.data import Dataset
from bistoch.lab.train import Batch
from bistoch.lab.train.classification import encode_arrays
from bistoch.lab.train.seeds import seed_of

# of the softmax that predicts, and of the codes: those of SwAV
TEMPERATURE, EPS = 0.1, 0.05


class Encoder(nn.Module):
    """Cosines of pictures and prototypes: an MLP with three layers, then unit vectors.

    >>> Encoder(pixels=784, width=8, prototypes=7)(*torch.randn(2, 3, 28, 28)).shape
    torch.Size([3, 2, 7])
    """

    def __init__(self, pixels: int, width: int, prototypes: int):
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((pixels, 4 * width), (4 * width, 2 * width)):
            layers += [nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Linear(2 * width, width))
        self.prototypes = nn.Parameter(torch.randn(prototypes, width))

    def forward(
        self, first: Float[Tensor, "b h w"], second: Float[Tensor, "b h w"]
    ) -> Float[Tensor, "b 2 k"]:
        """The scores of two views of every picture."""
        views = torch.stack([first, second], 1)
        features = self.body(views.flatten(0, 1).flatten(1))
        scores = (
            functional.normalize(features, dim=-1)
            @ functional.normalize(self.prototypes, dim=-1).mT
        )
        return scores.unflatten(0, views.shape[:2])


class SwappedPrediction:
    """Two views of every picture: the codes of each are predicted from the other.

    Pictures are halved in height and width first, so that a training takes seconds.

    Args:
        data: the pictures; their classes are used to measure, never to learn.
        imbalance: how often the largest class is as large as the smallest one in train.
        lam, iters, backend: of the codes.

    The score is how often both views prefer the same prototype.
    """

    score_name, larger_is_better, kind = "agreement", True, "images"

    def __init__(
        self, data: Dataset, *, imbalance: float, lam: float, iters: int, backend: str = "auto"
    ):
        self.name, self.lam, self.iters, self.backend = data.name, lam, iters, backend
        rows = long_tail(np.asarray(data.y_train), imbalance)
        self.pictures = {
            split: functional.avg_pool2d(encode_arrays("images", x)[:, None], 2)[:, 0]
            for split, x in (("train", data.x_train[rows]), ("test", data.x_test))
        }
        self.labels = {"train": np.asarray(data.y_train)[rows], "test": np.asarray(data.y_test)}
        self.sizes: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}

    def count(self, split: str) -> int:
        """The number of pictures."""
        return len(self.pictures.get(split, ()))

    def batch(self, split: str, rows: Int[Tensor, "b"]) -> Batch:
        """Two views of some pictures; of test pictures the second is the picture itself."""
        pictures = self.pictures[split][rows]
        second = augment(pictures) if split == "train" else pictures
        return Batch((augment(pictures) if split == "train" else pictures, second), rows)

    def losses(self, output: Float[Tensor, "b 2 k"], target: Tensor) -> Float[Tensor, "b"]:
        """Cross-entropy of the codes of a view and the prediction from the other."""
        with torch.no_grad():
            codes = bistoch.prototype_codes(
                output.detach().transpose(0, 1), eps=EPS, lam=self.lam, iters=self.iters,
                backend=self.backend,
            ).transpose(0, 1)  # fmt: skip
        predicted = (output / TEMPERATURE).log_softmax(-1)
        return -(codes * predicted.flip(1)).sum(-1).mean(1)

    def scores(self, output: Float[Tensor, "b 2 k"], target: Tensor) -> Float[Tensor, "b"]:
        """1 where both views prefer the same prototype."""
        nearest = output.argmax(-1)
        return (nearest[:, 0] == nearest[:, 1]).float()


def augment(pictures: Float[Tensor, "b h w"]) -> Float[Tensor, "b h w"]:
    """Random views: rotated, resized, moved, mirrored, and with another contrast.

    >>> augment(torch.zeros(3, 28, 28)).shape
    torch.Size([3, 28, 28])
    """
    count = len(pictures)
    draw = torch.rand(6, count)
    angle = (2 * draw[0] - 1) * math.radians(15)
    scale = 0.75 + 0.45 * draw[1]
    mirror = 1 - 2 * (draw[2] < 0.5).float()
    cos, sin = scale * angle.cos(), scale * angle.sin()
    move = 0.3 * (draw[3:5] - 0.5)
    grid = torch.stack([mirror * cos, -sin, move[0], mirror * sin, cos, move[1]], -1)
    places = functional.affine_grid(
        grid.reshape(-1, 2, 3), [count, 1, *pictures.shape[1:]], align_corners=False
    )
    # dark is -1, and what lies outside is dark
    moved = functional.grid_sample(pictures[:, None] + 1, places, align_corners=False)[:, 0]
    return moved * (0.6 + 0.8 * draw[5])[:, None, None] - 1


def long_tail(labels: np.ndarray, imbalance: float) -> np.ndarray:
    """Rows that leave classes of geometrically falling size; class 0 stays as large as it is.

    >>> labels = np.repeat(np.arange(3), 100)
    >>> np.bincount(labels[long_tail(labels, 4.0)]), len(long_tail(labels, 1.0))
    (array([100,  50,  25]), 300)
    """
    classes, counts = np.unique(labels, return_counts=True)
    kept = []
    for place, (label, count) in enumerate(zip(classes, counts, strict=True)):
        rows = np.random.default_rng(seed_of("long tail", int(label))).permutation(
            np.flatnonzero(labels == label)
        )
        share = imbalance ** (-place / max(len(classes) - 1, 1))
        kept.append(rows[: max(round(count * share), 1)])
    return np.sort(np.concatenate(kept))


def mutual_information(found: np.ndarray, labels: np.ndarray) -> float:
    """Normalised mutual information of two partitions, by the mean of their entropies.

    >>> mutual_information(np.array([3, 3, 1, 1]), np.array([0, 0, 1, 1]))
    1.0
    >>> mutual_information(np.array([0, 0, 0, 0]), np.array([0, 0, 1, 1]))
    0.0
    """
    table = contingency(found, labels) / len(labels)
    rows, columns = table.sum(1), table.sum(0)
    seen = table > 0
    shared = (table[seen] * np.log(table[seen] / np.outer(rows, columns)[seen])).sum()
    entropies = sum(-(p[p > 0] * np.log(p[p > 0])).sum() for p in (rows, columns))
    return float(2 * shared / entropies) if entropies > 0 else 0.0


def clustering_accuracy(found: np.ndarray, labels: np.ndarray) -> float:
    """The share of samples that are right if every class gets the cluster that suits it best.

    >>> clustering_accuracy(np.array([3, 3, 1, 0]), np.array([0, 0, 1, 1]))
    0.75
    """
    from scipy.optimize import linear_sum_assignment

    table = contingency(found, labels)
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / len(labels))


def purity(found: np.ndarray, labels: np.ndarray) -> float:
    """The share of samples whose class is the most frequent one of their cluster.

    >>> purity(np.array([3, 3, 1, 0]), np.array([0, 0, 1, 1]))
    1.0
    """
    return float(contingency(found, labels).max(1).sum() / len(labels))


def contingency(found: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How many samples every cluster shares with every class."""
    clusters, classes = (np.unique(x, return_inverse=True) for x in (found, labels))
    table = np.zeros((len(clusters[0]), len(classes[0])))
    np.add.at(table, (clusters[1], classes[1]), 1)
    return table
