"""Your own pictures: a folder with one folder per class, or that below train and test."""

from pathlib import Path

import numpy as np

from bistoch.lab.data.kinds import DataError, Dataset
from bistoch.lab.data.labels import Labelled, class_names, class_numbers
from bistoch.lab.data.packed import read_bytes
from bistoch.lab.data.read_images import decode
from bistoch.lab.data.split import held_out

# what desktops leave behind in folders of pictures
IGNORED = {"Thumbs.db", "desktop.ini"}


def read_own_pictures(folder: Path) -> Dataset:
    """Pictures of one size: folder/class/*.png, or folder/train/class/*.png and folder/test/...

    Without train and test, one in five of each class is held out, by the names of the files. A
    folder in which all pictures are grey gives (n, h, w), else all are read as colour.
    """
    if (folder / "train").is_dir() or (folder / "test").is_dir():
        for split in ("train", "test"):
            if not (folder / split).is_dir():
                raise DataError(
                    f"{folder} must have both folders train and test, or neither, but {split} is "
                    "missing"
                )
        train, test = _pictures(folder / "train"), _pictures(folder / "test")
    else:
        every = _pictures(folder)
        names = [path.relative_to(folder).as_posix() for path in every]
        kept = held_out(names, np.array([path.parent.name for path in every]))
        train = [path for path, out in zip(every, kept, strict=True) if not out]
        test = [path for path, out in zip(every, kept, strict=True) if out]
    labels = [
        [Labelled(p.parent.name, str(p.relative_to(folder))) for p in paths]
        for paths in (train, test)
    ]
    classes = class_names(labels[0], str(folder))
    x = _same_shape(train + test)
    y = [class_numbers(split, classes, str(folder)) for split in labels]
    return Dataset(folder.name, "images", x[: len(train)], y[0], x[len(train) :], y[1], classes)


def _entries(folder: Path) -> list[Path]:
    every = (path for path in folder.iterdir() if not path.name.startswith("."))
    return sorted(path for path in every if path.name not in IGNORED)


def _pictures(folder: Path) -> list[Path]:
    classes = [path for path in _entries(folder) if path.is_dir()]
    if not classes:
        raise DataError(f"{folder} must hold one folder of pictures per class, but it has none")
    pictures = []
    for path in classes:
        inside = _entries(path)
        if not inside:
            raise DataError(f"{path}: the class {path.name!r} has no pictures")
        for deeper in (entry for entry in inside if entry.is_dir()):
            raise DataError(f"{deeper}: a class may hold pictures only, but this is a folder")
        pictures += inside
    return pictures


def _same_shape(paths: list[Path]) -> np.ndarray:
    images = [decode(read_bytes(path), path) for path in paths]
    for path, image in zip(paths, images, strict=True):
        if image.shape[:2] != images[0].shape[:2]:
            (h, w), (other_h, other_w) = images[0].shape[:2], image.shape[:2]
            raise DataError(
                f"{path}: all pictures must have one size, but this one is {other_h} x {other_w} "
                f"(height x width) and {paths[0]} is {h} x {w}; scale or crop them first"
            )
    if any(image.ndim == 3 for image in images):
        images = [i if i.ndim == 3 else np.repeat(i[..., None], 3, axis=2) for i in images]
    return np.stack(images)
