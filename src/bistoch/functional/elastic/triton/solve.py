"""Which form of the kernels takes a problem, and what its forward keeps for the backward."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bistoch.functional.elastic.broken import cleaned, shown
from bistoch.functional.elastic.operator import Gradients, History, Upstream
from bistoch.functional.kernels.gpu import triton_module
from bistoch.functional.problem import (
    Problem,
    Scores,
    Solution,
    with_row_mass,
)


def forward(problem: Problem, value: Tensor, solution: Solution, history: History | None) -> None:
    """Fill a solution, and the history if there is one."""
    if 0 in problem.scores.shape:
        _fill_empty(solution)
        return
    short = triton_module("elastic.triton.short")
    if short.fits(problem, value, False):
        short.forward(problem, value, solution, history, False)
    else:
        triton_module("elastic.triton.launch").forward(problem, value, solution, history)


def backward(
    problem: Problem,
    value: Tensor,
    solution: Solution,
    history: History,
    upstream: Upstream,
    grads: Gradients,
) -> None:
    """Add the gradients of a solved problem; both forms keep the same history."""
    if 0 in problem.scores.shape:
        return
    arguments = problem, value, solution, history, upstream, grads
    short = triton_module("elastic.triton.short")
    # heads that share a mask add up its gradient in the order of the long form
    shared = grads.bias.numel() > 0 and isinstance(problem.scores, Scores)
    if short.fits(problem, value, False) and not shared:
        short.backward(*arguments, False)
    else:
        triton_module("elastic.triton.differentiate").backward(*arguments)


def forward_plan(
    problem: Problem, value: Tensor, solution: Solution, history: History | None
) -> None:
    """As `forward`, with the plan as the output."""
    triton_module("elastic.triton.short").forward(problem, value, solution, history, True)


def backward_plan(
    problem: Problem,
    value: Tensor,
    solution: Solution,
    history: History,
    upstream: Upstream,
    grads: Gradients,
) -> None:
    """As `backward`, of the plan."""
    module = triton_module("elastic.triton.short")
    module.backward(problem, value, solution, history, upstream, grads, True)


def small_plans(solve: Callable[[Problem, Tensor], Solution]) -> Callable[[Problem], Any]:
    """A function that makes plans of many small matrices, if they are; else it returns None."""

    def plan(problem: Problem) -> tuple[Tensor, Tensor] | None:
        size, _, m = problem.scores.shape
        # what would be the values if the plan were a product: nobody reads them
        value = problem.scores.like.new_empty(1).expand(size, m, m)
        short = triton_module("elastic.triton.short")
        if 0 in problem.scores.shape or not short.fits(problem, value, True):
            return None
        clean, _, broken = cleaned(problem, None)
        found = shown(solve(clean, value), broken, problem.balance.iters)
        return with_row_mass(found, problem.balance).output, found.error

    return plan


def _fill_empty(solution: Solution) -> None:
    """A result without a single pair: nobody sees anything."""
    solution.output.zero_()
    solution.row.fill_(-torch.inf)
    solution.column.fill_(-torch.inf)
    solution.error.zero_()
    solution.iterations.zero_()


def empty_history(problem: Problem, keep: bool = True) -> History:
    """Room for the history of all iterations, or for none.

    Rows are kept as two numbers, `(B, T + 1, 2, n)`: the potential f, and what it lost to rounding;
    the last are those of the last row step. Behind the T peaks come T + 1 column potentials.
    """
    (batch, n, m), like, kept = problem.scores.shape, problem.scores.like, problem.balance.iters
    shapes: tuple[tuple[int, ...], ...] = ((kept + 1, 2, n), (2 * kept + 1, m), (kept, m), (kept,))
    shapes = shapes if keep else ((0, 0),) * 4
    return History(*(like.new_empty(batch, *shape) for shape in shapes))
