"""Mixing by position: NormLin's rows, its balanced sibling, and weights far from zero."""

import pytest
import torch
from torch.nn.functional import normalize, softplus

import bistoch


def test_rows_are_those_of_normlin():
    x, weight = torch.randn(2, 3, 7, 5, dtype=torch.float64), torch.randn(7, 7, dtype=torch.float64)
    wanted = normalize(softplus(weight), p=1, dim=-1)
    found = bistoch.mixing_plan(x, x, weight=weight)
    assert found.shape == (2, 3, 7, 7)
    torch.testing.assert_close(found, wanted.expand(2, 3, 7, 7))
    torch.testing.assert_close(bistoch.mixing_attention(x, x, x, weight=weight), wanted @ x)


def test_the_balanced_sibling_has_equal_columns():
    x, weight = torch.randn(7, 5, dtype=torch.float64), torch.randn(7, 7, dtype=torch.float64)
    plan = bistoch.mixing_plan(x, x, weight=weight, lam=1.0, iters=200)
    torch.testing.assert_close(plan.sum(0), torch.ones(7, dtype=torch.float64))
    # the same rescaling of rows and columns that Sinkhorn finds
    torch.testing.assert_close(plan, bistoch.balance(softplus(weight).log(), iters=200))


def test_tokens_are_not_looked_at():
    x, y = torch.randn(2, 7, 5).unbind()
    assert torch.equal(bistoch.mixing_plan(x, x), bistoch.mixing_plan(y, 1e30 * y))


def test_the_default_weight_is_what_the_docstring_says():
    x = torch.randn(3, 2, dtype=torch.float64)
    i = torch.arange(1, 4, dtype=torch.float64)
    weight = torch.eye(3, dtype=torch.float64) + 2**0.5 * torch.outer(i, i).cos()
    torch.testing.assert_close(bistoch.mixing_plan(x, x), bistoch.mixing_plan(x, x, weight=weight))
    from bistoch.functional.mixing import _cosines

    noise = _cosines(211, 199, x) - torch.eye(211, 199)
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 1) < 0.02


def test_a_weight_per_head_and_a_shared_one():
    x = torch.randn(2, 3, 7, 5, dtype=torch.float64)
    weight = torch.randn(3, 7, 7, dtype=torch.float64)
    found = bistoch.mixing_attention(x, x, x, weight=weight, lam=0.5)
    for head in range(3):
        mine = x[:, head]
        alone = bistoch.mixing_attention(mine, mine, mine, weight=weight[head], lam=0.5)
        torch.testing.assert_close(found[:, head], alone)


def test_one_plan_serves_the_whole_batch(monkeypatch):
    from bistoch.functional import mixing

    seen = []
    balance = mixing.balance_scores
    monkeypatch.setattr(
        mixing, "balance_scores", lambda name, s, *o: seen.append(s.shape) or balance(name, s, *o)
    )
    x = torch.randn(64, 8, 7, 5)
    bistoch.mixing_attention(x, x, x)
    bistoch.mixing_attention(x, x, x, key_mask=torch.ones(64, 1, 7, dtype=torch.bool))
    assert seen == [(7, 7), (64, 1, 7, 7)]


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_gradient_of_the_weight(lam):
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    weight = (3 * torch.randn(3, 3, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda w: bistoch.mixing_attention(x, x, x, weight=w, lam=lam, iters=3), (weight,)
    )


@pytest.mark.parametrize("level", [-1e4, -200.0, -30.0, 200.0, 1e4])
def test_weights_far_from_zero(level):
    x = torch.randn(5, 4)
    weight = (level + torch.randn(5, 5)).requires_grad_()
    plan = bistoch.mixing_plan(x, x, weight=weight)
    plan.square().sum().backward()
    assert weight.grad.isfinite().all()
    # far below zero softplus is exp, far above it is the identity
    exact = weight.detach().double()
    wanted = exact.softmax(-1) if level < 0 else exact / exact.sum(-1, keepdim=True)
    torch.testing.assert_close(plan.double(), wanted, rtol=1e-3, atol=1e-5)


def test_the_two_forms_of_the_log_meet():
    from bistoch.functional.mixing import STEEP, _log_softplus

    x = torch.tensor([STEEP - 1e-9, STEEP + 1e-9], dtype=torch.float64)
    low, high = _log_softplus(x)
    assert abs(high - low) < 1e-8


def test_a_weight_of_another_size_is_told():
    x = torch.randn(5, 4)
    with pytest.raises(ValueError, match=r"weight must have one row .*\(5, 5\), but .*\(4, 5\)"):
        bistoch.mixing_plan(x, x, weight=torch.randn(4, 5))
    with pytest.raises(TypeError, match="mixing_attention: weight must be a floating-point"):
        bistoch.mixing_attention(x, x, x, weight=torch.ones(5, 5).int())
    with pytest.raises(ValueError, match="mixing_attention: lam must be in"):
        bistoch.mixing_attention(x, x, x, lam=2.0)
