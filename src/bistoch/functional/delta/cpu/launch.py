"""Delta attention on CPUs: Numba kernels, forward and exact backward, memory linear in the length.

Tokens are read where they lie: heads that share keys, and rows with other numbers between them, as
models leave them, are not copied.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bistoch.functional.kernels import kernel_module
from bistoch.functional.kernels.address import addresses, readable_rows, row_step


class Inputs(NamedTuple):
    """What the kernels work on; real tokens come first, as many as the length says."""

    # their leading axes broadcast
    query: Float[Tensor, "*#b n d"]
    key: Float[Tensor, "*#b n d"]
    value: Float[Tensor, "*#b n e"]
    bias: Float[Tensor, "*b n"] | None
    length: Int[Tensor, "*b"] | None


class Options(NamedTuple):
    """The rule of the rows."""

    window: int
    sink: int
    stride: int
    correction: str
    tail: int
    sharpness: float


class Kept(NamedTuple):
    """What the backward needs beside the inputs: rows are `exp(S + bias - shift) * factor`."""

    shift: Float[Tensor, "*b n"]
    factor: Float[Tensor, "*b n"]
    dense: Float[Tensor, "*b g e"]
    dense_shift: Float[Tensor, "*b g"]
    dense_factor: Float[Tensor, "*b g"]
    tail: Float[Tensor, "*b t e"]
    tail_shift: Float[Tensor, "*b t"]
    tail_factor: Float[Tensor, "*b t"]


def room(inputs: Inputs, options: Options) -> tuple[Tensor, Kept]:
    """Room for what the forward fills."""
    query, value = inputs.query, inputs.value
    batch = torch.broadcast_shapes(query.shape[:-2], inputs.key.shape[:-2], value.shape[:-2])
    n, e = query.shape[-2], value.shape[-1]
    stride, tail = options.stride, options.tail
    groups = 0 if options.correction == "none" else -(-n // stride)
    make = query.new_empty
    kept = Kept(
        make(*batch, n), make(*batch, n),
        make(*batch, groups, e), make(*batch, groups), make(*batch, groups),
        make(*batch, tail, e), make(*batch, tail), make(*batch, tail),
    )  # fmt: skip
    return make(*batch, n, e), kept


def forward(inputs: Inputs, options: Options) -> tuple[Tensor, Kept]:
    """The result, and what its backward needs."""
    output, kept = room(inputs, options)
    _run(inputs, options, {"output": output}, kept, output.shape[:-2], backward=False)
    return output, kept


def backward(
    output_grad: Tensor, inputs: Inputs, kept: Kept, options: Options, bias_too: bool
) -> Inputs:
    """The gradients of all inputs that have one."""
    batch = output_grad.shape[:-2]
    tokens = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
    grads = {name: x.new_zeros(*batch, *x.shape[-2:]) for name, x in tokens.items()}
    bias_grad = output_grad.new_zeros(output_grad.shape[:-1]) if bias_too else None
    arrays = {f"{name}_grad": grad for name, grad in grads.items()}
    arrays["output_grad"] = output_grad
    if bias_grad is not None:
        arrays["bias_grad"] = bias_grad
    _run(inputs, options, arrays, kept, batch, backward=True)
    summed = {name: grads[name].sum_to_size(x.shape) for name, x in tokens.items()}
    return Inputs(**summed, bias=bias_grad, length=None)


def _run(
    inputs: Inputs, options: Options, arrays: dict[str, Tensor], kept: Kept, batch: torch.Size,
    *, backward: bool,
) -> None:  # fmt: skip
    """Describe the work as a job of numbers and addresses, and let the kernels do it."""
    query, value = inputs.query, inputs.value
    (n, d), e, dtype = query.shape[-2:], value.shape[-1], query.dtype
    size, problems = query.element_size(), batch.numel()
    if not problems * n:
        return
    runtime, job = kernel_module("kernels.runtime"), kernel_module("delta.cpu.job")
    stride, window, sink = (
        min(number, n) for number in (options.stride, options.window, options.sink)
    )
    tile, width = job.tile_rows(n, stride), job.strip_width(n, window, sink, size)
    tiles = -(-n // tile)
    workers = max(1, min(runtime.threads(), problems * (1 if backward else tiles)))
    each = job.workspace_elements(width, tile, d, e, backward, size)
    named = arrays | kept._asdict()
    named["workspace"] = torch.empty(workers * each, dtype=dtype, device="cpu")
    named["sharpness"] = torch.full((1,), options.sharpness, dtype=dtype, device="cpu")
    if inputs.bias is not None:
        named["bias"] = inputs.bias.detach()
    if inputs.length is not None:
        named["length"] = inputs.length
    # kept by name until the kernels are done: what was copied must outlive its address
    held = {name: tensor.contiguous() for name, tensor in named.items()}
    tokens = {name: readable_rows(getattr(inputs, name)) for name in ("query", "key", "value")}
    tables = {name: addresses(tensor, batch) for name, tensor in tokens.items()}
    counters = np.zeros(2, np.int64)
    fields = {f"{name}_at": tensor.data_ptr() for name, tensor in held.items()}
    fields |= {f"{name}_at": table.ctypes.data for name, table in tables.items()}
    fields |= {f"{name}_row": row_step(x) for name, x in tokens.items()}
    fields |= {
        "next_item": counters.ctypes.data, "next_worker": counters.ctypes.data + 8,
        "gemm": runtime.gemm_address(dtype), "batch": problems, "n": n, "d": d, "e": e,
        "window": window, "sink": sink, "stride": stride, "tail": options.tail,
        "correction": job.CORRECTIONS.index(options.correction), "first_dense": window + sink,
        "tile": tile, "tiles": tiles, "count": kept.dense.shape[-2], "width": width,
        "workspace_stride": each,
    }  # fmt: skip
    numbers = np.array([fields.get(name, 0) for name in job.FIELDS], np.int64)
    kernel = kernel_module("delta.cpu.kernels").kernel(backward, dtype)
    call, arguments = runtime.entry(kernel, numbers.ctypes.data, workers)
    call(*arguments)
