"""Labels for a user's own samples, by a trained model: pictures, points, or texts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bistoch.lab.data import DataError
from bistoch.lab.data.own_text import read_texts
from bistoch.lab.data.packed import read_arrays, read_bytes, read_text
from bistoch.lab.data.read_images import decode
from bistoch.lab.text import Vocabulary
from bistoch.lab.train.classify import draw_points, encode_arrays
from bistoch.lab.train.sentences import encode_text, pad
from bistoch.lab.train.setup import Restored

PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
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
    suffixes = [suffix.lower() for suffix in path.suffixes]
    form = next((s for s in suffixes if s in {".csv", ".tsv", ".jsonl", ".txt"}), "")
    if path.is_dir() or not form:
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
        found = [(f"{path}[{number}]", sample) for number, sample in enumerate(array)]
    elif run.config["kind"] != "images":
        raise DataError(
            f"predict: the model reads {run.config['kind']}, from an .npz or .npy file, but {path} "
            "is none of these"
        )
    else:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        pictures = [f for f in files if f.suffix.lower() in PICTURES or f == path]
        if not pictures or (path.is_dir() and path in pictures):
            raise DataError(
                f"predict: pictures ({', '.join(sorted(PICTURES))}) were looked for in {path} and "
                "below, but there is none"
            )
        found = [(str(file), decode(read_bytes(file), file)) for file in pictures]
    return [(name, _fit_sample(name, sample, run)) for name, sample in found]


def _only_array(path: Path) -> np.ndarray:
    if path.suffix.lower() == ".npy":
        try:
            array: np.ndarray = np.load(path, allow_pickle=False)
        except (ValueError, EOFError) as broken:
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
        if sample.ndim != 2 or sample.shape[1] != wanted or not np.isfinite(sample).all():
            raise DataError(
                f"predict: {name} must be finite points (p, {wanted}), but its shape is "
                f"{sample.shape}"
            )
        length = run.config["facts"].get("length")
        sample = sample if length is None else draw_points(sample, length)
        return sample.astype(np.float32)
    if sample.ndim != 1 or not np.issubdtype(sample.dtype, np.integer):
        raise DataError(
            f"predict: {name} must be whole numbers (length,), but it is {sample.dtype} "
            f"{sample.shape}"
        )
    return sample


def _fit_picture(
    name: str, picture: np.ndarray, size: tuple[int, int], channels: int
) -> np.ndarray:
    if picture.dtype != np.uint8 or picture.ndim not in (2, 3) or picture.shape[:2] != size:
        raise DataError(
            f"predict: {name} must be a uint8 picture of {size[0]} x {size[1]} (height x width), "
            f"as the model was trained on, but it is {picture.dtype} {picture.shape}; scale or "
            "crop it first"
        )
    if channels == 3 and picture.ndim == 2:
        return np.repeat(picture[..., None], 3, axis=2)
    if channels == 1 and picture.ndim == 3:
        # the luma of television, which pictures are usually turned grey by
        return (picture[..., :3] @ np.array([0.299, 0.587, 0.114])).round().astype(np.uint8)
    return picture
