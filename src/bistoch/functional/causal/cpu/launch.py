"""Causal balance on CPUs: Numba kernels, forward and exact backward, memory linear in the length.

Numba is imported, and the kernels are compiled or read from its cache, at the first call.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bistoch.functional.kernels import kernel_module
from bistoch.functional.kernels.address import addresses, readable_rows, row_step


class Inputs(NamedTuple):
    """What the kernels work on; real tokens come first, as many as the length says."""

    # for inference alone, tokens may have several leading axes, which broadcast
    query: Float[Tensor, "*#b n d"]
    key: Float[Tensor, "*#b n d"]
    value: Float[Tensor, "*#b n e"]
    mask: Tensor | None
    mask_index: Int[Tensor, "B"] | None
    length: Int[Tensor, "B"] | None
    sharpness: Float[Tensor, "B"]
    lam: Float[Tensor, "B"]


class Kept(NamedTuple):
    """What the backward needs beside the inputs: rows are `exp(S + g - shift) * factor`."""

    shift: Float[Tensor, "B n"]
    factor: Float[Tensor, "B n"]
    # what keys had received before some of the blocks, one behind the other
    history: Float[Tensor, "B h"]


class Layout(NamedTuple):
    """How the work is cut: rows of a tile, tiles, blocks between kept accounts, and their sizes."""

    tile: int
    tiles: int
    span: int
    stride: int
    history_stride: int
    workspace_stride: int


@lru_cache(maxsize=256)
def _layout(n: int, block: int, size: int, columns: int, backward: bool) -> Layout:
    job = kernel_module("causal.cpu.job")
    tile = min(job.tile_rows(block), max(n, 1))
    span = job.kept_span(n, block)
    stride = job.row_stride(n, size)
    return Layout(
        tile=tile,
        tiles=job.tile_count(n, block, tile),
        span=span,
        stride=stride,
        history_stride=job.history_elements(n, block, columns),
        workspace_stride=job.workspace_elements(stride, tile, span, columns, backward, size),
    )


def room(inputs: Inputs, block: int, keep: bool) -> tuple[Tensor, Kept]:
    """Room for what the forward fills."""
    query, value = inputs.query, inputs.value
    (batch, n, _), e = query.shape, value.shape[2]
    columns = 1 if inputs.mask is None else 2
    # not from the layout, which does not take the lengths that compilers leave open
    history = kernel_module("causal.cpu.job").history_elements(n, block, columns) if keep else 0
    # shorter sequences leave some of it untouched
    make = query.new_empty if inputs.length is None else query.new_zeros
    kept = Kept(query.new_empty(batch, n), query.new_empty(batch, n), make(batch, history))
    return query.new_empty(batch, n, e), kept


def forward(inputs: Inputs, prior: float, block: int, keep: bool) -> tuple[Tensor, Kept]:
    """The result, and what its backward needs if there will be one."""
    output, kept = room(inputs, block, keep)
    arrays = {"output": output} | kept._asdict()
    _run(inputs, prior, block, arrays, backward=False)
    return output, kept


def forward_with_state(
    inputs: Inputs, prior: float, block: int, columns: Tensor, level: Tensor
) -> Float[Tensor, "*b n e"]:
    """The result without a backward; bias, received and wanted of every key are put in columns.

    Args:
        inputs: tokens without a mask, in any layout; heads may share keys and values.
        prior, block: of the rule.
        columns: (3, *b, capacity), contiguous.
        level: (*b), contiguous.
    """
    query = inputs.query
    output = query.new_empty(*query.shape[:-1], inputs.value.shape[-1])
    shift, factor = query.new_empty(query.shape[:-1]), query.new_empty(query.shape[:-1])
    arrays = {"output": output, "shift": shift, "factor": factor, "level": level}
    more = {
        "state_at": columns.data_ptr(), "state_step": columns.stride(0),
        "state_row": columns.shape[-1],
    }  # fmt: skip
    _run(inputs, prior, block, arrays, backward=False, more=more)
    return output


def backward(
    output_grad: Tensor, inputs: Inputs, kept: Kept, prior: float, block: int, mask_too: bool
) -> Inputs:
    """The gradients of all inputs that have one."""
    fields = ("query", "key", "value", "sharpness", "lam")
    grads = {name: _zeros_like(getattr(inputs, name)) for name in fields}
    arrays = {f"{name}_grad": grad for name, grad in grads.items()}
    arrays |= {"output_grad": output_grad} | kept._asdict()
    mask_grad = None
    if mask_too and inputs.mask is not None:
        # one for each worker, since heads may share a mask
        mask_grad = inputs.mask.new_zeros(_workers(len(inputs.query)), *inputs.mask.shape)
        arrays["mask_grad"] = mask_grad
    _run(inputs, prior, block, arrays, backward=True)
    mask_grad = None if mask_grad is None else mask_grad.sum(0)
    return Inputs(**grads, mask=mask_grad, mask_index=None, length=None)


def _zeros_like(tensor: Tensor) -> Tensor:
    """Zeros that kernels can fill by their address, whatever the layout of what they are like."""
    return torch.zeros_like(tensor, memory_format=torch.contiguous_format)


def _layout_of(inputs: Inputs, block: int, is_backward: bool) -> Layout:
    columns = 1 if inputs.mask is None else 2
    n, size = inputs.query.shape[-2], inputs.query.element_size()
    return _layout(n, block, size, columns, is_backward)


def _workers(batch: int) -> int:
    return max(1, min(kernel_module("kernels.runtime").threads(), batch))


def _run(
    inputs: Inputs, prior: float, block: int, arrays: dict[str, Tensor], *, backward: bool,
    more: dict[str, int] | None = None,
) -> None:  # fmt: skip
    """Describe the work as a job of numbers and addresses, and let the kernels do it."""
    (n, d), e, dtype = inputs.query.shape[-2:], inputs.value.shape[-1], inputs.query.dtype
    shape = inputs.query.shape[:-2]
    batch = math.prod(shape)
    if not batch * n:
        return
    runtime, job = kernel_module("kernels.runtime"), kernel_module("causal.cpu.job")
    workers, layout = _workers(batch), _layout_of(inputs, block, backward)
    named = arrays | {name: t for name, t in inputs._asdict().items() if t is not None}
    named["harmonic"] = _harmonic(n)
    named["prior"] = torch.full((1,), prior, dtype=dtype, device="cpu")
    named["workspace"] = inputs.query.new_empty(workers * layout.workspace_stride)
    # kept by name until the kernels are done: contiguous copies must outlive their addresses
    tokens = {name: readable_rows(named.pop(name)) for name in ("query", "key", "value")}
    tables = {name: addresses(tensor, shape) for name, tensor in tokens.items()}
    kept = {name: tensor.contiguous() for name, tensor in named.items()}
    counters = np.zeros(2, np.int64)
    fields = layout._asdict() | _mask_layout(inputs.mask)
    fields |= {f"{name}_at": tensor.data_ptr() for name, tensor in kept.items()}
    fields |= {f"{name}_at": table.ctypes.data for name, table in tables.items()}
    fields |= {f"{name}_row": row_step(tensor) for name, tensor in tokens.items()}
    fields |= more or {}
    fields |= {
        "next_head": counters.ctypes.data, "next_worker": counters.ctypes.data + 8,
        "gemm": runtime.gemm_address(dtype), "batch": batch, "n": n, "d": d, "e": e,
        "block": block, "mask_grad_size": 0 if inputs.mask is None else inputs.mask.numel(),
    }  # fmt: skip
    numbers = np.array([fields.get(name, 0) for name in job.FIELDS], np.int64)
    kernel = kernel_module("causal.cpu.kernels").kernel(backward, dtype)
    call, arguments = runtime.entry(kernel, numbers.ctypes.data, workers)
    call(*arguments)


@lru_cache(maxsize=8)
def _harmonic(n: int) -> Tensor:
    """The sums of 1/i over the first rows, for every number of them."""
    rows = torch.arange(n + 1, dtype=torch.float64, device="cpu")
    rows[1:] = 1 / rows[1:]
    return rows.cumsum(0)


def _mask_layout(mask: Tensor | None) -> dict[str, int]:
    if mask is None:
        return {}
    head = kernel_module("elastic.cpu.head")
    _, rows, columns = mask.shape
    return {
        "mask_kind": head.BOOLEAN if mask.dtype == torch.bool else head.BIAS,
        "mask_stride": rows * columns,
        "mask_row_stride": 0 if rows == 1 else columns,
        "mask_column_stride": 0 if columns == 1 else 1,
    }
