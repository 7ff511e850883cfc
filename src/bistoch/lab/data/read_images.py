"""Readers of images and point clouds."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bistoch.lab.data.kinds import DataError, Dataset
from bistoch.lab.data.packed import cut_or_broken, read_arrays, read_bytes

if TYPE_CHECKING:
    from bistoch.lab.data.entry import Entry


def read_idx_file(path: Path) -> np.ndarray:
    """One array of unsigned bytes in the idx format of MNIST: rank, shape, then the numbers."""
    content = read_bytes(path)
    if content[:3] != b"\0\0\x08" or len(content) < 4:
        raise DataError(
            f"{path} is not an idx file of unsigned bytes: it must start with the bytes 0 0 8, "
            f"but it starts with {list(content[:3])}"
        )
    rank = content[3]
    shape = np.frombuffer(content[4 : 4 + 4 * rank], ">u4").astype(int)
    numbers = np.frombuffer(content, np.uint8, offset=min(4 + 4 * rank, len(content)))
    if len(shape) != rank or numbers.size != shape.prod():
        raise DataError(
            f"{path} is cut or damaged: its head announces shape {tuple(shape.tolist())}, but "
            f"{numbers.size} numbers follow"
        )
    # a copy, since an array over bytes cannot be written to
    return numbers.reshape(shape).copy()


def read_idx(entry: "Entry", paths: Mapping[str, Path]) -> Dataset:
    """Four idx files: images and labels, train and t10k."""
    arrays = {Path(name).name.split("-idx")[0]: read_idx_file(p) for name, p in paths.items()}
    return Dataset(
        entry.name,
        "images",
        arrays["train-images"],
        arrays["train-labels"].astype(np.int64),
        arrays["t10k-images"],
        arrays["t10k-labels"].astype(np.int64),
        entry.classes,
    )


def read_npz(entry: "Entry", paths: Mapping[str, Path]) -> Dataset:
    """One .npz file with x_train, y_train, x_test, y_test; points become float32."""
    (path,) = paths.values()
    arrays = read_arrays(path)
    x = {split: arrays[f"x_{split}"] for split in ("train", "test")}
    if entry.kind == "points":
        x = {split: points.astype(np.float32) for split, points in x.items()}
    y = {split: arrays[f"y_{split}"].astype(np.int64) for split in ("train", "test")}
    return Dataset(
        entry.name,
        "points" if entry.kind == "points" else "images",
        x["train"],
        y["train"],
        x["test"],
        y["test"],
        entry.classes,
    )


def read_jpeg_npz(entry: "Entry", paths: Mapping[str, Path]) -> Dataset:
    """CIFAR-10 as JPEG bytes in one .npz, with the header they share kept once."""
    (path,) = paths.values()
    arrays = read_arrays(path)
    header = arrays["jpeg_header"].tobytes()
    images = {}
    for split in ("train", "test"):
        content, lengths = arrays[f"jpg_{split}"].tobytes(), arrays[f"len_{split}"].astype(np.int64)
        ends = np.cumsum(lengths)
        images[split] = np.stack(
            [decode(header + content[a:b], path) for a, b in zip(ends - lengths, ends, strict=True)]
        )
    y = {split: arrays[f"y_{split}"].astype(np.int64) for split in ("train", "test")}
    return Dataset(
        entry.name, "images", images["train"], y["train"], images["test"], y["test"], entry.classes
    )


def decode(content: bytes, path: Path) -> np.ndarray:
    """The pixels of one encoded picture, grey (h, w) or colour (h, w, 3)."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as absent:
        raise ImportError(
            f"{path} holds pictures, and Pillow, which decodes them, is not installed: "
            "pip install 'bistoch[images]'"
        ) from absent
    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.mode.startswith(("I", "F")):
                # how many of its values are used is not known: any scale would be a guess
                raise DataError(
                    f"{path}: pictures must have 8 bits for each colour, but this one has more "
                    f"(mode {image.mode}); scale it to 0 .. 255 and save it again"
                )
            return np.asarray(image.convert("L" if image.mode in {"1", "L", "LA"} else "RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as broken:
        why = "its kind is unknown" if isinstance(broken, UnidentifiedImageError) else broken
        raise DataError(f"{path} is cut or damaged, or not a picture ({why})") from broken


def read_cifar_binary(entry: "Entry", paths: Mapping[str, Path]) -> Dataset:
    """The official binary archive of CIFAR-10: records of one label and 3 x 32 x 32 pixels."""
    (path,) = paths.values()
    batches: dict[str, np.ndarray] = {}
    with cut_or_broken(path), tarfile.open(path) as archive:
        for member in archive:
            if member.name.endswith(".bin") and (stream := archive.extractfile(member)):
                records = np.frombuffer(stream.read(), np.uint8).reshape(-1, 1 + 3 * 32 * 32)
                batches[Path(member.name).stem] = records
    train = np.concatenate([batches[f"data_batch_{i}"] for i in range(1, 6)])
    test = batches["test_batch"]
    x = [b[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).copy() for b in (train, test)]
    y = [b[:, 0].astype(np.int64) for b in (train, test)]
    return Dataset(entry.name, "images", x[0], y[0], x[1], y[1], entry.classes)
