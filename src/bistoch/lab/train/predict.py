"""Classes of a user's own samples by a trained model: images, points, token ids or texts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bistoch.functional import inputs
from bistoch.lab.data import AS_THEY_ARE, DataError, Pictures
from bistoch.lab.data.own_text import read_texts
from bistoch.lab.data.pictures import failures_sentence, resize_image
from bistoch.lab.data.read_files import form_of, read_array, read_bytes, read_text
from bistoch.lab.data.read_images import decode
from bistoch.lab.text import Vocabulary
from bistoch.lab.train.classification import draw_points, encode_arrays, encode_texts, pad
from bistoch.lab.train.run import Restored

IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
# axes of an array of samples, and its shape in words
ARRAYS = {
    "images": ((3, 4), "(n, h, w) or (n, h, w, 3)"),
    "points": ((3,), "(n, p, 3)"),
    "tokens": ((2,), "(n, length)"),
}
BATCH_SIZE = 64


class Prediction(NamedTuple):
    """A sample, its most likely class, and the probability of that class."""

    sample: str
    label: str
    probability: float


@torch.no_grad()
def predict(
    run: Restored, paths: Sequence[Path], *, pictures: Pictures = AS_THEY_ARE
) -> list[Prediction]:
    """The classes of samples by a trained model.

    Paths of images are files, folders of files, or .npz and .npy with uint8 (n, h, w) or
    (n, h, w, 3); of points .npz or .npy with (n, p, 3); of texts .csv, .tsv and .jsonl with a
    column `text`, or .txt with one text per line. Images of another size are scaled as `pictures`
    say, by default as in training; a warning names the files that it skips.
    """
    kind, classes = run.config["kind"], run.config["facts"].get("classes")
    if classes is None:
        raise ValueError(f"predict: the model was trained on {kind}, which has no classes")
    samples = read_samples(run, paths, "predict", pictures=pictures)
    found: list[Prediction] = []
    for some in _batches(samples):
        encoded = _encode([sample for _, sample in some], run)
        encoded = encoded.to(next(run.model.parameters()).device)
        output = run.model(encoded).float().softmax(-1).cpu()
        for (name, _), probabilities in zip(some, output, strict=True):
            if not probabilities.isfinite().all():
                raise DataError(
                    f"predict: the probabilities of {name} are not finite; its values are perhaps "
                    "far from those of the training data: scale it in the same way"
                )
            best = int(probabilities.argmax())
            found.append(Prediction(name, classes[best], probabilities[best].item()))
    return found


def read_samples(
    run: Restored, paths: Sequence[Path], command: str, *, pictures: Pictures = AS_THEY_ARE
) -> list[tuple[str, Any]]:
    """Samples by name, in the shape that the model of a run was trained on."""
    if pictures.size is not None:
        raise ValueError(f"{command}: the model decides the size of images; leave the size out")
    if pictures != AS_THEY_ARE and run.config["kind"] != "images":
        raise ValueError(
            f"{command}: resize and corrupt belong to images, but the model was trained on "
            f"{run.config['kind']}; leave them out"
        )
    how = pictures.resize or run.config["facts"].get("resize")
    samples: list[tuple[str, Any]] = []
    failed: dict[Path, str] = {}
    for path in paths:
        if not path.exists():
            raise DataError(f"{command}: {path} does not exist")
        if run.config["kind"] == "text":
            samples += _texts(path)
        else:
            samples += _arrays(path, run, how, failed)
    if failed:
        sentence = failures_sentence(failed, command, len(samples) + len(failed))
        sentence = sentence if len(failed) > 1 else f"{command}: {sentence}"
        if pictures.corrupt == "refuse" or not samples:
            raise DataError(f"{sentence}; replace what is damaged, or leave it out with "
                            "--corrupt skip")  # fmt: skip
        inputs.warn_caller(f"{sentence}; skipped", UserWarning)
    return samples


def _batches(samples: Sequence[tuple[str, Any]]) -> Iterator[Sequence[tuple[str, Any]]]:
    """Neighbours that fit into one batch: texts are padded, all else must have one shape."""
    shapes = [getattr(sample, "shape", None) for _, sample in samples]
    start = 0
    for row in range(1, len(samples) + 1):
        if row in (len(samples), start + BATCH_SIZE) or shapes[row] != shapes[start]:
            yield samples[start:row]
            start = row


def _encode(samples: list[Any], run: Restored) -> Tensor:
    facts = run.config["facts"]
    if run.config["kind"] == "text":
        vocabulary = Vocabulary(facts["unit"], tuple(facts["tokens"]))
        return pad(encode_texts(vocabulary, samples, facts["length"]))
    return encode_arrays(run.config["kind"], np.stack(samples))


def _texts(path: Path) -> list[tuple[str, str]]:
    form = form_of(path)
    if path.is_dir() or form not in {".csv", ".tsv", ".jsonl", ".txt"}:
        raise DataError(
            f"predict: the model reads texts, from a .csv, .tsv, .jsonl or .txt file, but {path} "
            "is none of these"
        )
    lines = (
        enumerate(map(str.strip, read_text(path, "utf-8-sig").split("\n")), 1)
        if form == ".txt"
        else read_texts(path, form)
    )
    return [(f"{path}:{line}", text) for line, text in lines if text]


def _arrays(
    path: Path, run: Restored, how: str | None, failed: dict[Path, str]
) -> list[tuple[str, np.ndarray]]:
    kind = run.config["kind"]
    if path.suffix.lower() in {".npz", ".npy"}:
        array = read_array(path)
        ranks, shape = ARRAYS[kind]
        if array.ndim not in ranks:
            raise DataError(
                f"predict: {path} must hold {kind} {shape}, but its shape is {array.shape}; if it "
                "is one sample x, store x[None]"
            )
        found = [(f"{path}[{row}]", sample) for row, sample in enumerate(array)]
    elif kind != "images":
        raise DataError(
            f"predict: the model reads {kind}, from an .npz or .npy file, but {path} is neither"
        )
    else:
        files = _images_below(path) if path.is_dir() else [path]
        found = []
        for file in files:
            try:
                found.append((str(file), decode(read_bytes(file), file)))
            except DataError as broken:
                failed[file] = str(broken)
    return [(name, _fit_sample(name, sample, run, how)) for name, sample in found]


def _images_below(folder: Path) -> list[Path]:
    """All images in a folder and below except hidden ones, as for training."""
    below = [path.relative_to(folder) for path in sorted(folder.rglob("*"))]
    files = [
        folder / path for path in below
        if path.suffix.lower() in IMAGES and not any(p.startswith(".") for p in path.parts)
    ]  # fmt: skip
    if not files:
        raise DataError(
            f"predict: there is no image ({', '.join(sorted(IMAGES))}) in {folder} or below"
        )
    return files


def _fit_sample(name: str, sample: np.ndarray, run: Restored, how: str | None) -> np.ndarray:
    """A sample in the shape that the model was trained on."""
    config = run.config["model"]
    if run.config["kind"] == "images":
        return _fit_image(name, sample, tuple(config["image"]), config["channels"], how)
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
        smallest = f" with the smallest {sample.min()}" if sample.size else ""
        raise DataError(
            f"predict: {name} must be token ids, whole numbers from zero on, but it is "
            f"{sample.dtype} {sample.shape}{smallest}"
        )
    return sample


def _fit_image(
    name: str, image: np.ndarray, size: tuple[int, int], channels: int, how: str | None
) -> np.ndarray:
    is_image = image.dtype == np.uint8 and image.shape[2:] in ((), (3,))
    if is_image and how is not None:
        image = resize_image(image, how, size)
    if not is_image or image.shape[:2] != size:
        raise DataError(
            f"predict: {name} must be a uint8 image of {size[0]} x {size[1]} (height x width), "
            f"grey or RGB, as the model was trained on, but it is {image.dtype} {image.shape}; "
            + ("scale it with --resize fit or --resize crop" if is_image else "convert it first")
        )
    if channels == 3 and image.ndim == 2:
        return np.repeat(image[..., None], 3, axis=2)
    if channels == 1 and image.ndim == 3:
        # the weights of ITU-R 601, by which images are usually converted to grey
        return (image @ np.array([0.299, 0.587, 0.114])).round().astype(np.uint8)
    return image
