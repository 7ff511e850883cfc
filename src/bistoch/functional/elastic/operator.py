"""A backend's forward and backward as a torch operator: opaque to compilers, known to autograd.

The plumbing is here once (schema, shapes for tracing, what is saved for backward); a backend brings
two functions that fill tensors.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from bistoch.functional.precision import no_autocast
from bistoch.functional.problem import (
    Balance,
    GivenScores,
    Problem,
    Scores,
    Shards,
    Solution,
)


class Inputs(NamedTuple):
    """The tensors of a problem and its values, as the registered operators take them."""

    # tokens, or a matrix of scores that is given instead of them, with neither mask nor sharpness
    query: Tensor | None
    key: Tensor | None
    given: Tensor | None
    value: Tensor
    mask: Tensor | None
    mask_index: Tensor | None
    query_mask: Tensor | None
    key_mask: Tensor | None
    sharpness: Tensor | None
    lam: Tensor
    omega: Tensor | None
    log_mass: Tensor
    log_row_mass: Tensor | None
    start: Tensor | None

    def tensors(self) -> list[Tensor]:
        """Those that are there."""
        return [tensor for tensor in self if tensor is not None]

    def problem(self, iters: int, tol: float | None, shards: Shards | None = None) -> Problem:
        """The problem that they were made of."""
        scores: Scores | GivenScores
        if self.given is not None:
            scores = GivenScores(self.given, self.query_mask, self.key_mask)
        elif self.query is not None and self.key is not None and self.sharpness is not None:
            scores = Scores(
                self.query, self.key, self.mask, self.mask_index, self.query_mask, self.key_mask,
                self.sharpness,
            )  # fmt: skip
        else:
            raise ValueError("elastic: expected query, key and sharpness, or scores that are given")
        balance = Balance(
            self.lam, self.omega, self.log_mass, self.log_row_mass, self.start, iters, tol, shards
        )
        return Problem(scores, balance)


def inputs_of(problem: Problem, value: Tensor) -> Inputs:
    """The tensors of a problem and its values."""
    scores, balance = problem
    if isinstance(scores, GivenScores):
        return Inputs(
            None, None, scores.given, value, None, None, scores.query_mask, scores.key_mask, None,
            *balance.tensors(),
        )  # fmt: skip
    return Inputs(
        scores.query, scores.key, None, value, scores.mask, scores.mask_index, scores.query_mask,
        scores.key_mask, scores.sharpness, *balance.tensors(),
    )  # fmt: skip


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
    """Where a backward puts its results; those of what is not there are empty."""

    query: Tensor
    key: Tensor
    value: Tensor
    sharpness: Tensor
    lam: Tensor
    omega: Tensor
    log_mass: Tensor
    log_row_mass: Tensor
    start: Tensor
    # of a float mask, or of scores that were given; empty if it is not needed
    bias: Tensor

    def part_of(self, some: slice | Tensor, given: bool) -> "Gradients":
        """Those of a part of the batch; that of a mask stays whole, which problems may share."""
        whole = self.bias if not given or not self.bias.numel() else None
        return Gradients._make(x if x is whole else x[some] for x in self)


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
# adds to gradients that start as zeros; or, if it says so, fills all of them but the bias's
Backward = Callable[[Problem, Tensor, Solution, History, Upstream, Gradients], None]

_NEEDED = ("value", "lam", "log_mass")
_INPUTS = ", ".join(f"Tensor{'' if name in _NEEDED else '?'} {name}" for name in Inputs._fields)
_RESULTS = (*Solution._fields, *(f"{name}_history" for name in History._fields))


def register(
    name: str,
    forward: Forward,
    backward: Backward,
    *,
    fills: bool = False,
    make_history: Callable[..., History] | None = None,
) -> Callable[[Problem, Tensor], Solution]:
    """Register `bistoch::name` and its backward; return the function that solves with it.

    What compilers, exporters and transforms see is the registered operator. A plain call in eager
    mode goes past the dispatcher, whose Python layers would cost more than a small problem.
    A backend whose history has other shapes brings the function that makes room for it.
    """
    new_history = empty_history if make_history is None else make_history

    def run_forward(*arguments):
        *fields, iters, tol, keep_history = arguments
        inputs = Inputs._make(fields)
        problem, value = inputs.problem(iters, tol), inputs.value
        solution, history = empty(problem, value), new_history(problem, keep_history)
        with no_autocast(value.device):
            forward(problem, value, solution, history if keep_history else None)
        return (*solution, *history)

    def run_backward(inputs, solution, history, upstream, bias_too, tol, shards=None):
        iters = history.omega.shape[1]
        grads = room(inputs, bias_too, fills)
        with no_autocast(inputs.value.device):
            problem = inputs.problem(iters, tol, shards)
            backward(problem, inputs.value, solution, history, upstream, grads)
        return grads

    forward_op = torch.library.custom_op(
        f"bistoch::{name}", run_forward, mutates_args=(),
        schema=f"({_INPUTS}, int iters, float? tol, bool keep_history) -> "
        f"({', '.join('Tensor' for _ in _RESULTS)})",
    )  # fmt: skip

    @forward_op.register_fake
    def _(*arguments):
        *fields, iters, tol, keep_history = arguments
        inputs = Inputs._make(fields)
        problem = inputs.problem(iters, tol)
        return (*empty(problem, inputs.value), *new_history(problem, keep_history))

    def from_arguments(arguments):
        rest = iter(arguments)
        upstream = take(Upstream, rest)
        inputs, solution, history = (take(kind, rest) for kind in (Inputs, Solution, History))
        bias_too, tol = rest
        return inputs, solution, history, upstream, bias_too, tol

    backward_op = torch.library.custom_op(
        f"bistoch::{name}_backward",
        lambda *arguments: tuple(run_backward(*from_arguments(arguments))),
        mutates_args=(),
        schema=f"({', '.join(f'Tensor {field}_grad' for field in Upstream._fields)}, {_INPUTS}, "
        f"{', '.join(f'Tensor {field}' for field in _RESULTS)}, bool bias_too, float? tol) -> "
        f"({', '.join('Tensor' for _ in Gradients._fields)})",
    )

    @backward_op.register_fake
    def _(*arguments):
        inputs, *_, bias_too, _ = from_arguments(arguments)
        return tuple(room(inputs, bias_too, fills))

    def setup_context(ctx, inputs, output) -> None:
        results = iter(output)
        solution = take(Solution, results)
        arguments = iter(inputs)
        ctx.save_for_backward(*take(Inputs, arguments), *output)
        ctx.steps = tuple(arguments)
        ctx.mark_non_differentiable(solution.error, solution.iterations, *results)

    def differentiate(ctx, *arriving):
        needed = take(Inputs, iter(ctx.needs_input_grad))
        upstream = take(Upstream, iter(arriving))
        saved, (iters, tol, keep_history) = ctx.saved_tensors, ctx.steps
        if not keep_history:
            # a program that was exported for inference, and is differentiated all the same
            inputs = take(Inputs, iter(saved))
            saved = (*inputs, *forward_op(*inputs, iters, tol, True))
        grads = backward_op(*upstream, *saved, needed.mask or needed.given, tol)
        # neither iters, tol nor keep_history has one
        return *_by_input(Gradients._make(grads), needed), None, None, None

    forward_op.register_autograd(differentiate, setup_context=setup_context)
    backward_op.register_autograd(refuse_second(name))

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx, iters, tol, shards, *fields):
            inputs, ctx.shards = Inputs._make(fields), shards
            problem, value = inputs.problem(iters, tol, shards), inputs.value
            solution, history = empty(problem, value), new_history(problem)
            forward(problem, value, solution, history)
            ctx.save_for_backward(*fields, *solution, *history)
            ctx.tol = tol
            ctx.mark_non_differentiable(solution.error, solution.iterations, *history)
            # what is not used, all of the history too, would else arrive as zeros
            ctx.set_materialize_grads(False)
            return (*solution, *history)

        @staticmethod
        @only_once(name)
        def backward(ctx, *arriving):
            saved = iter(ctx.saved_tensors)
            inputs, solution, history = (take(kind, saved) for kind in (Inputs, Solution, History))
            upstream = take(Upstream, iter(arriving))
            if upstream.output is None:
                upstream = upstream._replace(output=torch.zeros_like(solution.output))
            needed = Inputs._make(ctx.needs_input_grad[3:])
            bias_too = needed.mask or needed.given
            grads = run_backward(inputs, solution, history, upstream, bias_too, ctx.tol, ctx.shards)
            return None, None, None, *_by_input(grads, needed)

    def solve(problem: Problem, value: Tensor) -> Solution:
        inputs = inputs_of(problem, value)
        tensors, iters, tol = inputs.tensors(), problem.balance.iters, problem.balance.tol
        refuse_tangents(name, tensors, 'choose backend="reference"')
        keep_history = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        shards = problem.balance.shards
        # an operator has no place for processes
        if shards is None and not is_plain(tensors):
            return take(Solution, iter(forward_op(*inputs, iters, tol, keep_history)))
        if keep_history:
            return take(Solution, iter(Eager.apply(iters, tol, shards, *inputs)))
        solution = empty(problem, value)
        forward(problem, value, solution, None)
        return solution

    return solve


def is_plain(inputs: Iterable[Tensor]) -> bool:
    """Whether nothing but autograd records this call: no compiler, transform, mode or subclass."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or any(type(tensor) not in (Tensor, torch.nn.Parameter) for tensor in inputs)
    )


def only_once(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As torch's `once_differentiable`, which ignores that what was saved may have a gradient."""

    def decorate(backward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(backward)
        def wrapped(ctx, *arriving):
            with torch.no_grad():
                grads = backward(ctx, *arriving)
            if not torch.is_grad_enabled():
                return grads
            # gradients that raise the sentence as soon as they are differentiated
            refuse = torch._C._functions.DelayedError(second_order(name).encode(), len(grads))
            return refuse(*(g if g is None else g.detach().requires_grad_() for g in grads))

        return wrapped

    return decorate


def refuse_second(name: str) -> Callable[..., Any]:
    """The derivative of a backward that has none."""

    def differentiate(ctx, *_):
        raise RuntimeError(second_order(name))

    return differentiate


def second_order(name: str) -> str:
    """Why there are no second derivatives, and what to do."""
    remedy = 'for second ones choose backend="reference"'
    return f"{name}: this backend has first derivatives only; {remedy}"


def refuse_tangents(name: str, inputs: Iterable[Tensor], remedy: str) -> None:
    """Refuse forward-mode derivatives, for which torch would silently return zeros."""
    if forward_ad._current_level >= 0 and any(_has_tangent(tensor) for tensor in inputs):
        raise NotImplementedError(
            f"{name}: only backward-mode derivatives are known to this backend; "
            f"for torch.func.jvp {remedy}"
        )


def _has_tangent(tensor: Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None


def empty(problem: Problem, value: Tensor) -> Solution:
    """Room for what a forward fills."""
    (batch, n, m), like = problem.scores.shape, problem.scores.like
    return Solution(
        output=like.new_empty(batch, n, value.shape[2]),
        row=like.new_empty(batch, n),
        column=like.new_empty(batch, m),
        error=like.new_empty(batch),
        iterations=like.new_empty(batch, dtype=torch.int64),
    )


def empty_history(problem: Problem, keep: bool = True) -> History:
    """Room for the history of all iterations, or for none."""
    (batch, n, m), like, kept = problem.scores.shape, problem.scores.like, problem.balance.iters
    shapes: tuple[tuple[int, ...], ...] = ((kept, n), (kept, m), (kept, m), (kept,))
    # an operator may not return one tensor twice, not even an empty one
    shapes = shapes if keep else ((0, 0),) * 4
    return History(*(like.new_empty(batch, *shape) for shape in shapes))


def room(inputs: Inputs, bias_too: bool, fills: bool = False) -> Gradients:
    """Where a backward puts its results: zeros, or just room if it fills all of it."""
    make = torch.empty if fills else torch.zeros
    lam, none = inputs.lam, inputs.log_mass[:, :0]

    def like(tensor: Tensor | None) -> Tensor:
        tensor = none if tensor is None else tensor
        return make(tensor.shape, dtype=tensor.dtype, device=tensor.device)

    bias = inputs.mask if inputs.given is None else inputs.given
    bias = bias if bias_too else None
    return Gradients(
        query=like(inputs.query),
        key=like(inputs.key),
        value=like(inputs.value),
        # that of given scores goes nowhere, nor does that of steps that were chosen
        sharpness=like(lam),
        lam=like(lam),
        omega=like(lam),
        log_mass=like(inputs.log_mass),
        log_row_mass=like(inputs.log_row_mass),
        start=like(inputs.start),
        # kernels write it row by row, however the bias itself lies in memory
        bias=lam.new_empty(0) if bias is None else _dense_zeros(bias),
    )


def _dense_zeros(like: Tensor) -> Tensor:
    return torch.zeros_like(like, memory_format=torch.contiguous_format)


def _by_input(grads: Gradients, needed: Inputs) -> tuple[Tensor | None, ...]:
    """Gradients in the order of the inputs of the operator; none for what needs none."""
    found = grads._asdict() | {"mask": grads.bias, "given": grads.bias}
    return tuple(found[name] if need else None for name, need in needed._asdict().items())


Fields = TypeVar("Fields", bound=NamedTuple)


def take(kind: type[Fields], values: Iterator[Any]) -> Fields:
    """The next values as fields of a kind."""
    return kind._make(islice(values, len(kind._fields)))
