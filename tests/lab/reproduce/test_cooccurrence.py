"""The study of two words that occur together: samples, the layer, the theorem, and that it runs."""

import json
import math
from pathlib import Path

import pytest
import torch
from rich.console import Console

import bistoch
from bistoch.lab.reproduce import cooccurrence as study
from bistoch.lab.reproduce import cooccurrence_layer as task
from bistoch.lab.study import Results, Row, Settings, read_record, run_study

QUIET = Console(quiet=True)
SIZES = task.Sizes(samples=12, words=16, features=8, hidden=8)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def make(operator, *, every_query=True, **options):
    def plan(query, key):
        return bistoch.OPERATORS[operator].plan(query, key, **options)

    return task.Layer(SIZES, plan, every_query, seeded())


def test_samples_hold_what_their_kind_says():
    drawn = task.draw_samples(600, SIZES, seeded())
    assert torch.bincount(drawn.kind).tolist() == [300, 100, 100, 100]
    counts = [(drawn.words == word).sum(-1) for word in (task.FIRST, task.SECOND, task.COMMON)]
    wanted = [(1, 1, 1), (1, 0, 1), (0, 1, 1), (0, 0, 1)]
    for kind, numbers in enumerate(wanted):
        assert [set(c[drawn.kind == kind].tolist()) for c in counts] == [{x} for x in numbers]
    assert (drawn.label == torch.where(drawn.kind == 0, 1, -1)).all()
    # every place may hold any word
    assert (drawn.words == task.COMMON).any(0).all()


def test_the_layer_is_the_published_formula():
    layer = make("softmax")
    words = task.draw_samples(12, SIZES, seeded(1)).words
    one_hot = torch.eye(SIZES.words, dtype=torch.float64)[words]
    for sample, found in zip(one_hot, layer(words), strict=True):
        x, total = sample.T, 0.0
        for place in range(SIZES.length):
            scores = x.T @ layer.key.T @ layer.query @ x[:, place] / math.sqrt(SIZES.features)
            inner = layer.hidden @ layer.value @ x @ scores.softmax(0)
            total = total + (layer.signs * inner).sum()
        torch.testing.assert_close(found, total)


@pytest.mark.parametrize("every_query", [True, False])
@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_balance_and_a_sum_over_queries_leave_nothing_to_queries_and_keys(lam, every_query):
    layer = make("elastic", every_query=every_query, lam=lam, iters=500)
    # large scores, so that plans are far from uniform
    with torch.no_grad():
        layer.key *= 3
    drawn = task.draw_samples(12, SIZES, seeded(2))
    output = layer(drawn.words)
    slopes = torch.autograd.grad(output.square().sum(), [layer.key, layer.query, layer.value])
    irrelevant = lam == 1 and every_query
    for slope in slopes[:2]:
        assert (slope.abs().max() < 1e-8) == irrelevant
    assert slopes[2].abs().max() > 1e-3
    bag_of_words = layer.read_out()[drawn.words].sum(-1)
    assert torch.allclose(output, bag_of_words, atol=1e-8) == irrelevant


def point(step, *, right=1.0, losses=(1, 1, 1, 1), pulls=(3, 2, 2, 1), change=0.0, **others):
    return {
        "step": step, "right": right, "losses": list(losses), "pulls": list(pulls), "loss": 1.0,
        "change": change, "coefficients": [1, 1, -1, -1], "read": [1, 1, -1.5], **others,
    }  # fmt: skip


def test_what_a_trace_says():
    trace = [
        point(0, right=0.5), point(1), point(2, right=0.9, losses=(1, 2, 2, 1)), point(5),
        point(9, change=0.2),
    ]  # fmt: skip
    result = {"trace": trace}
    assert task.all_right(result) == 5
    assert task.attention_moves(result) == 9
    assert task.hump(result) == pytest.approx(1.0)
    assert task.top(result) == 2
    assert task.one_word(result) == [1, 1, 2, 1, 1]
    assert task.signs_hold(result) == 4
    # 3 - 2 and 2 + 2 + 1 - 3, of 8
    assert task.balance_of_pulls(result) == [(5, 0.0, 1 / 8), (9, 0.0, 1 / 8)]
    assert task.margins_hold(result) == 1.0


def test_what_a_trace_may_fail_to_say():
    trace = [
        point(0, right=0.5, pulls=(1, 2, 2, 1), coefficients=[-1, 1, -1, 1], read=[1, 1, 1]),
    ]  # fmt: skip
    result = {"trace": trace}
    assert task.all_right(result) == math.inf
    assert task.attention_moves(result) == math.inf
    assert task.hump(result) == 0
    assert task.top(result) == 0
    assert task.signs_hold(result) == 2
    assert task.balance_of_pulls(result) == []
    assert task.margins_hold(result) == 0.0


@pytest.mark.parametrize(
    ("pulls", "gap", "margin"),
    [
        ((3, 2, 1, 1), 1.0, 1 / 7),
        # not above the first word alone, the second alone; not below all negative samples
        ((2, 3, 1, 1), 2.0, -1 / 7),
        ((2, 1, 3, 1), 2.0, -1 / 7),
        ((6, 2, 2, 1), 0.0, -1 / 11),
    ],
)
def test_gradients_are_compared_with_both_one_word_kinds(pulls, gap, margin):
    (found,) = task.balance_of_pulls({"trace": [point(0, pulls=pulls)]})
    assert found.gap == pytest.approx(gap)
    assert found.margin == pytest.approx(margin)


def test_checks_can_fail():
    def results(moved):
        base = {"loss": 0.1, "test_loss": 0.1, "test_accuracy": 1.0, "scores": 1.0,
                "other_moved": 0.5, "moved": moved, "trace": [point(0, change=0.2)]}  # fmt: skip
        return Results([Row(c.name, 0, c.options, base) for c in study.cells(False)])

    holds = {v.claim: v.holds for v in study.checks(results(moved=1.0))}
    assert holds["balanced, every query read: attention is never moved (change over score)"] == "no"
    claim = "softmax: all samples are right before attention moves by a tenth (step of either)"
    assert holds[claim] == "no"
    holds = {v.claim: v.holds for v in study.checks(results(moved=0.0))}
    assert holds["balanced, one query read: attention is moved (change over score)"] == "no"


def verdicts(trace, *, name=study.SOFTMAX):
    """Verdicts by their first words, from one cell with this trace."""
    base = {"loss": 0.1, "test_loss": 0.1, "test_accuracy": 1.0, "scores": 1.0,
            "other_moved": 0.1, "moved": 1.0, "trace": trace}  # fmt: skip
    cells = {cell.name: cell for cell in study.cells(False)}
    found = study.checks(Results([Row(name, 0, cells[name].options, base)]))
    return {verdict.claim.split(" (")[0]: verdict for verdict in found}


ORDER = (
    "softmax: after the first phase, gradients of positive samples exceed those of either one-word "
    "kind, and not those of all negative ones"
)
GAP = (
    "softmax: after the first phase, gradients of the two one-word kinds differ by less than a "
    "tenth"
)


@pytest.mark.parametrize(
    ("pulls", "order", "gap"),
    [
        ((3, 2, 2, 1), "yes", "yes"),
        ((3, 2.5, 2, 1), "yes", "no"),
        # the second word alone pulls harder than positive samples
        ((3, 1, 3.5, 1), "no", "no"),
        ((3, 1, 1, 0.5), "no", "yes"),
    ],
)
def test_one_unbalanced_point_after_the_first_phase_is_enough(pulls, order, gap):
    # what comes before the first phase ends does not count
    trace = [point(0, right=0.5, pulls=(1, 9, 2, 1)), point(3, pulls=pulls), point(9)]
    found = verdicts(trace)
    assert (found[ORDER].holds, found[GAP].holds) == (order, gap)
    assert found[ORDER].measured.endswith(", 0.125")
    assert found[GAP].measured.endswith(", 0.00")


def test_what_is_not_reached_is_called_so():
    claim = "softmax: all samples are right before attention moves by a tenth"
    found = verdicts([point(0, right=0.5), point(3), point(9)])[claim]
    assert found[1:] == ("3, not reached", "yes")
    found = verdicts([point(0, right=0.5), point(3, right=0.9, change=0.2)])
    assert found[claim][1:] == ("not reached, 3", "no")
    assert found[ORDER][1:] == found[GAP][1:] == ("not reached", "no")
    found = verdicts([point(0, right=0.5)])[claim]
    assert found[1:] == ("not reached, not reached", "no")


@pytest.mark.parametrize(
    ("losses", "measured", "published", "slow"),
    [
        ((2, 3, 4, 1), "100% at step 2", "yes", "yes"),
        # one step that overshoots is no slow rise
        ((2, 3, 1, 1), "50% at step 1", "yes", "no"),
        ((2, 1, 1, 1), "0%", "no", "no"),
    ],
)
def test_a_slow_rise_takes_more_than_a_step(losses, measured, published, slow):
    trace = [point(n, losses=(1, loss, loss, 1)) for n, loss in enumerate(losses)]
    claim = "softmax: the loss of one-word samples first rises"
    assert verdicts(trace)[claim][1:] == (measured, published)
    claim = f"{study.SLOW}: the loss of one-word samples first rises, for several steps"
    assert verdicts(trace, name=study.SLOW)[claim][1:] == (measured, slow)


def test_a_cell_that_is_missing_proves_nothing():
    found = verdicts([point(0)], name=study.SLOW)
    assert found[ORDER][1:] == found[GAP][1:] == ("not measured", "inconclusive")


def test_the_slow_cell_changes_rate_and_steps_and_no_other_cell():
    full = {cell.name: study.sizes_of(cell, study.FULL) for cell in study.cells(False)}
    slow = full.pop(study.SLOW)
    assert set(full.values()) == {study.FULL}
    assert (slow.rate, slow.steps) == (0.001, 2000)
    smoke = {study.sizes_of(cell, study.SMOKE).steps for cell in study.cells(True)}
    assert smoke == {study.SMOKE.steps}


def test_the_record_has_the_verdicts_and_cells_of_the_study():
    path = Path(__file__).parents[3] / "benchmarks" / "lab" / "cooccurrence.json"
    record, results = json.loads(path.read_text(encoding="utf-8")), read_record(path)
    assert results.names == [cell.name for cell in study.cells(False)]
    for cell in study.cells(False):
        assert results.options(cell.name) == cell.options
    assert record["verdicts"] == [verdict._asdict() for verdict in study.checks(results)]
    rates = study.tables(results)[1].rows
    assert [(line[0], line[1]) for line in rates] == [
        (rate, seed) for rate in ("0.01", "0.001") for seed in "012"
    ]


def test_it_runs_and_resumes(tmp_path, monkeypatch):
    settings = Settings(out=tmp_path, seeds=(0,), smoke=True)
    text = run_study(study.STUDY, settings, QUIET).read_text(encoding="utf-8")
    assert "smoke run" in text
    assert "data:image/png;base64," in text
    results = read_record(tmp_path / "cooccurrence" / "report.json")
    assert results.names == [cell.name for cell in study.cells(True)]

    def fail(*args, **kwargs):
        raise RuntimeError("trained again")

    monkeypatch.setattr(study, "Layer", fail)
    run_study(study.STUDY, settings, QUIET)
