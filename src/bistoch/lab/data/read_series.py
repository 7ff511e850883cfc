"""Reader of time series: a CSV file with a column of dates and columns of numbers."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from reprlib import repr as short
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bistoch.lab.data.kinds import DataError, Series
from bistoch.lab.data.read_files import read_table
from bistoch.lab.data.series_dates import gap_note, read_dates, refuse_repeats

if TYPE_CHECKING:
    from bistoch.lab.data.entry import Entry

# so that train, valid and test have a row each
FEWEST = 10
# names of the first column of a series, in any case, and texts that stand for a missing value
DATES = ("date", "time", "datetime", "timestamp")
MISSING = ("", "nan", "na", "n/a", "null", "none", "-", "?")


def read_series(entry: "Entry", paths: Mapping[str, Path]) -> Series:
    """A series of the table, cut where the table says; its dates are as they were published."""
    (path,) = paths.values()
    ends = np.cumsum(list(entry.counts.values())).tolist()
    return _series(entry.name, path, read_columns(path, FEWEST), (ends[0], ends[1], ends[2]))


def parse_series(name: str, path: Path) -> Series:
    """A user's own series in a CSV file, cut into 70 %, 10 % and 20 % of the rows."""
    found = read_own_columns(path, FEWEST)
    notes = gap_note(path, found.lines, found.dates)
    return _series(name, path, found, usual_borders(len(found.values)), notes)


class Columns(NamedTuple):
    """The dates and the columns of numbers of a file, and the lines of the rows."""

    columns: tuple[str, ...]
    dates: np.ndarray
    values: np.ndarray
    lines: tuple[int, ...]


def read_own_columns(path: Path, fewest: int) -> Columns:
    """The dates and numbers of a user's own file, in which no date may repeat."""
    found = read_columns(path, fewest)
    refuse_repeats(path, found.lines, found.dates)
    return found


def read_columns(path: Path, fewest: int) -> Columns:
    """The dates and numbers of a CSV file with at least so many rows, in the order of time."""
    (_, head), *rows = [*read_table(path, ".csv")] or [(1, [])]
    _check_head(path, head)
    if len(rows) < fewest:
        raise DataError(
            f"{path}: a series needs at least {fewest} {'row' if fewest == 1 else 'rows'}, but "
            f"{len(rows) or 'no'} {'row follows' if len(rows) == 1 else 'rows follow'} the head; "
            "add rows"
        )
    for line, row in rows:
        if len(row) != len(head):
            remedy = (
                "give every row a value for every column"
                if len(row) < len(head)
                else "write numbers with a decimal point, and without separators of thousands"
            )
            raise DataError(
                f"{path}, line {line}: expected {len(head)} values as in the head, "
                f"but there are {len(row)}; {remedy}"
            )
    values = _numbers(path, head[1:], rows)
    lines = tuple(line for line, _ in rows)
    return Columns(
        tuple(head[1:]), read_dates(path, lines, [row[0] for _, row in rows]), values, lines
    )


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


def _series(
    name: str,
    path: Path,
    found: Columns,
    borders: tuple[int, int, int],
    notes: tuple[str, ...] = (),
) -> Series:
    head = found.columns
    return Series(
        name, "series", found.values, found.dates, head, "OT" if "OT" in head else head[-1],
        borders, str(path), notes,
    )  # fmt: skip


def _check_head(path: Path, head: Sequence[str]) -> None:
    if not head:
        raise DataError(
            f"{path}: the file is empty; a series has the column date first, then columns of "
            "numbers, and one row per date"
        )
    if len(head) < 2 or not is_date(head[0]):
        raise DataError(
            f"{path}, line 1: a series needs the column date (or {', '.join(DATES[1:])}) first and "
            f"at least one of numbers, but the head is {','.join(head)[:200]!r}; put the dates "
            "first, and name the columns in line 1"
        )
    for name in head[1:]:
        if head.count(name) > 1:
            raise DataError(
                f"{path}, line 1: columns must have different names, but {head.count(name)} are "
                f"called {name[:200]!r}; rename or remove them"
            )


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
        place = columns.index(column) + 1
        raise DataError(f"{sentence}; {_remedy(value, [row[place] for _, row in rows])}")
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


def _remedy(value: str, column: Sequence[str]) -> str:
    """What to do about a value that is no finite number."""
    try:
        float(value)
    except ValueError:
        if not any(map(_is_number, column)):
            return "no value of this column is a number: remove the column, or code it by numbers"
        return (
            "correct it; numbers have a decimal point, no separators of thousands, and no unit "
            "behind them"
        )
    return "it must be finite: put in the true value, or one between those of the rows around it"
