"""Reader of time series: a CSV file with a column of dates and columns of numbers."""

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bistoch.lab.data.kinds import DataError, Series
from bistoch.lab.data.packed import read_text

if TYPE_CHECKING:
    from bistoch.lab.data.entry import Entry

SLASHED = "%Y/%m/%d %H:%M"


def read_series(entry: "Entry", paths: Mapping[str, Path]) -> Series:
    """A series of the table, cut where the table says."""
    (path,) = paths.values()
    ends = np.cumsum(list(entry.counts.values())).tolist()
    return parse_series(entry.name, path, (ends[0], ends[1], ends[2]))


def parse_series(name: str, path: Path, borders: tuple[int, int, int] | None = None) -> Series:
    """The series in a CSV file; borders default to 70 %, 10 % and 20 % of the rows."""
    text = io.StringIO(read_text(path, "utf-8-sig"), newline="")
    head, *rows = [row for row in csv.reader(text) if row] or [[]]
    if len(head) < 2 or head[0] != "date" or not rows:
        raise DataError(
            f"{path}, line 1: a series needs the columns date and at least one of numbers, and "
            f"rows below, but the head is {','.join(head)!r} and {len(rows)} rows follow"
        )
    values = _numbers(path, head, rows)
    dates = np.array([_date(path, line, row[0]) for line, row in enumerate(rows, 2)])
    target = "OT" if "OT" in head else head[-1]
    return Series(
        name, "series", values, dates, tuple(head[1:]), target, borders or usual_borders(len(rows))
    )


def usual_borders(rows: int) -> tuple[int, int, int]:
    """The ends of 70 %, 10 % and 20 %, rounded as is usual in the literature.

    >>> usual_borders(7588)
    (5311, 6071, 7588)
    """
    return int(rows * 0.7), rows - int(rows * 0.2), rows


def _numbers(path: Path, head: Sequence[str], rows: list[list[str]]) -> np.ndarray:
    for line, row in enumerate(rows, 2):
        if len(row) != len(head):
            raise DataError(
                f"{path}, line {line}: expected {len(head)} values as in the head, "
                f"but there are {len(row)}"
            )
    try:
        return np.array([row[1:] for row in rows], dtype=np.float64)
    except ValueError:
        pass
    for line, row in enumerate(rows, 2):
        for column, value in zip(head[1:], row[1:], strict=True):
            try:
                float(value)
            except ValueError:
                raise DataError(
                    f"{path}, line {line}, column {column!r}: expected a number, got {value!r}"
                ) from None
    raise DataError(f"{path}: the columns after date are not all numbers")


def _date(path: Path, line: int, text: str) -> np.datetime64:
    try:
        date = datetime.strptime(text, SLASHED) if "/" in text else datetime.fromisoformat(text)
    except ValueError:
        raise DataError(
            f"{path}, line {line}: expected a date such as 2016-07-01 00:00:00, got {text!r}"
        ) from None
    return np.datetime64(date, "s")
