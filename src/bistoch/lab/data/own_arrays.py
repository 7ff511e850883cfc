"""Your own arrays: an .npz file with x_train, y_train, x_test, y_test."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from bistoch.lab.data.kinds import DataError, Dataset
from bistoch.lab.data.own_labels import Labelled, class_names, class_numbers
from bistoch.lab.data.read_files import read_arrays

Kind = Literal["images", "points"]


def read_own_arrays(path: Path) -> Dataset:
    """Images, uint8 (n, h, w) or (n, h, w, 3), or points, floating (n, p, 3), with labels.

    Labels are whole numbers from zero, or words. `classes` (names), x_valid and y_valid may be
    there too.
    """
    arrays = read_arrays(path)
    needed = ("x_train", "y_train", "x_test", "y_test")
    if lacking := [key for key in needed if key not in arrays]:
        raise DataError(
            f"{path}: expected the arrays {', '.join(needed)}, but {', '.join(lacking)} "
            f"{'is' if len(lacking) == 1 else 'are'} missing; it has {', '.join(arrays) or 'none'}"
        )
    if ("x_valid" in arrays) != ("y_valid" in arrays):
        raise DataError(f"{path}: x_valid and y_valid belong together, but only one is there")
    splits = ["train", "test"] + ["valid"] * ("x_valid" in arrays)
    kind = _kind(path, arrays["x_train"])
    x = {split: _samples(path, split, arrays, kind) for split in splits}
    y, classes = _labels(path, splits, arrays)
    return Dataset.from_splits(path.stem, kind, x, y, classes)


def _kind(path: Path, x: np.ndarray) -> Kind:
    if x.dtype == np.uint8 and (x.ndim == 3 or (x.ndim == 4 and x.shape[3] == 3)):
        return "images"
    if np.issubdtype(x.dtype, np.floating) and x.ndim == 3 and x.shape[2] == 3:
        return "points"
    raise DataError(
        f"{path}: x_train must be images, uint8 (n, h, w) or (n, h, w, 3), or points, floating "
        f"(n, p, 3), but it is {x.dtype} {x.shape}; {_remedy(x)}"
    )


def _remedy(x: np.ndarray) -> str:
    if x.ndim == 4 and x.shape[3] == 1:
        return "drop the last axis with x[..., 0]"
    if x.ndim == 4 and x.shape[1] == 3:
        return "put colours last with x.transpose(0, 2, 3, 1)"
    if np.issubdtype(x.dtype, np.floating):
        return "if it holds images from 0 to 1, store (255 * x).round().astype('uint8')"
    return "convert it before saving"


def _samples(path: Path, split: str, arrays: Mapping[str, np.ndarray], kind: Kind) -> np.ndarray:
    x, y, like = arrays[f"x_{split}"], arrays[f"y_{split}"], arrays["x_train"]
    if x.shape[1:] != like.shape[1:] or x.dtype != like.dtype:
        raise DataError(
            f"{path}: samples of x_{split} must be like those of x_train, {like.dtype} "
            f"{like.shape[1:]}, but they are {x.dtype} {x.shape[1:]}"
        )
    if len(x) == 0 or 0 in x.shape:
        raise DataError(f"{path}: x_{split} must not be empty, but its shape is {x.shape}")
    if y.ndim != 1 or len(y) != len(x):
        raise DataError(
            f"{path}: y_{split} must hold one label for each of the {len(x)} samples of "
            f"x_{split}, but its shape is {y.shape}"
        )
    if kind == "images":
        return x
    with np.errstate(over="ignore"):
        points = x.astype(np.float32)
    finite = np.isfinite(points).all(axis=(1, 2))
    if not finite.all():
        raise DataError(
            f"{path}: x_{split}, row {int(np.argmin(finite))}: points must be finite in float32, "
            "but some are not; remove or repair that sample"
        )
    return points


def _labels(
    path: Path, splits: list[str], arrays: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    given = _given_classes(path, arrays["classes"]) if "classes" in arrays else None
    y = {split: arrays[f"y_{split}"] for split in splits}
    if all(np.issubdtype(labels.dtype, np.str_) for labels in y.values()):
        words = {
            split: [Labelled(str(word), f"y_{split}, row {row}") for row, word in enumerate(labels)]
            for split, labels in y.items()
        }
        classes = given or class_names(words["train"], str(path))
        return {split: class_numbers(words[split], classes, str(path)) for split in splits}, classes
    # numbers: zero to the number of classes
    names = given or _numbered_classes(path, y["train"])
    for split, labels in y.items():
        _highest(path, labels, f"y_{split}")
        for row in np.flatnonzero((labels < 0) | (labels >= len(names)))[:1]:
            raise DataError(
                f"{path}: y_{split}, row {row}: labels must lie in 0 .. {len(names) - 1}, the "
                f"{len(names)} classes {'named' if given else 'of train'}, but it is {labels[row]}"
            )
    return {split: labels.astype(np.int64) for split, labels in y.items()}, names


def _given_classes(path: Path, names: np.ndarray) -> tuple[str, ...]:
    if names.ndim != 1 or len(np.unique(names)) < max(len(names), 2):
        raise DataError(
            f"{path}: classes must be a list of at least two different names, but its shape is "
            f"{names.shape}" + (f" with {len(np.unique(names))} different" if names.ndim else "")
        )
    return tuple(str(name) for name in names)


def _numbered_classes(path: Path, labels: np.ndarray) -> tuple[str, ...]:
    """Classes are counted from zero; some may not occur in train, but not most of them."""
    highest, found = _highest(path, labels, "y_train"), len(np.unique(labels))
    if highest >= len(labels):
        raise DataError(
            f"{path}: y_train must number the classes from zero, but its highest label is "
            f"{highest} and there are {len(labels)} samples of {found} classes; number them with "
            "numpy.unique(y, return_inverse=True), or name all in classes"
        )
    if found < 2 and labels.min() >= 0:
        raise DataError(
            f"{path}: y_train must have samples of at least two classes, but all {len(labels)} are "
            f"of class {highest}"
        )
    return tuple(str(c) for c in range(highest + 1))


def _highest(path: Path, labels: np.ndarray, key: str) -> int:
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"{path}: {key} must hold whole numbers or words, the same in every split, but its "
            f"dtype is {labels.dtype}"
        )
    return int(labels.max())
