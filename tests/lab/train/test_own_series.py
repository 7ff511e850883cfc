"""From a table of your own to a forecast and its picture, by the command line."""

import csv
import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bistoch.cli import app
from bistoch.lab.data import DataError
from bistoch.lab.train import restore_run
from bistoch.lab.train.predict_series import draw_forecast, next_dates, predict_series

MODEL = "forecast(lookback=12, horizon=4, dim=8, heads=2, extend=2, depth=1)"


def run(*words):
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, list(map(str, words)))


def write(path, rows=120, head="Date,warm,wind", **changes):
    time = np.arange(rows)
    values = np.stack([10 + 3 * np.sin(time / 2), 100 + 40 * np.cos(time / 3)], -1)
    hours = np.datetime64("2024-03-01T00:00:00") + time * np.timedelta64(1, "h")
    lines = [
        f"{str(h).replace('T', ' ')},{a:.3f},{b:.3f}"
        for h, (a, b) in zip(hours, values, strict=True)
    ]
    for line, text in changes.items():
        lines[int(line[1:]) - 2] = text
    path.write_text("\n".join([head, *lines]))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("series")
    data = write(folder / "mine.csv")
    result = run("train", "--data", data, "--model", MODEL, "--epochs", 12, "--batch-size", 8,
                 "--lr", 0.01, "--no-tensorboard", "--out", folder / "run")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert f"forecast: bistoch predict {folder / 'run'} {data}" in result.output
    return folder


def test_a_forecaster_is_trained_with_the_published_mixer(trained):
    assert restore_run(trained / "run").setup.operator == "mixing"
    refused = run("train", "--data", trained / "mine.csv", "--model", MODEL, "--operator",
                  "softmax", "--epochs", 12, "--batch-size", 8, "--lr", 0.01, "--no-tensorboard",
                  "--out", trained / "run")  # fmt: skip
    assert refused.exit_code == 2
    assert "holds a run with operator = 'mixing', but now it is 'softmax'" in refused.stderr


def test_a_forecast_goes_on_where_the_file_ends_in_its_units(trained, tmp_path):
    out, plot = tmp_path / "found.csv", tmp_path / "found.png"
    result = run("predict", trained / "run", trained / "mine.csv", "--out", out, "--plot", plot)
    assert result.exit_code == 0, result.output
    head, *rows = csv.reader(out.read_text().splitlines())
    assert head == ["date", "warm", "wind"]
    assert [row[0] for row in rows] == [f"2024-03-06 0{hour}:00:00" for hour in range(4)]
    time = 120 + np.arange(4)
    wanted = np.stack([10 + 3 * np.sin(time / 2), 100 + 40 * np.cos(time / 3)], -1)
    found = np.array([[float(x) for x in row[1:]] for row in rows])
    # in units of the amplitude; the mean would miss by up to one
    np.testing.assert_allclose(found / [3, 40], wanted / [3, 40], atol=0.5)
    assert plot.read_bytes()[1:4] == b"PNG"
    assert result.stdout.splitlines() == [f"wrote {out}", f"wrote {plot}"]


def test_a_picture_is_of_the_form_of_its_name(trained, tmp_path):
    words = ("predict", trained / "run", trained / "mine.csv", "--plot")
    made = run(*words, tmp_path / "a.SVG")
    assert made.exit_code == 0, made.output
    assert b"<svg" in (tmp_path / "a.SVG").read_bytes()
    # what is printed stays a table
    assert made.stdout.splitlines()[0] == "date,warm,wind"
    assert len(made.stdout.splitlines()) == 5
    assert f"wrote {tmp_path / 'a.SVG'}" in made.stderr
    for name in ("q.pngx", "q"):
        refused = run(*words, tmp_path / name, "--out", tmp_path / "a.csv")
        assert refused.exit_code == 2
        assert "must end in .png, .pdf or .svg, but --plot is" in refused.stderr
        assert "such as q.png" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.SVG"]


def test_gaps_are_told_where_the_model_looks(trained, tmp_path):
    lines = write(tmp_path / "whole.csv", 60).read_text().splitlines()
    path = tmp_path / "gap.csv"
    for cut, told in ((slice(50, 53), True), (slice(20, 23), False)):
        path.write_text("\n".join([*lines[: cut.start], *lines[cut.stop :]]))
        result = run("predict", trained / "run", path)
        assert result.exit_code == 0, result.output
        assert ("gap.csv, line 51: 3 steps of 1 hour are missing before" in result.stderr) == told
        assert result.stdout.startswith("date,")
        assert len(result.stdout.splitlines()) == 5


def test_gaps_are_told_before_training_and_kept_with_the_run(tmp_path):
    lines = write(tmp_path / "whole.csv").read_text().splitlines()
    path = tmp_path / "gap.csv"
    path.write_text("\n".join([*lines[:40], *lines[60:]]))
    words = ("train", "--data", path, "--model", MODEL, "--epochs", 1, "--batch-size", 64,
             "--no-tensorboard", "--out", tmp_path / "run")  # fmt: skip
    result = run(*words)
    assert result.exit_code == 0, result.output
    note = f"{path}, line 41: 20 steps of 1 hour are missing before 2024-03-03 11:00:00"
    assert note in result.stdout.replace("\n", "")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["facts"]["notes"][0].startswith(note)
    # a run of a version without this note is resumed
    del config["facts"]["notes"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    assert run(*words).exit_code == 0


def test_columns_are_found_by_name_and_only_the_last_rows_count(trained, tmp_path):
    restored = restore_run(trained / "run")
    first = predict_series(restored, [trained / "mine.csv"])
    lines = (trained / "mine.csv").read_text().splitlines()
    turned = [",".join([d, w, "7", t]) for d, t, w in (line.split(",") for line in lines[-12:])]
    (tmp_path / "other.csv").write_text("\n".join(["time,wind,noise,warm", *turned]))
    second = predict_series(restored, [tmp_path / "other.csv"])
    np.testing.assert_allclose(first.values, second.values)
    assert draw_forecast(second)[1:4] == b"PNG"


@pytest.mark.parametrize(
    ("rows", "changes", "sentence"),
    [
        (11, {}, r"the model looks back at 12 rows, but .*has 11; give 1 earlier rows too"),
        (30, {"head": "date,warm,rain"}, "must have the columns warm, wind .*but wind is missing"),
        (30, {"l5": "2024-03-01 03:00:00,,2"},
         r"line 5, column 'warm': expected a number, got '', a missing value; 1 of 60 values"),
        (30, {"l5": "2024-03-01 02:00:00,1,2"},
         r"line 5: the date 2024-03-01 02:00:00 is also that of line 4 .*; keep one row per date"),
        (30, {"head": "date,warm,warm"}, "line 1: columns must .* but 2 are called 'warm'; rename"),
        (30, {"head": "date;warm;wind"}, "line 1: values must be separated by commas"),
        (0, {}, "a series needs at least 1 row, but no rows follow the head"),
        (30, {"l5": "2023-03-01 03:00:00,1,2"}, "line 5: the date .* is before that of the row"),
    ],
)  # fmt: skip
def test_what_cannot_be_continued_is_told(trained, tmp_path, rows, changes, sentence):
    path = write(tmp_path / "other.csv", rows, **changes)
    with pytest.raises(DataError, match=sentence):
        predict_series(restore_run(trained / "run"), [path])


def test_a_short_series_is_told_how_many_rows_are_needed(tmp_path):
    for rows, words, needed in ((40, (), 480), (500, ("--patience", 2), 944)):
        path = write(tmp_path / "short.csv", rows)
        refused = run("train", "--data", path, "--model", "forecast", "--out", tmp_path / "x",
                      *words)  # fmt: skip
        assert refused.exit_code == 2
        assert str(path) in refused.stderr
        assert f"need at least {needed} rows" in refused.stderr
        assert f"there are {rows}" in refused.stderr
    assert not (tmp_path / "x").exists()


def test_one_file_that_exists_is_continued(trained, tmp_path):
    refused = run("predict", trained / "run", trained / "mine.csv", trained / "mine.csv")
    assert "continues one series" in refused.stderr
    refused = run("predict", trained / "run", tmp_path / "gone.csv")
    assert "gone.csv does not exist" in refused.stderr


def test_dates_go_on_as_they_were():
    weekly = np.datetime64("2024-01-01", "s") + np.arange(5) * np.timedelta64(7, "D")
    assert str(next_dates(weekly, 2)[-1]) == "2024-02-12T00:00:00"
    one = np.array(["2024-01-01T05:00:00"], "datetime64[s]")
    assert str(next_dates(one, 1)[0]) == "2024-01-02T05:00:00"


@pytest.mark.parametrize(
    ("given", "following"),
    [
        # the last day of every month
        (["2023-11-30", "2023-12-31", "2024-01-31"], ["2024-02-29", "2024-03-31", "2024-04-30"]),
        (["2022-12-31", "2023-01-31"], ["2023-02-28", "2023-03-31", "2023-04-30"]),
        (["2023-02-28", "2023-03-31"], ["2023-04-30", "2023-05-31", "2023-06-30"]),
        # a day that some months do not have
        (["2023-12-30", "2024-01-30"], ["2024-02-29", "2024-03-30", "2024-04-30"]),
        (["2023-01-30", "2023-02-28", "2023-03-30"], ["2023-04-30", "2023-05-30", "2023-06-30"]),
        # any other day, and quarters
        (["2024-01-15", "2024-02-15", "2024-03-15"], ["2024-04-15", "2024-05-15", "2024-06-15"]),
        (["2023-06-30", "2023-09-30", "2023-12-31"], ["2024-03-31", "2024-06-30", "2024-09-30"]),
        # days that cross the end of a month
        (["2024-01-30", "2024-01-31", "2024-02-01"], ["2024-02-02", "2024-02-03", "2024-02-04"]),
        (["2024-01-31", "2024-02-01"], ["2024-02-02", "2024-02-03", "2024-02-04"]),
    ],
    ids=lambda dates: dates[-1],
)
@pytest.mark.parametrize("clock", ["", "T12:30:00"])
def test_months_go_on_by_their_own_length(given, following, clock):
    dates = np.array([day + clock for day in given], "datetime64[s]")
    wanted = np.array([day + clock for day in following], "datetime64[s]")
    assert next_dates(dates, 3).tolist() == wanted.tolist()


def test_a_forecast_of_months_has_the_ends_of_months_in_its_table(trained, tmp_path):
    months = np.datetime64("2022-12") + np.arange(14)
    ends = (months + 1).astype("datetime64[D]") - np.timedelta64(1, "D")
    assert str(ends[-1]) == "2024-01-31"
    lines = [f"{end},{10 + place % 3},{100 - place}" for place, end in enumerate(ends)]
    (tmp_path / "months.csv").write_text("\n".join(["date,warm,wind", *lines]))
    result = run("predict", trained / "run", tmp_path / "months.csv")
    assert result.exit_code == 0, result.output
    dates = [line.split(",")[0] for line in result.stdout.splitlines()[1:]]
    assert dates == ["2024-02-29", "2024-03-31", "2024-04-30", "2024-05-31"]


def test_a_forecast_is_computed_on_the_device_that_was_asked_for(trained, monkeypatch):
    words = ("predict", trained / "run", trained / "mine.csv")
    usual, asked = run(*words), run(*words, "--device", "cpu")
    assert asked.exit_code == 0, asked.output
    assert asked.stdout == usual.stdout
    # on the device meta nothing has a value: whoever computes there can read no number
    monkeypatch.setattr("bistoch.lab.device.read_device", lambda *_: torch.device("meta"))
    lost = run(*words, "--device", "cuda")
    assert lost.exit_code != 0
    assert "meta" in (lost.stderr + repr(lost.exception)).lower()
