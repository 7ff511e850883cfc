"""Hard assignment, the cold end of the family: one key per query, keys shared out evenly."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional._nonfinite import clean_scores, show
from bistoch.functional.elastic.api import attend, make_plan
from bistoch.functional.inputs import Mask
from bistoch.functional.pose import BalanceOptions, ScoreOptions, flatten, pose_scores
from bistoch.functional.precision import full_precision
from bistoch.functional.problem import Scores, dense_scores


@full_precision
def hard_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    straight_through: bool = False,
    eps: float = 1.0,
    iters: int = 10,
) -> Float[Tensor, "*b n e"]:
    """Give every query the value of the one key that the best even assignment gives it.

        P = argmax <S, P> over 0/1 matrices: one key per query, at most ceil(n/m) queries per key

    Arguments are those of `hard_plan`. Values receive their gradient; query and key receive none
    unless `straight_through`.

    >>> import torch, bistoch
    >>> x = torch.eye(3)
    >>> bistoch.hard_attention(x, x.flip(0), torch.tensor([[1.0], [2.0], [3.0]])).squeeze()
    tensor([3., 2., 1.])
    """
    operator = "hard_attention"
    batch = inputs.check_tokens(operator, query, key, value)
    inputs.check_flag(operator, "straight_through", straight_through)
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    balance = BalanceOptions(1.0, 1.0, iters, None)
    scores = _pose(operator, batch, query, key, pairs, balance)
    scores, values, broken = clean_scores(scores, flatten(value, batch), "problem")
    chosen = _assign(scores)
    shape = (*chosen.shape, value.shape[-1])
    if key.shape[-2] == 0:
        return value.new_zeros(*batch, *shape[1:])
    rows = torch.where(chosen < 0, 0, chosen)[..., None].expand(shape)
    output = show(values.gather(-2, rows).masked_fill((chosen < 0)[..., None], 0), broken)
    output = output.reshape(*batch, *shape[1:]).to(query.dtype)
    if straight_through:
        soft = attend(operator, query, key, value.detach(), pairs, balance, "auto")
        output = output + (soft - soft.detach())
    return output


@full_precision
def hard_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    straight_through: bool = False,
    eps: float = 1.0,
    iters: int = 10,
) -> Float[Tensor, "*b n m"]:
    """The best even assignment as a 0/1 matrix: a permutation when n = m.

        P = argmax <S, P> over 0/1 matrices: one key per query, at most ceil(n/m) queries per key

    Exact, by `scipy.optimize.linear_sum_assignment`, one problem at a time on the CPU. Real tokens
    only are counted. If the mask leaves no such assignment, keys take as few more as are needed.

    Args:
        query, key, mask, query_mask, key_mask, scale: as for `elastic_attention`.
        straight_through: give query and key the gradient of `sinkhorn_plan` at `eps` and `iters`,
            instead of none.
        eps, iters: of the soft plan behind the straight-through gradient.

    >>> import torch, bistoch
    >>> scores = torch.tensor([[3.0, 2.0], [2.5, 0.0]])
    >>> bistoch.hard_plan(scores, torch.eye(2))
    tensor([[0., 1.],
            [1., 0.]])
    """
    operator = "hard_plan"
    batch = inputs.check_tokens(operator, query, key)
    inputs.check_flag(operator, "straight_through", straight_through)
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    balance = BalanceOptions(1.0, 1.0, iters, None)
    scores = _pose(operator, batch, query, key, pairs, balance)
    scores, _, broken = clean_scores(scores, None, "problem")
    chosen = _assign(scores)
    plan = (chosen[..., None] == torch.arange(key.shape[-2], device=key.device)).to(query.dtype)
    plan = show(plan, broken).reshape(*batch, *plan.shape[1:])
    if straight_through:
        soft = make_plan(operator, query, key, pairs, balance, "auto")
        plan = plan + (soft - soft.detach())
    return plan


def _pose(
    operator: str,
    batch: torch.Size,
    query: Tensor,
    key: Tensor,
    pairs: ScoreOptions,
    balance: BalanceOptions,
) -> Scores:
    inputs.check_eps(operator, pairs.eps, batch, query.device)
    inputs.check_count(operator, "iters", balance.iters)
    # the temperature is that of the soft plan behind it
    scores = pose_scores(operator, batch, query, key, pairs._replace(eps=1.0))
    if balance.iters > 0:
        n, m = query.shape[-2], key.shape[-2]
        inputs.warn_half_padding(operator, n, m, pairs.mask, pairs.query_mask, pairs.key_mask)
    return scores


def _assign(scores: Scores) -> Int[Tensor, "B n"]:
    """The key of every query, -1 for a query that may see none."""
    with torch.no_grad():
        return assign(dense_scores(scores))


@torch.library.custom_op("bistoch::assign", mutates_args=())
def assign(scores: Tensor) -> Tensor:
    """The best even assignment of each matrix in a batch; minus infinity is a forbidden pair."""
    chosen = [_assign_one(matrix) for matrix in scores.detach().cpu().double().numpy()]
    if not chosen:
        return scores.new_empty(scores.shape[:2], dtype=torch.int64)
    return torch.stack(chosen).to(scores.device)


@assign.register_fake
def _(scores):
    return scores.new_empty(scores.shape[:2], dtype=torch.int64)


def _assign_one(scores) -> Tensor:
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    chosen = torch.full((len(scores),), -1)
    allowed = scores > -np.inf
    rows, columns = np.flatnonzero(allowed.any(1)), np.flatnonzero(allowed.any(0))
    if not len(rows):
        return chosen
    scores = scores[np.ix_(rows, columns)]
    for capacity in range(math.ceil(len(rows) / len(columns)), len(rows) + 1):
        try:
            _, found = linear_sum_assignment(np.tile(scores, capacity), maximize=True)
        except ValueError:
            # the mask leaves no way to serve every query with this many places per key
            continue
        chosen[rows] = torch.from_numpy(columns[found % len(columns)])
        break
    return chosen
