"""Monarch attention on CPUs: Numba kernels, forward and exact backward.

Numba is imported, and the kernels are compiled or read from its cache, at the first call.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bistoch.functional.kernels import kernel_module


class Inputs(NamedTuple):
    """What the kernels work on; places of tokens are those of `Layout`."""

    query: Float[Tensor, "B n d"]
    key: Float[Tensor, "B m d"]
    value: Float[Tensor, "B m e"]
    # what is added to all scores of a key; None is nothing
    bias: Float[Tensor, "B m"] | None
    # which queries are there; None is all
    real: Bool[Tensor, "B n"] | None
    sharpness: Float[Tensor, "B"]
    lam: Float[Tensor, "B"] | None
    omega: Float[Tensor, "B"] | None
    log_mass: Float[Tensor, "B m"] | None
    members: Int[Tensor, "groups members"]
    keys: Int[Tensor, "blocks width"]
    own: Int[Tensor, "groups blocks"]


# inputs that have a gradient
DIFFERENTIABLE = ("query", "key", "value", "bias", "sharpness", "lam", "omega", "log_mass")


class Kept(NamedTuple):
    """What the backward needs beside the inputs: records of evaluations, and mean queries."""

    records: Float[Tensor, "B r"]
    means: Float[Tensor, "B s"]


@lru_cache(maxsize=256)
def _plan(
    shape: tuple[int, ...], updates: int, steps: int, backward: bool, size: int
) -> tuple[dict[str, int], dict[str, int]]:
    """The numbers of a job that follow from its sizes, and those of every kind of tile."""
    job = kernel_module("monarch.cpu.job")
    sizes = _sizes(shape, updates, steps, size)
    areas, tiles = job.areas(sizes, backward, size), job.tile_numbers(sizes, backward)
    sizes |= areas | {"workspace_stride": areas["end"]}
    return sizes | {f"{name}_size": count for name, count in tiles.items()}, tiles


def _shape(inputs: Inputs) -> tuple[int, ...]:
    features = inputs.query.shape[2], inputs.value.shape[2]
    return *inputs.members.shape, *inputs.keys.shape, *features


def _sizes(shape: tuple[int, ...], updates: int, steps: int, size: int) -> dict[str, int]:
    job = kernel_module("monarch.cpu.job")
    sizes = dict(zip(("groups", "members", "blocks", "width", "d", "e"), shape, strict=True))
    sizes |= job.strides(*shape, size)
    evaluations, stored = max(updates - 1, steps) + 1, int(steps > 0)
    sizes |= {"updates": updates, "steps": steps, "evaluations": evaluations, "stored": stored}
    return sizes | {"record_size": job.record_numbers(sizes)}


def room(inputs: Inputs, updates: int, steps: int, keep: bool) -> tuple[Tensor, Kept]:
    """Room for what the forward fills."""
    (batch, n, _), value = inputs.query.shape, inputs.value
    records = means = 0
    if keep:
        # not from the plan, which does not take the lengths that compilers leave open
        sizes = _sizes(_shape(inputs), updates, steps, inputs.query.element_size())
        records = sizes["evaluations"] * sizes["record_size"]
        means = (updates - 1) * sizes["groups"] * sizes["mean_stride"]
    # what lies between the rows of these is never written
    zeros, output = inputs.query.new_zeros, inputs.query.new_empty(batch, n, value.shape[2])
    return output, Kept(zeros(batch, records), zeros(batch, means))


def forward(inputs: Inputs, updates: int, steps: int, keep: bool) -> tuple[Tensor, Kept]:
    """The result, and what its backward needs if there will be one."""
    output, kept = room(inputs, updates, steps, keep)
    arrays = {"output": output} | kept._asdict()
    _run(inputs, updates, steps, arrays, keep=keep, backward=False)
    return output, kept


def backward(
    output_grad: Tensor, inputs: Inputs, kept: Kept, updates: int, steps: int
) -> dict[str, Tensor]:
    """The gradients of all inputs that have one, by name."""
    given = {name: getattr(inputs, name) for name in DIFFERENTIABLE}
    grads = {
        name: torch.zeros_like(tensor, memory_format=torch.contiguous_format)
        for name, tensor in given.items()
        if tensor is not None
    }
    arrays = {f"{name}_grad": grad for name, grad in grads.items()}
    arrays |= {"output_grad": output_grad} | kept._asdict()
    _run(inputs, updates, steps, arrays, keep=True, backward=True)
    return grads


def _run(
    inputs: Inputs, updates: int, steps: int, arrays: dict[str, Tensor], *, keep: bool,
    backward: bool,
) -> None:  # fmt: skip
    """Describe the work as a job of numbers and addresses, and let the kernels do it."""
    (batch, n, _), m, dtype = inputs.query.shape, inputs.key.shape[1], inputs.query.dtype
    if not batch:
        return
    runtime, job = kernel_module("kernels.runtime"), kernel_module("monarch.cpu.job")
    workers = max(1, min(runtime.threads(), batch))
    sizes, tiles = _plan(_shape(inputs), updates, steps, backward, inputs.query.element_size())
    named: dict[str, Any] = {name: t for name, t in inputs._asdict().items() if t is not None}
    # zeros, so that what lies behind the ends of rows is a number
    for name, count in {"workspace": sizes["workspace_stride"], **tiles}.items():
        named[name] = torch.zeros(workers * count, dtype=dtype, device="cpu")
    # kept by name until the kernels are done: contiguous copies must outlive their addresses
    kept = {name: tensor.contiguous() for name, tensor in (named | arrays).items()}
    counters = np.zeros(2, np.int64)
    fields = sizes | {f"{name}_at": tensor.data_ptr() for name, tensor in kept.items()}
    fields |= {
        "next_head": counters.ctypes.data, "next_worker": counters.ctypes.data + 8,
        "gemm": runtime.gemm_address(dtype), "batch": batch, "n": n, "m": m, "keep": int(keep),
    }  # fmt: skip
    numbers = np.array([fields.get(name, 0) for name in job.FIELDS], np.int64)
    kernel = kernel_module("monarch.cpu.kernels").kernel(backward, dtype)
    call, arguments = runtime.entry(kernel, numbers.ctypes.data, workers)
    call(*arguments)
