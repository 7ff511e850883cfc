"""Annealed Sinkhorn: the temperature falls inside the loop, towards the hard assignment."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional._nonfinite import clean_scores, show
from bistoch.functional.elastic.reference import column_step, row_step
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import BalanceOptions, ScoreOptions, flatten, pose
from bistoch.functional.precision import full_precision
from bistoch.functional.problem import Problem, Scores, dense_scores, row_softmax


@full_precision
def anneal_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    eps: Option = 1.0,
    iters: int = 100,
    debias: bool = True,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n e"]:
    """Attend with the annealed plan of `anneal_plan`, whose arguments these are.

    >>> import torch, bistoch
    >>> x = 10 * torch.eye(4)
    >>> bool(torch.allclose(bistoch.anneal_attention(x, x, x), x, atol=1e-3))
    True
    """
    operator = "anneal_attention"
    batch = inputs.check_tokens(operator, query, key, value)
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    problem = _pose(operator, batch, query, key, pairs, iters, debias)
    problem, value, broken = _clean(problem, flatten(value, batch), debias)
    output = show(_anneal(problem, debias) @ value, broken)
    return output.reshape(*batch, *output.shape[1:]).to(query.dtype)


@full_precision
def anneal_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    eps: Option = 1.0,
    iters: int = 100,
    debias: bool = True,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n m"]:
    """A Sinkhorn plan whose temperature falls at every step: with many steps, the best assignment.

        eps_t = eps / t^power;   f = -LSE_j(S/eps_t + g),   g = log b - LSE_i(S/eps_t + f)

    Rows sum to one at any `iters`. Keeps the score matrix; for study and for rounding, not for long
    sequences.

    Args:
        query, key, mask, query_mask, key_mask, scale: as for `elastic_attention`.
        eps: temperature of the first step.
        iters: steps, each one row and one column step at its own temperature.
        debias: carry the potentials from one temperature to the next in the units of the scores
            (multiplied by eps_(t-1)/eps_t). That removes the error of first order that a stale
            potential makes, and allows the faster power 2/3; without it the power is 1/2.

    >>> import torch, bistoch
    >>> q, k = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)).unbind()
    >>> soft, hard = bistoch.anneal_plan(q, k, iters=1000), bistoch.hard_plan(q, k)
    >>> bool(torch.equal(soft.argmax(-1), hard.argmax(-1)))
    True

    Reference: Chizat, Annealed Sinkhorn for optimal transport, 2024.
    """
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    operator = "anneal_plan"
    batch = inputs.check_tokens(operator, query, key)
    problem = _pose(operator, batch, query, key, pairs, iters, debias)
    problem, _, broken = _clean(problem, None, debias)
    plan = show(_anneal(problem, debias), broken)
    return plan.reshape(*batch, *plan.shape[1:]).to(query.dtype)


def _pose(operator, batch, query, key, pairs, iters, debias) -> Problem[Scores]:
    inputs.check_flag(operator, "debias", debias)
    return pose(operator, batch, query, key, pairs, BalanceOptions(1.0, 1.0, iters, None))


def _anneal(problem: Problem[Scores], debias: bool) -> Float[Tensor, "B n m"]:
    # sharpness holds scale/eps, so a bias is annealed together with the dot products
    scores, balance = dense_scores(problem.scores), problem.balance
    column, colder = torch.zeros_like(balance.log_mass), 1.0
    for t in range(1, balance.iters + 1):
        previous, colder = colder, t ** _power(debias)
        column = column * (colder / previous) if debias else column
        row = row_step(scores * colder, column)
        column = column_step(scores * colder, row, balance.log_mass)
    return row_softmax(scores * colder + column[:, None, :])


def _power(debias: bool) -> float:
    return 2 / 3 if debias else 1 / 2


def _clean(problem: Problem[Scores], value: Tensor | None, debias: bool):
    # the last temperature has the largest scores
    scores, balance = problem
    colder = max(balance.iters, 1) ** _power(debias)
    scores, value, broken = clean_scores(scores, value, "problem", factor=colder)
    return Problem(scores, balance), value, broken
