"""Labels for a user's own samples, by a trained model: pictures, points, or texts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bistoch.lab.data import DataError
from bistoch.lab.data.own_text import read_texts
from bistoch.lab.data.packed import (
    check_unpacked,
    cut_or_broken,
    form_of,
    read_arrays,
    read_bytes,
    read_text,
)
from bistoch.lab.data.read_images import decode
from bistoch.lab.text import Vocabulary
from bistoch.lab.train.classify import draw_points, encode_arrays
from bistoch.lab.train.sentences import encode_text, pad
from bistoch.lab.train.setup import Restored

PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
# axes of an array of samples, and its shape in words
ARRAYS = {
    "images": ((3, 4), "(n, h, w) or (n, h, w, 3)"),
    "points": ((3,), "(n, p, 3)"),
    "tokens": ((2,), "(n, length)"),
}
AT_ONCE = 64


class Guess(NamedTuple):
    """A sample, the class it is most likely of, and how likely that is to the model."""

    sample: str
    label: str
    probability: float


@torch.no_grad()
def predict(run: Restored, paths: Sequence[Path]) -> list[Guess]:
    """The classes of samples.

    Args:
        run: a trained model.
        paths: pictures: files, folders of files, or .npz and .npy with uint8 (n, h, w) or
            (n, h, w, 3). Points: .npz or .npy with (n, p, 3). Texts: .csv, .tsv and .jsonl with a
            column `text`, or .txt with one text per line.
    """
    kind, classes = run.config["kind"], run.config["facts"].get("classes")
    if classes is None:
        raise ValueError(f"predict: the model was trained on {kind}, which has no classes")
    names: list[str] = []
    samples: list[Any] = []
    for path in paths:
        if not path.exists():
            raise DataError(f"predict: {path} does not exist")
        found = _read_texts(path) if kind == "text" else _read_arrays(path, run)
        names += [name for name, _ in found]
        samples += [sample for _, sample in found]
    guesses: list[Guess] = []
    for rows in _together(samples):
        inputs = _encode([samples[row] for row in rows], run)
        likely = run.model(*inputs).float().softmax(-1)
        for name, row in zip((names[row] for row in rows), likely, strict=True):
            if not row.isfinite().all():
                raise DataError(
                    f"predict: the model finds no probability for {name}; its numbers are perhaps "
                    "far from those it was trained on: scale it as these were"
                )
            best = int(row.argmax())
            guesses.append(Guess(name, classes[best], row[best].item()))
    return guesses


def _together(samples: Sequence[Any]) -> Iterator[range]:
    """Neighbours that fit into one batch: texts are padded, all else must have one shape."""
    start = 0
    for row in range(1, len(samples) + 1):
        if row in (len(samples), start + AT_ONCE) or (
            getattr(samples[row], "shape", None) != getattr(samples[start], "shape", None)
        ):
            yield range(start, row)
            start = row


def _encode(samples: list[Any], run: Restored) -> tuple[Tensor, ...]:
    facts = run.config["facts"]
    if run.config["kind"] == "text":
        vocabulary = Vocabulary(facts["unit"], tuple(facts["pieces"]))
        return (pad([encode_text(vocabulary, text, facts["length"]) for text in samples]),)
    return encode_arrays(run.config["kind"], np.stack(samples))


def _read_texts(path: Path) -> list[tuple[str, str]]:
    form = form_of(path)
    if path.is_dir() or form not in {".csv", ".tsv", ".jsonl", ".txt"}:
        raise DataError(
            f"predict: the model reads texts, from a .csv, .tsv, .jsonl or .txt file, but {path} "
            "is none of these"
        )
    if form == ".txt":
        lines = read_text(path, "utf-8-sig").split("\n")
        return [
            (f"{path}:{number}", line.strip()) for number, line in enumerate(lines, 1)
            if line.strip()
        ]  # fmt: skip
    return [(f"{path}:{line}", text) for line, text in read_texts(path, form)]


def _read_arrays(path: Path, run: Restored) -> list[tuple[str, np.ndarray]]:
    if path.suffix.lower() in {".npz", ".npy"}:
        array = _only_array(path)
        ranks, shape = ARRAYS[run.config["kind"]]
        if array.ndim not in ranks:
            raise DataError(
                f"predict: {path} must hold {run.config['kind']} {shape}, but its shape is "
                f"{array.shape}; if it is one sample x, store x[None]"
            )
        found = [(f"{path}[{number}]", sample) for number, sample in enumerate(array)]
    elif run.config["kind"] != "images":
        raise DataError(
            f"predict: the model reads {run.config['kind']}, from an .npz or .npy file, but {path} "
            "is none of these"
        )
    else:
        pictures = _pictures_below(path) if path.is_dir() else [path]
        if not pictures:
            raise DataError(
                f"predict: pictures ({', '.join(sorted(PICTURES))}) were looked for in {path} and "
                "below, but there is none"
            )
        found = [(str(file), decode(read_bytes(file), file)) for file in pictures]
    return [(name, _fit_sample(name, sample, run)) for name, sample in found]


def _pictures_below(folder: Path) -> list[Path]:
    """All pictures but hidden ones, as for training."""
    below = (path.relative_to(folder) for path in sorted(folder.rglob("*")))
    return [
        folder / path for path in below
        if path.suffix.lower() in PICTURES and not any(p.startswith(".") for p in path.parts)
    ]  # fmt: skip


def _only_array(path: Path) -> np.ndarray:
    if path.suffix.lower() == ".npy":
        with cut_or_broken(path), path.open("rb") as stream:
            check_unpacked(path, path.stat().st_size)
            try:
                array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
            except ValueError as broken:
                raise DataError(f"predict: {path} is not a whole .npy file ({broken})") from None
        return array
    arrays = read_arrays(path)
    name = next((key for key in ("x", "x_test") if key in arrays), None)
    if name is None and len(arrays) == 1:
        name = next(iter(arrays))
    if name is None:
        raise DataError(
            f"predict: {path} must hold one array, or one that is called x, but it holds "
            f"{', '.join(arrays) or 'none'}"
        )
    return arrays[name]


def _fit_sample(name: str, sample: np.ndarray, run: Restored) -> np.ndarray:
    """A sample in the shape that the model was trained on."""
    config = run.config["model"]
    if run.config["kind"] == "images":
        return _fit_picture(name, sample, tuple(config["image"]), config["channels"])
    if run.config["kind"] == "points":
        wanted = config["coordinates"]
        if sample.dtype.kind not in "fiu" or len(sample) == 0 or sample.shape[1] != wanted:
            raise DataError(
                f"predict: {name} must be points (p, {wanted}), but it is {sample.dtype} "
                f"{sample.shape}"
            )
        with np.errstate(over="ignore"):
            points = sample.astype(np.float32)
        if not np.isfinite(points).all():
            raise DataError(f"predict: {name}: points must be finite in float32, but some are not")
        length = run.config["facts"].get("length")
        return points if length is None else draw_points(points, length)
    if sample.dtype.kind not in "iu" or len(sample) == 0 or sample.min() < 0:
        raise DataError(
            f"predict: {name} must be whole numbers from zero on, but it is {sample.dtype} "
            f"{sample.shape}" + (f" from {sample.min()} on" if sample.size else "")
        )
    return sample


def _fit_picture(
    name: str, picture: np.ndarray, size: tuple[int, int], channels: int
) -> np.ndarray:
    grey_or_colour = picture.shape[2:] in ((), (3,))
    if picture.dtype != np.uint8 or not grey_or_colour or picture.shape[:2] != size:
        raise DataError(
            f"predict: {name} must be a uint8 picture of {size[0]} x {size[1]} (height x width), "
            f"grey or with 3 colours, as the model was trained on, but it is {picture.dtype} "
            f"{picture.shape}; convert, scale or crop it first"
        )
    if channels == 3 and picture.ndim == 2:
        return np.repeat(picture[..., None], 3, axis=2)
    if channels == 1 and picture.ndim == 3:
        # the luma of television, which pictures are usually turned grey by
        return (picture @ np.array([0.299, 0.587, 0.114])).round().astype(np.uint8)
    return picture
