"""Data made from a seed: point clouds of solids, and associative recall."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from bistoch.lab.data.kinds import DataError, Dataset

if TYPE_CHECKING:
    from bistoch.lab.data.entry import Entry

SHAPES = ("sphere", "cube", "cylinder", "cone", "torus")
POINTS, NOISE = 64, 0.05
PAIRS, KEYS, VALUES = 8, 16, 8


def make_shapes(entry: "Entry") -> Dataset:
    """The set `shapes` of the table, always the same."""
    counts, generator = entry.counts, Generator().manual_seed(0)
    return point_shapes(counts["train"], counts["test"], generator=generator)


def make_recall(entry: "Entry") -> Dataset:
    """The set `recall` of the table, always the same."""
    counts, generator = entry.counts, Generator().manual_seed(0)
    return recall(counts["train"], counts["test"], generator=generator)


def point_shapes(
    train: int,
    test: int,
    *,
    points: int = POINTS,
    noise: float = NOISE,
    generator: Generator | None = None,
) -> Dataset:
    """Points on the surface of one of five solids, turned at random, centred, in the unit sphere.

    Args:
        train, test: samples, shared out evenly over the classes.
        points: points of a sample.
        noise: standard deviation of what is added to each coordinate before scaling.
        generator: where the numbers come from.

    >>> import torch
    >>> data = point_shapes(10, 5, points=7, generator=torch.Generator().manual_seed(0))
    >>> data.x_train.shape, data.classes
    ((10, 7, 3), ('sphere', 'cube', 'cylinder', 'cone', 'torus'))
    """
    for name, value in (("train", train), ("test", test), ("points", points)):
        if value < 1:
            raise DataError(f"point_shapes: {name} must be at least 1, but it is {value}")
    labels = torch.arange(train + test) % len(SHAPES)
    labels = torch.cat([_shuffled(part, generator) for part in labels.split([train, test])])
    clouds = torch.stack([SURFACES[label](points, generator) for label in labels.tolist()])
    clouds = clouds @ _rotations(len(clouds), generator)
    clouds = clouds + noise * torch.randn(clouds.shape, generator=generator)
    clouds = clouds - clouds.mean(1, keepdim=True)
    radius = clouds.norm(dim=-1).amax(1)
    x = (clouds / radius.clamp_min(1e-12)[:, None, None]).numpy()
    y = labels.numpy()
    return Dataset("shapes", "points", x[:train], y[:train], x[train:], y[train:], SHAPES)


def recall(
    train: int,
    test: int,
    *,
    pairs: int = PAIRS,
    keys: int = KEYS,
    values: int = VALUES,
    generator: Generator | None = None,
) -> Dataset:
    """Sequences of key, value, key, value, ..., key again: the label is the value that key had.

    Keys are the tokens 0 .. keys - 1 and differ within a sequence; values are the tokens from
    `keys` on.

    >>> import torch
    >>> data = recall(3, 2, pairs=2, generator=torch.Generator().manual_seed(0))
    >>> x, y = data.x_train[0].tolist(), int(data.y_train[0])
    >>> x[x.index(x[-1]) + 1] - 16 == y
    True
    """
    if not 1 <= pairs <= keys:
        raise DataError(
            f"recall: pairs must lie in 1 .. {keys}, the number of keys, since keys differ within "
            f"a sequence, but it is {pairs}"
        )
    n = train + test
    key = torch.rand(n, keys, generator=generator).argsort(1)[:, :pairs]
    value = torch.randint(values, (n, pairs), generator=generator)
    asked = torch.randint(pairs, (n, 1), generator=generator)
    said = torch.stack([key, keys + value], 2).flatten(1)
    x = torch.cat([said, key.gather(1, asked)], 1).numpy()
    y = value.gather(1, asked).squeeze(1).numpy()
    classes = tuple(str(value) for value in range(values))
    return Dataset("recall", "tokens", x[:train], y[:train], x[train:], y[train:], classes)


def _shuffled(labels: Tensor, generator: Generator | None) -> Tensor:
    return labels[torch.randperm(len(labels), generator=generator)]


def _rotations(count: int, generator: Generator | None) -> Float[Tensor, "n 3 3"]:
    # the orthogonal factor of a Gaussian matrix, with the signs that make it uniform
    q, r = torch.linalg.qr(torch.randn(count, 3, 3, generator=generator))
    q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]
    return q * torch.linalg.det(q)[:, None, None]


def _sphere(points: int, generator: Generator | None) -> Float[Tensor, "p 3"]:
    x = torch.randn(points, 3, generator=generator)
    return x / x.norm(dim=1, keepdim=True).clamp_min(1e-12)


def _cube(points: int, generator: Generator | None) -> Float[Tensor, "p 3"]:
    x = 2 * torch.rand(points, 3, generator=generator) - 1
    side = torch.randint(6, (points,), generator=generator)
    x[torch.arange(points), side // 2] = (side % 2 * 2 - 1).float()
    return x


def _cylinder(points: int, generator: Generator | None) -> Float[Tensor, "p 3"]:
    # mantle 4 pi and two lids of pi each, for radius one and height two
    where, u, angle = torch.rand(3, points, generator=generator)
    lid = where < 1 / 3
    radius = torch.where(lid, u.sqrt(), torch.ones(()))
    height = torch.where(lid, (where < 1 / 6).float() * 2 - 1, 2 * u - 1)
    return _around(radius, height, angle)


def _cone(points: int, generator: Generator | None) -> Float[Tensor, "p 3"]:
    # base pi and mantle pi sqrt(5), for radius one and height two
    where, u, angle = torch.rand(3, points, generator=generator)
    base = where < 1 / (1 + math.sqrt(5))
    radius = u.sqrt()
    return _around(radius, torch.where(base, -torch.ones(()), 1 - 2 * radius), angle)


def _torus(points: int, generator: Generator | None) -> Float[Tensor, "p 3"]:
    # evenly in both angles: a little denser inside, which does not matter here
    tube, angle = torch.rand(2, points, generator=generator)
    tube = 2 * math.pi * tube
    return _around(1 + 0.4 * tube.cos(), 0.4 * tube.sin(), angle)


def _around(
    radius: Float[Tensor, "p"], height: Float[Tensor, "p"], turn: Float[Tensor, "p"]
) -> Float[Tensor, "p 3"]:
    angle = 2 * math.pi * turn
    return torch.stack([radius * angle.cos(), radius * angle.sin(), height], 1)


SURFACES: tuple[Callable[[int, Generator | None], Tensor], ...] = (
    _sphere, _cube, _cylinder, _cone, _torus,
)  # fmt: skip
