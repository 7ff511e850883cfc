"""The CPU kernels as a torch operator: opaque to compilers, known to autograd."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.functional.backends import Backend
from bistoch.functional.delta.cpu import launch as cpu
from bistoch.functional.delta.cpu.launch import Inputs, Kept, Options
from bistoch.functional.delta.tokens import Rule, Tokens
from bistoch.functional.elastic.operator import (
    is_plain,
    only_once,
    refuse_second,
    refuse_tangents,
    take,
)


def attend(
    tokens: Tokens,
    value: Float[Tensor, "*#b n e"],
    rule: Rule,
    attend: Callable[..., Tensor],
    sharpness: float,
) -> Float[Tensor, "*b n e"]:
    """The rows of sequences whose real tokens come first; the inner operator is softmax.

    What compilers and transforms see is the registered operator. A plain call in eager mode goes
    past the dispatcher, whose Python layers would cost more than a small problem.
    """
    length = None if tokens.real is None else tokens.real.sum(-1)
    inputs = Inputs(tokens.query, tokens.key, value, tokens.bias, length)
    options = Options(*rule, sharpness)
    tensors = [tensor for tensor in inputs if tensor is not None]
    refuse_tangents("delta_attention", tensors, 'choose backend="reference"')
    if not is_plain(tensors):
        output, *_ = delta_cpu(*inputs, *options)
        return output
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return _Eager.apply(*inputs, options)
    return cpu.forward(inputs, options)[0]


@torch.library.custom_op("bistoch::delta_cpu", mutates_args=())
def delta_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    length: Tensor | None,
    window: int,
    sink: int,
    stride: int,
    correction: str,
    tail: int,
    sharpness: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The result, and what its backward needs."""
    options = Options(window, sink, stride, correction, tail, sharpness)
    output, kept = cpu.forward(Inputs(query, key, value, bias, length), options)
    return output, *kept


@delta_cpu.register_fake
def _(query, key, value, bias, length, *options):
    output, kept = cpu.room(Inputs(query, key, value, bias, length), Options(*options))
    return output, *kept


@torch.library.custom_op("bistoch::delta_cpu_backward", mutates_args=())
def delta_cpu_backward(
    output_grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    length: Tensor | None,
    kept: list[Tensor],
    window: int,
    sink: int,
    stride: int,
    correction: str,
    tail: int,
    sharpness: float,
    bias_too: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of tokens and bias; that of the bias is empty if it is not needed."""
    options = Options(window, sink, stride, correction, tail, sharpness)
    inputs = Inputs(query, key, value, bias, length)
    found = cpu.backward(output_grad, inputs, Kept(*kept), options, bias_too)
    bias_grad = query.new_empty(0) if found.bias is None else found.bias
    return found.query, found.key, found.value, bias_grad


@delta_cpu_backward.register_fake
def _(output_grad, query, key, value, bias, length, kept, *options):
    *_, bias_too = options
    grads = [
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)
    ]
    bias_grad = output_grad.new_empty(output_grad.shape[:-1] if bias_too else (0,))
    return *grads, bias_grad


def _setup_context(ctx, inputs, output) -> None:
    tensors, ctx.options = inputs[:5], inputs[5:]
    _output, *kept = output
    ctx.save_for_backward(*tensors, *kept)
    ctx.mark_non_differentiable(*kept)


def _differentiate(ctx, output_grad, *_):
    saved, needed = iter(ctx.saved_tensors), take(Inputs, iter(ctx.needs_input_grad))
    inputs = take(Inputs, saved)
    grads = delta_cpu_backward(output_grad, *inputs, list(saved), *ctx.options, needed.bias)
    wanted = zip(grads, needed[:4], strict=True)
    # neither the length nor an option has one
    return *(grad if need else None for grad, need in wanted), *[None] * 7


delta_cpu.register_autograd(_differentiate, setup_context=_setup_context)
delta_cpu_backward.register_autograd(refuse_second("delta_cpu"))


BACKEND = Backend("cpu", "cpu", attend)


class _Eager(torch.autograd.Function):
    """The same without the dispatcher."""

    @staticmethod
    def forward(ctx, *arguments):
        *inputs, options = arguments
        output, kept = cpu.forward(Inputs(*inputs), options)
        ctx.save_for_backward(*inputs, *kept)
        ctx.options = options
        return output

    @staticmethod
    @only_once("delta_cpu")
    def backward(ctx, output_grad):
        saved, needed = iter(ctx.saved_tensors), take(Inputs, iter(ctx.needs_input_grad))
        inputs, kept = take(Inputs, saved), take(Kept, saved)
        found = cpu.backward(output_grad, inputs, kept, ctx.options, needed.bias)
        return found.query, found.key, found.value, found.bias, None, None
