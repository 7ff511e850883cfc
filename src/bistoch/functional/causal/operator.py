"""The CPU kernels as a torch operator: opaque to compilers, known to autograd."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.functional.backends import Backend
from bistoch.functional.causal.cpu import launch as cpu
from bistoch.functional.causal.cpu.launch import Inputs, Kept
from bistoch.functional.causal.problem import Stream
from bistoch.functional.elastic.operator import (
    is_plain,
    only_once,
    refuse_second,
    refuse_tangents,
    take,
)


class Gradients(NamedTuple):
    """Those of all inputs that have one; that of a mask is empty if it is not needed."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor
    sharpness: Tensor
    lam: Tensor


def attend(stream: Stream) -> Float[Tensor, "B n e"]:
    """The rows of a whole sequence, whose real tokens come first.

    What compilers and transforms see is the registered operator. A plain call in eager mode goes
    past the dispatcher, whose Python layers would cost more than a small problem.
    """
    inputs = inputs_of(stream)
    tensors = [tensor for tensor in inputs if tensor is not None]
    refuse_tangents("causal_elastic_attention", tensors, 'choose backend="reference"')
    keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if not is_plain(tensors):
        output, *_ = causal_cpu(*inputs, stream.prior, stream.block, keep)
        return output
    if keep:
        return _Eager.apply(*inputs, stream.prior, stream.block)
    output, _ = cpu.forward(inputs, stream.prior, stream.block, keep=False)
    return output


def inputs_of(stream: Stream) -> Inputs:
    """What the kernels need of a stream."""
    return Inputs(
        stream.query, stream.key, stream.value, stream.mask, stream.mask_index,
        None if stream.real is None else stream.real.sum(-1), stream.sharpness, stream.lam,
    )  # fmt: skip


@torch.library.custom_op("bistoch::causal_cpu", mutates_args=())
def causal_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    mask_index: Tensor | None,
    length: Tensor | None,
    sharpness: Tensor,
    lam: Tensor,
    prior: float,
    block: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The result, and what its backward needs if it is to be kept."""
    inputs = Inputs(query, key, value, mask, mask_index, length, sharpness, lam)
    output, kept = cpu.forward(inputs, prior, block, keep)
    return output, *kept


@causal_cpu.register_fake
def _(query, key, value, mask, mask_index, length, sharpness, lam, prior, block, keep):
    inputs = Inputs(query, key, value, mask, mask_index, length, sharpness, lam)
    output, kept = cpu.room(inputs, block, keep)
    return output, *kept


@torch.library.custom_op("bistoch::causal_cpu_backward", mutates_args=())
def causal_cpu_backward(
    output_grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    mask_index: Tensor | None,
    length: Tensor | None,
    sharpness: Tensor,
    lam: Tensor,
    shift: Tensor,
    factor: Tensor,
    history: Tensor,
    prior: float,
    block: int,
    mask_too: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The fields of `Gradients`."""
    inputs = Inputs(query, key, value, mask, mask_index, length, sharpness, lam)
    kept = Kept(shift, factor, history)
    found = cpu.backward(output_grad, inputs, kept, prior, block, mask_too)
    mask_grad = query.new_empty(0) if found.mask is None else found.mask
    return Gradients(found.query, found.key, found.value, mask_grad, found.sharpness, found.lam)


@causal_cpu_backward.register_fake
def _(output_grad, query, key, value, mask, mask_index, length, sharpness, lam, *rest):
    *_, mask_too = rest
    mask_grad = _dense_like(mask) if mask_too else query.new_empty(0)
    grads = [_dense_like(tensor) for tensor in (query, key, value, sharpness, lam)]
    query_grad, key_grad, value_grad, sharpness_grad, lam_grad = grads
    return tuple(Gradients(query_grad, key_grad, value_grad, mask_grad, sharpness_grad, lam_grad))


def _dense_like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _setup_context(ctx, inputs, output) -> None:
    *tensors, prior, block, keep = inputs
    _output, *kept = output
    ctx.save_for_backward(*tensors, *kept)
    ctx.rule, ctx.keep = (prior, block), keep
    ctx.mark_non_differentiable(*kept)


def _differentiate(ctx, output_grad, *_):
    saved, needed = iter(ctx.saved_tensors), take(Inputs, iter(ctx.needs_input_grad))
    inputs, kept = take(Inputs, saved), take(Kept, saved)
    if not ctx.keep:
        # a program that was exported for inference, and is differentiated all the same
        _output, *kept = causal_cpu(*inputs, *ctx.rule, True)
    grads = Gradients._make(
        causal_cpu_backward(output_grad, *inputs, *kept, *ctx.rule, needed.mask)
    )._asdict()
    found = (grads.get(name) if getattr(needed, name) else None for name in Inputs._fields)
    # neither prior, block nor keep has one
    return *found, None, None, None


causal_cpu.register_autograd(_differentiate, setup_context=_setup_context)
causal_cpu_backward.register_autograd(refuse_second("causal_cpu"))


BACKEND = Backend("cpu", "cpu", attend)


class _Eager(torch.autograd.Function):
    """The same without the dispatcher."""

    @staticmethod
    def forward(ctx, *arguments):
        *inputs, prior, block = arguments
        output, kept = cpu.forward(Inputs(*inputs), prior, block, keep=True)
        ctx.save_for_backward(*inputs, *kept)
        ctx.rule = prior, block
        return output

    @staticmethod
    @only_once("causal_cpu")
    def backward(ctx, output_grad):
        saved, needed = iter(ctx.saved_tensors), take(Inputs, iter(ctx.needs_input_grad))
        inputs, kept = take(Inputs, saved), take(Kept, saved)
        found = cpu.backward(output_grad, inputs, kept, *ctx.rule, needed.mask)
        return *found, None, None
