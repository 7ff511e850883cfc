"""Annealing approaches the exact assignment, the debiased variant with far better columns."""

import torch

import bistoch


def gaps(debias, steps, n=64):
    """Score lost per query against the exact assignment, and the mean column error."""
    q, k = torch.randn(
        2, 5, n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).unbind()
    scores = q @ k.mT / 2
    best = (bistoch.hard_plan(q, k) * scores).sum((-2, -1))
    plan = bistoch.anneal_plan(q, k, iters=steps, debias=debias)
    lost = (best - (plan * scores).sum((-2, -1))) / n
    return lost.mean().item(), (plan.sum(-2) - 1).abs().mean().item()


def test_more_steps_come_closer_to_the_assignment():
    lost = [gaps(debias=True, steps=steps)[0] for steps in (10, 100, 1000)]
    assert lost[0] > 5 * lost[1] > 25 * lost[2]
    assert lost[2] < 0.005


def test_plain_annealing_approaches_too():
    found = [gaps(debias=False, steps=steps) for steps in (10, 100, 1000)]
    assert found[0][0] > found[1][0] > found[2][0] > 0
    assert found[0][1] > found[1][1] > found[2][1]


def test_debiasing_balances_columns_better_and_costs_less():
    plain, debiased = gaps(debias=False, steps=300), gaps(debias=True, steps=300)
    assert debiased[1] < plain[1] / 3
    assert debiased[0] < plain[0]


def test_no_steps_is_softmax():
    q, k = torch.randn(2, 7, 4).unbind()
    torch.testing.assert_close(bistoch.anneal_plan(q, k, iters=0), bistoch.softmax_plan(q, k))
