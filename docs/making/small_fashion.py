"""Make the part of FashionMNIST that ships with the package from the whole data set.

Run it in the folder docs: python -m making.small_fashion
"""

from pathlib import Path

import numpy as np

from bistoch.lab.data import Dataset, load

# of each class, in the order of the whole set
TRAIN_PER_CLASS, TEST_PER_CLASS = 400, 100


def first_of_each_class(labels: np.ndarray, count: int) -> np.ndarray:
    """The indices of the first `count` samples of each class, in ascending order.

    >>> import numpy as np
    >>> first_of_each_class(np.array([1, 1, 0, 1, 0, 0]), 2)
    array([0, 1, 2, 4])
    """
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[:count] for c in np.unique(labels)]))


def write_small(full: Dataset, path: str | Path) -> None:
    """Write the small set, given `load("fashion-mnist")`: 4000 and 1000 images, even in class."""
    train = first_of_each_class(full.y_train, TRAIN_PER_CLASS)
    test = first_of_each_class(full.y_test, TEST_PER_CLASS)
    np.savez_compressed(
        path,
        x_train=np.asarray(full.x_train)[train],
        y_train=full.y_train[train].astype(np.uint8),
        x_test=np.asarray(full.x_test)[test],
        y_test=full.y_test[test].astype(np.uint8),
    )


if __name__ == "__main__":
    write_small(load("fashion-mnist"), "fashion-mnist-small.npz")
