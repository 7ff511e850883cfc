"""Balanced Monarch matrices: equal to elastic where both are exact, and ever more even columns."""

import inspect
import itertools
import math

import pytest
import torch

import bistoch
from bistoch.functional.monarch.problem import Form, pose_monarch
from bistoch.functional.monarch.reference import column_step, cut, factor, solve
from bistoch.functional.pose import BalanceOptions, ScoreOptions


def tokens(n, m, d=5, batch=(2, 3)):
    q, k = torch.randn(*batch, n, d), torch.randn(*batch, m, d)
    return q.double(), k.double()


def fourier_tokens(n=256, d=32):
    """Queries and keys that like their own position, with noise."""
    generator = torch.Generator().manual_seed(0)
    frequency = 2 * math.pi * torch.arange(1, d // 2 + 1, dtype=torch.float64) / n
    phase = torch.arange(n, dtype=torch.float64)[:, None] * frequency
    noise = torch.randn(2, n, d, generator=generator, dtype=torch.float64)
    query, key = 1.2 * torch.cat([phase.sin(), phase.cos()], -1) + 0.5 * noise
    return query, key + 0.6


@pytest.mark.parametrize("block", [1, 100])
@pytest.mark.parametrize("options", [
    {}, {"lam": 0.4, "iters": 3}, {"lam": 1.0, "omega": 1.3, "iters": 4, "eps": 0.5},
    {"iters": 0}, {"lam": torch.tensor([0.0, 0.5, 1.0])},
], ids=str)  # fmt: skip
def test_it_is_elastic_where_a_monarch_matrix_may_be_anything(block, options):
    q, k = tokens(7, 11)
    shared = {
        "query_mask": torch.arange(7) < torch.tensor([5, 7])[:, None, None],
        "key_mask": torch.rand(2, 1, 11) > 0.3,
        "column_mass": torch.rand(11).double() + 0.5,
    }
    for masks in ({}, shared):
        torch.testing.assert_close(
            bistoch.elastic_monarch_plan(q, k, block=block, **options, **masks),
            bistoch.elastic_plan(q, k, **options, **masks),
        )


def test_without_elasticity_it_is_monarch():
    q, k = tokens(13, 11)
    monarch = bistoch.monarch_plan(q, k, iters=3)
    for same in ({"lam": 0.0}, {"lam": torch.zeros(3)}, {"iters": 0}):
        plan = bistoch.elastic_monarch_plan(q, k, updates=3, **same)
        torch.testing.assert_close(plan, monarch)


@pytest.mark.parametrize(("lam", "omega"), [(1.0, 1.0), (0.4, 1.3)])
def test_it_balances_the_scores_in_monarch_form(lam, omega):
    q, k = tokens(13, 11)
    options = {"lam": lam, "omega": omega, "iters": 7}
    # a softmax hides nothing of its scores but a constant per row
    scores = bistoch.monarch_plan(q, k, iters=1).log()
    torch.testing.assert_close(
        bistoch.elastic_monarch_plan(q, k, updates=1, **options),
        bistoch.balance(scores, backend="reference", **options),
    )


def test_columns_become_even_without_a_matrix():
    # 256 tokens in 16 blocks of 16: uneven columns, between 0.4 and 2.3
    q, k = fourier_tokens()
    free = bistoch.monarch_plan(q, k).sum(0)
    assert free.std().item() == pytest.approx(0.29, abs=0.02)
    plans = {t: bistoch.elastic_monarch_plan(q, k, iters=t) for t in (1, 2, 5, 10, 50)}
    spread = [plan.sum(0).std().item() for plan in plans.values()]
    assert all(later < earlier / 2 for earlier, later in itertools.pairwise(spread))
    # elsewhere, for a loop that takes two updates before every column step: 0.033, 0.011 and 0.0009
    # after 1, 2 and 5 of them, hence after 4, 6 and 12 updates; here there are two in all
    assert spread[1] < 0.033
    assert spread[2] < 0.0015
    assert spread[3] < 5e-5
    assert spread[4] < 1e-12
    for plan in plans.values():
        torch.testing.assert_close(plan.sum(1), torch.ones(256, dtype=torch.float64))
    # the distance to Sinkhorn's plan is that of a Monarch matrix, not that of the balance
    balanced = bistoch.sinkhorn_plan(q, k, iters=100, backend="reference")
    error = (plans[50] - balanced).norm() / balanced.norm()
    assert error.item() == pytest.approx(0.48, abs=0.05)


def test_a_smaller_step_is_slower_and_a_smaller_lam_stays_uneven():
    q, k = fourier_tokens()

    def spread(**options):
        return bistoch.elastic_monarch_plan(q, k, **options).sum(0).std()

    assert spread(iters=5) < spread(iters=5, omega=0.5)
    assert spread(iters=60, omega=0.5) < 1e-6
    uneven = [spread(iters=60, lam=lam) for lam in (0.0, 0.3, 0.6, 0.9)]
    assert uneven == sorted(uneven, reverse=True)
    assert uneven[-1] > 0.01


@pytest.mark.parametrize("lam", [0.3, 1.0])
def test_the_limit_carries_the_certificate_of_elasticity(lam):
    q, k = tokens(12, 15, batch=(2,))
    pairs = ScoreOptions(1.0, None, None, None, None)
    options, form = BalanceOptions(lam, 1.0, 150, None), Form(2, 4)
    problem = pose_monarch("test", q.shape[:1], q, k, None, pairs, options, form).problem
    blocks, balance = cut(problem), problem.balance
    scores, column = solve(blocks, 2)
    # the step is made of true column sums
    sums = bistoch.elastic_monarch_plan(q, k, lam=lam, iters=150, block=4).sum(-2)
    target = balance.log_mass
    potential = column.flatten(1)[:, :15]
    stepped = column_step(blocks, factor(blocks, scores, column), column).flatten(1)[:, :15]
    torch.testing.assert_close(stepped, lam * (potential + target - sums.log()))
    certificate = sums.log() - target + potential * (1 - lam) / lam
    assert certificate.amax(-1).sub(certificate.amin(-1)).max() < 1e-8


def test_column_masses_and_real_tokens_are_counted():
    q, k = tokens(14, 9)
    mass = torch.rand(9).double() + 0.5
    plan = bistoch.elastic_monarch_plan(q, k, iters=100, column_mass=mass)
    torch.testing.assert_close(plan.sum(-2), (14 * mass / mass.sum()).expand(2, 3, 9))
    key_mask, query_mask = torch.arange(9) < 5, torch.arange(14) < 11
    masks = {"key_mask": key_mask, "query_mask": query_mask}
    plan = bistoch.elastic_monarch_plan(q, k, iters=100, block=4, **masks)
    wanted = torch.where(key_mask, 11 / 5, 0.0).double().expand(2, 3, 9)
    torch.testing.assert_close(plan.sum(-2), wanted)
    alone = bistoch.elastic_monarch_plan(q[..., :11, :], k[..., :5, :], iters=100, block=4)
    torch.testing.assert_close(plan[..., :11, :5], alone)


@pytest.mark.parametrize("seed", [3, 11])
def test_sharp_scores_converge_too(seed):
    # where updates and column steps that go on side by side run in circles
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 30, 4, generator=generator, dtype=torch.float64)
    plan = bistoch.elastic_monarch_plan(q, k, scale=2.0, iters=100)
    torch.testing.assert_close(plan.sum(0), torch.ones(30, dtype=torch.float64))
    chasing = bistoch.elastic_monarch_plan(q, k, scale=2.0, iters=100, updates=301)
    assert (chasing.sum(0) - 1).abs().max() > 0.1


def test_large_scores_stay_finite():
    q, k = (x.float().requires_grad_() for x in tokens(13, 11))
    plan = bistoch.elastic_monarch_plan(q, k, scale=1e4)
    assert plan.isfinite().all()
    torch.testing.assert_close(plan.sum(-1), torch.ones(2, 3, 13))
    plan.square().sum().backward()
    assert q.grad.isfinite().all()
    assert k.grad.isfinite().all()


def test_the_gradient_reaches_every_option(monkeypatch):
    monkeypatch.setattr("bistoch.functional._recompute.FEW", 0)
    q, k = (x.requires_grad_() for x in tokens(5, 7, batch=(2,)))
    v = torch.randn(2, 7, 3).double()
    lam, omega = (torch.tensor(x).double().requires_grad_() for x in ([0.3, 0.9], [1.2, 0.7]))
    mass = (torch.rand(7) + 0.5).double().requires_grad_()

    def attend(q, k, lam, omega, mass):
        return bistoch.elastic_monarch_attention(
            q, k, v, lam=lam, omega=omega, column_mass=mass, iters=3
        )

    assert torch.autograd.gradcheck(attend, (q, k, lam, omega, mass), fast_mode=True)


def test_errors_teach():
    q, k = tokens(5, 5)
    plan = inspect.unwrap(bistoch.elastic_monarch_plan)
    with pytest.raises(ValueError, match=r"^elastic_monarch_plan: lam must be in \[0, 1\]"):
        plan(q, k, lam=2.0)
    with pytest.raises(ValueError, match=r"^elastic_monarch_plan: updates must be at least 1"):
        plan(q, k, updates=0)
    with pytest.raises(ValueError, match=r"^elastic_monarch_plan: mask must be the same for all"):
        plan(q, k, mask=torch.ones(5, 5))
