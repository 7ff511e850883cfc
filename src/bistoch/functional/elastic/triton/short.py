"""Launches of the short form: one for all iterations, one for their gradient."""

from typing import Any

import torch
from torch import Tensor

from bistoch.functional.elastic.operator import Gradients, History, Upstream
from bistoch.functional.elastic.triton.blocks import Heads, heads_of
from bistoch.functional.elastic.triton.heads import heads_grad_kernel, heads_kernel
from bistoch.functional.elastic.triton.launch import pairs_of
from bistoch.functional.kernels.gpu import chunk, launch, no_finer, width
from bistoch.functional.problem import Problem, Solution


def forward(
    problem: Problem, value: Tensor, solution: Solution, history: History | None, plan: bool
) -> None:
    """Fill a solution, and the history if there is one; the output is the plan if asked for."""
    scores, balance = problem
    size, features = scores.shape[0], 0 if plan else value.shape[2]
    common, like = pairs_of(scores).arguments(), scores.like
    heads = heads_of(problem, features)
    kept = (like,) * 4 if history is None else history
    tol = like if balance.tol is None else like.new_full((1,), balance.tol)
    launch(
        heads_kernel, heads.programs(size), **common, **heads.arguments(), **_balance(problem),
        # what stands for the values of a plan is never read
        value=value if plan else no_finer(value, common["query"]), tol=tol,
        start=_dense(balance.start), omega=_dense(balance.omega),
        log_row_mass=_dense(balance.log_row_mass), output=solution.output, row_out=solution.row,
        column_out=solution.column, error_out=solution.error, iterations_out=solution.iterations,
        **_kept(kept), B=size, T=balance.iters, rounding=torch.finfo(like.dtype).eps,
        WATCH=balance.tol is not None, PLAN=plan, KEEP=history is not None,
        CHOOSE=balance.tol is not None and balance.omega is None, VALUES=features,
        VALUE_WIDTH=width(features),
    )  # fmt: skip


def backward(
    problem: Problem,
    value: Tensor,
    solution: Solution,
    history: History,
    upstream: Upstream,
    grads: Gradients,
    plan: bool,
) -> None:
    """Write the gradients of a solved problem, where zeros are."""
    (scores, balance), size = problem, len(value)
    features = 0 if plan else value.shape[2]
    heads, common = heads_of(problem, features), pairs_of(scores).arguments()
    tokens = common["query"]
    launch(
        heads_grad_kernel, heads.programs(size), **common, **heads.arguments(),
        **_balance(problem), value=value if plan else no_finer(value, tokens),
        output_grad=no_finer(upstream.output, tokens), column_out=solution.column,
        iterations=solution.iterations, row_above=_dense(upstream.row),
        column_above=_dense(upstream.column), **_kept(history), query_grad=grads.query,
        key_grad=grads.key, value_grad=grads.value,
        score_grad=grads.bias if grads.bias.numel() else None, lam_grad=grads.lam,
        omega_grad=grads.omega, sharpness_grad=grads.sharpness, log_mass_grad=grads.log_mass,
        row_mass_grad=None if balance.log_row_mass is None else grads.log_row_mass,
        start_grad=None if balance.start is None else grads.start, B=size,
        T=history.omega.shape[1], PLAN=plan, VALUES=features, VALUE_WIDTH=width(features),
        VALUE_CHUNK=chunk(features, value.dtype),
    )  # fmt: skip


def fits(problem: Problem, value: Tensor, plan: bool) -> bool:
    """Whether a whole head stays in registers."""
    return Heads.fits(problem, 0 if plan else value.shape[2])


def _balance(problem: Problem) -> dict[str, Any]:
    balance = problem.balance
    return {"lam": _dense(balance.lam), "log_mass": _dense(balance.log_mass)}


def _kept(history: Any) -> dict[str, Any]:
    names = ("history_rows", "history_columns", "history_totals", "history_omega")
    return dict(zip(names, history, strict=True))


def _dense(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()
