"""The specification: the elastic iteration as readable log-domain torch, with autograd.

Every other backend must agree with this file. It keeps whole score matrices, one per iteration when
gradients are wanted, so it is for reading, for checking, and for second derivatives.

All numbers are finite here but minus infinity, which is a pair that is forbidden. A NaN or another
infinity in a token, value, bias or option, and a score that overflows, makes all rows of its head
NaN, since columns connect them; without iterations those rows that see it (docs/nonfinite.md).
`broken.py` takes it out before a head is solved, and shows it afterwards, for every backend.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.functional.backends import Backend
from bistoch.functional.elastic.pace import choose
from bistoch.functional.problem import (
    Problem,
    Shards,
    Solution,
    dense_scores,
    row_softmax,
    spread,
)


def solve(problem: Problem, value: Float[Tensor, "B m e"]) -> Solution:
    """Iterate row and column steps, end on a row step, and apply the plan to the values."""
    scores, balance = dense_scores(problem.scores), problem.balance
    lam, pace, shards = balance.lam[:, None], None, balance.shards
    live = live_columns(scores, shards)
    omega = balance.first_omega()
    column = balance.first_column()
    running = torch.ones_like(balance.lam, dtype=torch.bool)
    iterations = torch.zeros_like(balance.lam, dtype=torch.int64)

    # potentials stay finite in here, zero where no pair is allowed: what is forbidden is minus
    # infinity in the scores, and only there
    for _ in range(balance.iters):
        row = balance.weighed(row_step(scores, column))
        residual = lam * column_step(scores, row, balance.log_mass, shards) - column
        if balance.tol is not None:
            error, level = spread(residual, live), row
            if shards is not None:
                error, level = agreed(error, row, shards)
            running = running & (error > balance.tol)
            if not (torch.compiler.is_compiling() or running.is_meta) and not bool(running.any()):
                break
            if balance.omega is None:
                pace = choose(residual, live, error, balance.lam, level, pace)
                omega = pace.omega
        column = torch.where(running[:, None], column + omega[:, None] * residual, column)
        iterations = iterations + running

    row = row_step(scores, column)
    residual = lam * column_step(scores, balance.weighed(row), balance.log_mass, shards) - column
    plan = row_softmax(scores + column[:, None, :])
    return Solution(
        output=plan @ value,
        row=row.masked_fill((scores == -torch.inf).all(-1), -torch.inf),
        column=column.masked_fill(~live, -torch.inf),
        error=spread(residual, live).detach(),
        iterations=iterations,
    )


BACKEND = Backend("reference", "", solve)


def row_step(scores: Float[Tensor, "B n m"], column: Float[Tensor, "B m"]) -> Float[Tensor, "B n"]:
    """`f_i = -LSE_j (S_ij + g_j)`: every row of `exp(S + f + g)` sums to one."""
    total = logsumexp(scores + column[:, None, :], -1)
    return torch.where(total == -torch.inf, 0, -total)


def column_step(
    scores: Float[Tensor, "B n m"],
    row: Float[Tensor, "B n"],
    log_mass: Float[Tensor, "B m"],
    shards: Shards | None = None,
) -> Float[Tensor, "B m"]:
    """`h_j = log b_j - LSE_i (S_ij + f_i)`: with g = h every column would sum to b."""
    total = logsumexp(scores + row[:, :, None], -2)
    if shards is not None:
        total = shards.logsumexp(total)
    return torch.where(total == -torch.inf, 0, log_mass - total)


def live_columns(scores: Float[Tensor, "B n m"], shards: Shards | None = None) -> Tensor:
    """Keys that at least one query may see."""
    live = (scores > -torch.inf).any(-2)
    return live if shards is None else shards.max(live.to(scores.dtype)) > 0


def agreed(
    error: Float[Tensor, "B"], row: Float[Tensor, "B n"], shards: Shards
) -> tuple[Float[Tensor, "B"], Float[Tensor, "B 1"]]:
    """The error by which all processes decide, and the size of the largest row potential.

    Errors are equal but for rounding, where machines differ: what is decided must be the same.
    """
    level = torch.cat([row.detach().abs(), torch.zeros_like(error)[:, None]], 1).amax(-1)
    error, level = shards.max(torch.stack([error.detach(), level])).unbind()
    return error, level[:, None]


def logsumexp(x: Float[Tensor, "*B n m"], dim: int) -> Tensor:
    """The log of a sum of exponentials: minus infinity, with zero gradient, if no term is finite.

    torch.logsumexp has the same values but a NaN gradient there.
    """
    if x.shape[dim] == 0:
        return x.sum(dim) - torch.inf
    peak = x.detach().amax(dim, keepdim=True)
    peak = peak.masked_fill(peak == -torch.inf, 0)
    total = (x - peak).exp().sum(dim)
    empty = total == 0
    return torch.where(empty, -torch.inf, total.masked_fill(empty, 1).log() + peak.squeeze(dim))
