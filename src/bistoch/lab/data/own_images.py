"""Your own images: a folder with one folder per class, or that below train and test."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from bistoch.lab.data.kinds import DataError, Dataset
from bistoch.lab.data.own_labels import Labelled, class_names, class_numbers, held_out
from bistoch.lab.data.pictures import AS_THEY_ARE, Pictures, read_pictures

# what desktops leave behind in folders of images
IGNORED = {"Thumbs.db", "desktop.ini"}


def read_own_images(folder: Path, options: Pictures = AS_THEY_ARE) -> Dataset:
    """Images of one size: folder/class/*.png, or folder/train/class/*.png, folder/test/...

    Without train and test, one in five of each class is held out, by the names of the files. If all
    images are grey the samples are (n, h, w), else all are read as RGB.
    """
    files = _files(folder)
    every = [path for paths in files.values() for path in paths]
    images, notes, _ = read_pictures(every, options, folder)
    splits = _splits(folder, {
        split: [path for path in paths if path in images] for split, paths in files.items()
    })  # fmt: skip
    labels = {
        split: [Labelled(path.parent.name, str(path.relative_to(folder))) for path in paths]
        for split, paths in splits.items()
    }
    classes = class_names(labels["train"], str(folder))
    y = {split: class_numbers(labels[split], classes, str(folder)) for split in splits}
    x = {split: np.stack([images[path] for path in paths]) for split, paths in splits.items()}
    return replace(Dataset.from_splits(folder.name, "images", x, y, classes), notes=tuple(notes))


def _files(folder: Path) -> dict[str, list[Path]]:
    """All files by split; of a folder without train and test under an empty name."""
    named = {"train": folder / "train", "test": folder / "test"}
    if not any(path.is_dir() for path in named.values()):
        return {"": _images(folder)}
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


def _splits(folder: Path, files: dict[str, list[Path]]) -> dict[str, list[Path]]:
    for split, paths in files.items():
        if not paths:
            raise DataError(f"{folder / split}: there is no image that can be read")
    if "" not in files:
        return files
    names = [path.relative_to(folder).as_posix() for path in files[""]]
    out = held_out(names, np.array([path.parent.name for path in files[""]]))
    return {
        "train": [path for path, held in zip(files[""], out, strict=True) if not held],
        "test": [path for path, held in zip(files[""], out, strict=True) if held],
    }


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
