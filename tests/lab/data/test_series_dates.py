"""Dates of a series: what counts as a gap, and what repeats."""

from pathlib import Path

import numpy as np
import pytest

from bistoch.lab.data import DataError
from bistoch.lab.data.read_series import read_columns, read_own_columns
from bistoch.lab.data.series_dates import date_texts, gap_note, read_dates

PATH = Path("a.csv")


def note_of(dates, last=None):
    return gap_note(PATH, range(2, len(dates) + 2), np.array(dates, "datetime64[s]"), last)


def dates_from(start, count, unit):
    return np.datetime64(start) + np.arange(count) * np.timedelta64(1, unit)


HOURS = dates_from("2020-03-01T00:00:00", 200, "h")
DAYS = dates_from("2020-01-06", 100, "D")
WORKING_DAYS = DAYS[np.is_busday(DAYS)]
MONTHS = np.datetime64("2019-01", "M") + np.arange(40)
LAST_DAYS = (MONTHS + 1).astype("datetime64[D]") - np.timedelta64(1, "D")


@pytest.mark.parametrize(
    "dates",
    [
        HOURS,
        DAYS,
        DAYS[::7],
        WORKING_DAYS,
        MONTHS,
        MONTHS[::3],
        MONTHS[::12],
        LAST_DAYS,
        # the last working days of months are 28 to 34 days apart
        np.busday_offset(LAST_DAYS, 0, roll="backward"),
        # four weeks are steps of equal length
        DAYS[::28],
        # clocks of sensors jitter; a day of local time may have 23 or 25 hours
        HOURS.astype("datetime64[s]") + np.arange(200) % 7 * np.timedelta64(60, "s"),
        DAYS.astype("datetime64[s]") + (np.arange(100) > 50) * np.timedelta64(1, "h"),
        HOURS[:2],
        HOURS[:1],
    ],
    ids=str,
)
def test_no_step_is_missing(dates):
    assert note_of(dates) == ()


@pytest.mark.parametrize(
    ("dates", "said"),
    [
        (np.delete(HOURS, range(30, 50)), "line 32: 20 steps of 1 hour are missing"),
        (np.delete(HOURS, 7), "line 9: 1 step of 1 hour is missing before 2020-03-01 08:00:00;"),
        (np.delete(HOURS, [7, 90, 91, 150]),
         "line 91: 2 steps of 1 hour are missing before 2020-03-04 20:00:00, and 2 more in 2 other "
         "gaps;"),
        (np.delete(HOURS, [7, 90, 91]), "and 1 more in 1 other gap;"),
        (np.delete(dates_from("2020-01-01", 50, "m")[::15], 2), "1 step of 15 minutes is missing"),
        (np.delete(WORKING_DAYS, [12, 13]), "line 14: 2 steps of 1 working day are missing"),
        (np.delete(DAYS, [12]), "line 14: 1 step of 1 day is missing before 2020-01-19"),
        (np.delete(MONTHS, range(3, 39)), "line 5: 36 steps of 1 month are missing before 2022-04"),
        (np.delete(LAST_DAYS, [5]), "line 7: 1 step of 1 month is missing before 2019-07-31"),
        (np.delete(MONTHS[::3], [5]), "line 7: 1 step of 3 months is missing"),
        (np.delete(dates_from("2020-01-01", 500, "D")[::28], [5]), "1 step of 28 days is missing"),
    ],
)  # fmt: skip
def test_missing_steps_are_counted_and_placed(dates, said):
    (note,) = note_of(dates)
    assert said in note
    assert "as if they were equally spaced" in note


def test_only_the_last_rows_are_searched_if_no_others_are_used():
    dates = np.delete(HOURS, 150)
    # the step is missing before row 150 of 199
    assert note_of(dates, last=49) == ()
    assert "line 152: 1 step" in note_of(dates, last=50)[0]
    assert note_of(dates, last=len(dates)) == note_of(dates)


def write(path, dates):
    path.write_text("\n".join(["date,a", *(f"{date},1" for date in dates)]))
    return path


def test_own_dates_repeat_in_no_row_but_published_ones_may(tmp_path):
    path = write(tmp_path / "a.csv", ["2020-01-01", *["2020-01-01 06:00:00"] * 3])
    said = r"a\.csv, line 4: the date 2020-01-01 06:00:00 is also that of line 3 \(2 repeated"
    with pytest.raises(DataError, match=said):
        read_own_columns(path, 1)
    assert len(read_columns(path, 1).dates) == 4


def test_one_moment_in_two_time_zones_repeats(tmp_path):
    path = write(tmp_path / "a.csv", ["2020-01-01 12:00:00+01:00", "2020-01-01 11:00:00+00:00"])
    with pytest.raises(
        DataError, match="line 3: the date 2020-01-01 11:00:00 is also that of line 2"
    ):
        read_own_columns(path, 1)


def test_fractions_of_a_second_are_no_repeats(tmp_path):
    texts = [f"2020-01-01 00:00:0{second}.{part}" for second in (0, 1) for part in (25, 75)]
    found = read_own_columns(write(tmp_path / "a.csv", texts), 1)
    assert date_texts(found.dates) == [f"{text}0000" for text in texts]
    assert gap_note(PATH, found.lines, found.dates) == ()
    assert read_dates(PATH, [2], ["2020-01-01 00:00:01"]).dtype == "datetime64[s]"


@pytest.mark.parametrize(
    ("rows", "said"), [(1, "1 row, but no rows follow the head"), (2, "2 rows")]
)
def test_rows_are_counted_in_grammar(tmp_path, rows, said):
    with pytest.raises(DataError, match=f"a series needs at least {said}"):
        read_columns(write(tmp_path / "a.csv", []), rows)


def test_an_empty_file_is_called_empty(tmp_path):
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(DataError, match="the file is empty; a series has the column date first"):
        read_columns(tmp_path / "a.csv", 1)
