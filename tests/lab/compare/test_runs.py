"""The runs of a comparison: finished ones are only read, missing and changed ones are trained."""

import io
import re

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from bistoch.cli import app
from bistoch.lab.compare import (
    Comparison,
    cells,
    run_compare,
    summary,
)
from bistoch.lab.compare.run import train_all
from bistoch.lab.train import Recipe, Setup, open_task

QUIET = Console(quiet=True)
MODEL = "vit(patch=(3,5), depth=2, dim=8, heads=2)"
RECIPE = Recipe(epochs=2, batch_size=8, lr=1e-2)

pytestmark = pytest.mark.usefixtures("quick_reports")


def run(*words):
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, [str(w) for w in words])


def test_finished_cells_are_not_trained_again_and_missing_ones_are(pictures, tmp_path, monkeypatch):
    comparison = Comparison(pictures, MODEL, ("softmax", "sinkhorn"), (0,), RECIPE)
    task = open_task(pictures)

    def all_of(what):
        return list(cells.run_all(what, task, tmp_path, tensorboard=False, on_step=None))

    first, times = all_of(comparison), cells.time_once(comparison, task, tmp_path)

    def fail(*args, **kwargs):
        raise RuntimeError("trained again")

    monkeypatch.setattr(cells, "train_run", fail)
    monkeypatch.setattr(cells, "time_steps", fail)
    assert [cell._replace(kept=False) for cell in all_of(comparison)] == first
    assert cells.time_once(comparison, task, tmp_path) == times
    assert times["seconds"].keys() == {"softmax", "sinkhorn"}
    # one more seed, another recipe, other data: each is another run
    for other in (
        Comparison(pictures, MODEL, ("softmax", "sinkhorn"), (0, 1), RECIPE),
        Comparison(pictures, MODEL, ("softmax",), (0,), Recipe(epochs=3, batch_size=8, lr=1e-2)),
    ):
        with pytest.raises(RuntimeError, match="trained again"):
            all_of(other)


def test_an_interrupted_comparison_goes_on(pictures, tmp_path):
    comparison = Comparison(pictures, MODEL, ("softmax", "sinkhorn"), (0,), RECIPE)
    task, seen = open_task(pictures), []

    def stop(setup, moment):
        if setup.operator == "sinkhorn" and moment.step == 6:
            raise KeyboardInterrupt

    def watch(setup, moment):
        seen.append((setup.operator, moment.step))

    with pytest.raises(KeyboardInterrupt):
        list(cells.run_all(comparison, task, tmp_path / "a", tensorboard=False, on_step=stop))
    rest = list(cells.run_all(comparison, task, tmp_path / "a", tensorboard=False, on_step=watch))
    # from the checkpoint after the first epoch on
    assert seen == [("sinkhorn", step) for step in (5, 6, 7, 8)]
    whole = list(cells.run_all(comparison, task, tmp_path / "b", tensorboard=False, on_step=None))
    for one, other in zip(rest, whole, strict=True):
        assert one.result["test"] == other.result["test"]
        assert one.result["curve"] == other.result["curve"]
        assert one.result["attention"] == other.result["attention"]


def test_rates_are_chosen_by_held_out_samples_only(pictures, tmp_path):
    rates = (1e-6, 1e-2)
    comparison = Comparison(pictures, MODEL, ("softmax",), (0, 1), RECIPE, rates)
    assert comparison.needs_validation
    task = open_task(pictures, hold_out=comparison.needs_validation)
    assert task.count("valid") == 3
    done = list(cells.run_all(comparison, task, tmp_path, tensorboard=False, on_step=None))
    assert [(c.setup.seed, c.setup.recipe.lr) for c in done[:2]] == [(0, 1e-6), (0, 1e-2)]
    best = max(done[:2], key=lambda cell: cell.result["chosen"]["accuracy"]).setup.recipe.lr
    assert [(c.setup.seed, c.setup.recipe.lr) for c in done[2:]] == [(0, best), (1, best)]
    # the chosen run of the first seed is read, not trained again
    assert len(list(tmp_path.rglob("*-seed-*.json"))) == 3
    (row,) = summary.rows_of(comparison, done)
    assert [cell.setup.recipe.lr for cell in row.cells] == [best, best]
    assert done[0].result["validation_split"] == "valid"


def test_a_run_that_diverges_is_told_and_the_others_go_on(pictures, tmp_path):
    recipe = Recipe(epochs=1, batch_size=8, lr=1e30, optimizer="sgd", clip=None, warmup=0.0)
    comparison = Comparison(pictures, MODEL, ("softmax",), (0,), recipe)
    page = run_compare(comparison, tmp_path / "out", QUIET, command="").read_text(encoding="utf-8")
    assert "none (1 diverged)" in page
    assert "1 operator</h1>" in page
    assert "lower the learning rate" in page


def test_progress_names_runs_and_scores_once(pictures, tmp_path):
    comparison = Comparison(pictures, MODEL, ("softmax",), (0,), RECIPE, (1e-6, 1e-2))
    printed, task = io.StringIO(), open_task(pictures, hold_out=True)
    train_all(comparison, task, tmp_path, Console(file=printed, width=120))
    # the chosen learning rate comes again, and is not printed again
    lines = printed.getvalue().splitlines()
    assert len(lines) == comparison.run_count == 2
    line = r"{}/2 softmax, seed 0, lr {}: test accuracy [0-9.]+ %"
    assert re.fullmatch(line.format(1, "1e-06") + r" \(\d+ s left\)", lines[0])
    assert re.fullmatch(line.format(2, "0.01"), lines[1])


def test_texts_read_to_another_length_are_other_runs(tmp_path):
    path = tmp_path / "mine.csv"
    rows = [f"{'good' if i % 2 else 'bad'} film number {i},{i % 2}" for i in range(20)]
    path.write_text("\n".join(["text,label", *rows]))
    setup = Setup(str(path), "text_small")
    tasks = [open_task(str(path), length=n) for n in (2, 3, None)]
    assert len({cells.stored_run(tmp_path, setup, task).path for task in tasks}) == 3


def test_data_of_ones_own_that_changed_are_other_runs(pictures, tmp_path):
    setup, task = Setup(pictures, MODEL), open_task(pictures)
    before = cells.stored_run(tmp_path, setup, task).path
    assert cells.stored_run(tmp_path, setup, open_task(pictures)).path == before
    with np.load(pictures) as held:
        arrays = dict(held)
    arrays["y_train"][0] = 1 - arrays["y_train"][0]
    np.savez(pictures, **arrays)
    assert cells.stored_run(tmp_path, setup, open_task(pictures)).path != before


def test_clouds_read_to_another_length_are_other_runs(tmp_path):
    setup = Setup("shapes", "set_transformer")
    tasks = [open_task("shapes", length=n) for n in (11, 13, None)]
    assert len({cells.stored_run(tmp_path, setup, task).path for task in tasks}) == 3
