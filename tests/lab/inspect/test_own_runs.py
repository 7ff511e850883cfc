"""`bistoch inspect` on runs of `bistoch train`, and the head that it opens with."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bistoch.cli import app
from bistoch.lab.inspect import load_subject
from bistoch.lab.inspect.observe import observe
from bistoch.lab.inspect.overloaded import Overloaded
from bistoch.lab.inspect.swap import plan_of, swap_all, swap_heads
from bistoch.lab.train import Recipe, Setup, open_task, train_run

RECIPE = Recipe(epochs=1, batch_size=100)


def run(*words):
    runner = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"})
    return runner.invoke(app, ["inspect", *map(str, words)])


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    rows = [f"{'good' if i % 2 else 'bad'} film number {i} of many,{i % 2}" for i in range(20)]
    (folder / "mine.csv").write_text("\n".join(["text,label", *rows]))
    setup = Setup(str(folder / "mine.csv"), "text(depth=2, dim=8, heads=2)", recipe=RECIPE)
    train_run(setup, open_task(setup.data), folder / "run")
    return folder / "run"


def test_a_run_is_shown_on_its_own_test_samples(texts, tmp_path):
    # the checkpoint names the run as well as its folder
    result = run(texts / "checkpoint.safetensors", "--lam", "1", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "is the most overloaded: " in result.stdout
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["layers"] == ["blocks.0", "blocks.1"]
    assert list(found["influence"]) == ["blocks.0.attention", "blocks.1.attention"]
    assert found["options"]["model: dim"] == 8
    assert found["options"]["operator"] == "softmax()"
    assert torch.tensor(found["swap_each_head"]).shape == (2, 2)
    assert set(found["swap_all"]["1"]) == {"cosine", "lowest", "loss", "accuracy"}
    assert set(found["score"]) == {"loss", "accuracy"}
    assert {"command", "date", "machine"} < set(found)
    first = found["overloaded"][0]
    assert max(first["column_sums_before"]) > max(first["column_sums_after"])
    assert first["column_sums_after"] == pytest.approx([1] * first["queries"], abs=0.01)
    assert sum(first["column_sums_before"]) == pytest.approx(first["queries"], abs=1e-3)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "these are test samples of mine" in page
    assert '<td class="text">8</td>' in page
    assert '<p class="finding">' in page


@pytest.mark.parametrize("operator", ["softmax", "sinkhorn"])
def test_a_layer_without_effect_is_named(tmp_path, operator):
    x, y = np.random.default_rng(0).integers(0, 255, (40, 6, 5), np.uint8), np.arange(40) % 2
    np.savez(tmp_path / "mine.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    # only the mean over patches follows the layer
    model = "vit(patch=(3,5), depth=1, mlp=0, dim=8, heads=2, pool='mean')"
    setup = Setup(str(tmp_path / "mine.npz"), model, operator, RECIPE)
    train_run(setup, open_task(setup.data), tmp_path / "run")
    result = run(tmp_path / "run", "--lam", "1", "--no-each-head", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    printed = " ".join(result.output.split())
    warned = operator == "sinkhorn"
    assert ("Where blocks.0.attention attends changes the result by less" in printed) == warned
    assert ("The columns of blocks.0.attention are balanced" in printed) == warned
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    assert found["balanced"] == ["blocks.0.attention"] * warned


def test_balance_in_a_run_is_that_of_the_operator_and_leaves_no_trace(texts):
    subject = load_subject(str(texts), ["a good film", "a bad one of many"])
    before = plan_of(subject, 1, 0, 1)
    assert before.shape == (5, 5)
    balanced = plan_of(subject, 1, 0, 1, lam=1.0)
    # scores are known up to a number per row, which balance does not feel
    from bistoch import balance

    torch.testing.assert_close(balanced, balance(before.log(), lam=1.0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(swap_heads(subject, 0.0, [2, 2]), torch.ones(2, 2))
    assert swap_all(subject, [1.0])[1.0]["cosine"] < 1
    assert torch.equal(plan_of(subject, 1, 0, 1), before)


def test_a_language_model_is_swapped_causally(tmp_path):
    (tmp_path / "mine.txt").write_text("to be or not to be that is the question " * 30)
    setup = Setup(str(tmp_path / "mine.txt"), "lm(depth=1, dim=8, heads=2)", recipe=RECIPE)
    train_run(setup, open_task(setup.data, length=20), tmp_path / "run")
    result = run(tmp_path / "run", "--text", "to be or not to be that is", "--lam", "1", "--out",
                 tmp_path / "out")  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    assert found["causal"]
    assert "if every query spread evenly over the tokens before it" in result.stdout
    assert found["swap_all"]["1"]["cosine"] < 1


def test_a_forecaster_with_a_learned_matrix_has_one_head(tmp_path):
    rows = torch.randn(120, 3, generator=torch.Generator().manual_seed(0)).cumsum(0).tolist()
    lines = [
        f"2024-01-{1 + i // 24:02} {i % 24:02}:00,{a},{b},{c}" for i, (a, b, c) in enumerate(rows)
    ]
    (tmp_path / "mine.csv").write_text("\n".join(["date,a,b,c", *lines]))
    model = "forecast(lookback=12, horizon=4, dim=8, extend=2, depth=2)"
    setup = Setup(str(tmp_path / "mine.csv"), model, "mixing", RECIPE)
    train_run(setup, open_task(setup.data, model), tmp_path / "run")
    subject = load_subject(str(tmp_path / "run"))
    seen = observe(subject, subject.batches[0])
    assert [tuple(plan.shape) for plan in seen.plans] == [(16, 1, 3, 3)] * 2
    result = run(tmp_path / "run", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    assert torch.tensor(found["entropy"]).shape == (2, 1)
    assert {one["head"] for one in found["overloaded"]} == {0}
    assert "This model was trained with mixing(tokens=3)" in result.stdout
    # a learned matrix attends nowhere else by design
    assert found["influence"] == {}
    assert "attends changes the result by less than" not in " ".join(result.output.split())


def test_points_and_an_operator_of_its_own(tmp_path):
    model = "set_transformer(depth=1, dim=8, heads=2, inducing=3)"
    setup = Setup("shapes", model, "elastic(learn='head')", Recipe(epochs=1, batch_size=500))
    train_run(setup, open_task("shapes"), tmp_path / "run")
    result = run(tmp_path / "run", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "This model was trained with elastic(learn='head'" in result.stdout
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    # pooling has one query, and nothing to balance
    assert found["layers"] == ["blocks.0.collect", "blocks.0.spread"]
    assert found["overloaded"][0]["column_sums_after"] is None
    assert len(found["lam"]["blocks.0.collect.attention.operator"]) == 2
    assert (tmp_path / "out" / "figures" / "lam.png").exists()
    for words, sentence in (
        (("--text", "cat"), "was trained on points, but it is given texts; leave them out"),
        (("--head", "9.9"), "there is no head 9.9"),
    ):
        refused = run(tmp_path / "run", *words, "--out", tmp_path / "no")
        assert refused.exit_code == 2
        assert sentence in refused.stderr
        assert not (tmp_path / "no").exists()


def test_what_balance_reveals_is_said():
    diagonal = 0.1 * torch.full((6, 6), 1 / 6) + 0.9 * torch.roll(torch.eye(6), 1, 1)
    sink = 0.85 * torch.nn.functional.one_hot(torch.zeros(6, dtype=torch.long), 6)
    sink = sink + 0.15 * diagonal
    one = Overloaded(3, 1, 0, "[CLS]", 6, False, sink, diagonal, 1.0)
    assert one.key == 0
    assert one.sentence(most=True) == (
        'Layer 3, head 1 is the most overloaded: the key "[CLS]" collects 5.3 of the 6 units '
        "that 6 queries give out; with lam = 1 in this head no key receives more than 1.0. What "
        "was hidden is a "
        "diagonal: queries give 92 % of their weight to the next token, before 14 %."
    )
    even = one._replace(after=torch.full((6, 6), 1 / 6))
    assert even.revealed == 0
    assert "diagonal" not in even.sentence()
