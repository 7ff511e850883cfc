"""Your own texts: a CSV, TSV or JSONL file with text and label, and split if you have one."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from reprlib import repr as short
from typing import Any, NamedTuple

import numpy as np

from bistoch.lab.data.kinds import DataError, Dataset
from bistoch.lab.data.own_labels import Labelled, class_names, class_numbers, held_out
from bistoch.lab.data.read_files import read_table, read_text

SPLITS = {
    "train": "train", "test": "test", "valid": "valid", "val": "valid", "validation": "valid",
    "dev": "valid",
}  # fmt: skip


class Row(NamedTuple):
    """One sample and the line it stood in."""

    text: str
    label: str
    split: str | None
    line: int


def read_own_text(path: Path, form: str) -> Dataset:
    """Texts with labels; without a column `split`, one in five of each class is held out."""
    reading = _json_rows(path) if form == ".jsonl" else _table_rows(path, form)
    rows = [_row(path, line, fields) for line, fields in reading]
    labels = [Labelled(row.label, f"line {row.line}") for row in rows]
    splits = _splits(path, rows)
    chosen = {s: [i for i, split in enumerate(splits) if split == s] for s in set(splits)}
    for needed in ("train", "test"):
        if needed not in chosen:
            raise DataError(
                f"{path}: no row of split {needed!r} among {len(rows)} rows; both train and test "
                "are needed"
            )
    classes = class_names([labels[i] for i in chosen["train"]], str(path))
    x = {split: [rows[i].text for i in which] for split, which in chosen.items()}
    y = {
        s: class_numbers([labels[i] for i in which], classes, str(path))
        for s, which in chosen.items()
    }
    return Dataset.from_splits(path.name.split(".")[0], "text", x, y, classes)


def read_texts(path: Path, form: str) -> list[tuple[int, str]]:
    """Texts that need no labels, each with the number of its line."""
    reading = _json_rows(path) if form == ".jsonl" else _table_rows(path, form, ("text",))
    return [(line, _text(path, line, fields)) for line, fields in reading]


def _table_rows(
    path: Path, form: str, needed: tuple[str, ...] = ("text", "label")
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    fields = read_table(path, form)
    _, head = next(fields, (1, []))
    if not head:
        raise DataError(f"{path}: the file is empty; it must have the {_columns(needed)}")
    if lacking := [name for name in needed if name not in head]:
        raise DataError(
            f"{path}, line 1: expected the {_columns(needed)}, but {' and '.join(lacking)} "
            f"{'is' if len(lacking) == 1 else 'are'} missing; the head is "
            f"{', '.join(head)[:200]}. A time series has the column date first"
        )
    for name in (*needed, "split"):
        if head.count(name) > 1:
            raise DataError(
                f"{path}, line 1: the column {name} must be there once, but it is there "
                f"{head.count(name)} times; rename the others"
            )
    for line, values in fields:
        if len(values) != len(head):
            raise DataError(
                f"{path}, line {line}: expected {len(head)} values ({', '.join(head)[:200]}), "
                f"but there are {len(values)}"
            )
        yield line, dict(zip(head, values, strict=True))


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for line, content in enumerate(read_text(path, "utf-8-sig").split("\n"), 1):
        if not content.strip():
            continue
        try:
            fields = json.loads(content)
        except (ValueError, RecursionError) as broken:
            raise DataError(f"{path}, line {line}: not JSON ({broken})") from broken
        if not isinstance(fields, dict):
            raise DataError(
                f"{path}, line {line}: expected an object with text and label, got a "
                f"{type(fields).__name__}"
            )
        yield line, fields


def _columns(needed: tuple[str, ...]) -> str:
    if len(needed) == 1:
        return f"column {needed[0]}"
    return f"columns {' and '.join(needed)} (and split, if you have one)"


def _text(path: Path, line: int, fields: Mapping[str, Any]) -> str:
    text = fields.get("text")
    if not isinstance(text, str) or not text.strip():
        raise DataError(
            f"{path}, line {line}: text must be a non-empty string, but it is {short(text)}"
        )
    return text


def _row(path: Path, line: int, fields: Mapping[str, Any]) -> Row:
    text, label, split = _text(path, line, fields), fields.get("label"), fields.get("split")
    if isinstance(label, bool) or not isinstance(label, str | int) or label == "":
        raise DataError(
            f"{path}, line {line}: label must be a whole number or a word, but it is {short(label)}"
        )
    if split is not None and (not isinstance(split, str) or split not in SPLITS):
        raise DataError(
            f"{path}, line {line}: split must be one of {', '.join(SPLITS)}, but it is "
            f"{short(split)}"
        )
    return Row(text, str(label), split if split is None else SPLITS[split], line)


def _splits(path: Path, rows: list[Row]) -> list[str]:
    if all(row.split is None for row in rows):
        test = held_out([row.text for row in rows], np.array([row.label for row in rows]))
        return ["test" if out else "train" for out in test]
    for row in rows:
        if row.split is None:
            raise DataError(f"{path}, line {row.line}: split is missing, and other lines have it")
    return [row.split or "" for row in rows]
