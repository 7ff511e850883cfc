"""A simulator of parametrised circuits: the whole unitary matrix, for a batch of angles at once.

A circuit is a list of 4 x 4 matrices, each acting on two neighbouring qubits of a line. This is the
specification: readable, on any device.
"""

import torch
from jaxtyping import Complex, Float
from torch import Tensor
from torch.autograd import forward_ad

from bistoch.functional.backends import Backend
from bistoch.functional.circuit.problem import ANGLES_PER_BLOCK, CircuitProblem


def block_sums(problem: CircuitProblem) -> Float[Tensor, "B states states"]:
    """The squares of the unitary matrix, added up over the states of the ancilla.

    >>> angles = torch.zeros(1, 8)
    >>> block_sums(CircuitProblem(angles, qubits=1, ancilla=2, layers=1, ansatz="simple"))
    tensor([[[4., 0.],
             [0., 4.]]])
    """
    unitary = circuit_unitary(problem.angles, problem.wires, problem.layers, problem.ansatz)
    squares = unitary.real.square() + unitary.imag.square()
    states, copies = 2**problem.qubits, 2**problem.ancilla
    return squares.reshape(-1, states, copies, states, copies).sum((2, 4))


def circuit_unitary(
    angles: Float[Tensor, "B angles"], qubits: int, layers: int, ansatz: str
) -> Complex[Tensor, "B states states"]:
    """The unitary matrix of the circuit; the first qubit is the leading bit of a state.

        simple           U = V,          V = layers of blocks on pairs (0,1) (2,3) .. (1,2) (3,4) ..
        parted           U = V_2 V_1^T,  each with angles of its own
        centrosymmetric  U = V           of blocks that flipping all bits leaves alone
        trotter          U = V           of layers (even/2) (odd) (even/2), each block symmetric too

    A block is exp(-i c XX/2) exp(-i d YY/2) (R(a) x R(b)), R a turn about X + Y + Z, or about X if
    centrosymmetric. With all angles zero U is the identity.

    >>> half_turn = torch.tensor([[torch.pi, 0.0, 0.0, 0.0]])
    >>> unitary = circuit_unitary(half_turn, qubits=2, layers=1, ansatz="centrosymmetric")
    >>> unitary.abs()[0, :, 0].round()
    tensor([0., 0., 1., 0.])
    """
    if qubits < 2 or layers == 0:
        identity = torch.eye(2**qubits, dtype=_complex(angles.dtype), device=angles.device)
        return identity.expand(angles.shape[0], -1, -1)
    places, blocks = _assemble(angles.unflatten(-1, (-1, ANGLES_PER_BLOCK)), qubits, layers, ansatz)
    # only backward-mode derivatives are known to the operator
    run = _run if forward_ad._current_level >= 0 else _circuit
    return run(blocks, list(places), qubits)


def _assemble(
    angles: Float[Tensor, "B blocks 4"], qubits: int, layers: int, ansatz: str
) -> tuple[tuple[int, ...], Complex[Tensor, "B gates 4 4"]]:
    """The first qubit of every block in the order of time, and the blocks."""
    even, odd = tuple(range(0, qubits - 1, 2)), tuple(range(1, qubits - 1, 2))
    if ansatz == "trotter":
        angles = angles.unflatten(1, (layers, -1))
        half = _symmetric_blocks(angles[:, :, : len(even)] / 2)
        full = _symmetric_blocks(angles[:, :, len(even) :])
        return (even + odd + even) * layers, torch.cat([half, full, half], 2).flatten(1, 2)
    places = (even + odd) * layers
    blocks = _couple(angles[..., 2:]) @ _turn(
        angles[..., :2], _X if ansatz == "centrosymmetric" else _TILTED
    )
    if ansatz == "parted":
        first, second = blocks.chunk(2, 1)
        # the transpose of a product is the product of the transposes, backwards
        return places[::-1] + places, torch.cat([first.flip(1).mT, second], 1)
    return places, blocks


# an axis is a matrix whose square is one; a turn about a tilted one has no mirror image, so that
# scores which differ by signs have different plans
_X = ((0, 1), (1, 0))
_TILTED = tuple(tuple(entry / 3**0.5 for entry in row) for row in ((1, 1 - 1j), (1 + 1j, -1)))


def _symmetric_blocks(angles: Float[Tensor, "... 4"]) -> Complex[Tensor, "... 4 4"]:
    """Half of the turn before the coupling and half after: the same read forwards and backwards."""
    turn = _turn(angles[..., :2] / 2, _TILTED)
    return turn @ _couple(angles[..., 2:]) @ turn


def _turn(angles: Float[Tensor, "... 2"], axis) -> Complex[Tensor, "... 4 4"]:
    """Both qubits turned about an axis, each by an angle of its own."""
    first, second = (_exp(angle, axis) for angle in angles.unbind(-1))
    product = first[..., :, None, :, None] * second[..., None, :, None, :]
    return product.flatten(-2).flatten(-3, -2)


def _couple(angles: Float[Tensor, "... 2"]) -> Complex[Tensor, "... 4 4"]:
    """Both qubits turned together, about XX and about YY; ZZ would end a circuit unseen."""
    xx = ((0, 0, 0, 1), (0, 0, 1, 0), (0, 1, 0, 0), (1, 0, 0, 0))
    yy = ((0, 0, 0, -1), (0, 0, 1, 0), (0, 1, 0, 0), (-1, 0, 0, 0))
    return _exp(angles[..., 0], xx) @ _exp(angles[..., 1], yy)


def _exp(angle: Float[Tensor, "..."], axis) -> Complex[Tensor, "... s s"]:
    """exp(-i angle/2 axis) = cos(angle/2) - i sin(angle/2) axis."""
    half, size = angle / 2, len(axis)
    cos, sin = half.cos(), half.sin()
    # factors are numbers of Python: a GPU would wait for a copy of a matrix from the host. Most
    # entries are alike, and made once
    places = [(row == column, axis[row][column]) for row in range(size) for column in range(size)]
    entries = {place: cos * place[0] - sin * (1j * place[1]) for place in set(places)}
    return torch.stack([entries[place] for place in places], -1).unflatten(-1, (size, size))


def _complex(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype == torch.float64 else torch.complex64


def _run(
    blocks: Complex[Tensor, "B gates 4 4"], places: list[int], qubits: int
) -> Complex[Tensor, "B states states"]:
    """Let the blocks act one after the other on every state of the qubits."""
    state = torch.eye(2**qubits, dtype=blocks.dtype, device=blocks.device)
    state = state.repeat(blocks.shape[0], 1, 1)
    for gate, place in enumerate(places):
        state = _act(blocks[:, gate], state, place)
    return state


# a custom operator, because a unitary step can be taken back: nothing between the first and the
# last state needs to be kept
@torch.library.custom_op("bistoch::circuit", mutates_args=())
def _circuit(blocks: Tensor, places: list[int], qubits: int) -> Tensor:
    return _run(blocks, places, qubits)


@_circuit.register_fake
def _(blocks, places, qubits):
    return blocks.new_empty(blocks.shape[0], 2**qubits, 2**qubits)


@torch.library.custom_op("bistoch::circuit_backward", mutates_args=())
def _circuit_backward(slope: Tensor, state: Tensor, blocks: Tensor, places: list[int]) -> Tensor:
    slopes = torch.zeros_like(blocks)
    for gate in reversed(range(len(places))):
        back, place = blocks[:, gate].mH, places[gate]
        state = _act(back, state, place)
        slopes[:, gate] = (_split(slope, place) @ _split(state, place).mH).sum(1)
        slope = _act(back, slope, place)
    return slopes


@_circuit_backward.register_fake
def _(slope, state, blocks, places):
    return torch.empty_like(blocks)


def _save(ctx, inputs, output) -> None:
    blocks, ctx.places, _ = inputs
    ctx.save_for_backward(output, blocks)


def _differentiate(ctx, slope):
    return _circuit_backward(slope, *ctx.saved_tensors, ctx.places), None, None


_circuit.register_autograd(_differentiate, setup_context=_save)


def _act(
    block: Complex[Tensor, "B 4 4"], state: Complex[Tensor, "B states columns"], place: int
) -> Complex[Tensor, "B states columns"]:
    """Let a block act on the qubits `place` and `place + 1` of all columns."""
    return (block[:, None] @ _split(state, place)).reshape(state.shape)


def _split(state: Complex[Tensor, "B states columns"], place: int) -> Tensor:
    return state.reshape(
        state.shape[0], 2**place, 4, state.shape[1] * state.shape[2] >> (place + 2)
    )


BACKEND = Backend("reference", "", block_sums)
