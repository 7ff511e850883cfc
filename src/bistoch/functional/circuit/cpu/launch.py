"""Circuits on CPUs: the numbers that Numba kernels need, in the order in which they read them.

Numba is imported, and the kernels are compiled or read from its cache, at the first call.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from bistoch.functional.kernels import kernel_module


class Schedule(NamedTuple):
    """What is the same for all circuits of a batch: the blocks in the order of time."""

    wires: int
    qubits: int
    # the first qubit of every block
    places: Int[Tensor, "gates"]
    # what part of the angle of a turn is that of `exp(-i part axis)`
    part: float
    # gates at the beginning that are transposed blocks
    mirrored: int
    # numbers of a job that say how blocks are made
    order: int
    along_x: int


def schedule(wires: int, qubits: int, layers: int, ansatz: str) -> Schedule:
    """The blocks of an ansatz, as `reference._assemble` has them.

    A transposed block is the complex conjugate of one that couples first and turns by the negative
    angles. So the first half of a parted circuit is computed for conjugate states.
    """
    job = kernel_module("circuit.cpu.job")
    even, odd = list(range(0, wires - 1, 2)), list(range(1, wires - 1, 2))
    places = (even + odd + (even if ansatz == "trotter" else [])) * layers
    mirrored = len(places) if ansatz == "parted" else 0
    return Schedule(
        wires, qubits, torch.tensor(places[::-1] * (mirrored > 0) + places),
        0.25 if ansatz == "trotter" else 0.5, mirrored,
        job.TURN_TWICE if ansatz == "trotter" else job.TURN_FIRST, int(ansatz == "centrosymmetric"),
    )  # fmt: skip


def lanes_of(dtype: torch.dtype) -> int:
    """How many circuits lie side by side."""
    return int(64 // dtype.itemsize)


def columns_of(plan: Schedule) -> int:
    """How many columns of a unitary matrix go through the circuit together."""
    return int(min(kernel_module("circuit.cpu.job").COLUMNS, 2 ** (plan.wires - plan.qubits)))


class Kept(NamedTuple):
    """What the backward needs, a vector for every number of so many circuits."""

    states: Float[Tensor, "groups numbers lanes"]
    cos: Float[Tensor, "groups gates*4 lanes"]
    sin: Float[Tensor, "groups gates*4 lanes"]


def forward(
    angles: Float[Tensor, "B gates 4"], plan: Schedule, keep: bool
) -> tuple[Float[Tensor, "B n n"], Kept]:
    """The plans, and what the backward needs; without states if these are not to be kept."""
    batch, dtype = angles.shape[0], angles.dtype
    lanes, tokens = lanes_of(dtype), 2**plan.qubits
    groups = -(-batch // lanes)
    phases = angles * parts_of(plan, angles)
    if plan.mirrored:
        phases[:, : plan.mirrored].neg_()
    phases = side_by_side(phases)
    plans = angles.new_empty(groups, tokens, tokens, lanes)
    states = angles.new_empty(groups if keep else 0, 2 * 4**plan.wires, lanes)
    kept = Kept(states, phases.cos(), phases.sin())
    arrays = {"plan": plans, "cos": kept.cos, "sin": kept.sin}
    if keep:
        arrays["states"] = states
    _run(plan, groups, arrays, 2 * columns_of(plan) * 2**plan.wires, backward=False)
    return one_by_one(plans, batch), kept


def backward(
    plan_grad: Float[Tensor, "B n n"], kept: Kept, plan: Schedule
) -> Float[Tensor, "B gates 4"]:
    """The gradient of all angles."""
    groups, lanes = len(kept.states), kept.states.shape[-1]
    grads = kept.cos.new_empty(groups, len(plan.places), 4, lanes)
    arrays = kept._asdict() | {"plan_grad": side_by_side(plan_grad), "angle_grad": grads}
    _run(plan, groups, arrays, 3 * 4**plan.wires, backward=True)
    weight = parts_of(plan, grads)
    if not plan.along_x:
        # the axis X + Y + Z, of length one
        weight[:2] /= 3**0.5
    return one_by_one(grads, len(plan_grad)) * weight


def parts_of(plan: Schedule, like: Tensor) -> Float[Tensor, "4"]:
    """What parts of its angles a block turns and couples by, in `exp(-i part axis)`."""
    return torch.tensor([plan.part, plan.part, 0.5, 0.5], dtype=like.dtype)


def side_by_side(numbers: Float[Tensor, "B ..."]) -> Float[Tensor, "groups ... lanes"]:
    """Every number of so many problems as one vector; what is left over is zero."""
    flat = numbers.flatten(1)
    lanes = lanes_of(flat.dtype)
    flat = pad(flat, (0, 0, 0, -len(flat) % lanes))
    return flat.unflatten(0, (-1, lanes)).mT.contiguous()


def one_by_one(vectors: Float[Tensor, "groups ... lanes"], batch: int) -> Float[Tensor, "B ..."]:
    """Problems behind each other again."""
    return vectors.movedim(-1, 1).flatten(0, 1)[:batch].contiguous()


def _run(
    plan: Schedule, groups: int, arrays: dict[str, Tensor], space: int, *, backward: bool
) -> None:
    """Describe the work as a job of numbers and addresses, and let the kernels do it."""
    if not groups:
        return
    runtime, job = kernel_module("kernels.runtime"), kernel_module("circuit.cpu.job")
    dtype = arrays["cos"].dtype
    workers = max(1, min(runtime.threads(), groups))
    # kept by name until the kernels are done: their addresses must stay valid
    named = arrays | {"places": plan.places}
    room = workers * space * lanes_of(dtype)
    named["workspace"] = torch.empty(room, dtype=dtype, device="cpu")
    counters = np.zeros(2, np.int64)
    fields = {f"{name}_at": tensor.data_ptr() for name, tensor in named.items()}
    fields |= {
        "next_group": counters.ctypes.data, "next_worker": counters.ctypes.data + 8,
        "groups": groups, "wires": plan.wires, "qubits": plan.qubits,
        "gates": len(plan.places), "columns": columns_of(plan), "order": plan.order,
        "along_x": plan.along_x, "mirrored": plan.mirrored,
        "workspace_stride": space * lanes_of(dtype),
    }  # fmt: skip
    numbers = np.array([fields.get(name, 0) for name in job.FIELDS], np.int64)
    kernel = kernel_module("circuit.cpu.kernels").kernel(backward, dtype)
    call, arguments = runtime.entry(kernel, numbers.ctypes.data, workers)
    call(*arguments)
