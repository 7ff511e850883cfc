"""A simulator of parametrised circuits: the whole unitary matrix, for a batch of angles at once.

A circuit is a list of 4 x 4 matrices, each acting on two neighbouring qubits of a line.
"""

import torch
from jaxtyping import Complex, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

ANSAETZE = ("simple", "parted", "centrosymmetric", "trotter")
ANGLES_PER_BLOCK = 4


def count_angles(qubits: int, layers: int, ansatz: str) -> int:
    """How many angles a circuit has: four per block, one block per pair of neighbours and layer.

    >>> count_angles(5, layers=2, ansatz="simple"), count_angles(5, layers=2, ansatz="parted")
    (32, 64)
    """
    blocks = max(qubits - 1, 0) * layers
    return ANGLES_PER_BLOCK * blocks * (2 if ansatz == "parted" else 1)


def circuit_unitary(
    angles: Float[Tensor, "B angles"], qubits: int, layers: int, ansatz: str
) -> Complex[Tensor, "B states states"]:
    """The unitary matrix of the circuit; the first qubit is the leading bit of a state.

        simple           U = V,          V = layers of blocks on pairs (0,1) (2,3) .. (1,2) (3,4) ..
        parted           U = V_2 V_1^T,  each with angles of its own
        centrosymmetric  U = V           of blocks that flipping all bits leaves alone
        trotter          U = V           of layers (even/2) (odd) (even/2), each block symmetric too

    A block is exp(-i c XX/2) exp(-i d ZZ/2) (RX(a) x RY(b)), with RX(b) if centrosymmetric. With
    all angles zero U is the identity.

    >>> half_turn = torch.tensor([[torch.pi, 0.0, 0.0, 0.0]])
    >>> circuit_unitary(half_turn, qubits=2, layers=1, ansatz="simple").abs()[0, :, 0].round()
    tensor([0., 0., 1., 0.])
    """
    complex_dtype = torch.complex(angles[:, :0], angles[:, :0]).dtype
    state = torch.eye(2**qubits, dtype=complex_dtype, device=angles.device)
    state = state.expand(len(angles), -1, -1)
    if qubits < 2 or layers == 0:
        return state
    places, blocks = _assemble(angles.unflatten(-1, (-1, ANGLES_PER_BLOCK)), qubits, layers, ansatz)
    return _Circuit.apply(blocks, state, places)


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
    blocks = _blocks(angles, _RX if ansatz == "centrosymmetric" else _RY)
    if ansatz == "parted":
        first, second = blocks.chunk(2, 1)
        # the transpose of a product is the product of the transposes, backwards
        return places[::-1] + places, torch.cat([first.flip(1).mT, second], 1)
    return places, blocks


# a rotation is cos(x/2) - i sin(x/2) times its axis
_RX, _RY = ((0, 1), (1, 0)), ((0, -1j), (1j, 0))


def _blocks(angles: Float[Tensor, "... 4"], axis) -> Complex[Tensor, "... 4 4"]:
    return _couple(angles[..., 2:]) @ _turn(angles[..., :2], axis)


def _symmetric_blocks(angles: Float[Tensor, "... 4"]) -> Complex[Tensor, "... 4 4"]:
    turn = _turn(angles[..., :2] / 2, _RY)
    # XX and ZZ commute, but the turn of the second qubit does not commute with itself turned back
    return turn @ _couple(angles[..., 2:]) @ turn


def _turn(angles: Float[Tensor, "... 2"], axis) -> Complex[Tensor, "... 4 4"]:
    """The first qubit turned about X and the second about an axis."""
    first, second = (_exp(angles[..., i], p) for i, p in enumerate((_RX, axis)))
    product = first[..., :, None, :, None] * second[..., None, :, None, :]
    return product.flatten(-2).flatten(-3, -2)


def _couple(angles: Float[Tensor, "... 2"]) -> Complex[Tensor, "... 4 4"]:
    """Both qubits turned together, about XX and about ZZ."""
    xx = ((0, 0, 0, 1), (0, 0, 1, 0), (0, 1, 0, 0), (1, 0, 0, 0))
    zz = ((1, 0, 0, 0), (0, -1, 0, 0), (0, 0, -1, 0), (0, 0, 0, 1))
    return _exp(angles[..., 0], xx) @ _exp(angles[..., 1], zz)


def _exp(angle: Float[Tensor, "..."], axis) -> Complex[Tensor, "... s s"]:
    """exp(-i angle/2 axis), for an axis whose square is one."""
    half = angle[..., None, None] / 2
    complex_dtype = torch.complex128 if angle.dtype == torch.float64 else torch.complex64
    matrix = torch.tensor(axis, dtype=complex_dtype, device=angle.device)
    identity = torch.eye(len(axis), dtype=complex_dtype, device=angle.device)
    return half.cos() * identity - 1j * half.sin() * matrix


class _Circuit(torch.autograd.Function):
    # a unitary step can be taken back, so nothing between the first and the last state is kept

    @staticmethod
    def forward(ctx, blocks, state, places):
        for gate, place in enumerate(places):
            state = _act(blocks[:, gate], state, place)
        ctx.save_for_backward(blocks, state)
        ctx.places = places
        return state

    @staticmethod
    @once_differentiable
    def backward(ctx, slope):
        blocks, state = ctx.saved_tensors
        slopes = torch.zeros_like(blocks)
        for gate in reversed(range(len(ctx.places))):
            back, place = blocks[:, gate].mH, ctx.places[gate]
            state = _act(back, state, place)
            pairs = _split(slope, place) @ _split(state, place).mH
            slopes[:, gate] = pairs.sum(1)
            slope = _act(back, slope, place)
        return slopes, None, None


def _act(
    block: Complex[Tensor, "B 4 4"], state: Complex[Tensor, "B states columns"], place: int
) -> Complex[Tensor, "B states columns"]:
    """Let a block act on the qubits `place` and `place + 1` of all columns."""
    return (block[:, None] @ _split(state, place)).reshape(state.shape)


def _split(state: Complex[Tensor, "B states columns"], place: int) -> Tensor:
    return state.reshape(len(state), 2**place, 4, state.shape[1] * state.shape[2] >> (place + 2))
