"""The CPU kernels as a torch operator: opaque to compilers, known to autograd."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.functional.backends import Backend
from bistoch.functional.elastic.operator import (
    is_plain,
    only_once,
    refuse_second,
    refuse_tangents,
    take,
)
from bistoch.functional.monarch.cpu import launch as cpu
from bistoch.functional.monarch.cpu.launch import Inputs, Kept
from bistoch.functional.monarch.problem import Monarch


class Gradients(NamedTuple):
    """Those of all inputs that have one, in their order; empty where there is no such input."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor
    sharpness: Tensor
    lam: Tensor
    omega: Tensor
    log_mass: Tensor


def attend(problem: Monarch, value: Float[Tensor, "B m e"]) -> Float[Tensor, "B n e"]:
    """The rows of every problem.

    What compilers and transforms see is the registered operator. A plain call in eager mode goes
    past the dispatcher, whose Python layers would cost more than a small problem.
    """
    inputs = inputs_of(problem, value)
    steps = 0 if problem.balance is None else problem.balance.iters
    tensors = [tensor for tensor in inputs if tensor is not None]
    refuse_tangents("monarch_attention", tensors, 'choose backend="reference"')
    keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if not is_plain(tensors):
        output, *_ = monarch_cpu(*inputs, problem.updates, steps, keep)
        return output
    if keep:
        return _Eager.apply(*inputs, problem.updates, steps)
    output, _ = cpu.forward(inputs, problem.updates, steps, keep=False)
    return output


def inputs_of(problem: Monarch, value: Tensor) -> Inputs:
    """What the kernels need of a problem."""
    balance, lam, omega, log_mass = problem.balance, None, None, None
    if balance is not None:
        lam, omega, log_mass = balance.lam, balance.first_omega(), balance.log_mass
    return Inputs(
        problem.query, problem.key, value, problem.bias, problem.real, problem.sharpness, lam,
        omega, log_mass, *problem.layout,
    )  # fmt: skip


@torch.library.custom_op("bistoch::monarch_cpu", mutates_args=())
def monarch_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    real: Tensor | None,
    sharpness: Tensor,
    lam: Tensor | None,
    omega: Tensor | None,
    log_mass: Tensor | None,
    members: Tensor,
    keys: Tensor,
    own: Tensor,
    updates: int,
    steps: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, and what its backward needs if it is to be kept."""
    inputs = Inputs(
        query, key, value, bias, real, sharpness, lam, omega, log_mass, members, keys, own
    )
    output, kept = cpu.forward(inputs, updates, steps, keep)
    return output, *kept


@monarch_cpu.register_fake
def _(*arguments):
    *inputs, updates, steps, keep = arguments
    output, kept = cpu.room(Inputs(*inputs), updates, steps, keep)
    return output, *kept


@torch.library.custom_op("bistoch::monarch_cpu_backward", mutates_args=())
def monarch_cpu_backward(
    output_grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    real: Tensor | None,
    sharpness: Tensor,
    lam: Tensor | None,
    omega: Tensor | None,
    log_mass: Tensor | None,
    members: Tensor,
    keys: Tensor,
    own: Tensor,
    records: Tensor,
    means: Tensor,
    updates: int,
    steps: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The fields of `Gradients`."""
    inputs = Inputs(
        query, key, value, bias, real, sharpness, lam, omega, log_mass, members, keys, own
    )
    found = cpu.backward(output_grad, inputs, Kept(records, means), updates, steps)
    none = {name: query.new_empty(0) for name in Gradients._fields}
    return Gradients(**none | found)


@monarch_cpu_backward.register_fake
def _(output_grad, *arguments):
    inputs = take(Inputs, iter(arguments))
    given = [getattr(inputs, name) for name in Gradients._fields]
    like = torch.contiguous_format
    return tuple(
        inputs.query.new_empty(0) if x is None else torch.empty_like(x, memory_format=like)
        for x in given
    )


def _setup_context(ctx, inputs, output) -> None:
    *tensors, updates, steps, keep = inputs
    _output, *kept = output
    ctx.save_for_backward(*tensors, *kept)
    ctx.rule, ctx.keep = (updates, steps), keep
    ctx.mark_non_differentiable(*kept)


def _differentiate(ctx, output_grad, *_):
    saved, needed = iter(ctx.saved_tensors), take(Inputs, iter(ctx.needs_input_grad))
    inputs, kept = take(Inputs, saved), take(Kept, saved)
    if not ctx.keep:
        # a program that was exported for inference, and is differentiated all the same
        _output, *kept = monarch_cpu(*inputs, *ctx.rule, True)
    grads = Gradients._make(monarch_cpu_backward(output_grad, *inputs, *kept, *ctx.rule))._asdict()
    found = (grads.get(name) if getattr(needed, name) else None for name in Inputs._fields)
    # neither updates, steps nor keep has one
    return *found, None, None, None


monarch_cpu.register_autograd(_differentiate, setup_context=_setup_context)
monarch_cpu_backward.register_autograd(refuse_second("monarch_cpu"))


BACKEND = Backend("cpu", "cpu", attend)


class _Eager(torch.autograd.Function):
    """The same without the dispatcher."""

    @staticmethod
    def forward(ctx, *arguments):
        *inputs, updates, steps = arguments
        output, kept = cpu.forward(Inputs(*inputs), updates, steps, keep=True)
        ctx.save_for_backward(*inputs, *kept)
        ctx.rule = updates, steps
        return output

    @staticmethod
    @only_once("monarch_cpu")
    def backward(ctx, output_grad):
        saved = iter(ctx.saved_tensors)
        inputs, kept = take(Inputs, saved), take(Kept, saved)
        found = cpu.backward(output_grad, inputs, kept, *ctx.rule)
        return *(found.get(name) for name in Inputs._fields), None, None
