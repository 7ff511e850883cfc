"""Exact assignment of raw scores: against every possibility, and against linear programs."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

import bistoch


def best_of_all(scores, rows, columns):
    """The largest number of units, and the largest sum for it, by a linear program."""
    n, m = scores.shape
    sums = np.zeros((n + m, n * m))
    for i, j in itertools.product(range(n), range(m)):
        sums[i, i * m + j] = sums[n + j, i * m + j] = 1
    allowed = np.isfinite(scores).ravel()
    bounds = [(0, None if one else 0) for one in allowed]
    most = -linprog(-np.ones(n * m), sums, [*rows, *columns], bounds=bounds).fun
    costs = -np.where(allowed, np.where(np.isfinite(scores), scores, 0).ravel(), 0)
    found = linprog(
        costs, sums, [*rows, *columns], np.ones((1, n * m)), [round(most)], bounds=bounds
    )
    return round(most), -found.fun


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("hidden", [False, True])
def test_it_is_the_best(seed, hidden):
    made = torch.Generator().manual_seed(seed)
    n, m = 5, 4
    scores = torch.randn(n, m, generator=made, dtype=torch.float64)
    rows = torch.randint(0, 4, (n,), generator=made)
    columns = torch.randint(0, 4, (m,), generator=made)
    mask = torch.rand(n, m, generator=made) > 0.5 if hidden else None
    plan = bistoch.hard_balance(scores, row_capacity=rows, column_capacity=columns, mask=mask)
    possible = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    most, best = best_of_all(possible.numpy(), rows.tolist(), columns.tolist())
    assert plan.sum() == most
    assert (plan.sum(-1) <= rows).all()
    assert (plan.sum(-2) <= columns).all()
    assert plan.eq(plan.round()).all()
    if mask is not None:
        assert plan[~mask].eq(0).all()
    assert (plan * scores).sum() == pytest.approx(best)


@pytest.mark.parametrize(("n", "m"), [(6, 6), (7, 3), (3, 7)])
def test_without_capacities_it_is_hard_plan(n, m):
    q, k = torch.randn(2, 3, n, 8), torch.randn(2, 3, m, 8)
    real = {"query_mask": torch.arange(n) < 5, "key_mask": torch.arange(m) < 6}
    for masks in ({}, real):
        wanted = bistoch.hard_plan(q, k, scale=1.0, **masks)
        found = bistoch.hard_balance(q @ k.mT, **masks)
        assert torch.equal(found, wanted)
        one = bistoch.hard_balance(q @ k.mT, row_capacity=1, **masks)
        torch.testing.assert_close((one * (q @ k.mT)).sum(), (wanted * (q @ k.mT)).sum())


def test_more_rows_than_places():
    scores = torch.tensor([[5.0, 1.0], [4.0, 3.0], [6.0, 0.0]])
    plan = bistoch.hard_balance(scores, column_capacity=1)
    assert plan.tolist() == [[0, 0], [0, 1], [1, 0]]


def test_padding_is_invisible():
    scores = torch.randn(2, 5, 4)
    scores[1, 3:], scores[1, :, 2:] = torch.nan, torch.nan
    real = {"query_mask": torch.arange(5) < torch.tensor([[5], [3]]),
            "key_mask": torch.arange(4) < torch.tensor([[4], [2]])}  # fmt: skip
    plan = bistoch.hard_balance(scores, row_capacity=2, **real)
    alone = bistoch.hard_balance(scores[1, :3, :2], row_capacity=2)
    assert torch.equal(plan[1, :3, :2], alone)
    assert plan[1].sum() == alone.sum() == 6


@pytest.mark.parametrize("options", [
    {}, {"row_capacity": 2}, {"column_capacity": 3},
    {"row_capacity": torch.tensor([2, 0, 1, 1, 4]), "column_capacity": torch.tensor([3, 0, 2, 1])},
], ids=str)  # fmt: skip
def test_straight_through(options):
    scores = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(5, 4, dtype=torch.float64)
    hard = bistoch.hard_balance(scores, **options)
    assert not hard.requires_grad
    plan = bistoch.hard_balance(scores, straight_through=True, eps=0.5, iters=20, **options)
    torch.testing.assert_close(plan, hard)
    (grad,) = torch.autograd.grad((plan * weights).sum(), scores)
    rows, columns = options.get("row_capacity"), options.get("column_capacity")
    masses = {}
    if isinstance(rows, torch.Tensor):
        # totals are the same, and a column without room is padding
        masses = {"row_mass": rows.double(), "query_mask": torch.ones(5, dtype=torch.bool),
                  "column_mass": torch.tensor([3.0, 1, 2, 1]).double() * 8 / 6,
                  "key_mask": columns > 0}  # fmt: skip
    soft = bistoch.balance(scores, eps=0.5, iters=20, **masses)
    (wanted,) = torch.autograd.grad((soft * weights).sum(), scores)
    factor = rows if isinstance(rows, int) else 1
    torch.testing.assert_close(grad, factor * wanted)


def test_what_is_refused():
    scores = torch.randn(2, 3, 4)
    for kind, message, options in (
        (TypeError, "row_capacity must be a whole number, or an integer tensor", {
            "row_capacity": torch.ones(3)}),
        (ValueError, r"column_capacity must broadcast to \(\*b, m\) = \(2, 4\)", {
            "column_capacity": torch.ones(3, dtype=torch.int64)}),
        (ValueError, "row_capacity must not be negative, but it is -1", {"row_capacity": -1}),
        (ValueError, "must not be negative, but its smallest entry is -2", {
            "column_capacity": torch.tensor([1, 1, 1, -2])}),
    ):  # fmt: skip
        with pytest.raises(kind, match=f"hard_balance: .*{message}"):
            bistoch.hard_balance(scores, **options)


def test_a_nan_shows():
    scores = torch.randn(2, 3, 4)
    scores[1, 0, 0] = torch.nan
    for options in ({}, {"column_capacity": 2}):
        plan = bistoch.hard_balance(scores, **options)
        assert plan[1].isnan().all()
        assert plan[0].isfinite().all()


@pytest.mark.parametrize("rows", [None, 2, [[1, 0, 2], [1, 1, 1]], [[1, 0, 2], [0, 0, 0]]])
def test_a_problem_whose_columns_take_nothing_has_no_gradient(rows):
    scores = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    plan = bistoch.hard_balance(
        scores,
        row_capacity=torch.tensor(rows) if isinstance(rows, list) else rows,
        column_capacity=torch.tensor([[1, 0, 2, 1], [0, 0, 0, 0]]),
        straight_through=True,
    )
    (grad,) = torch.autograd.grad((plan * torch.arange(4.0)).sum(), scores)
    assert grad[0].any()
    assert not grad[1].any()
    assert not plan[1].any()


def test_columns_without_places_have_no_gradient():
    scores = torch.randn(2, 3, 2, requires_grad=True)
    places = torch.tensor([[0, 0], [1, 2]])
    plan = bistoch.hard_balance(
        scores, row_capacity=1, column_capacity=places, straight_through=True
    )
    (grad,) = torch.autograd.grad((plan * torch.randn(2, 3, 2)).sum(), scores)
    assert not plan[0].any()
    assert not grad[0].any()
    assert grad[1].isfinite().all()
    assert grad[1].any()


def test_default_places_are_as_many_as_the_mask_needs():
    scores, mask = torch.randn(3, 3), torch.tensor([[1, 0, 0], [1, 0, 0], [1, 1, 1]]).bool()
    plan = bistoch.hard_balance(scores, mask=mask)
    assert torch.equal(plan.sum(-1), torch.ones(3))
    assert torch.equal(bistoch.hard_balance(scores, mask=mask, row_capacity=1), plan)


@pytest.mark.parametrize("low", [-1e4, -1e9, torch.finfo(torch.float32).min])
def test_a_row_of_low_biases_is_placed_last(low):
    scores = torch.tensor([[9.0, 8.5], [1.0, 2.0], [4.0, 3.0]])
    bias = torch.tensor([low, 0.0, 0.0])[:, None].expand(3, 2)
    plan = bistoch.hard_balance(scores, mask=bias, column_capacity=1)
    assert plan.tolist() == [[0, 0], [0, 1], [1, 0]]
    # with a place for all, its own scores decide, unless they have no digit left beside the bias
    plan = bistoch.hard_balance(scores, mask=bias, column_capacity=torch.tensor([1, 2]))
    assert plan.sum() == 3
    assert low < -1e4 or plan.tolist() == [[0, 1], [0, 1], [1, 0]]


def test_the_gradient_of_double_scores_has_masses_in_double():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(7, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    rows, columns = torch.tensor([1, 2, 1, 3, 1, 2, 1]), torch.tensor([1, 3, 1, 1, 1])
    weights = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    plan = bistoch.hard_balance(
        scores, row_capacity=rows, column_capacity=columns, straight_through=True
    )
    soft = bistoch.balance(
        scores, row_mass=rows.double(), column_mass=columns.double() * (11 / 7), backend="reference"
    )
    (found,) = torch.autograd.grad((plan * weights).sum(), scores)
    (wanted,) = torch.autograd.grad((soft * weights).sum(), scores)
    torch.testing.assert_close(found, wanted, atol=1e-13, rtol=0)
