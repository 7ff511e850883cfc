"""Plans of scores in logarithms: the potentials of `balance`, and the log of its plan."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional.elastic.api import Potentials, find_potentials, solve, warn_if_far
from bistoch.functional.elastic.scores import pose_given
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import BalanceOptions, ScoreOptions
from bistoch.functional.precision import full_precision
from bistoch.functional.problem import Problem, dense_scores, no_values


@full_precision
def balance_potentials(
    scores: Float[Tensor, "*b n m"],
    *,
    lam: Option = 1.0,
    eps: Option = 1.0,
    omega: Option | None = None,
    iters: int = 10,
    tol: float | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    row_mass: Float[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
    start: Float[Tensor, "..."] | None = None,
    backend: str = "auto",
) -> Potentials:
    """The log row and column factors of the plan of `balance`, with its column error.

        P = exp(S + row + column),   S = scores / eps + bias

    Arguments are those of `balance`. Potentials keep the working precision: float32 for scores in
    half precision.

    >>> import torch, bistoch
    >>> scores = torch.randn(5, 7)
    >>> found = bistoch.balance_potentials(scores, iters=50)
    >>> plan = (scores + found.row[:, None] + found.column).exp()
    >>> bool(torch.allclose(plan, bistoch.balance(scores, iters=50)))
    True
    """
    operator = "balance_potentials"
    pairs = ScoreOptions(eps, None, mask, query_mask, key_mask)
    options = BalanceOptions(lam, omega, iters, tol, column_mass, row_mass, start)
    problem = pose_given(operator, scores, pairs, options)
    return find_potentials(operator, problem, scores.shape[:-2], mask, backend)


@full_precision
def log_balance(
    scores: Float[Tensor, "*b n m"],
    *,
    lam: Option = 1.0,
    eps: Option = 1.0,
    omega: Option | None = None,
    iters: int = 10,
    tol: float | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    row_mass: Float[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
    start: Float[Tensor, "..."] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n m"]:
    """The log of the plan of `balance`, for losses: accurate where the plan itself underflows.

        log P = log_softmax_row(S + g) + log row_mass,   minus infinity where a pair is forbidden

    Arguments are those of `balance`. Gradients are finite; none comes from a forbidden pair.

    >>> import torch, bistoch
    >>> scores = torch.tensor([[0.0, -500.0], [0.0, 0.0]])
    >>> bistoch.balance(scores, lam=0.0), bistoch.log_balance(scores, lam=0.0)[0]
    (tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]]), tensor([   0., -500.]))
    """
    pairs = ScoreOptions(eps, None, mask, query_mask, key_mask)
    options = BalanceOptions(lam, omega, iters, tol, column_mass, row_mass, start)
    problem = pose_given("log_balance", scores, pairs, options)
    return solve_logs("log_balance", problem, backend)[0].reshape(scores.shape).to(scores.dtype)


def solve_logs(
    operator: str, problem: Problem, backend: str
) -> tuple[Float[Tensor, "B n m"], Float[Tensor, "B"]]:
    """The log plan of a problem in working precision, and its column error."""
    found = solve(operator, problem, no_values(problem.scores), backend)
    warn_if_far(operator, problem.balance, found.error)
    log_plan = log_row_softmax(dense_scores(problem.scores) + found.column[:, None, :])
    if problem.balance.log_row_mass is not None:
        log_plan = log_plan + problem.balance.log_row_mass[..., None]
    return log_plan, found.error


def log_row_softmax(scores: Float[Tensor, "*B n m"]) -> Float[Tensor, "*B n m"]:
    """Logs of rows that sum to one; minus infinity, without a gradient, where a pair is forbidden.

    This is `S + f` without the rounding of f, which matters for large scores.
    """
    if scores.shape[-1] == 0:
        return scores
    forbidden = scores == -torch.inf
    dead = forbidden.all(-1, keepdim=True)
    return scores.masked_fill(dead, 0).log_softmax(-1).masked_fill(forbidden, -torch.inf)
