"""The networks of the study of Gaussian tokens: images, training, and what they predict."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bistoch.lab.data import load
from bistoch.lab.study import Context
from bistoch.lab.train import Recipe, TensorTask, fit
from bistoch.lab.train.classification import encode_arrays
from bistoch.lab.train.seeds import preserved_random_state, seed_all
from bistoch.lab.train.task import class_losses, class_scores
from bistoch.models import ClassDistance, StochasticViT, StochasticViTConfig, ViT, ViTConfig

RECIPE = Recipe(epochs=10, batch_size=100, lr=1e-3)


@dataclass(frozen=True)
class Sizes:
    """Images that are used of every set, the network, and how it is trained and asked.

    A patch has a quarter of the height and width of an image, so there are 16 and a class token.
    `weight` is that of the regulariser, `dropout` and `samples` are those of dropout at test time,
    `wide` are the features of a ViT with about as many parameters as one of Gaussian tokens has.
    """

    train: int = 10_000
    test: int = 5000
    corrupted: int = 1000
    depth: int = 2
    dim: int = 64
    wide: int = 92
    heads: int = 4
    iters: int = 5
    weight: float = 0.1
    dropout: float = 0.3
    samples: int = 10
    members: int = 3
    recipe: Recipe = RECIPE


@dataclass(frozen=True)
class Images:
    """Training images as a network takes them, and test images and digits in uint8."""

    x_train: Tensor
    y_train: Tensor
    x_test: np.ndarray
    y_test: Tensor
    digits: np.ndarray
    classes: int


@functools.cache
def read_images(name: str, chosen: Sizes, *, digits: bool) -> Images:
    """The first images of a data set, and digits of the same shape.

    Without digits (a smoke run reads only what comes with the package) noise takes their place.
    """
    found, shape = load(name), load(name).x_test.shape[1:]
    if digits:
        foreign = load("mnist").x_test[: chosen.test]
        edge = [(0, 0), *(((side - 28) // 2,) * 2 for side in shape[:2])]
        foreign = np.pad(foreign, edge)
        foreign = np.repeat(foreign[..., None], shape[2], -1) if len(shape) == 3 else foreign
    else:
        foreign = np.random.default_rng(0).integers(0, 256, (chosen.test, *shape), np.uint8)
    return Images(
        encode_arrays("images", found.x_train[: chosen.train]),
        torch.from_numpy(found.y_train[: chosen.train]),
        found.x_test[: chosen.test],
        torch.from_numpy(found.y_test[: chosen.test]),
        foreign,
        len(found.classes),
    )


class Trained(nn.Module):
    """A network, and the regulariser if there is one; returns scores, and distances beside them."""

    def __init__(self, data: Images, chosen: Sizes, options: Mapping[str, Any]):
        super().__init__()
        shape = data.x_train.shape[1:]
        config: dict[str, Any] = {
            "image": tuple(shape[:2]), "patch": tuple(side // 4 for side in shape[:2]),
            "channels": shape[2] if len(shape) == 3 else 1,
            "classes": data.classes, "depth": chosen.depth, "heads": chosen.heads,
            "dim": chosen.wide if options.get("wide") else chosen.dim,
            "dropout": chosen.dropout if options.get("dropout") else 0.0,
        }  # fmt: skip
        self.model: StochasticViT | ViT
        if "lam" in options:
            config |= {"lam": options["lam"], "iters": chosen.iters}
            self.model = StochasticViT(StochasticViTConfig(**config))
        else:
            self.model = ViT(ViTConfig(**config))
        how = options.get("regulariser")
        self.distance = how and ClassDistance(
            data.classes, chosen.dim, negatives=how == "negatives"
        )

    def forward(self, images: Tensor) -> Tensor:
        """Scores (batch, classes), then distances to classes if there is a regulariser."""
        if not self.distance or not isinstance(self.model, StochasticViT):
            return self.model(images)
        features = self.model.features(images)
        return torch.cat([self.model.scores(features), self.distance(features)], -1)

    @torch.no_grad()
    def variance(self, images: np.ndarray) -> Tensor:
        """The mean variance of the features of every image, a score of how unknown it is."""
        if not isinstance(self.model, StochasticViT):
            raise TypeError("stochastic-vit: only Gaussian tokens have variances")
        batches = encode_arrays("images", images).split(250)
        return torch.cat([self.model.features(some).variance.mean(-1) for some in batches])


def task_of(network: Trained, data: Images, chosen: Sizes) -> TensorTask:
    """What a network learns."""

    def losses(output: Tensor, target: Tensor) -> Tensor:
        found = class_losses(output[:, : data.classes], target)
        if network.distance:
            far = output[:, data.classes :]
            found = found + chosen.weight * network.distance.losses(far, target)
        return found

    def scores(output: Tensor, target: Tensor) -> Tensor:
        return class_scores(output[:, : data.classes], target)

    splits = {
        "train": (data.x_train, data.y_train),
        "test": (encode_arrays("images", data.x_test), data.y_test),
    }
    return TensorTask("images", splits, losses=losses, scores=scores)


def train(
    network: Trained, data: Images, chosen: Sizes, seed: int, context: Context
) -> dict[str, float]:
    """Train a network in place; its last losses."""
    fitted = fit(
        network, task_of(network, data, chosen), chosen.recipe,
        folder=context.folder / f"network {seed}", seed=seed, on_step=context.on_step,
    )  # fmt: skip
    return fitted.curve[-1]


@torch.no_grad()
def probabilities(
    networks: Sequence[Trained], images: np.ndarray, *, samples: int = 0, seed: int = 0
) -> Tensor:
    """The mean probabilities of networks, or of one with so many samples of its dropout."""
    x, found = encode_arrays("images", images), []
    classes = networks[0].model.classify.out_features
    with preserved_random_state():
        seed_all("dropout", seed)
        for network in networks:
            network.train(samples > 0)
            for _ in range(max(samples, 1)):
                scores = torch.cat([network(some)[:, :classes] for some in x.split(250)])
                found.append(scores.softmax(-1))
            network.eval()
    return torch.stack(found).mean(0)
