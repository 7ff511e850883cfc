"""The public functions of the elastic family: check, choose a backend, compute."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional.elastic.backends import choose
from bistoch.functional.elastic.broken import cleaned, prepared, shown, shown_plan
from bistoch.functional.elastic.coarse import split, started
from bistoch.functional.elastic.potentials import Potentials as Potentials
from bistoch.functional.elastic.potentials import as_potentials as as_potentials
from bistoch.functional.elastic.scores import pose_given
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import BalanceOptions, ScoreOptions, flatten, pose
from bistoch.functional.precision import full_precision
from bistoch.functional.problem import (
    Balance,
    Problem,
    Scores,
    Solution,
    Steps,
    no_values,
    with_row_mass,
)


class ConvergenceWarning(UserWarning):
    """The column error is still above the tolerance after the allowed iterations."""


@full_precision
def elastic_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    lam: Option = 1.0,
    eps: Option = 1.0,
    omega: Option | None = None,
    iters: int = 10,
    tol: float | None = None,
    coarse: int | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n e"]:
    """Attend with a plan whose rows sum to one and whose columns are pulled towards equal mass.

        P = softmax_row(S + g),   S = q k^T * scale / eps + bias,   result = P v
        g <- (1 - omega) g + omega lam (log b - LSE_i(S + f)),   f = -LSE_j(S + g)

    Args:
        query, key, value: tokens, laid out as for `scaled_dot_product_attention`; the leading axes
            (batch, heads) broadcast. Half precision is computed in float32 and returned as it came.
        lam: elasticity in [0, 1]: 0 is softmax, 1 is doubly stochastic. A number, or a tensor that
            broadcasts to the leading axes (for example one entry per head); differentiable.
        eps: temperature; small is sharp. A number or a tensor, like `lam`.
        omega: step of the column update in (0, 2); 1 is plain, above 1 over-relaxes. By default 1,
            but chosen anew in every iteration if there is a `tol`, to reach it in few of them.
        iters: iterations, each one row and one column step.
        tol: stop each problem once its column error is at most this; a warning says when `iters`
            did not reach it.
        coarse: for long inputs, take all iterations but the last on every `coarse`-th real query,
            and only the last on all of them; with a `tol`, as many as it takes on both. By default
            all iterations are taken on all queries.
        mask: boolean (True = may attend) or a float bias added to the scores. A bias that is 5000
            or more below the highest of its row, after all that scores could make up for, forbids
            the pair, like minus infinity.
        query_mask, key_mask: True where the token is real. A padded query puts no mass on any key
            and returns zeros; a padded key has weight zero.
        column_mass: what the columns should sum to; only ratios matter, since the rows fix the
            total. By default every real key gets the same.
        scale: factor of the dot products, by default `1/sqrt(d)`.
        backend: "auto", "reference" (readable, keeps n x m), "streaming" (any device, memory
            linear in n + m), "cpu" (Numba kernels, close to the price of softmax) or "triton"
            (kernels for GPUs, docs/gpu.md).

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 2, 8, 5, 4).unbind()
    >>> bistoch.elastic_attention(q, k, v, lam=0.5).shape
    torch.Size([2, 8, 5, 4])

    Reference: Chizat, Peyre, Schmitzer, Vialard, Scaling algorithms for unbalanced transport, 2016.
    """
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    balance = BalanceOptions(lam, omega, iters, tol, column_mass, coarse=coarse)
    return attend("elastic_attention", query, key, value, pairs, balance, backend)


@full_precision
def elastic_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    lam: Option = 1.0,
    eps: Option = 1.0,
    omega: Option | None = None,
    iters: int = 10,
    tol: float | None = None,
    coarse: int | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n m"]:
    """The plan of `elastic_attention` as a matrix, to look at: rows sum to one, columns lean to b.

        P = exp(S + f + g)

    Arguments are those of `elastic_attention`.

    >>> import torch, bistoch
    >>> q, k = torch.randn(2, 5, 4).unbind()
    >>> plan = bistoch.elastic_plan(q, k, lam=1.0, iters=100)
    >>> [bool(torch.allclose(plan.sum(axis), torch.ones(5), atol=1e-4)) for axis in (-1, -2)]
    [True, True]
    """
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    balance = BalanceOptions(lam, omega, iters, tol, column_mass, coarse=coarse)
    return make_plan("elastic_plan", query, key, pairs, balance, backend)


@full_precision
def elastic_potentials(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    lam: Option = 1.0,
    eps: Option = 1.0,
    omega: Option | None = None,
    iters: int = 10,
    tol: float | None = None,
    coarse: int | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    row_mass: Float[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
    start: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Potentials:
    """The log row and column factors of the plan of `elastic_attention`, with its column error.

        P = exp(S + row + column)

    Arguments are those of `elastic_attention`, and two more. Potentials keep the working precision:
    float32 for half precision tokens.

    Args:
        row_mass: what the rows sum to, by default one: how much every query counts. A query of mass
            zero is treated like a padded one, and no gradient reaches its mass. With a
            `column_mass` beside it both must have the same total.
        start: column potentials to start from, by default zero; for example the `column` of an
            earlier call for similar tokens, whose minus infinities count as zero. Differentiable.

    >>> import torch, bistoch
    >>> q, k = torch.randn(2, 5, 4).unbind()
    >>> found = bistoch.elastic_potentials(q, k, iters=1000, tol=1e-4)
    >>> bool(found.converged), found.column.shape
    (True, torch.Size([5]))
    """
    operator = "elastic_potentials"
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    balance = BalanceOptions(lam, omega, iters, tol, column_mass, row_mass, start, coarse=coarse)
    batch = inputs.check_tokens(operator, query, key)
    problem = pose(operator, batch, query, key, pairs, balance)
    problem, before = from_sample(operator, problem, coarse, backend)
    found = find_potentials(operator, problem, batch, mask, backend)
    if before is None:
        return found
    return found._replace(iterations=found.iterations + before.reshape(batch))


def find_potentials(
    operator: str, problem: Problem, batch: torch.Size, mask: Mask | None, backend: str
) -> Potentials:
    """Solve a problem that was posed with this mask, and give its potentials their axes back."""
    found = solve(operator, problem, no_values(problem.scores), backend)
    warn_if_far(operator, problem.balance, found.error)
    return as_potentials(found, problem.balance.tol, batch, mask)


@full_precision
def sinkhorn_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    eps: Option = 1.0,
    omega: Option | None = None,
    iters: int = 10,
    tol: float | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n e"]:
    """Attend with a doubly stochastic plan: the balanced end, `lam = 1`, of `elastic_attention`.

        P = diag(u) exp(S) diag(w),   rows sum to one, columns to b in the limit of many iterations

    Arguments are those of `elastic_attention`.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 8, 5, 4).unbind()
    >>> mean = bistoch.sinkhorn_attention(q, k, v, iters=100).mean(-2)
    >>> bool(torch.allclose(mean, v.mean(-2), atol=1e-5))
    True

    Reference: Sander, Ablin, Blondel, Peyre, Sinkformers, AISTATS 2022.
    """
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    balance = BalanceOptions(1.0, omega, iters, tol, column_mass)
    return attend("sinkhorn_attention", query, key, value, pairs, balance, backend)


@full_precision
def sinkhorn_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    eps: Option = 1.0,
    omega: Option | None = None,
    iters: int = 10,
    tol: float | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n m"]:
    """The doubly stochastic plan of `sinkhorn_attention` as a matrix.

    Arguments are those of `elastic_attention`.

    >>> import torch, bistoch
    >>> q, k = torch.randn(2, 6, 4).unbind()
    >>> bistoch.sinkhorn_plan(q, k, iters=200).sum(-2).sub(1).abs().max().item() < 1e-5
    True
    """
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    balance = BalanceOptions(1.0, omega, iters, tol, column_mass)
    return make_plan("sinkhorn_plan", query, key, pairs, balance, backend)


@full_precision
def balance(
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
    """A plan from a score matrix you already have: rows sum to one, columns lean to equal mass.

        P = softmax_row(S + g),   S = scores / eps + bias

    Other arguments are those of `elastic_potentials`: with a `row_mass` the rows sum to it, and
    `start` are the column potentials g of the first row step. Any number of
    leading axes is worked on at once: a hundred thousand 4 x 4 matrices are one call.

    >>> import torch, bistoch
    >>> plan = bistoch.balance(torch.randn(1000, 4, 4), iters=50)
    >>> plan.sum(-2).sub(1).abs().max().item() < 1e-3
    True
    """
    pairs = ScoreOptions(eps, None, mask, query_mask, key_mask)
    options = BalanceOptions(lam, omega, iters, tol, column_mass, row_mass, start)
    return balance_scores("balance", scores, pairs, options, backend)


def balance_scores(
    operator: str, scores: Tensor, pairs: ScoreOptions, options: BalanceOptions, backend: str
) -> Tensor:
    """The plan of scores that exist already, for a function that calls itself `operator`."""
    problem = pose_given(operator, scores, pairs, options)
    chosen = choose(operator, problem.scores, backend)
    found = chosen.plan(problem)
    if found is not None:
        plan, error = found
    else:
        clean, _, broken = cleaned(problem, None)
        solution = chosen.solve(clean, no_values(problem.scores))
        plan, error = shown_plan(clean, solution, broken), solution.error
    warn_if_far(operator, problem.balance, error)
    return plan.reshape(scores.shape).to(scores.dtype)


def attend(
    operator: str, query: Tensor, key: Tensor, value: Tensor,
    pairs: ScoreOptions, balance: BalanceOptions, backend: str,
) -> Tensor:  # fmt: skip
    """Check, pose, solve: the result of a member of the family that calls itself `operator`."""
    batch = inputs.check_tokens(operator, query, key, value)
    problem = pose(operator, batch, query, key, pairs, balance)
    if balance.coarse is not None:
        problem, _ = from_sample(operator, problem, balance.coarse, backend)
    values = flatten(value, batch)
    chosen = choose(operator, problem.scores, backend, values.shape[2])
    # as in `solve`, which would be one more frame above every kernel
    clean, values, broken = prepared(chosen, problem, values)
    if chosen.halves and query.dtype != clean.scores.query.dtype:
        # as they came, or zero: nothing is lost
        tokens = (clean.scores.query.to(query.dtype), clean.scores.key.to(query.dtype))
        clean = clean._replace(scores=clean.scores._replace(query=tokens[0], key=tokens[1]))
    found = _finish(problem.balance, chosen.solve(clean, values), broken)
    warn_if_far(operator, problem.balance, found.error)
    return found.output.reshape(*batch, *found.output.shape[1:]).to(query.dtype)


def make_plan(
    operator: str, query: Tensor, key: Tensor,
    pairs: ScoreOptions, balance: BalanceOptions, backend: str,
) -> Tensor:  # fmt: skip
    """The plan of a member of the family that calls itself `operator`."""
    batch = inputs.check_tokens(operator, query, key)
    problem = pose(operator, batch, query, key, pairs, balance)
    problem, _ = from_sample(operator, problem, balance.coarse, backend)
    chosen = choose(operator, problem.scores, backend)
    clean, _, broken = cleaned(problem, None)
    found = chosen.solve(clean, no_values(problem.scores))
    plan = shown_plan(clean, found, broken)
    warn_if_far(operator, problem.balance, found.error)
    return plan.reshape(*batch, *plan.shape[1:]).to(query.dtype)


def from_sample(
    operator: str, problem: Problem[Scores], coarse: int | None, backend: str
) -> tuple[Problem[Scores], Tensor | None]:
    """The problem that starts from a sample of its queries, and the iterations on the sample."""
    parts = None if coarse is None else split(problem, coarse)
    if parts is None:
        return problem, None
    sample, last = parts
    found = solve(operator, sample, no_values(sample.scores), backend)
    return started(last, found.column), found.iterations


def solve(operator: str, problem: Problem, value: Tensor, backend: str) -> Solution:
    """Hand a problem to its backend; whether a tolerance was reached is for the caller to say."""
    chosen = choose(operator, problem.scores, backend, value.shape[2])
    clean, value, broken = prepared(chosen, problem, value)
    return _finish(problem.balance, chosen.solve(clean, value), broken)


def _finish(balance: Balance, found: Solution, broken: Tensor | None) -> Solution:
    return with_row_mass(shown(found, broken, balance.iters), balance)


def warn_if_far(
    operator: str, steps: Steps, error: Tensor, remedy: str = "raise iters, raise eps, or lower lam"
) -> None:
    """One warning if a tolerance was wanted and not reached."""
    if steps.tol is None or torch.compiler.is_compiling() or not error.numel() or error.is_meta:
        return
    worst = error.max().item()
    if worst > steps.tol:
        inputs.warn_caller(
            f"{operator}: the column error is {worst:.3g} after iters={steps.iters}, above "
            f"tol={steps.tol:g}; {remedy}",
            ConvergenceWarning,
        )
