"""How far a plan is from the nearest doubly stochastic one."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.analysis.metrics._real import divide, read_plan
from bistoch.functional import inputs


def birkhoff_distance(
    plan: Float[Tensor, "*b n m"],
    *,
    iters: int = 200,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b"]:
    """The Frobenius distance to the Birkhoff polytope: 0 for a doubly stochastic plan.

        min |P - D|_F over D >= 0 with rows that sum to 1 and columns that sum to n/m

    At most sqrt(2 n). Found by Dykstra's projections onto rows and columns in turn, whose limit is
    the nearest plan; on the way there the value is the distance to a plan with exact columns.

    Args:
        plan: one plan or many; real tokens only are counted.
        iters: projections onto rows and columns, each. A plan that is nearly balanced needs few.
        query_mask, key_mask: True where the token is real.

    >>> birkhoff_distance(torch.eye(3)), birkhoff_distance(torch.eye(3)[[0, 0, 0]])
    (tensor(0.), tensor(1.4142))

    Reference: Boyle, Dykstra, A method for finding projections onto the intersection of convex
    sets, 1986.
    """
    inputs.check_count("birkhoff_distance", "iters", iters, least=1)
    plan, queries, keys = read_plan("birkhoff_distance", plan, query_mask, key_mask)
    if 0 in plan.shape[-2:]:
        return plan.sum((-2, -1))
    wanted = divide(queries.sum(-1, keepdim=True) * keys, keys.sum(-1, keepdim=True))
    real = queries[..., :, None] * keys[..., None, :] > 0
    # without keys there is no mass to give
    queries = queries * (keys.sum(-1, keepdim=True) > 0)
    nearest = plan
    row_memory = column_memory = torch.zeros_like(plan)
    for _ in range(iters):
        by_row = _to_simplex(nearest + row_memory, queries, real)
        row_memory = nearest + row_memory - by_row
        by_column = _to_simplex((by_row + column_memory).mT, wanted, real.mT).mT
        column_memory = by_row + column_memory - by_column
        nearest = by_column
    return torch.linalg.matrix_norm(plan - nearest)


def _to_simplex(
    x: Float[Tensor, "*b r c"], total: Float[Tensor, "*b r"], real: Bool[Tensor, "*b r c"]
) -> Float[Tensor, "*b r c"]:
    """Every row's nearest point that is not negative and sums to the row's total."""
    total = total[..., None]
    highest = x.masked_fill(~real, -torch.inf).amax(-1, keepdim=True)
    highest = highest.masked_fill(highest == -torch.inf, 0)
    # all that lies more than the total below the highest becomes zero, and so does padding
    x = torch.where(real, x, highest - total - 1)
    falling = x.sort(-1, descending=True).values
    count = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
    shift = (falling.cumsum(-1) - total) / count
    kept = (falling > shift).sum(-1, keepdim=True).clamp_min(1)
    return (x - shift.gather(-1, kept - 1)).clamp_min(0).masked_fill(~real, 0)
