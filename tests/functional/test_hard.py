"""The exact assignment: what is special about it beyond the laws."""

import itertools

import pytest
import torch
from scipy.optimize import linear_sum_assignment

import bistoch


def test_square_plan_is_the_best_permutation():
    q, k = torch.randn(2, 6, 3, dtype=torch.float64).unbind()
    scores = q @ k.T
    best = max(
        scores[range(6), order].sum() for order in map(list, itertools.permutations(range(6)))
    )
    plan = bistoch.hard_plan(q, k)
    torch.testing.assert_close((plan * scores).sum(), best)
    assert torch.equal(plan.sum(-2), torch.ones(6, dtype=plan.dtype))


def test_fewer_queries_than_keys_is_scipys_rectangular_assignment():
    q, k = torch.randn(5, 3), torch.randn(9, 3)
    _, columns = linear_sum_assignment((q @ k.T).numpy(), maximize=True)
    assert bistoch.hard_plan(q, k).argmax(-1).tolist() == columns.tolist()


def test_more_queries_than_keys_share_keys_evenly():
    plan = bistoch.hard_plan(torch.randn(4, 7, 3), torch.randn(4, 3, 3))
    assert torch.equal(plan.sum(-1), torch.ones(4, 7))
    # ceil(7 / 3) queries at most
    assert plan.sum(-2).max() == 3


def test_padding_is_left_out_of_the_count():
    q, k = torch.randn(8, 3), torch.randn(8, 3)
    key_mask = torch.arange(8) < 4
    query_mask = torch.arange(8) < 4
    plan = bistoch.hard_plan(q, k, query_mask=query_mask, key_mask=key_mask)
    assert torch.equal(plan[:4, :4], bistoch.hard_plan(q[:4], k[:4]))
    assert not plan[4:].any()
    assert not plan[:, 4:].any()


# a mask of keys for all queries is meant here, not half a padding mask
@pytest.mark.filterwarnings("ignore:.*without query_mask:bistoch.PaddingWarning")
def test_a_mask_without_even_assignment_overloads_as_little_as_possible():
    only_two_keys = torch.tensor([True, True, False, False, False, False])
    mask = only_two_keys.expand(6, 6)
    plan = bistoch.hard_plan(torch.randn(6, 3), torch.randn(6, 3), mask=mask)
    assert torch.equal(plan.sum(-1), torch.ones(6))
    assert plan.sum(-2).tolist() == [3, 3, 0, 0, 0, 0]
    # all but one query may see everything, and one key is the only one that three of them may see
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[:3, 1:] = False
    plan = bistoch.hard_plan(torch.randn(6, 3), torch.randn(6, 3), mask=mask)
    assert torch.equal(plan[:3, 0], torch.ones(3))
    assert plan.sum(-2).max() == 3


def test_a_bias_takes_part():
    bias = torch.zeros(3, 3)
    bias[0, 2] = bias[1, 1] = bias[2, 0] = 100
    assert bistoch.hard_plan(torch.randn(3, 2), torch.randn(3, 2), mask=bias).argmax(
        -1
    ).tolist() == [2, 1, 0]


@pytest.mark.parametrize("straight_through", [False, True])
def test_straight_through_has_the_gradient_of_sinkhorn(straight_through):
    q, k, v = (torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    weights = torch.randn(2, 5, 3, dtype=torch.float64)
    hard = bistoch.hard_attention(q, k, v, straight_through=straight_through, eps=0.7, iters=4)
    assert torch.equal(hard.detach(), bistoch.hard_attention(q, k, v).detach())
    grads = torch.autograd.grad((hard * weights).sum(), (q, k, v), allow_unused=True)
    torch.testing.assert_close(grads[2], bistoch.hard_plan(q, k).mT @ weights)
    if straight_through:
        soft = bistoch.sinkhorn_attention(q, k, v.detach(), eps=0.7, iters=4)
        torch.testing.assert_close(grads[:2], torch.autograd.grad((soft * weights).sum(), (q, k)))
        plan = bistoch.hard_plan(q, k, straight_through=True, eps=0.7, iters=4)
        soft_plan = bistoch.sinkhorn_plan(q, k, eps=0.7, iters=4)
        torch.testing.assert_close(
            torch.autograd.grad(plan.square().sum(), q),
            torch.autograd.grad((2 * plan.detach() * soft_plan).sum(), q),
        )
    else:
        assert grads[:2] == (None, None)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_straight_through_leaves_padded_rows_alone(number):
    q, k, v = torch.randn(3, 2, 5, 3).unbind()
    v[0, 1, 2] = number
    real = torch.arange(5) < 4
    found = bistoch.hard_attention(q, k, v, query_mask=real, key_mask=real, straight_through=True)
    assert found[0, real].isnan().any(-1).all()
    assert not found[:, ~real].any()
    assert found[1].isfinite().all()


def test_sinkhorn_tends_to_the_hard_plan():
    q, k = torch.randn(2, 8, 4, dtype=torch.float64).unbind()
    hard = bistoch.hard_plan(q, k)
    errors = [
        (bistoch.sinkhorn_plan(q, k, eps=eps, iters=20_000, tol=1e-3, scale=2.0) - hard).abs().max()
        for eps in (0.3, 0.1, 0.03)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.05
