"""Forecasts of a user's own series by a trained model: a table, and a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from bistoch.lab.data import AS_THEY_ARE, DataError, Pictures
from bistoch.lab.data.read_files import form_of
from bistoch.lab.data.read_series import Columns, read_own_columns
from bistoch.lab.data.series_dates import date_texts, gap_note
from bistoch.lab.drawing import PALETTE, QUIET, RULE, grid, tidy, to_content
from bistoch.lab.train.run import Restored

DAY = np.timedelta64(1, "D")
# panels of a picture; a table has all columns
MOST_PANELS = 12
# endings of files that a picture may be written to
PICTURES = (".png", ".pdf", ".svg")


class SeriesForecast(NamedTuple):
    """The rows that a model expects after the last of a file, and the last ones it was given.

    `notes` say where steps are missing between the rows that the model looked at.
    """

    columns: tuple[str, ...]
    dates: np.ndarray
    values: Float[np.ndarray, "horizon channels"]
    past_dates: np.ndarray
    past_values: Float[np.ndarray, "past channels"]
    notes: tuple[str, ...] = ()

    def table(self) -> list[list[str]]:
        """Lines of a CSV file: the names of the columns, then one line per date."""
        lines = [
            [date, *(f"{value:.7g}" for value in row)]
            for date, row in zip(date_texts(self.dates), self.values, strict=True)
        ]
        return [["date", *self.columns], *lines]


@torch.no_grad()
def predict_series(
    run: Restored, paths: Sequence[Path], *, pictures: Pictures = AS_THEY_ARE
) -> SeriesForecast:
    """The forecast after the last row of a CSV file with the columns of the training data.

    The model looks back at the last rows of the file and needs as many as in training; earlier ones
    are not used. Further columns are ignored.
    """
    if pictures != AS_THEY_ARE:
        raise ValueError(
            "predict: resize and corrupt belong to images, but the model was trained on series; "
            "leave them out"
        )
    if len(paths) != 1 or paths[0].is_dir() or form_of(paths[0]) != ".csv":
        raise DataError(
            "predict: the model continues one series, from a .csv file with dates, but the samples "
            f"are {', '.join(map(str, paths))}"
        )
    (path,) = paths
    if not path.exists():
        raise DataError(f"predict: {path} does not exist")
    facts, lookback = run.config["facts"], int(run.config["model"]["lookback"])
    found = choose_columns(path, read_own_columns(path, 1), facts["columns"])
    if len(found.values) < lookback:
        raise DataError(
            f"predict: the model looks back at {lookback} rows, but {path} has "
            f"{len(found.values)}; give {lookback - len(found.values)} earlier rows too"
        )
    mean, deviation = np.array(facts["mean"]), np.array(facts["deviation"])
    deviation = np.where(deviation > 0, deviation, 1)
    scaled = torch.from_numpy((found.values[-lookback:] - mean) / deviation).float()
    device = next(run.model.parameters()).device
    output = run.model(scaled[None].to(device))[0].double().cpu().numpy() * deviation + mean
    shown = 2 * lookback
    return SeriesForecast(
        found.columns, next_dates(found.dates, len(output)), output, found.dates[-shown:],
        found.values[-shown:], gap_note(path, found.lines, found.dates, lookback),
    )  # fmt: skip


def choose_columns(path: Path, found: Columns, wanted: Sequence[str]) -> Columns:
    """The columns that a model was trained on, in its order."""
    if lacking := [name for name in wanted if name not in found.columns]:
        raise DataError(
            f"predict: {path} must have the columns {', '.join(wanted)} of the training data, but "
            f"{', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing"
        )
    places = [found.columns.index(name) for name in wanted]
    return found._replace(columns=tuple(wanted), values=found.values[:, places])


def next_dates(dates: np.ndarray, count: int) -> np.ndarray:
    """The dates that follow: at the usual distance of the given ones, or month by month.

    >>> days = np.array(["2020-02-27", "2020-02-28"], "datetime64[s]")
    >>> next_dates(days, 2).astype("datetime64[D]").astype(str).tolist()
    ['2020-02-29', '2020-03-01']
    >>> months = np.array(["2020-01-01", "2020-02-01", "2020-03-01"], "datetime64[s]")
    >>> next_dates(months, 2).astype("datetime64[D]").astype(str).tolist()
    ['2020-04-01', '2020-05-01']
    >>> ends = np.array(["2020-10-31", "2020-11-30", "2020-12-31"], "datetime64[s]")
    >>> next_dates(ends, 2).astype("datetime64[D]").astype(str).tolist()
    ['2021-01-31', '2021-02-28']
    """
    if len(dates) < 2:
        # nothing says how far apart they are
        return dates[-1] + DAY * np.arange(1, count + 1)
    if (months := _next_months(dates, count)) is not None:
        return months
    apart = np.diff(dates)
    step = np.median(apart.astype(np.int64)).astype(apart.dtype)
    if step == np.timedelta64(0):
        raise DataError(
            "predict: dates must differ from row to row, but most of them repeat the one before; "
            "give one row per date"
        )
    return dates[-1] + step * np.arange(1, count + 1)


def _next_months(dates: np.ndarray, count: int) -> np.ndarray | None:
    """The dates that follow if there is one in a month, or in every so many of them, else None.

    It is the same day and time of all, or the last day of a month that does not have it.
    """
    days, months = dates.astype("datetime64[D]"), dates.astype("datetime64[M]")
    steps, clock = np.diff(months).astype(int), dates - days
    places, last = days - _first_day(months), _first_day(months + 1) - DAY - _first_day(months)
    # the 31st, if all are the last of their month
    place = 30 * DAY if (places == last).all() else places.max()
    is_even = steps[0] > 0 and (steps == steps[0]).all() and (clock == clock[0]).all()
    if not is_even or (places != np.minimum(place, last)).any():
        return None
    months = months[-1] + steps[0] * np.arange(1, count + 1)
    last = _first_day(months + 1) - DAY
    following = np.minimum(_first_day(months) + place, last)
    return following.astype(dates.dtype) + clock[0]


def _first_day(months: np.ndarray) -> np.ndarray:
    return months.astype("datetime64[D]")


def picture_form(path: Path) -> str:
    """The form of a picture by the ending of its file.

    >>> picture_form(Path("a.PDF"))
    'pdf'
    """
    if path.suffix.lower() not in PICTURES:
        raise ValueError(
            f"predict: the name of a picture must end in {', '.join(PICTURES[:-1])} or "
            f"{PICTURES[-1]}, but --plot is {path}; give another name, such as "
            f"{path.stem or 'forecast'}.png"
        )
    return path.suffix.lower()[1:]


def draw_forecast(found: SeriesForecast, form: str = "png") -> bytes:
    """The last rows and the forecast, a panel per column, as a file: png, pdf or svg."""
    shown = found.columns[:MOST_PANELS]
    made, panels = grid(len(shown), 2 if len(shown) > 1 else 1, width=5.2, height=2.3)
    for place, (axes, name) in enumerate(zip(panels, shown, strict=True)):
        past = found.past_values[:, place]
        axes.plot(found.past_dates, past, color=QUIET, linewidth=1.2)
        # joined to the last value, so that the eye sees one curve
        dates = np.concatenate([found.past_dates[-1:], found.dates])
        values = np.concatenate([past[-1:], found.values[:, place]])
        axes.plot(dates, values, color=PALETTE[1], linewidth=1.6)
        axes.axvline(found.past_dates[-1], color=RULE, linewidth=1)
        tidy(axes, name)
        axes.xaxis.set_major_formatter(_dates(axes))
    left_out = len(found.columns) - len(shown)
    more = f"; {left_out} further columns are in the table" if left_out else ""
    title = f"given (grey) and forecast (orange){more}"
    made.suptitle(title, fontsize=9, color=QUIET)
    return to_content(made, form)


def _dates(axes: object) -> object:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(maxticks=7)
    axes.xaxis.set_major_locator(locator)  # type: ignore[attr-defined]
    return ConciseDateFormatter(locator)
