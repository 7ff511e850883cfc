"""Rank metrics: known answers, bounds, and the two exact statements about balanced plans."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bistoch
from bistoch.analysis import metrics

calm = settings(deadline=None, max_examples=60)


def balanced(n, sharpness=2.0, batch=()):
    scores = sharpness * torch.randn(*batch, n, n, dtype=torch.float64)
    return bistoch.balance(scores, iters=5000, tol=1e-13)


def test_a_doubly_stochastic_plan_keeps_the_mean_token():
    plan, x = balanced(11, batch=(5,)), torch.randn(5, 11, 3, dtype=torch.float64)
    torch.testing.assert_close((plan @ x).mean(-2), x.mean(-2))
    softmax = torch.randn(5, 11, 11, dtype=torch.float64).mul(2).softmax(-1)
    assert ((softmax @ x).mean(-2) - x.mean(-2)).abs().max() > 0.05


def test_a_doubly_stochastic_plan_contracts_differences_by_at_most_sigma_2():
    plan, x = balanced(11, batch=(200,)), torch.randn(200, 11, 3, dtype=torch.float64)
    sigma = metrics.second_singular_value(plan)
    assert (metrics.contraction(x, plan @ x) <= sigma * (1 + 1e-12)).all()
    # and no smaller number would do: the second singular vector loses exactly that
    worst = torch.linalg.svd(plan).Vh[:, 1, :, None]
    torch.testing.assert_close(metrics.contraction(worst, plan @ worst), sigma)
    torch.testing.assert_close(metrics.worst_contraction(plan), sigma)


def test_any_plan_contracts_differences_by_at_most_its_worst_contraction():
    plan = torch.randn(200, 11, 7, dtype=torch.float64).mul(3).softmax(-1)
    x = torch.randn(200, 7, 3, dtype=torch.float64)
    worst = metrics.worst_contraction(plan)
    assert (metrics.contraction(x, plan @ x) <= worst * (1 + 1e-12)).all()
    centred = plan - plan.mean(-2, keepdim=True)
    direction = torch.linalg.svd(centred).Vh[:, 0, :, None]
    torch.testing.assert_close(metrics.contraction(direction, plan @ direction), worst)
    # for softmax, sigma_2 promises too much
    assert (worst > 1.05 * metrics.second_singular_value(plan)).any()


def test_rank_one_and_orthogonal_states():
    same = torch.ones(7, 1, dtype=torch.float64) * torch.randn(5, dtype=torch.float64)
    for norm in ("frobenius", "composite"):
        assert metrics.rank_one_residual(same, norm=norm) == pytest.approx(0, abs=1e-12)
        centred = torch.cat([same, -same])
        assert metrics.rank_one_residual(centred, norm=norm) == pytest.approx(1)
    assert metrics.effective_rank(same) == pytest.approx(1)
    assert metrics.stable_rank(same) == pytest.approx(1)
    assert metrics.mean_cosine(same) == pytest.approx(1)
    simplex = torch.eye(7, dtype=torch.float64) - 1 / 7
    assert metrics.mean_cosine(simplex) == pytest.approx(-1 / 6)
    assert metrics.mean_cosine(torch.eye(7)) == pytest.approx(0, abs=1e-6)
    assert metrics.effective_rank(simplex) == pytest.approx(6)
    assert metrics.stable_rank(simplex) == pytest.approx(6)


def test_the_composite_norm_is_that_of_the_operator_norms():
    x = torch.randn(7, 5, dtype=torch.float64)
    residual = x - x.mean(0)

    def size(y):
        return (torch.linalg.matrix_norm(y, 1) * torch.linalg.matrix_norm(y, torch.inf)).sqrt()

    found = metrics.rank_one_residual(x, norm="composite")
    torch.testing.assert_close(found, size(residual) / size(x))


def test_mean_cosine_is_its_definition():
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    unit = torch.nn.functional.normalize(x, dim=-1)
    cosines = (unit @ unit.mT).masked_fill(torch.eye(7).bool(), 0)
    torch.testing.assert_close(metrics.mean_cosine(x), cosines.sum((-2, -1)) / 42)


@calm
@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 2**31), st.sampled_from([0.5, 1.0]))
def test_bounds_and_padding(n, d, seed, share):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    real = torch.rand(n, generator=generator) < share
    slack = 1e-9
    count = int(real.sum())
    for metric, low, high in [
        (metrics.rank_one_residual, 0, 1),
        (lambda x, **k: metrics.rank_one_residual(x, norm="composite", **k), 0, 2),
        (metrics.effective_rank, min(1, count), min(count, d)),
        (metrics.stable_rank, min(1, count), min(count, d)),
        (metrics.mean_cosine, -1 / max(count - 1, 1), 1),
    ]:
        found = metric(x, token_mask=real)
        assert low - slack <= found <= high + slack
        torch.testing.assert_close(found, metric(x[real]))
    y = torch.randn(n, d, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(
        metrics.contraction(x, y, token_mask=real), metrics.contraction(x[real], y[real])
    )


def test_nothing_is_nan_for_states_that_are_zero_or_empty():
    for x in (torch.zeros(5, 3), torch.zeros(0, 3), torch.zeros(5, 0), torch.zeros(0, 5, 3)):
        for metric in (
            metrics.rank_one_residual, metrics.effective_rank, metrics.stable_rank,
            metrics.mean_cosine,
        ):  # fmt: skip
            assert (metric(x) == 0).all()
        assert (metrics.rank_one_residual(x, norm="composite") == 0).all()
        assert (metrics.contraction(x, x) == 0).all()


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_units_do_not_count(size):
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    for metric in (
        metrics.rank_one_residual, metrics.effective_rank, metrics.stable_rank,
        metrics.mean_cosine, lambda x: metrics.rank_one_residual(x, norm="composite"),
        lambda x: metrics.contraction(x, x / 2),
    ):  # fmt: skip
        torch.testing.assert_close(metric(size * x), metric(x))


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match="norm must be one of 'frobenius', 'composite'"):
        metrics.rank_one_residual(torch.ones(3, 2), norm="spectral")
