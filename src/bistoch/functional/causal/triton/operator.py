"""The Triton kernels as torch operators: opaque to compilers, known to autograd.

Triton itself is imported when a kernel runs: a program that was exported finds its operators.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bistoch.functional.causal.problem import Account, Piece, Stream, join
from bistoch.functional.causal.triton.blocks import is_split, layout_of
from bistoch.functional.elastic.operator import (
    is_plain,
    only_once,
    refuse_second,
    refuse_tangents,
    take,
)
from bistoch.functional.kernels.gpu import triton_module
from bistoch.functional.precision import no_autocast


class Inputs(NamedTuple):
    """What the kernels work on; real tokens come first, as many as the length says.

    Tokens and values may be of half precision, all else is in working precision.
    """

    query: Float[Tensor, "B n d"]
    key: Float[Tensor, "B n d"]
    value: Float[Tensor, "B n e"]
    mask: Tensor | None
    mask_index: Int[Tensor, "B"] | None
    length: Int[Tensor, "B"] | None
    sharpness: Float[Tensor, "B"]
    lam: Float[Tensor, "B"]


class Kept(NamedTuple):
    """What the backward needs beside inputs and result; empty if there is none.

    Rows are `exp(S + g - shift) * factor`, and each would give `share` to all keys that it sees.
    """

    shift: Float[Tensor, "B n"]
    factor: Float[Tensor, "B n"]
    share: Float[Tensor, "B n"]
    # the level of new keys before every block, and the accounts before some of them
    levels: Float[Tensor, "B blocks"]
    history: Float[Tensor, "B kept 2 n"]


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
    past the dispatcher.
    """
    inputs = Inputs(
        stream.query, stream.key, stream.value, stream.mask, stream.mask_index,
        None if stream.real is None else stream.real.sum(-1), stream.sharpness, stream.lam,
    )  # fmt: skip
    tensors = [tensor for tensor in inputs if tensor is not None]
    refuse_tangents("causal_elastic_attention", tensors, 'choose backend="reference"')
    keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if not is_plain(tensors):
        output, *_ = causal_triton(*inputs, stream.prior, stream.block, keep)
        return output
    if keep:
        return _Eager.apply(*inputs, stream.prior, stream.block)
    return _forward(inputs, stream.prior, stream.block, False)[0]


def room(inputs: Inputs, block: int, keep: bool, clean: bool = False) -> tuple[Tensor, Kept]:
    """Room for what the forward fills; keys that no account has yet are left as they are.

    If it is clean, they are zero: an operator that is registered has no random results.
    """
    (size, n, e), work = inputs.value.shape, inputs.sharpness
    output = work.new_empty(size, n, e)
    if not keep:
        # an operator may not return one tensor twice, not even an empty one
        return output, Kept(*(work.new_empty(0) for _ in Kept._fields))
    layout = layout_of(n, block)
    make = work.new_zeros if clean else work.new_empty
    shift, factor, share = (make(size, n) for _ in range(3))
    levels, history = make(size, layout.blocks), make(size, layout.kept, 2, n)
    return output, Kept(shift, factor, share, levels, history)


def _forward(
    inputs: Inputs, prior: float, block: int, keep: bool, clean: bool = False
) -> tuple[Tensor, Kept]:
    output, kept = room(inputs, block, keep, clean)
    with no_autocast(output.device):
        if not keep and is_split(*inputs.query.shape[:2]):
            triton_module("causal.triton.decode").attend(inputs, prior, block, output)
        else:
            launch = triton_module("causal.triton.launch")
            launch.forward(inputs, prior, block, keep, output, kept)
    return output, kept


def _backward(
    output_grad: Tensor, inputs: Inputs, output: Tensor, kept: Kept, prior: float, block: int,
    mask_too: bool,
) -> Gradients:  # fmt: skip
    differentiate = triton_module("causal.triton.differentiate")
    with no_autocast(output.device):
        return differentiate.backward(output_grad, inputs, output, kept, prior, block, mask_too)


@torch.library.custom_op("bistoch::causal_triton", mutates_args=())
def causal_triton(
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The result, and what its backward needs if it is to be kept."""
    inputs = Inputs(query, key, value, mask, mask_index, length, sharpness, lam)
    output, kept = _forward(inputs, prior, block, keep, clean=True)
    return output, *kept


@causal_triton.register_fake
def _(query, key, value, mask, mask_index, length, sharpness, lam, prior, block, keep):
    inputs = Inputs(query, key, value, mask, mask_index, length, sharpness, lam)
    output, kept = room(inputs, block, keep)
    return output, *kept


@torch.library.custom_op("bistoch::causal_triton_backward", mutates_args=())
def causal_triton_backward(
    output_grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    mask_index: Tensor | None,
    length: Tensor | None,
    sharpness: Tensor,
    lam: Tensor,
    output: Tensor,
    shift: Tensor,
    factor: Tensor,
    share: Tensor,
    levels: Tensor,
    history: Tensor,
    prior: float,
    block: int,
    mask_too: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The fields of `Gradients`."""
    inputs = Inputs(query, key, value, mask, mask_index, length, sharpness, lam)
    kept = Kept(shift, factor, share, levels, history)
    return _backward(output_grad, inputs, output, kept, prior, block, mask_too)


@causal_triton_backward.register_fake
def _(output_grad, query, key, value, mask, mask_index, length, sharpness, lam, *rest):
    *_, mask_too = rest
    mask_grad = sharpness.new_empty(0)
    if mask_too and mask is not None:
        mask_grad = _dense_like(mask)
    found = [_dense_like(tensor) for tensor in (query, key, value, sharpness, lam)]
    return tuple(Gradients(*found[:3], mask_grad, *found[3:]))


def _dense_like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _setup_context(ctx, inputs, output) -> None:
    *tensors, prior, block, keep = inputs
    result, *kept = output
    ctx.save_for_backward(*tensors, result, *kept)
    ctx.rule, ctx.keep = (prior, block), keep
    ctx.mark_non_differentiable(*kept)


def _differentiate(ctx, output_grad, *_):
    saved, needed = iter(ctx.saved_tensors), take(Inputs, iter(ctx.needs_input_grad))
    inputs = take(Inputs, saved)
    results = tuple(saved)
    if not ctx.keep:
        # a program that was exported for inference, and is differentiated all the same
        results = causal_triton(*inputs, *ctx.rule, True)
    grads = Gradients._make(
        causal_triton_backward(output_grad, *inputs, *results, *ctx.rule, bool(needed.mask))
    )
    # neither prior, block nor keep has one
    return *_by_input(grads, needed), None, None, None


def _by_input(grads: Gradients, needed: Inputs) -> tuple[Tensor | None, ...]:
    """Gradients in the order of the inputs; none for what needs none."""
    found = grads._asdict()
    return tuple(
        found.get(name) if need else None
        for name, need in zip(Inputs._fields, needed, strict=True)
    )  # fmt: skip


causal_triton.register_autograd(_differentiate, setup_context=_setup_context)
causal_triton_backward.register_autograd(refuse_second("causal_triton"))


class _Eager(torch.autograd.Function):
    """The same without the dispatcher."""

    @staticmethod
    def forward(ctx, *arguments):
        *inputs, prior, block = arguments
        output, kept = _forward(Inputs(*inputs), prior, block, True)
        ctx.save_for_backward(*inputs, output, *kept)
        ctx.rule = prior, block
        return output

    @staticmethod
    @only_once("causal_triton")
    def backward(ctx, output_grad):
        saved, needed = iter(ctx.saved_tensors), take(Inputs, iter(ctx.needs_input_grad))
        inputs = take(Inputs, saved)
        output, *kept = saved
        grads = _backward(output_grad, inputs, output, Kept(*kept), *ctx.rule, bool(needed.mask))
        return *_by_input(grads, needed), None, None


class Next(NamedTuple):
    """The rows of a piece, and the account after it, as `problem.Account` has it."""

    output: Float[Tensor, "B rows e"]
    bias: Float[Tensor, "B m"]
    received: Float[Tensor, "B m"]
    wanted: Float[Tensor, "B m"]
    level: Float[Tensor, "B"]


def run(
    stream: Stream, account: Account, pieces: Sequence[Piece]
) -> tuple[Float[Tensor, "B n e"], Account]:
    """As `streaming.run`, without a gradient."""
    results = []
    for first, last, ends in pieces:
        flags = ends if isinstance(ends, Tensor) else None
        if ends is True:
            flags = torch.ones_like(stream.lam, dtype=torch.bool)
        found = Next._make(
            causal_triton_step(
                stream.query, stream.key, stream.value, stream.mask, stream.mask_index,
                stream.real, stream.sharpness, stream.lam, *account, flags, first, last,
                stream.block,
            )
        )  # fmt: skip
        results.append(found.output)
        account = Account(*found[1:])
    return join(results, stream), account


@torch.library.custom_op("bistoch::causal_triton_step", mutates_args=())
def causal_triton_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    mask_index: Tensor | None,
    real: Tensor | None,
    sharpness: Tensor,
    lam: Tensor,
    bias: Tensor,
    received: Tensor,
    wanted: Tensor,
    level: Tensor,
    ends: Tensor | None,
    first: int,
    last: int,
    block: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The fields of `Next`, for the rows from `first` to `last`."""
    inputs = Inputs(query, key, value, mask, mask_index, None, sharpness, lam)
    account = (bias, received, wanted, level)
    found = _next(value, account, last - first)
    decode = triton_module("causal.triton.decode")
    with no_autocast(value.device):
        decode.step(inputs, real, ends, first, last, block, account, found.output, found[1:])
    return found


@causal_triton_step.register_fake
def _(query, key, value, mask, mask_index, real, sharpness, lam, *rest):
    *account, _ends, first, last, _block = rest
    return tuple(_next(value, tuple(account), last - first))


def _next(value: Tensor, account: tuple[Tensor, ...], rows: int) -> Next:
    """Room for what a step fills."""
    level = account[-1]
    output = level.new_empty(value.shape[0], rows, value.shape[2])
    return Next(output, *(_dense_like(column) for column in account))
