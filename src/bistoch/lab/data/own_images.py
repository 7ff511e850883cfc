"""Your own images: a folder with one folder per class, or that below train and test."""

from pathlib import Path

import numpy as np

from bistoch.lab.data.kinds import DataError, Dataset
from bistoch.lab.data.own_labels import Labelled, class_names, class_numbers, held_out
from bistoch.lab.data.read_files import read_bytes
from bistoch.lab.data.read_images import decode

# what desktops leave behind in folders of images
IGNORED = {"Thumbs.db", "desktop.ini"}


def read_own_images(folder: Path) -> Dataset:
    """Images of one size: folder/class/*.png, or folder/train/class/*.png, folder/test/...

    Without train and test, one in five of each class is held out, by the names of the files. If all
    images are grey the samples are (n, h, w), else all are read as RGB.
    """
    splits = _splits(folder)
    labels = {
        split: [Labelled(path.parent.name, str(path.relative_to(folder))) for path in paths]
        for split, paths in splits.items()
    }
    classes = class_names(labels["train"], str(folder))
    y = {split: class_numbers(labels[split], classes, str(folder)) for split in splits}
    every = _same_shape([path for paths in splits.values() for path in paths])
    ends = np.cumsum([len(paths) for paths in splits.values()])[:-1]
    x = dict(zip(splits, np.split(every, ends), strict=True))
    return Dataset.from_splits(folder.name, "images", x, y, classes)


def _splits(folder: Path) -> dict[str, list[Path]]:
    named = {"train": folder / "train", "test": folder / "test"}
    if not any(path.is_dir() for path in named.values()):
        every = _images(folder)
        names = [path.relative_to(folder).as_posix() for path in every]
        out = held_out(names, np.array([path.parent.name for path in every]))
        return {
            "train": [path for path, held in zip(every, out, strict=True) if not held],
            "test": [path for path, held in zip(every, out, strict=True) if held],
        }
    for split, path in named.items():
        if not path.is_dir():
            raise DataError(
                f"{folder} must have both folders train and test, or neither, but {split} is "
                "missing"
            )
    for name in ("valid", "val"):
        if (folder / name).is_dir():
            named["valid"] = folder / name
    return {split: _images(path) for split, path in named.items()}


def _entries(folder: Path) -> list[Path]:
    every = (path for path in folder.iterdir() if not path.name.startswith("."))
    return sorted(path for path in every if path.name not in IGNORED)


def _images(folder: Path) -> list[Path]:
    classes = [path for path in _entries(folder) if path.is_dir()]
    if not classes:
        raise DataError(f"{folder} must hold one folder of images per class, but it has none")
    found = []
    for path in classes:
        inside = _entries(path)
        if not inside:
            raise DataError(f"{path}: the class {path.name!r} has no images")
        for deeper in (entry for entry in inside if entry.is_dir()):
            raise DataError(f"{deeper}: a class may hold images only, but this is a folder")
        found += inside
    return found


def _same_shape(paths: list[Path]) -> np.ndarray:
    images = [decode(read_bytes(path), path) for path in paths]
    for path, image in zip(paths, images, strict=True):
        if image.shape[:2] != images[0].shape[:2]:
            (h, w), (other_h, other_w) = images[0].shape[:2], image.shape[:2]
            raise DataError(
                f"{path}: all images must have one size, but this one is {other_h} x {other_w} "
                f"(height x width) and {paths[0]} is {h} x {w}; scale or crop them first"
            )
    if any(image.ndim == 3 for image in images):
        images = [i if i.ndim == 3 else np.repeat(i[..., None], 3, axis=2) for i in images]
    return np.stack(images)
