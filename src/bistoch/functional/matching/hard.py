"""The best assignment of raw scores, with whole numbers of places for rows and columns."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional._masks import read_bias
from bistoch.functional._nonfinite import clean_scores, show
from bistoch.functional.elastic.api import balance_scores
from bistoch.functional.elastic.scores import pose_given
from bistoch.functional.hard import assign
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import BalanceOptions, ScoreOptions
from bistoch.functional.precision import full_precision, working_dtype
from bistoch.functional.problem import dense_scores

Capacity = int | Int[Tensor, "..."]

# biases below this leave few digits of the scores to a sum of both in float64
LOWEST = -1e12


@full_precision
def hard_balance(
    scores: Float[Tensor, "*b n m"],
    *,
    row_capacity: Capacity | None = None,
    column_capacity: Capacity | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    straight_through: bool = False,
    eps: Option = 1.0,
    iters: int = 10,
) -> Float[Tensor, "*b n m"]:
    """The best assignment of a score matrix you already have: whole numbers, as `hard_plan`.

        P = argmax <S, P> over whole numbers: rows sum to row_capacity, columns to at most theirs

    As many units are placed as both sides and the mask leave room for, and those for the largest
    sum of scores and biases; a pair may get several. Exact, by
    `scipy.optimize.linear_sum_assignment`, one problem at a time on the CPU, with one row and
    column for every unit.

    Args:
        scores: score matrices; any leading axes.
        row_capacity: how much every row gives, by default 1: a number, or integers that broadcast
            to (*b, n).
        column_capacity: how much every column takes at most: a number, or integers that broadcast
            to (*b, m). By default the least equal number that has room for all rows.
        mask, query_mask, key_mask: as for `balance`.
        straight_through: give the scores the gradient of `balance` at `eps` and `iters`, with the
            capacities as masses, instead of none.
        eps, iters: of the soft plan behind the straight-through gradient.

    >>> import torch, bistoch
    >>> scores = torch.tensor([[3.0, 2.0], [2.5, 0.0], [1.0, 0.5]])
    >>> bistoch.hard_balance(scores, column_capacity=torch.tensor([1, 2]))
    tensor([[0., 1.],
            [1., 0.],
            [0., 1.]])

    Reference: Kuhn, The Hungarian method for the assignment problem, 1955.
    """
    operator = "hard_balance"
    inputs.check_floating(operator, "scores", scores, axes="(*b, n, m)", rank=2)
    (*batch, n, m), device = scores.shape, scores.device
    inputs.check_flag(operator, "straight_through", straight_through)
    inputs.check_eps(operator, eps, batch, device)
    pairs = ScoreOptions(1.0, None, mask, query_mask, key_mask)
    options = BalanceOptions(1.0, 1.0, iters, None)
    given = pose_given(operator, scores, pairs, options).scores
    if row_capacity is not None:
        inputs.check_capacity(operator, "row_capacity", row_capacity, (*batch, n), device)
    if column_capacity is not None:
        inputs.check_capacity(operator, "column_capacity", column_capacity, (*batch, m), device)
    size = len(given.given)
    rows = _expand(row_capacity, (*batch, n), size, device)
    columns = _expand(column_capacity, (*batch, m), size, device)
    with torch.no_grad():
        given, _, broken = clean_scores(given, None, "problem")
        work = dense_scores(given)
        if rows is None and columns is None:
            plan = assign(work)[..., None] == torch.arange(m, device=device)
        else:
            plan = place(work, _levels(mask, work, batch), rows, columns)
    plan = show(plan.to(scores.dtype), broken).reshape(scores.shape)
    if not straight_through:
        return plan
    pairs, options = _soft(
        pairs._replace(eps=eps), options, batch, rows, columns, working_dtype(scores.dtype)
    )
    soft = balance_scores(operator, scores, pairs, options, "auto")
    return plan + (soft - soft.detach())


def _expand(
    capacity: Capacity | None, shape: tuple[int, ...], size: int, device: torch.device
) -> Int[Tensor, "B length"] | None:
    if capacity is None:
        return None
    if isinstance(capacity, int):
        # written by the device, which would wait for a copy from the host
        capacity = torch.full((), capacity, dtype=torch.int64, device=device)
    capacity = capacity.to(torch.int64)
    return capacity.expand(shape).reshape(size, shape[-1])


def _levels(
    mask: Mask | None, scores: Float[Tensor, "B n m"], batch: list[int]
) -> Float[Tensor, "B n"] | None:
    """What the very low biases of a row have in common, which its scores are without."""
    if mask is None or mask.dtype == torch.bool:
        return None
    level = read_bias(mask, scores.dtype).level.squeeze(-1)
    return level.expand(*batch, scores.shape[-2]).reshape(scores.shape[:-1])


def _soft(
    pairs: ScoreOptions,
    options: BalanceOptions,
    batch: list[int],
    rows: Tensor | None,
    columns: Tensor | None,
    dtype: torch.dtype,
) -> tuple[ScoreOptions, BalanceOptions]:
    """Balance towards the capacities; what has none is not there."""
    if rows is not None:
        rows = rows.reshape(*batch, rows.shape[-1])
        options = options._replace(row_mass=rows.to(dtype))
    if columns is not None:
        columns = columns.reshape(*batch, columns.shape[-1])
        everything = torch.ones(1, dtype=torch.bool, device=columns.device)
        real_rows = everything if pairs.query_mask is None else pairs.query_mask
        real_columns = columns > 0
        if pairs.key_mask is not None:
            real_columns = real_columns & pairs.key_mask
        mass = columns.clamp_min(1).to(dtype)
        if rows is not None:
            # both sides give and take the same
            total = (mass * real_columns).sum(-1, keepdim=True).clamp_min(1)
            mass = mass * (rows * real_rows).sum(-1, keepdim=True).clamp_min(1) / total
        pairs = pairs._replace(query_mask=real_rows, key_mask=real_columns)
        options = options._replace(column_mass=mass)
    return pairs, options


@torch.library.custom_op("bistoch::place", mutates_args=())
def place(
    scores: Tensor, levels: Tensor | None, rows: Tensor | None, columns: Tensor | None
) -> Tensor:
    """How many units every pair of each matrix gets; minus infinity is a forbidden pair.

    The levels are parts of the scores that a whole row has in common: they decide who gets a place
    where there is not one for all.
    """
    matrices = scores.detach().cpu().double().numpy()
    sides = [None if side is None else side.cpu().numpy() for side in (levels, rows, columns)]
    plans = [
        _place_one(matrix, *(None if side is None else side[at] for side in sides))
        for at, matrix in enumerate(matrices)
    ]
    if not plans:
        return scores.new_empty(scores.shape, dtype=torch.int64)
    return torch.stack([torch.from_numpy(plan) for plan in plans]).to(scores.device)


@place.register_fake
def _(scores, levels, rows, columns):
    return scores.new_empty(scores.shape, dtype=torch.int64)


def _place_one(scores, levels, rows, columns):
    """The plan of one matrix of numpy."""
    import numpy as np

    allowed = scores > -np.inf
    some_row, some_column = allowed.any(1), allowed.any(0)
    rows = np.where(some_row, 1 if rows is None else rows, 0)
    if columns is not None:
        columns = np.where(some_column, columns, 0)
        plan = _place_units(scores, rows, columns)
        if plan.sum() < rows.sum() and levels is not None and levels.any():
            plan = _place_units(scores + np.maximum(levels, LOWEST)[:, None], rows, columns)
        return plan
    least = -(-rows.sum() // max(some_column.sum(), 1))
    for places in range(least, rows.sum()):
        # a mask may need more places per column
        plan = _place_units(scores, rows, np.where(some_column, places, 0))
        if plan.sum() == rows.sum():
            return plan
    return _place_units(scores, rows, np.where(some_column, rows.sum(), 0))


def _place_units(scores, rows, columns):
    """The best assignment with one row and one column for every unit."""
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    allowed, plan = scores > -np.inf, np.zeros(scores.shape, np.int64)
    row, column = (np.repeat(np.arange(len(side)), side) for side in (rows, columns))
    if not len(row) or not len(column):
        return plan
    units = scores[np.ix_(row, column)]
    try:
        found = linear_sum_assignment(units, maximize=True)
    except ValueError:
        # not all can be placed: a forbidden pair is worse than any other choice of all units
        top, low = scores[allowed].max(), scores[allowed].min()
        worst = low - (top - low + 1) * (min(units.shape) + 1)
        found = linear_sum_assignment(np.where(units > -np.inf, units, worst), maximize=True)
    at = row[found[0]], column[found[1]]
    np.add.at(plan, at, allowed[at].astype(np.int64))
    return plan
