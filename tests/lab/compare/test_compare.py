"""Operators on equal terms: a stopped comparison goes on, a finished one is only read."""

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
    attention,
    cells,
    examples,
    report,
    run_compare,
    summary,
)
from bistoch.lab.compare.draw import draw_clouds, draw_curves
from bistoch.lab.compare.run import train_all
from bistoch.lab.data import Series
from bistoch.lab.stats import difference, spread
from bistoch.lab.train import DivergedError, Recipe, Setup, new_model, open_task
from bistoch.lab.train.sequences import Forecast

QUIET = Console(quiet=True)
MODEL = "vit(patch=(3,5), depth=2, dim=8, heads=2)"
RECIPE = Recipe(epochs=2, batch_size=8, lr=1e-2)

pytestmark = pytest.mark.usefixtures("quick_reports")


def run(*words):
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, [str(w) for w in words])


@pytest.fixture
def pictures(tmp_path):
    generator = np.random.default_rng(0)
    y = np.arange(50) % 2
    x = generator.integers(0, 60, (50, 6, 5), np.uint8)
    x[y == 1, :3] += 180
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:],
             classes=np.array(["<script>alert(1)</script>", "b"]))  # fmt: skip
    return str(path)


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


def test_column_deviations_are_those_of_the_plans(pictures):
    task, found = open_task(pictures), {}
    for operator in ("softmax", "sinkhorn(iters=200)"):
        model = new_model(Setup(pictures, MODEL, operator), task)
        found[operator] = attention.column_deviations(model, task)
    assert list(found["softmax"]) == ["blocks.0.attention", "blocks.1.attention"]
    assert max(found["sinkhorn(iters=200)"].values()) < 1e-4
    assert min(found["softmax"].values()) > 1e-3


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


def test_a_layer_without_effect_is_named(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "attention_influence", lambda model, *inputs: {"blocks.1": 0.0})
    comparison = Comparison(pictures, MODEL, ("sinkhorn",), (0,), Recipe(epochs=1, batch_size=8))
    page = run_compare(comparison, tmp_path / "out", QUIET, command="").read_text(encoding="utf-8")
    assert "sinkhorn: Where blocks.1 attends changes the result by less than 1 %" in page


def test_numbers_of_attention_tell_balance(pictures):
    task = open_task(pictures)
    found = {
        text: attention.measure(new_model(Setup(pictures, MODEL, text), task), task)
        for text in ("softmax(eps=0.1)", "sinkhorn(iters=200)", "elastic(learn='head', lam=0.25)")
    }
    balanced, free, learned = found["sinkhorn(iters=200)"], *(found[k] for k in list(found)[::2])
    assert balanced["peak"] == pytest.approx([1, 1], abs=1e-3)
    assert min(free["peak"]) > 1.001
    # two patches and the class token
    assert balanced["sink"] == pytest.approx([1 / 3] * 2, abs=1e-3)
    assert sum(free["loads"]) == pytest.approx(1)
    assert balanced["loads"][attention.EDGES.index(0.95)] == pytest.approx(1)
    assert learned["lam"] == {f"blocks.{i}.attention.operator": [0.25] * 2 for i in range(2)}
    assert len(free["rank"]) == 3
    # the class token reads one query, and an MLP comes between
    assert list(free["influence"]) == ["blocks.0.attention", "blocks.1.attention"]
    assert min(free["influence"].values()) > 1e-4


def test_what_is_measured_does_not_change_the_model(pictures):
    task = open_task(pictures)
    model = new_model(Setup(pictures, MODEL, "sinkhorn"), task)
    before = model(*task.batch("test", torch.arange(4)).inputs)
    attention.measure(model, task)
    assert torch.equal(before, model(*task.batch("test", torch.arange(4)).inputs))


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


def test_a_model_without_attention_is_refused_before_it_is_trained(tmp_path):
    model = "forecast(lookback=24, horizon=12, dim=8, heads=2, mix=False)"
    rows = np.random.default_rng(0).normal(size=(200, 3)).cumsum(0)
    series = Series("mine", "series", rows, np.arange(200), ("a", "b", "c"), "a", (120, 160, 200))
    comparison = Comparison("illness", model, ("softmax", "mixing"), (0,), RECIPE)
    task = Forecast(series, lookback=24, horizon=12)
    with pytest.raises(ValueError, match="has no attention"):
        train_all(comparison, task, tmp_path / "out", QUIET)
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


def test_clouds_read_to_another_length_are_other_runs(tmp_path):
    setup = Setup("shapes", "set_transformer")
    tasks = [open_task("shapes", length=n) for n in (11, 13, None)]
    assert len({cells.stored_run(tmp_path, setup, task).path for task in tasks}) == 3


def test_clouds_are_coloured_by_what_their_points_receive(tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(30, 11, 3)), np.arange(30) % 2
    np.savez(tmp_path / "mine.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    drawn = []
    monkeypatch.setattr(examples, "draw_clouds", lambda *a: drawn.append(a) or draw_clouds(*a))
    model = "set_transformer(depth=1, dim=8, heads=2, inducing=3)"
    operators = ("softmax", "sinkhorn(iters=50)")
    comparison = Comparison(str(tmp_path / "mine.npz"), model, operators, (0,), Recipe(epochs=1))
    path = run_compare(comparison, tmp_path / "out", QUIET, command="", length=7)
    text = path.read_text(encoding="utf-8")
    assert "receive in the layer blocks.0.collect" in text
    # a block attends twice, so that ranks do not belong to layers: no empty column for them
    assert "effective rank after" not in text
    ((clouds, titles, loads),) = drawn
    assert [cloud.shape for cloud in clouds] == [(7, 3), (7, 3)]
    assert titles == ["0", "1"]
    # a balanced plan gives every point its share, softmax does not
    assert all(np.abs(one - 1).max() < 1e-3 for one in loads["sinkhorn(iters=50)"])
    assert all(np.abs(one - 1).max() > 1e-3 for one in loads["softmax"])
    assert all(one.mean() == pytest.approx(1, abs=1e-5) for one in loads["softmax"])
    record = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert record["length"] == 7
