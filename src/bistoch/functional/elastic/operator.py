"""A backend's forward and backward as a torch operator: opaque to compilers, known to autograd.

The plumbing is here once (schema, shapes for tracing, what is saved for backward); a backend brings
two functions that fill tensors.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from bistoch.functional.problem import Balance, Problem, Scores, Solution, full_precision


class History(NamedTuple):
    """What iteration t leaves for the backward: its row potential f, column totals, and step.

    f includes the log of the row mass. `LSE_i(S + f) = peak + log_total`, kept apart because their
    sum would round away the digits that make the columns of `exp(S + f - LSE)` sum to one.
    """

    row: Tensor  # (B, T, n)
    peak: Tensor  # (B, T, m)
    log_total: Tensor  # (B, T, m)
    omega: Tensor  # (B, T)


class Gradients(NamedTuple):
    """Where a backward puts its results; `mask` is empty when nobody asked for it."""

    query: Tensor
    key: Tensor
    value: Tensor
    sharpness: Tensor
    lam: Tensor
    omega: Tensor
    log_mass: Tensor
    # empty, as the mask's, where the problem has none
    log_row_mass: Tensor
    start: Tensor
    mask: Tensor


class Upstream(NamedTuple):
    """The gradients that arrive at what a solution returned; None where nothing arrives."""

    output: Tensor
    row: Tensor | None
    column: Tensor | None

    def of(self, some: slice | Tensor) -> "Upstream":
        """Those of a part of the batch."""
        row, column = (None if field is None else field[some] for field in self[1:])
        return Upstream(self.output[some], row, column)


# fills the solution, and the history if there is one
Forward = Callable[[Problem, Tensor, Solution, History | None], None]
# adds to gradients that start as zeros; or, if it says so, fills all of them but the mask's
Backward = Callable[[Problem, Tensor, Solution, History, Upstream, Gradients], None]


def register(
    name: str, forward: Forward, backward: Backward, *, fills: bool = False
) -> Callable[[Problem, Tensor], Solution]:
    """Register `bistoch::name` and its backward; return the function that solves with it.

    What compilers, exporters and transforms see is the registered operator. A plain call in eager
    mode goes past the dispatcher, whose Python layers would cost more than a small problem.
    """

    def run_forward(query, key, value, *rest):
        *fields, iters, tol, keep_history = rest
        solution, history = empty(query, key, value, iters, keep_history)
        with full_precision(query.device):
            problem = _problem(query, key, fields, iters, tol)
            forward(problem, value, solution, history if keep_history else None)
        return (*solution, *history)

    def run_backward(mask_needs_grad, arriving, inputs, results):
        query, key, value, *fields = inputs
        history = History(*results[5:])
        problem = _problem(query, key, fields, history.row.shape[1], None)
        differentiable = (query, key, value, *_of_problems(*fields[4:]))
        grads = _room(differentiable, problem.scores.mask if mask_needs_grad else None, fills)
        with full_precision(query.device):
            backward(
                problem, value, Solution(*results[:5]), history, Upstream(*arriving), grads
            )  # fmt: skip
        return grads

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
        omega: Tensor | None,
        log_mass: Tensor,
        log_row_mass: Tensor | None,
        start: Tensor | None,
        iters: int,
        tol: float | None,
        keep_history: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        return run_forward(
            query, key, value, mask, mask_index, query_mask, key_mask, sharpness, lam, omega,
            log_mass, log_row_mass, start, iters, tol, keep_history,
        )  # fmt: skip

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
        omega: Tensor | None,
        log_mass: Tensor,
        log_row_mass: Tensor | None,
        start: Tensor | None,
        output: Tensor,
        row: Tensor,
        column: Tensor,
        error: Tensor,
        iterations: Tensor,
        row_history: Tensor,
        peak_history: Tensor,
        log_total_history: Tensor,
        omega_history: Tensor,
        mask_needs_grad: bool,
    ) -> tuple[
        Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
    ]:  # fmt: skip
        inputs = (
            query, key, value, mask, mask_index, query_mask, key_mask, sharpness, lam, omega,
            log_mass, log_row_mass, start,
        )  # fmt: skip
        results = (
            output, row, column, error, iterations, row_history, peak_history, log_total_history,
            omega_history,
        )  # fmt: skip
        return run_backward(mask_needs_grad, (output_grad, row_grad, column_grad), inputs, results)

    @backward_op.register_fake
    def _(output_grad, row_grad, column_grad, query, key, value, *rest):
        mask, mask_needs_grad = rest[0], rest[-1]
        differentiable = (query, key, value, *_of_problems(*rest[4:10]))
        return tuple(_room(differentiable, mask if mask_needs_grad else None, fills))

    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs[:INPUTS], *output)
        ctx.mark_non_differentiable(*output[3:])

    def differentiate(ctx, output_grad, row_grad, column_grad, *_):
        needed = ctx.needs_input_grad
        arriving = (output_grad, row_grad, column_grad)
        return _by_input(backward_op(*arriving, *ctx.saved_tensors, needed[3]), needed)

    forward_op.register_autograd(differentiate, setup_context=setup_context)

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            output = run_forward(*inputs)
            setup_context(ctx, inputs, output)
            # what nobody asks for, all of the history too, would else arrive as zeros
            ctx.set_materialize_grads(False)
            return output

        @staticmethod
        @once_differentiable
        def backward(ctx, output_grad, row_grad, column_grad, *_):
            needed, saved = ctx.needs_input_grad, ctx.saved_tensors
            if output_grad is None:
                output_grad = torch.zeros_like(saved[INPUTS])
            arriving = (output_grad, row_grad, column_grad)
            grads = run_backward(needed[3], arriving, saved[:INPUTS], saved[INPUTS:])
            return _by_input(grads, needed)

    def solve(problem: Problem, value: Tensor) -> Solution:
        query, key, *rest = (*problem.scores, *problem.balance)
        inputs = (value, *(x for fields in problem for x in fields if isinstance(x, Tensor)))
        refuse_tangents(name, inputs, 'choose backend="reference"')
        keep_history = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
        call: Callable[..., Any] = forward_op
        if is_plain(inputs):
            call = Eager.apply if keep_history else run_forward
        return Solution(*call(query, key, value, *rest, keep_history)[:5])

    return solve


# how many inputs of the operator are tensors; the others are numbers
INPUTS = 13


def _problem(query: Tensor, key: Tensor, fields, iters: int, tol: float | None) -> Problem:
    mask, mask_index, query_mask, key_mask, sharpness, *balance = fields
    scores = Scores(query, key, mask, mask_index, query_mask, key_mask, sharpness)
    return Problem(scores, Balance._make((*balance, iters, tol)))


def _by_input(grads: Sequence[Tensor], needed: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """Gradients in the order of the inputs of the operator; none for a mask or omega without."""
    found = Gradients(*grads)
    mask, omega = found.mask if needed[3] else None, found.omega if needed[9] else None
    row_mass, start = (
        grad if need else None for grad, need in zip(found[7:9], needed[11:13], strict=True)
    )
    return (
        found.query, found.key, found.value, mask, None, None, None,
        found.sharpness, found.lam, omega, found.log_mass, row_mass, start, None, None, None,
    )  # fmt: skip


def _of_problems(
    sharpness: Tensor,
    lam: Tensor,
    omega: Tensor | None,
    log_mass: Tensor,
    log_row_mass: Tensor | None,
    start: Tensor | None,
) -> tuple[Tensor, ...]:
    """The options that gradients are made for; those of steps that were chosen go nowhere."""
    more = (log_mass[:, :0] if option is None else option for option in (log_row_mass, start))
    return sharpness, lam, lam if omega is None else omega, log_mass, *more


def is_plain(inputs: Iterable[Tensor]) -> bool:
    """Whether nobody but autograd watches this call: no compiler, transform, mode or subclass."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or any(type(tensor) not in (Tensor, torch.nn.Parameter) for tensor in inputs)
    )


def refuse_tangents(name: str, inputs: Iterable[Tensor], remedy: str) -> None:
    """Refuse forward-mode derivatives, for which torch would silently return zeros."""
    if forward_ad._current_level >= 0 and any(_has_tangent(tensor) for tensor in inputs):
        raise NotImplementedError(
            f"{name}: only backward-mode derivatives are known to this backend; "
            f"for torch.func.jvp {remedy}"
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
    # an operator may not return one tensor twice, not even an empty one
    shapes: tuple[tuple[int, ...], ...] = ((kept, n), (kept, m), (kept, m), (kept,))
    shapes = shapes if keep_history else ((0, 0),) * 4
    return solution, History(*(query.new_empty(batch, *shape) for shape in shapes))


def _room(differentiable: tuple[Tensor, ...], mask: Tensor | None, fills: bool) -> Gradients:
    """Where a backward puts its results: zeros, or just room if it fills all of it."""
    make = torch.empty if fills else torch.zeros
    made = [make(t.shape, dtype=t.dtype, device=t.device) for t in differentiable]
    made.append(differentiable[0].new_empty(0) if mask is None else torch.zeros_like(mask))
    return Gradients(*made)
