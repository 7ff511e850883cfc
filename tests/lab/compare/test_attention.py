"""What a comparison measures of attention, and how it shows it."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

from bistoch.lab.compare import (
    Comparison,
    attention,
    examples,
    run_compare,
)
from bistoch.lab.compare.draw import draw_clouds, draw_curves
from bistoch.lab.compare.run import train_all
from bistoch.lab.compare.summary import Row, drift_panels
from bistoch.lab.data import Series
from bistoch.lab.train import Recipe, Setup, new_model, open_task
from bistoch.lab.train.sequences import Forecast

QUIET = Console(quiet=True)
MODEL = "vit(patch=(3,5), depth=2, dim=8, heads=2)"
RECIPE = Recipe(epochs=2, batch_size=8, lr=1e-2)

pytestmark = pytest.mark.usefixtures("quick_reports")


def test_column_deviations_are_those_of_the_plans(pictures):
    task, found = open_task(pictures), {}
    for operator in ("softmax", "sinkhorn(iters=200)"):
        model = new_model(Setup(pictures, MODEL, operator), task)
        found[operator] = attention.column_deviations(model, task)
    assert list(found["softmax"]) == ["blocks.0.attention", "blocks.1.attention"]
    assert max(found["sinkhorn(iters=200)"].values()) < 1e-4
    assert min(found["softmax"].values()) > 1e-3


def test_a_layer_without_effect_is_named(pictures, tmp_path):
    # only the mean over patches follows the layer: balance makes it useless, other plans do not
    model = "vit(patch=(3,5), depth=1, mlp=0, dim=8, heads=2, pool='mean')"
    operators = ("softmax", "sinkhorn", "mixing")
    comparison = Comparison(pictures, model, operators, (0,), Recipe(epochs=1, batch_size=8))
    page = run_compare(comparison, tmp_path / "out", QUIET, command="").read_text(encoding="utf-8")
    assert page.count("attends changes the result by less than 0.1 %") == 1
    assert "sinkhorn: Where blocks.0.attention attends changes the result" in page
    assert page.count("Put an MLP, a maximum or a class token between") == 1


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
    assert balanced["balanced"] == ["blocks.0.attention", "blocks.1.attention"]
    assert free["balanced"] == []


def test_what_is_measured_does_not_change_the_model(pictures):
    task = open_task(pictures)
    model = new_model(Setup(pictures, MODEL, "sinkhorn"), task)
    before = model(*task.batch("test", torch.arange(4)).inputs)
    attention.measure(model, task)
    assert torch.equal(before, model(*task.batch("test", torch.arange(4)).inputs))


def test_a_model_without_attention_is_refused_before_it_is_trained(tmp_path):
    model = "forecast(lookback=24, horizon=12, dim=8, heads=2, mix=False)"
    rows = np.random.default_rng(0).normal(size=(200, 3)).cumsum(0)
    series = Series("mine", "series", rows, np.arange(200), ("a", "b", "c"), "a", (120, 160, 200))
    comparison = Comparison("illness", model, ("softmax", "mixing"), (0,), RECIPE)
    task = Forecast(series, lookback=24, horizon=12)
    with pytest.raises(ValueError, match="has no attention"):
        train_all(comparison, task, tmp_path / "out", QUIET)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def series(tmp_path):
    """A file of three columns of 120 hours."""
    rows = np.random.default_rng(0).normal(size=(120, 3)).cumsum(0)
    hours = np.datetime64("2024-01-01T00") + np.arange(120)
    lines = [f"{hour},{a:.3f},{b:.3f},{c:.3f}" for hour, (a, b, c) in zip(hours, rows, strict=True)]
    (tmp_path / "mine.csv").write_text("\n".join(["date,a,b,c", *lines]))
    return str(tmp_path / "mine.csv")


FORECAST = "forecast(lookback=12, horizon=4, dim=8, heads=4, extend=2, depth=1)"


def test_operators_with_other_numbers_of_heads_are_compared(series, tmp_path):
    comparison = Comparison(series, FORECAST, ("softmax", "mixing"), (0,), Recipe(epochs=1))
    page = run_compare(comparison, tmp_path / "out", QUIET, command="").read_text(encoding="utf-8")
    assert "of layer 1, the one in which a key is fullest with softmax" in page
    assert "times its share. mixing has one head there, which is shown." in page
    # a learned matrix attends nowhere else by design, and softmax has learned next to nothing yet
    assert "attends changes the result by less than" not in page


def test_every_operator_shows_a_head_that_it_has(row):
    even, full = torch.full((3, 3), 1 / 3), torch.eye(3)[[0, 0, 0]]
    plans = {
        "softmax": [torch.stack([even, even, full, even])],
        "alike": [torch.stack([full, even, even, even])],
        "two": [torch.stack([even, full])],
        "one": [even[None]],
    }
    example = examples._fullest_head(plans, [], [row(name, 0.5) for name in plans], "")
    assert "head 2 of layer 1, the one in which a key is fullest with softmax, 3.0" in (
        example.caption
    )
    assert "two has 2 heads there; shown is its fullest, head 1." in example.caption
    assert "one has one head there, which is shown." in example.caption
    assert "alike" not in example.caption
    (shown,) = example.draw.args
    assert [bool((plan == full).all()) for plan in shown.values()] == [True, False, True, False]


def test_a_mixer_without_heads_has_one(series):
    task = open_task(series, FORECAST)
    model = new_model(Setup(series, FORECAST, "mixing"), task)
    captured = attention.capture_samples(model, task, range(5))
    assert [[tuple(plan.shape) for plan in plans] for plans in captured.plans] == [[(1, 3, 3)]] * 5


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


def test_the_drift_of_one_layer_is_drawn_once():
    one, two = (
        Row("softmax", [SimpleNamespace(result={"drift": {"deviation": [[0.1] * n] * 3}})], [])
        for n in (1, 2)
    )
    assert list(drift_panels([one])) == ["deviation"]
    assert len(drift_panels([two])) == len(drift_panels([one, two])) == 3


def test_operators_that_share_a_colour_differ_in_their_lines():
    names = ["softmax", *"abcdefg"]
    figure = draw_curves({name: {"loss": np.ones((2, 3))} for name in names}, {"loss": "loss"})
    lines = figure.axes[0].get_lines()
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(names)
