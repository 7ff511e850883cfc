"""Dates of a series: read from texts, one per row and in order, and where steps are missing."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from reprlib import repr as short

import numpy as np

from bistoch.lab.data.kinds import DataError

SLASHED = "%Y/%m/%d %H:%M"
DAY = 24 * 3600 * 10**6
# the mean of the Gregorian calendar, in microseconds as all steps here
MONTH = 30.436875 * DAY
UNITS = {"day": DAY, "hour": 3600 * 10**6, "minute": 60 * 10**6, "second": 10**6}


def read_dates(path: Path, lines: Sequence[int], texts: Sequence[str]) -> np.ndarray:
    """Dates in seconds, or in microseconds where seconds have fractions; refused if they go back.

    Dates may repeat: those of the Weather data do.
    """
    read = [_date(path, line, text) for line, text in zip(lines, texts, strict=True)]
    dates = np.array(read, "datetime64[us]")
    back = np.flatnonzero(np.diff(dates) < np.timedelta64(0))
    if len(back):
        row = back[0] + 1
        raise DataError(
            f"{path}, line {lines[row]}: the date {short(texts[row])} is before that of the row "
            "above; sort the rows by date"
        )
    seconds = dates.astype("datetime64[s]")
    return seconds if (seconds == dates).all() else dates


def refuse_repeats(path: Path, lines: Sequence[int], dates: np.ndarray) -> None:
    """Raise an error if two rows, in the order of time, have the same date."""
    again = np.flatnonzero(np.diff(dates) == np.timedelta64(0))
    if len(again):
        row = again[0] + 1
        raise DataError(
            f"{path}, line {lines[row]}: the date {date_texts(dates)[row]} is also that of line "
            f"{lines[row - 1]} ({_count(len(again), 'repeated date')} in {len(dates)} rows); "
            "keep one row per date, for example their mean; if the file lists several "
            "series one after the other, give each a column; if local clocks were set back, write "
            "dates in UTC"
        )


def date_texts(dates: np.ndarray) -> list[str]:
    """Dates as texts, without the time of day if all are at midnight.

    >>> date_texts(np.array(["2020-01-01T12:00:00"], "datetime64[s]"))
    ['2020-01-01 12:00:00']
    """
    days = not np.any((dates - dates.astype("datetime64[D]")).astype(int))
    texts = np.datetime_as_string(dates, unit="D" if days else None)
    return [str(text).replace("T", " ") for text in texts]


def gap_note(
    path: Path, lines: Sequence[int], dates: np.ndarray, last: int | None = None
) -> tuple[str, ...]:
    """One sentence if steps are missing between the dates, or between the last of them, else none.

    The usual step is the median. Months, quarters and years may be of unequal length; a daily
    series without weekends is one of working days.

    >>> hours = np.datetime64("2020-01-01T00:00:00") + np.array([0, 1, 2, 6]) * 3600
    >>> gap_note(Path("a.csv"), [2, 3, 4, 5], hours)[0].split(";")[0]
    'a.csv, line 5: 3 steps of 1 hour are missing before 2020-01-01 06:00:00'
    """
    if len(dates) < 3:
        return ()
    missing, step = _missing_steps(dates)
    if last is not None:
        missing[: max(len(dates) - last, 0)] = 0
    gaps, most = int(np.count_nonzero(missing)), int(missing.argmax())
    if not gaps:
        return ()
    others = int(missing.sum() - missing[most])
    more = f", and {others} more in {_count(gaps - 1, 'other gap')}" if others else ""
    return (
        f"{path}, line {lines[most + 1]}: {_count(int(missing[most]), 'step')} of {step} "
        f"{'is' if missing[most] == 1 else 'are'} missing before {date_texts(dates)[most + 1]}"
        f"{more}; rows are used as if they were equally spaced. If that is wrong, add the missing "
        "rows first, for example by pandas.DataFrame.asfreq and interpolate.",
    )


def _missing_steps(dates: np.ndarray) -> tuple[np.ndarray, str]:
    """How many steps are missing before each date but the first, and the step in words."""
    apart = np.diff(dates).astype("timedelta64[us]").astype(np.int64)
    # one that occurs, not the mean of two
    step = int(np.sort(apart)[(len(apart) - 1) // 2])
    if step >= 28 * DAY and (apart % step).any():
        months = max(round(step / MONTH), 1)
        return _beyond_one(apart / (months * MONTH)), _count(months, "month")
    days = dates.astype("datetime64[D]")
    if step == DAY and np.is_busday(days).all():
        return np.maximum(np.busday_count(days[:-1], days[1:]) - 1, 0), "1 working day"
    unit, size = next(((u, s) for u, s in UNITS.items() if step % s == 0), ("microsecond", 1))
    return _beyond_one(apart / step), _count(step // size, unit)


def _beyond_one(steps: np.ndarray) -> np.ndarray:
    # rounded: clocks jitter, and days of local time have 23 to 25 hours
    return np.maximum(np.rint(steps).astype(int) - 1, 0)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _date(path: Path, line: int, text: str) -> datetime:
    try:
        date = datetime.strptime(text, SLASHED) if "/" in text else datetime.fromisoformat(text)
        # numpy keeps no time zones
        return date if date.tzinfo is None else date.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise DataError(
            f"{path}, line {line}: expected a date such as 2016-07-01 00:00:00, got {short(text)}; "
            "write all dates as year-month-day with the time after a space, for example by "
            "pandas.to_datetime"
        ) from None
