"""Reader of time series: a CSV file with a column of dates and columns of numbers."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from reprlib import repr as short
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bistoch.lab.data.kinds import DataError, Series
from bistoch.lab.data.read_files import read_table

if TYPE_CHECKING:
    from bistoch.lab.data.entry import Entry

SLASHED = "%Y/%m/%d %H:%M"
# so that train, valid and test have a row each
FEWEST = 10
# names of the first column of a series, in any case, and texts that stand for a missing value
DATES = ("date", "time", "datetime", "timestamp")
MISSING = ("", "nan", "na", "n/a", "null", "none", "-", "?")


def read_series(entry: "Entry", paths: Mapping[str, Path]) -> Series:
    """A series of the table, cut where the table says."""
    (path,) = paths.values()
    ends = np.cumsum(list(entry.counts.values())).tolist()
    return parse_series(entry.name, path, (ends[0], ends[1], ends[2]))


def parse_series(name: str, path: Path, borders: tuple[int, int, int] | None = None) -> Series:
    """The series in a CSV file; borders default to 70 %, 10 % and 20 % of the rows."""
    found = read_columns(path, FEWEST)
    head = found.columns
    return Series(
        name, "series", found.values, found.dates, head, "OT" if "OT" in head else head[-1],
        borders or usual_borders(len(found.values)), str(path),
    )  # fmt: skip


class Columns(NamedTuple):
    """The dates and the columns of numbers of a file."""

    columns: tuple[str, ...]
    dates: np.ndarray
    values: np.ndarray


def read_columns(path: Path, fewest: int) -> Columns:
    """The dates and numbers of a CSV file with at least so many rows, in the order of time."""
    (_, head), *rows = [*read_table(path, ".csv")] or [(1, [])]
    if len(head) < 2 or not is_date(head[0]) or len(rows) < fewest:
        raise DataError(
            f"{path}: a series needs the columns date and at least one of numbers, and at least "
            f"{fewest} rows, but the head is {','.join(head)[:200]!r} and {len(rows)} rows follow"
        )
    for line, row in rows:
        if len(row) != len(head):
            raise DataError(
                f"{path}, line {line}: expected {len(head)} values as in the head, "
                f"but there are {len(row)}"
            )
    values = _numbers(path, head[1:], rows)
    dates = np.array([_date(path, line, row[0]) for line, row in rows], "datetime64[s]")
    back = np.flatnonzero(np.diff(dates) < np.timedelta64(0))
    if len(back):
        line, row = rows[back[0] + 1]
        raise DataError(
            f"{path}, line {line}: the date {short(row[0])} is before that of the row above; sort "
            "the rows by date"
        )
    return Columns(tuple(head[1:]), dates, values)


def is_date(column: str) -> bool:
    """Whether the name of a first column says that it holds dates.

    >>> is_date("Timestamp"), is_date("text")
    (True, False)
    """
    return column.strip().lower() in DATES


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
    sentence = f"{path}, line {line}, column {column!r}: expected a number, got {short(value)}"
    if value.strip().lower() not in MISSING:
        raise DataError(sentence)
    gaps = [
        name for _, row in rows for name, text in zip(columns, row[1:], strict=True)
        if text.strip().lower() in MISSING
    ]  # fmt: skip
    where = ", ".join(dict.fromkeys(gaps))
    raise DataError(
        f"{sentence}, a missing value; {len(gaps)} of {len(rows) * len(columns)} values are "
        f"missing (in {short(where)}); fill the gaps first, for example by "
        "pandas.DataFrame.interpolate"
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
