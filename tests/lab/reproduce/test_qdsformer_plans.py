"""Measures of plans: known answers, and that the verdicts on them can fail."""

import math

import pytest
import torch

import bistoch
from bistoch.lab.reproduce import qdsformer_plans as plans
from bistoch.lab.study import Results, Row


def generator():
    return torch.Generator().manual_seed(0)


def test_the_grid_has_every_input_once():
    grid = plans.grid_of(5, generator())
    assert grid.shape == (243, 4, 4)
    assert len(grid.flatten(1).unique(dim=0)) == 243
    assert not grid.flatten(1)[:, 5:].diff(dim=0).any()


def test_pairs_are_of_different_places():
    one, other = plans.pairs_of(3, generator())
    assert (one != other).all()
    assert set(one.tolist()) == set(other.tolist()) == {0, 1, 2}


def test_diversity_of_permutations():
    one = torch.eye(3, dtype=torch.float64)
    found = plans.diversity(torch.stack([one, one.flip(0)]), plans.pairs_of(2, generator()))
    # four entries differ by one; the middle of both is the same
    assert found["apart"] == pytest.approx(2.0)
    assert (found["distinct"], found["entropy"]) == (1.0, 0.0)
    assert found["outside"] == pytest.approx(0, abs=1e-6)
    even = torch.full((4, 3, 3), 1 / 3, dtype=torch.float64)
    found = plans.diversity(even, plans.pairs_of(4, generator()))
    assert (found["distinct"], found["apart"]) == (0.25, 0.0)
    assert found["entropy"] == pytest.approx(1.0)


def test_information_is_all_there_or_gone():
    scores = torch.randn(40, 3, 3, dtype=torch.float64, generator=generator())
    classes = torch.arange(40) % 2
    # two classes far apart, and plans that are the scores; then plans that know nothing
    scores += 100.0 * classes[:, None, None]
    pairs = plans.pairs_of(40, generator())
    kept = plans.information(scores, scores, classes, pairs)
    assert kept["order"] == pytest.approx(1.0)
    assert kept["nearest"] == 1.0
    noise = torch.rand(40, 3, 3, dtype=torch.float64, generator=generator())
    lost = plans.information(scores, noise, classes, pairs)
    assert abs(lost["order"]) < 0.1
    assert lost["nearest"] < 0.8


def test_scores_are_those_that_the_layers_used():
    model = bistoch.models.build_model(
        "vit(dim=8, depth=2, heads=1, patch=(4, 4))", "softmax", classes=3, image=(8, 8), channels=1
    )
    x = torch.randn(5, 8, 8)
    scores, own = plans.scores_of(model, (x,))
    assert scores.shape[:2] == (2, 5)
    torch.testing.assert_close(own, scores.softmax(-1))
    with bistoch.analysis.capture(model, problems=None) as found, torch.no_grad():
        model(x)
    for layer, score in zip(found.plans, scores, strict=True):
        torch.testing.assert_close(layer.plan[:, 0], score.softmax(-1).float())


@pytest.mark.parametrize("distinct", [1.0, 0.9])
def test_verdicts_follow_the_numbers(distinct):
    def row(operator, seed):
        ours = operator == plans.CIRCUIT
        grid = {"distinct": distinct if ours else 0.5 + seed / 1000, "apart": 1.0}
        names = ("distinct", "apart", "entropy", "outside", "order", "nearest")
        trained = dict.fromkeys(names, (2.0 if ours else 1.0) + seed / 1000)
        result = {"grid": grid, "trained": trained}
        return Row(plans.plans_of(operator), seed, {}, result)

    results = Results([row(operator, seed) for operator in plans.COMPARED for seed in range(3)])
    every, more, collide, *others = plans.plan_checks(results)
    assert every.holds == ("yes" if distinct == 1 else "no")
    assert (more.holds, collide.holds) == ("yes", "inconclusive")
    known = [verdict.holds for verdict in others if verdict.claim.startswith("softmax scores")]
    assert known == ["yes"] * 6
    # models of their own were not trained
    assert {v.measured for v in others if v.claim.startswith("own scores")} == {"not measured"}
    table, own = plans.plan_tables(results)
    assert (len(table.rows), own.rows) == (len(plans.COMPARED), [])
    assert plans.plan_tables(Results([])) == plans.plan_checks(Results([])) == []


def test_plans_of_scores_that_are_there():
    scores = torch.tensor([[[0.0, math.log(3)], [0.0, 0.0]]], dtype=torch.float64)
    wanted = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]], dtype=torch.float64)
    torch.testing.assert_close(plans.make_plans("softmax", scores), wanted)
