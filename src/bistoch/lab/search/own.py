"""Vectors of users from files: .npy, .npz, .jsonl, or texts that an encoder turns into vectors."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from jaxtyping import Float

from bistoch.lab.device import CPU

# what is read of a file at most, and of a line of it
LARGEST, LONGEST_LINE = 8 << 30, 1 << 20
KINDS = ".npy, .npz, .jsonl or .txt"
# keys of a line of JSON that may hold its vector, and its name
VECTOR_KEYS, NAME_KEYS = ("vector", "embedding"), ("id", "name", "title", "text")


@dataclass(frozen=True)
class Collection:
    """Vectors, one per row, and the name of each if the file has names."""

    vectors: Float[np.ndarray, "count features"]
    names: list[str] | None = None


def read_collection(
    path: Path, encoder: str | None = None, device: torch.device = CPU
) -> Collection:
    """Read a file of vectors, or of texts if there is an encoder.

    Args:
        path: `.npy` (a matrix), `.npz` (a single matrix), `.jsonl` (a list of numbers per line, or
            an object with "vector" or "embedding") or `.txt` (a text per line).
        encoder: a folder with a model of transformers, or its name on the hub; for texts.
        device: where the encoder runs.
    """
    if not path.is_file():
        raise ValueError(f"retrieval: there is no file {path}")
    size = path.stat().st_size
    if size > LARGEST:
        raise ValueError(
            f"retrieval: {path} has {size >> 30} GiB, and at most {LARGEST >> 30} are read; use "
            "bistoch.retrieval.HubCorrection on a sample of the documents"
        )
    readers = {".npy": _read_npy, ".npz": _read_npz, ".jsonl": _read_lines}
    kind = path.suffix.lower()
    if kind == ".txt":
        return _read_texts(path, encoder, device)
    if kind not in readers:
        raise ValueError(f"retrieval: {path} is not {KINDS}; convert it, for example to .npy")
    try:
        found = readers[kind](path)
    except (BadZipFile, EOFError, UnicodeDecodeError) as reason:
        raise ValueError(f"retrieval: {path} is damaged: {reason}") from None
    return Collection(_checked(path, found.vectors), found.names)


def _read_npy(path: Path) -> Collection:
    try:
        return Collection(np.load(path, allow_pickle=False))
    except ValueError as reason:
        raise ValueError(f"retrieval: {path} is no array of numpy: {reason}") from None


def _read_npz(path: Path) -> Collection:
    with ZipFile(path) as packed:
        entries = packed.infolist()
    if len(entries) != 1:
        names = ", ".join(entry.filename.removesuffix(".npy") for entry in entries[:10])
        raise ValueError(
            f"retrieval: {path} must hold one matrix, but it holds {len(entries)} ({names}); save "
            "the one to use as .npy"
        )
    # the size in the table of a packed file: a small file may hold much
    if entries[0].file_size > LARGEST:
        raise ValueError(
            f"retrieval: {path} holds {entries[0].file_size >> 30} GiB, and at most "
            f"{LARGEST >> 30} are read"
        )
    try:
        with np.load(path, allow_pickle=False) as stored:
            return Collection(stored[stored.files[0]])
    except ValueError as reason:
        raise ValueError(f"retrieval: {path} holds no array of numpy: {reason}") from None


def _read_lines(path: Path) -> Collection:
    rows: list[np.ndarray] = []
    names: list[str] = []
    with path.open("rb") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(LONGEST_LINE), b""), 1):
            if not line.strip():
                continue
            where = f"retrieval: line {number} of {path}"
            if len(line) == LONGEST_LINE:
                raise ValueError(f"{where} is longer than {LONGEST_LINE >> 20} MiB")
            vector, name = _read_line(where, line)
            if rows and len(vector) != len(rows[0]):
                raise ValueError(f"{where} has {len(vector)} numbers, the first has {len(rows[0])}")
            rows.append(vector)
            names.append(name)
    if not rows:
        raise ValueError(f"retrieval: {path} has no line with a vector")
    return Collection(np.stack(rows), names if any(names) else None)


def _read_line(where: str, line: bytes) -> tuple[np.ndarray, str]:
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError) as reason:
        raise ValueError(f"{where} is no JSON: {reason}") from None
    name = ""
    if isinstance(found, dict):
        name = next((str(found[key]) for key in NAME_KEYS if key in found), "")
        found = next((found[key] for key in VECTOR_KEYS if key in found), None)
    if not isinstance(found, list) or not all(_is_number(x) for x in found) or not found:
        keys = " or ".join(f'"{key}"' for key in VECTOR_KEYS)
        raise ValueError(f"{where} must be a list of numbers, or an object with one under {keys}")
    return np.array(found, np.float32), name


def _is_number(value: object) -> bool:
    # json accepts NaN and whole numbers of any length
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 1 << 64
    return isinstance(value, float)


def _read_texts(path: Path, encoder: str | None, device: torch.device) -> Collection:
    if encoder is None:
        raise ValueError(
            f"retrieval: {path} holds texts; name the model that turns them into vectors with "
            "--encoder, a folder or a name on the hub"
        )
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as reason:
        raise ValueError(f"retrieval: cannot read {path} as text: {reason}") from None
    lines = [line.strip() for line in lines if line.strip()]
    if not lines:
        raise ValueError(f"retrieval: {path} has no line with text")
    return Collection(encode(encoder, lines, device), lines)


def encode(
    encoder: str, texts: list[str], device: torch.device = CPU
) -> Float[np.ndarray, "count features"]:
    """One vector per text: the mean of the last states of a model of transformers."""
    from bistoch.lab.inspect.load import load_subject
    from bistoch.lab.inspect.swap import embed

    # texts of like length need little padding
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    try:
        subject = load_subject(encoder, [texts[place] for place in order], device=device)
    except (ValueError, ImportError) as reason:
        # the loader is that of `bistoch inspect`, and its sentences say so
        raise type(reason)(str(reason).replace("inspect", "retrieval", 1)) from None
    found = embed(subject.model, subject.batches, subject.real).float().cpu().numpy()
    vectors = np.empty_like(found)
    vectors[order] = found
    return vectors


def _checked(path: Path, found: np.ndarray) -> np.ndarray:
    """A matrix of finite floats; the sentences name the file."""
    if found.ndim != 2 or 0 in found.shape:
        raise ValueError(
            f"retrieval: {path} must hold a matrix with a vector per row, but its shape is "
            f"{found.shape}"
        )
    if found.dtype.kind not in "fiu":
        raise ValueError(f"retrieval: {path} must hold real numbers, but it holds {found.dtype}")
    found = found if found.dtype == np.float64 else found.astype(np.float32, copy=False)
    bad = ~np.isfinite(found).all(1)
    if bad.any():
        raise ValueError(
            f"retrieval: {int(bad.sum())} of {len(found)} vectors of {path} hold NaN or infinity, "
            f"the first at row {int(bad.argmax())}; leave them out"
        )
    return found


def read_pairs(pairs: str, queries: int, documents: int) -> list[list[int]]:
    """The right documents of every query, as positions from 0.

    Args:
        pairs: "same" if query i is looking for document i, or a file with a line per query: the
            positions of its documents, between spaces or commas.
        queries, documents: how many there are.
    """
    if pairs == "same":
        if queries > documents:
            raise ValueError(
                f"retrieval: --pairs same needs a document for every query, but there are "
                f"{queries} queries and {documents} documents"
            )
        return [[place] for place in range(queries)]
    path = Path(pairs)
    if not path.is_file():
        raise ValueError(f"retrieval: --pairs is 'same' or a file, but there is no file {pairs}")
    if path.stat().st_size > math.ceil(LARGEST / 64):
        raise ValueError(f"retrieval: {pairs} is too large for a file of positions")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if len(lines) != queries:
        raise ValueError(
            f"retrieval: {pairs} must have a line for each of the {queries} queries, but it has "
            f"{len(lines)}"
        )
    found = []
    for number, line in enumerate(lines, 1):
        words = line.replace(",", " ").split()
        wrong = [x for x in words if not (x.isascii() and x.isdigit() and int(x) < documents)]
        if wrong or not words:
            raise ValueError(
                f"retrieval: line {number} of {pairs} must be positions from 0 to "
                f"{documents - 1}, but it is {line[:60]!r}"
            )
        found.append([int(word) for word in words])
    return found
