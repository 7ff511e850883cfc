"""Readers of images and point clouds."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bistoch.lab.data.kinds import DataError, Dataset
from bistoch.lab.data.read_files import damage_errors, read_arrays, read_bytes

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
    """Four idx files: images and labels of train, images and labels of test."""
    x_train, y_train, x_test, y_test = map(read_idx_file, paths.values())
    x, y = {"train": x_train, "test": x_test}, {"train": y_train, "test": y_test}
    return Dataset.from_splits(entry.name, entry.kind, x, y, entry.classes)


def read_npz(entry: "Entry", paths: Mapping[str, Path]) -> Dataset:
    """One .npz file with x_train, y_train, x_test, y_test; points become float32."""
    (path,) = paths.values()
    arrays = read_arrays(path)
    x = {split: arrays[f"x_{split}"] for split in ("train", "test")}
    if entry.kind == "points":
        x = {split: points.astype(np.float32) for split, points in x.items()}
    y = {split: arrays[f"y_{split}"] for split in x}
    return Dataset.from_splits(entry.name, entry.kind, x, y, entry.classes)


def read_jpeg_npz(entry: "Entry", paths: Mapping[str, Path]) -> Dataset:
    """CIFAR-10 as JPEG bytes in one .npz, with the header they share kept once."""
    (path,) = paths.values()
    arrays = read_arrays(path)
    header = arrays["jpeg_header"].tobytes()
    x, y = {}, {}
    for split in ("train", "test"):
        content, lengths = arrays[f"jpg_{split}"].tobytes(), arrays[f"len_{split}"].astype(np.int64)
        ends = np.cumsum(lengths)
        starts = ends - lengths
        x[split] = np.stack(
            [decode(header + content[a:b], path) for a, b in zip(starts, ends, strict=True)]
        )
        y[split] = arrays[f"y_{split}"]
    return Dataset.from_splits(entry.name, entry.kind, x, y, entry.classes)


def decode(content: bytes, path: Path) -> np.ndarray:
    """The pixels of one encoded image, grey (h, w) or RGB (h, w, 3)."""
    pillow = import_pillow(path)
    try:
        with pillow.Image.open(io.BytesIO(content)) as image:
            if image.mode.startswith(("I", "F")):
                # the range of its values is not known: any scale would be a guess
                raise DataError(
                    f"{path}: images must have 8 bits for each colour, but this one has more "
                    f"(mode {image.mode}); scale it to 0 .. 255 and save it again"
                )
            return np.asarray(image.convert("L" if image.mode in {"1", "L", "LA"} else "RGB"))
    except (OSError, SyntaxError, pillow.Image.DecompressionBombError) as broken:
        is_unknown = isinstance(broken, pillow.UnidentifiedImageError)
        why = "its kind is unknown" if is_unknown else broken
        raise DataError(f"{path} is cut or damaged, or not an image ({why})") from broken


def import_pillow(source: object) -> Any:
    """Pillow with its submodules, or one sentence about how to get it."""
    try:
        import PIL
        import PIL.Image
        import PIL.ImageOps
    except ImportError as absent:
        raise ImportError(
            f"{source} holds images, and Pillow, which decodes them, is not installed: "
            "pip install 'bistoch[images]'"
        ) from absent
    return PIL


def read_cifar_binary(entry: "Entry", paths: Mapping[str, Path]) -> Dataset:
    """The official binary archive of CIFAR-10: records of one label and 3 x 32 x 32 pixels."""
    (path,) = paths.values()
    batches: dict[str, np.ndarray] = {}
    with damage_errors(path), tarfile.open(path) as archive:
        for member in archive:
            if member.name.endswith(".bin") and (stream := archive.extractfile(member)):
                records = np.frombuffer(stream.read(), np.uint8).reshape(-1, 1 + 3 * 32 * 32)
                batches[Path(member.name).stem] = records
    train = np.concatenate([batches[f"data_batch_{i}"] for i in range(1, 6)])
    splits = {"train": train, "test": batches["test_batch"]}
    x = {
        split: rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).copy()
        for split, rows in splits.items()
    }
    y = {split: rows[:, 0] for split, rows in splits.items()}
    return Dataset.from_splits(entry.name, entry.kind, x, y, entry.classes)
