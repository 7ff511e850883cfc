"""A backend's forward and backward as a torch operator: opaque to compilers, known to autograd.

The plumbing is here once (schema, shapes for tracing, what is saved for backward); a backend brings
two functions that fill tensors.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from bistoch.functional.elastic.problem import Problem, Solution, full_precision


class History(NamedTuple):
    """What iteration t leaves for the backward: its row potential f and its column totals.

    `LSE_i(S + f) = peak + log_total`, kept apart because their sum would round away the digits that
    make the columns of `exp(S + f - LSE)` sum to one.
    """

    row: Tensor  # (B, T, n)
    peak: Tensor  # (B, T, m)
    log_total: Tensor  # (B, T, m)


class Gradients(NamedTuple):
    """Where a backward adds its results; `mask` is empty when nobody asked for it."""

    query: Tensor
    key: Tensor
    value: Tensor
    sharpness: Tensor
    lam: Tensor
    omega: Tensor
    log_mass: Tensor
    mask: Tensor


class Upstream(NamedTuple):
    """The gradients that arrive at what a solution returned."""

    output: Tensor
    row: Tensor
    column: Tensor


# fills the solution, and the history if there is one
Forward = Callable[[Problem, Tensor, Solution, History | None], None]
# adds to gradients that start as zeros
Backward = Callable[[Problem, Tensor, Solution, History, Upstream, Gradients], None]


def register(
    name: str, forward: Forward, backward: Backward
) -> Callable[[Problem, Tensor], Solution]:
    """Register `bistoch::name` and its backward; return the function that solves with it."""

    @torch.library.custom_op(f"bistoch::{name}", mutates_args=())
    def forward_op(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        mask_index: Tensor | None,
        query_mask: Tensor | None,
        key_mask: Tensor | None,
        sharpness: Tensor,
        lam: Tensor,
        omega: Tensor,
        log_mass: Tensor,
        iters: int,
        tol: float | None,
        keep_history: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        problem = Problem(
            query, key, mask, mask_index, query_mask, key_mask, sharpness, lam, omega, log_mass,
            iters, tol,
        )  # fmt: skip
        solution, history = empty(query, key, value, iters, keep_history)
        with full_precision(query.device):
            forward(problem, value, solution, history if keep_history else None)
        return (*solution, *history)

    @forward_op.register_fake
    def _(query, key, value, *rest):
        iters, _, keep_history = rest[-3:]
        solution, history = empty(query, key, value, iters, keep_history)
        return (*solution, *history)

    @torch.library.custom_op(f"bistoch::{name}_backward", mutates_args=())
    def backward_op(
        output_grad: Tensor,
        row_grad: Tensor,
        column_grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        mask_index: Tensor | None,
        query_mask: Tensor | None,
        key_mask: Tensor | None,
        sharpness: Tensor,
        lam: Tensor,
        omega: Tensor,
        log_mass: Tensor,
        output: Tensor,
        row: Tensor,
        column: Tensor,
        error: Tensor,
        iterations: Tensor,
        row_history: Tensor,
        peak_history: Tensor,
        log_total_history: Tensor,
        mask_needs_grad: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        problem = Problem(
            query, key, mask, mask_index, query_mask, key_mask, sharpness, lam, omega, log_mass,
            row_history.shape[1], None,
        )  # fmt: skip
        solution = Solution(output, row, column, error, iterations)
        differentiable = (query, key, value, sharpness, lam, omega, log_mass)
        grads = _zeros(differentiable, mask if mask_needs_grad else None)
        with full_precision(query.device):
            history = History(row_history, peak_history, log_total_history)
            upstream = Upstream(output_grad, row_grad, column_grad)
            backward(problem, value, solution, history, upstream, grads)
        return grads

    @backward_op.register_fake
    def _(output_grad, row_grad, column_grad, query, key, value, *rest):
        mask, mask_needs_grad = rest[0], rest[-1]
        sharpness, lam, omega, log_mass = rest[4:8]
        differentiable = (query, key, value, sharpness, lam, omega, log_mass)
        return tuple(_zeros(differentiable, mask if mask_needs_grad else None))

    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs[:11], *output)
        ctx.mark_non_differentiable(*output[3:])

    def differentiate(ctx, output_grad, row_grad, column_grad, *_):
        mask_needs_grad = ctx.needs_input_grad[3]
        grads = Gradients(
            *backward_op(output_grad, row_grad, column_grad, *ctx.saved_tensors, mask_needs_grad)
        )
        mask = grads.mask if mask_needs_grad else None
        return (
            grads.query, grads.key, grads.value, mask, None, None, None,
            grads.sharpness, grads.lam, grads.omega, grads.log_mass, None, None, None,
        )  # fmt: skip

    forward_op.register_autograd(differentiate, setup_context=setup_context)

    def solve(problem: Problem, value: Tensor) -> Solution:
        inputs = (value, *(field for field in problem if isinstance(field, Tensor)))
        refuse_tangents(name, inputs)
        keep_history = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
        query, key, *rest = problem
        return Solution(*forward_op(query, key, value, *rest, keep_history)[:5])

    return solve


def refuse_tangents(name: str, inputs: Iterable[Tensor]) -> None:
    """Refuse forward-mode derivatives: torch would silently return zero tangents."""
    in_forward_mode = forward_ad._current_level >= 0
    if in_forward_mode and any(_has_tangent(tensor) for tensor in inputs):
        raise NotImplementedError(
            f"{name}: only backward-mode derivatives are known to this backend; "
            'for torch.func.jvp choose backend="reference"'
        )


def _has_tangent(tensor: Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None


def empty(
    query: Tensor, key: Tensor, value: Tensor, iters: int, keep_history: bool
) -> tuple[Solution, History]:
    """Room for what a forward fills."""
    batch, n, m = query.shape[0], query.shape[1], key.shape[1]
    kept = iters if keep_history else 0
    solution = Solution(
        output=query.new_empty(batch, n, value.shape[2]),
        row=query.new_empty(batch, n),
        column=query.new_empty(batch, m),
        error=query.new_empty(batch),
        iterations=query.new_empty(batch, dtype=torch.int64),
    )
    history = (query.new_empty(batch, kept, size) for size in (n, m, m))
    return solution, History(*history)


def _zeros(differentiable: tuple[Tensor, ...], mask: Tensor | None) -> Gradients:
    mask = differentiable[0].new_empty(0) if mask is None else mask
    zeros = (torch.zeros(t.shape, dtype=t.dtype, device=t.device) for t in (*differentiable, mask))
    return Gradients(*zeros)
