"""Operators on equal terms: from a command to its reports."""

import io
import json
import re
from datetime import datetime
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from bistoch.cli import app
from bistoch.lab.compare import (
    Comparison,
    cells,
    report,
    summary,
)
from bistoch.lab.compare.draw import draw_curves
from bistoch.lab.compare.run import train_all
from bistoch.lab.stats import difference, spread
from bistoch.lab.train import DivergedError, Recipe, open_task

QUIET = Console(quiet=True)
MODEL = "vit(patch=(3,5), depth=2, dim=8, heads=2)"
RECIPE = Recipe(epochs=2, batch_size=8, lr=1e-2)

pytestmark = pytest.mark.usefixtures("quick_reports")


def run(*words):
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, [str(w) for w in words])


def test_a_comparison_ends_with_reports(pictures, tmp_path):
    operators = ("softmax", "elastic(lam=0.5, learn='head')")
    result = run("compare", *operators, "--data", pictures, "--model", MODEL, "--seeds", 2,
                 "--epochs", 2, "--batch-size", 8, "--lr", 0.01, "--out",
                 tmp_path / "out")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert f"report: {tmp_path / 'out' / 'report.html'}" in result.stdout
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    for words in (page, text):
        for section in ("Learning curves", "Attention", "Learned lam",
                        "Attention on test samples", "Protocol", "Command"):  # fmt: skip
            assert section in words
        assert "step, over softmax" in words
        # names of classes are text
        assert "<script" not in words
        assert "&lt;script" in words
    # a phone has its own drawing of most; panels without a difference are folded
    assert page.index('<p class="finding">Test accuracy (%): softmax ') < page.index("<img ")
    assert "No difference beyond seeds: " in page
    assert "The model with all its options." in page
    assert '<td class="text">pool</td><td class="text">cls</td>' in page
    assert "http" not in page.replace("http-equiv", "")
    for name in re.findall(r"\((figures/\w+\.png)\)", text):
        assert (tmp_path / "out" / name).read_bytes()[:4] == b"\x89PNG"
    drawn = re.findall(r"\(figures/(\w+)\.png\)", text)
    assert drawn[0] == "opening"
    assert {"head", "images", "columns", "lam", "plans"} < set(drawn)
    assert len(drawn) == page.count("<img ")
    # one line per operator, the right accuracies
    files = sorted((tmp_path / "out" / "runs").glob("*-seed-*.json"))
    found = [json.loads(file.read_text())["result"] for file in files]
    assert len(found) == 4
    accuracies = [cell["test"]["accuracy"] for cell in found if not cell["attention"]["lam"]]
    assert f"| softmax | {spread(accuracies, 100)} |" in text
    both = [[cell["test"]["accuracy"] for cell in found if bool(cell["attention"]["lam"]) is learns]
            for learns in (True, False)]  # fmt: skip
    more = difference([a - b for a, b in zip(*both, strict=True)], grain=1 / 20)
    assert f"| {more.text('.1f', 100)} |" in text
    assert "learning rate" not in text
    # the same numbers, to be kept
    record = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert [(one["operator"], one["seed"]) for one in record["runs"]] == [
        (operator, seed) for operator in operators for seed in (0, 1)
    ]
    assert [one["test"]["accuracy"] for one in record["runs"][:2]] == accuracies
    assert record["samples"] == {"train": 30, "valid": 0, "test": 20}
    # column masses before training and after both epochs, of two layers
    drift = record["runs"][0]["drift"]
    assert drift["layers"] == ["blocks.0.attention", "blocks.1.attention"]
    assert np.array(drift["deviation"]).shape == (3, 2)
    assert 0 < np.min(drift["deviation"]) <= np.max(drift["deviation"]) < 2
    for words in (page, text):
        assert "Column masses while training" in words
    assert "drift" in drawn
    ends = [one["drift"]["deviation"][-1][1] for one in record["runs"][:2]]
    assert f"| {spread(ends, form='.3f')} |" in text
    assert record["comparison"]["recipe"]["epochs"] == 2
    assert set(record["times"]["seconds"]) == set(operators)
    assert {"processor", "cores", "versions"} < set(record["machine"])
    assert datetime.fromisoformat(record["date"])


def test_a_device_is_passed_on_and_checked(pictures, tmp_path, monkeypatch):
    words = ("compare", "softmax", "--data", pictures, "--model", MODEL, "--seeds", 1, "--out",
             tmp_path / "out", "--device")  # fmt: skip
    refused = run(*words, "mps")
    assert refused.exit_code == 2
    assert "compare: device must be cpu, cuda or cuda:0, but it is 'mps'" in refused.stderr
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    told = "compare: device must be one of cuda:0 to cuda:1, but it is 'cuda:2'"
    assert told in run(*words, "cuda:2").stderr
    seen = {}
    monkeypatch.setattr("bistoch.lab.compare.run_compare", lambda *_, **named: seen.update(named))
    assert run(*words, "cuda:1").exit_code == 0
    assert seen["device"] == torch.device("cuda:1")
    # and from there on to training and timing
    devices = []

    def train(setup, task, folder, *, ranks, **_):
        devices.append(ranks.device)
        raise DivergedError("seen")

    monkeypatch.setattr(cells, "train_run", train)
    monkeypatch.setattr(
        cells, "new_model", lambda *_: SimpleNamespace(to=lambda device: devices.append(device))
    )
    monkeypatch.setattr(cells, "time_steps", lambda *_, **__: {})
    monkeypatch.setattr("bistoch.lab.compare.run.check_operator", lambda *_: None)
    comparison, task = Comparison(pictures, MODEL, ("softmax",), (0,), RECIPE), open_task(pictures)
    train_all(comparison, task, tmp_path / "out", QUIET, device=seen["device"])
    cells.time_once(comparison, task, tmp_path / "out", seen["device"])
    assert set(devices) == {seen["device"]}
    assert len(devices) == 3


def test_doubtful_times_are_called_so(pictures, tmp_path):
    comparison = Comparison(pictures, MODEL, ("softmax",), (0,), RECIPE)
    task = open_task(pictures)
    times = cells.time_once(comparison, task, tmp_path)
    assert times["others"] is None or 0 <= times["others"] <= 1
    for others, doubtful in ((0.5, True), (0.01, False), (None, False)):
        found = report.Found(comparison, task, [], {**times, "others": others}, "")
        assert ("50% of the cores" in report._caption(found)) == doubtful


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("softmax", "softmax"), "operators must differ, but softmax is there twice"),
        (
            ("elastic(lam=1)", "elastic( lam = 1.0 )"),
            "elastic( lam = 1.0 ) is the same as",
        ),
        (("softmax", "delta"), "sees no other under the causal operator 'delta'"),
        (("softmaxx",), "softmaxx"),
        (("softmax", "--data", "nowhere.npz"), "nowhere.npz does not exist"),
        (("softmax", "--data", "multi30k"), "no model here learns from multi30k"),
        (("softmax", "--model", "lm"), "takes corpus, but fashion-mnist-small is images"),
        (("softmax", "--model", "vit(depth=0)"), "depth"),
    ],
)
def test_a_mistake_is_one_sentence(words, sentence, tmp_path):
    result = run("compare", *words, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_patience_does_not_promise_equal_steps(pictures):
    for recipe, promised in ((Recipe(patience=1), False), (RECIPE, True)):
        comparison = Comparison(pictures, MODEL, ("softmax",), (0,), recipe)
        found = report.Found(comparison, open_task(pictures), [], {}, "")
        assert ("the same number of steps" in report._intro(found)) == promised


def test_scores_fit_a_terminal_of_80_columns(row):
    usual = "elastic(lam=0.5, learn='head')"
    rows = [row("softmax", 0.69, 0.706), row(usual, 0.689, 0.702), row("sinkhorn", 0.699, 0.597)]
    for cell in (cell for one in rows for cell in one.cells):
        cell.result["test"]["loss"], cell.result["parameters"] = 0.9, 72010
    times = {"seconds": {one.operator: 1.0 for one in rows}}
    said = io.StringIO()
    scores = summary.score_table(rows, open_task("shapes"), times)
    report.print_scores(scores, Console(file=said, width=80))
    # neither the usual names nor an interval is broken
    assert f" {usual} " in said.getvalue()
    assert re.search(r"sinkhorn .* \[-[0-9.]+, \+[0-9.]+\] ", said.getvalue())


def test_one_epoch_is_one_tick():
    figure = draw_curves({"softmax": {"loss": np.array([[0.5], [0.6]])}}, {"loss": "loss"})
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [1]
