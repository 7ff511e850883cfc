"""Halves of pictures that look for each other: a search task with data that are shipped."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

Vectors = Float[np.ndarray, "count features"]

# strength of the ridge regression, and principal axes of the half that is looked for
RIDGE, AXES = 10.0, 64
KINDS = {"left finds right": 2, "top finds bottom": 1}


@dataclass(frozen=True)
class Halves:
    """Pictures cut in two, as unit vectors: query i looks for document i.

    The bank are queries of other pictures, those that the map was learned on.
    """

    kind: str
    queries: Vectors
    documents: Vectors
    bank: Vectors
    pictures: UInt8[np.ndarray, "count height width"]


def load_halves(kind: str = "left finds right", *, validation: bool = False) -> Halves:
    """The task on the FashionMNIST pictures that come with the package.

    Args:
        kind: a key of `KINDS`.
        validation: learn on the first 3000 training pictures and search among the other 1000, to
            choose settings; otherwise learn on all 4000 and search among the 1000 test pictures.
    """
    from bistoch.lab.data import load

    data = load("fashion-mnist-small")
    if validation:
        return cut_halves(kind, data.x_train[:3000], data.x_train[3000:])
    return cut_halves(kind, data.x_train, data.x_test)


def cut_halves(
    kind: str,
    train: UInt8[np.ndarray, "pictures height width"],
    test: UInt8[np.ndarray, "count height width"],
) -> Halves:
    """Learn, by ridge regression on training pictures, where the other half should be.

    >>> from bistoch.lab.data import load
    >>> pictures = load("fashion-mnist-small").x_train
    >>> halves = cut_halves("left finds right", pictures[:500], pictures[500:600])
    >>> halves.queries.shape, halves.documents.shape, halves.bank.shape
    ((100, 64), (100, 64), (500, 64))
    """
    asked, wanted = _cut(train, KINDS[kind])
    origin, centre = asked.mean(0), wanted.mean(0)
    asked, wanted = asked - origin, wanted - centre
    # eigenvectors of the small matrix of products are the principal axes
    axes = np.linalg.eigh(wanted.T @ wanted)[1][:, -AXES:]
    ridge = asked.T @ asked + RIDGE * np.eye(asked.shape[1])
    weight = np.linalg.solve(ridge, asked.T @ (wanted @ axes))
    queries, documents = _cut(test, KINDS[kind])
    return Halves(
        kind,
        unit((queries - origin) @ weight),
        unit((documents - centre) @ axes),
        unit(asked @ weight),
        test,
    )


def unit(vectors: Vectors) -> Vectors:
    """Vectors of length one, in float32.

    >>> unit(np.array([[3.0, 4.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, 1e-12), "float32")


def _cut(pictures: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Both halves of every picture, flat, between 0 and 1."""
    one, other = np.split(pictures.astype(np.float64) / 255, 2, axis)
    return one.reshape(len(pictures), -1), other.reshape(len(pictures), -1)
