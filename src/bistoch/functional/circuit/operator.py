"""The CPU kernels as a torch operator: opaque to compilers, known to autograd."""

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.functional.backends import Backend
from bistoch.functional.circuit import reference
from bistoch.functional.circuit.cpu import launch as cpu
from bistoch.functional.circuit.problem import ANGLES_PER_BLOCK, CircuitProblem
from bistoch.functional.elastic.operator import refuse_second, refuse_tangents


def block_sums(problem: CircuitProblem) -> Float[Tensor, "B states states"]:
    """The squares of the unitary matrix, added up over the states of the ancilla."""
    if problem.wires < 2 or problem.layers == 0:
        # there is no gate
        return reference.block_sums(problem)
    angles = in_time(problem)
    refuse_tangents("quantum_plan", [angles], 'choose backend="reference"')
    keep = torch.is_grad_enabled() and angles.requires_grad
    plan, *_ = circuit_cpu(
        angles, problem.wires, problem.qubits, problem.layers, problem.ansatz, keep
    )
    return plan


def in_time(problem: CircuitProblem) -> Float[Tensor, "B gates 4"]:
    """The angles of every block, in the order in which blocks act."""
    blocks = problem.angles.unflatten(-1, (-1, ANGLES_PER_BLOCK))
    if problem.ansatz == "parted":
        first, second = blocks.chunk(2, 1)
        return torch.cat([first.flip(1), second], 1)
    if problem.ansatz == "trotter":
        blocks = blocks.unflatten(1, (problem.layers, -1))
        even = problem.wires // 2
        half = blocks[:, :, :even] / 2
        return torch.cat([half, blocks[:, :, even:], half], 2).flatten(1, 2)
    return blocks


@torch.library.custom_op("bistoch::circuit_cpu", mutates_args=())
def circuit_cpu(
    angles: Tensor, wires: int, qubits: int, layers: int, ansatz: str, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Plans, and what the backward needs if it is to be kept."""
    plan, kept = cpu.forward(angles, _schedule(wires, qubits, layers, ansatz), keep)
    return plan, *kept


@circuit_cpu.register_fake
def _(angles, wires, qubits, layers, ansatz, keep):
    (batch, gates, _), lanes = angles.shape, cpu.lanes_of(angles.dtype)
    groups = (batch + lanes - 1) // lanes
    return (
        angles.new_empty(batch, 2**qubits, 2**qubits),
        angles.new_empty(groups if keep else 0, 2 * 4**wires, lanes),
        angles.new_empty(groups, gates * 4, lanes),
        angles.new_empty(groups, gates * 4, lanes),
    )


@torch.library.custom_op("bistoch::circuit_cpu_backward", mutates_args=())
def circuit_cpu_backward(
    plan_grad: Tensor, states: Tensor, cos: Tensor, sin: Tensor, wires: int, qubits: int,
    layers: int, ansatz: str,
) -> Tensor:  # fmt: skip
    """The gradient of the angles."""
    kept = cpu.Kept(states, cos, sin)
    return cpu.backward(plan_grad, kept, _schedule(wires, qubits, layers, ansatz))


@circuit_cpu_backward.register_fake
def _(plan_grad, states, cos, sin, wires, qubits, layers, ansatz):
    return plan_grad.new_empty(plan_grad.shape[0], cos.shape[1] // 4, 4)


@lru_cache(maxsize=64)
def _schedule(wires: int, qubits: int, layers: int, ansatz: str) -> cpu.Schedule:
    return cpu.schedule(wires, qubits, layers, ansatz)


def _save(ctx, inputs, output) -> None:
    angles, *ctx.form, ctx.keep = inputs
    _, *kept = output
    ctx.save_for_backward(angles, *kept)
    ctx.mark_non_differentiable(*kept)
    # no zeros as the gradients of what is kept
    ctx.set_materialize_grads(False)


def _differentiate(ctx, plan_grad, *_):
    if plan_grad is None:
        return None, None, None, None, None, None
    angles, *kept = ctx.saved_tensors
    if not ctx.keep:
        # a program that was exported for inference, and is differentiated all the same
        _, *kept = circuit_cpu(angles, *ctx.form, True)
    grad = circuit_cpu_backward(plan_grad, *kept, *ctx.form)
    return grad, None, None, None, None, None


circuit_cpu.register_autograd(_differentiate, setup_context=_save)
circuit_cpu_backward.register_autograd(refuse_second("circuit_cpu"))

BACKEND = Backend("cpu", "cpu", block_sums)
