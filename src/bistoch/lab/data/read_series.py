"""Reader of time series: a CSV file with a column of dates and columns of numbers."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from reprlib import repr as short
from typing import TYPE_CHECKING

import numpy as np

from bistoch.lab.data.kinds import DataError, Series
from bistoch.lab.data.read_files import read_table

if TYPE_CHECKING:
    from bistoch.lab.data.entry import Entry

SLASHED = "%Y/%m/%d %H:%M"
# so that train, valid and test have a row each
FEWEST = 10


def read_series(entry: "Entry", paths: Mapping[str, Path]) -> Series:
    """A series of the table, cut where the table says."""
    (path,) = paths.values()
    ends = np.cumsum(list(entry.counts.values())).tolist()
    return parse_series(entry.name, path, (ends[0], ends[1], ends[2]))


def parse_series(name: str, path: Path, borders: tuple[int, int, int] | None = None) -> Series:
    """The series in a CSV file; borders default to 70 %, 10 % and 20 % of the rows."""
    (_, head), *rows = [*read_table(path, ".csv")] or [(1, [])]
    if len(head) < 2 or head[0] != "date" or len(rows) < FEWEST:
        raise DataError(
            f"{path}: a series needs the columns date and at least one of numbers, and at least "
            f"{FEWEST} rows, but the head is {','.join(head)[:200]!r} and {len(rows)} rows follow"
        )
    for line, row in rows:
        if len(row) != len(head):
            raise DataError(
                f"{path}, line {line}: expected {len(head)} values as in the head, "
                f"but there are {len(row)}"
            )
    return Series(
        name,
        "series",
        _numbers(path, head[1:], rows),
        np.array([_date(path, line, row[0]) for line, row in rows], "datetime64[s]"),
        tuple(head[1:]),
        "OT" if "OT" in head else head[-1],
        borders or usual_borders(len(rows)),
    )


def usual_borders(rows: int) -> tuple[int, int, int]:
    """The ends of 70 %, 10 % and 20 %, rounded as is usual in the literature.

    >>> usual_borders(7588)
    (5311, 6071, 7588)
    """
    return int(rows * 0.7), rows - int(rows * 0.2), rows


def _numbers(path: Path, columns: Sequence[str], rows: list[tuple[int, list[str]]]) -> np.ndarray:
    try:
        values = np.array([[float(value) for value in row[1:]] for _, row in rows])
        if np.isfinite(values).all():
            return values
    except ValueError:
        # said below, with its line
        pass
    line, column, value = next(
        (line, column, value)
        for line, row in rows
        for column, value in zip(columns, row[1:], strict=True)
        if not _is_number(value)
    )
    raise DataError(
        f"{path}, line {line}, column {column!r}: expected a number, got {short(value)}"
    )


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _date(path: Path, line: int, text: str) -> datetime:
    try:
        date = datetime.strptime(text, SLASHED) if "/" in text else datetime.fromisoformat(text)
        # numpy keeps no time zones
        return date if date.tzinfo is None else date.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise DataError(
            f"{path}, line {line}: expected a date such as 2016-07-01 00:00:00, got {short(text)}"
        ) from None
