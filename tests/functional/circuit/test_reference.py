"""The simulator against PennyLane, and the symmetries of its circuits."""

import math

import pytest
import torch

from bistoch.functional.circuit import ANSAETZE, CircuitProblem, count_angles, operator
from bistoch.functional.circuit.reference import _assemble, _circuit, _run, circuit_unitary
from bistoch.lab.bench.memory import allocated_by

every_ansatz = pytest.mark.parametrize("ansatz", ANSAETZE)


def angles_for(qubits, layers, ansatz, batch=2):
    return torch.randn(batch, count_angles(qubits, layers, ansatz), dtype=torch.float64)


def pennylane_unitary(angles, qubits, layers, ansatz):
    """The same circuit, written gate by gate as PennyLane names them."""
    qml = pytest.importorskip("pennylane")
    even, odd = range(0, qubits - 1, 2), range(1, qubits - 1, 2)
    angles = iter(angles.reshape(-1, 4).tolist())

    def turn(angle, wire):
        if ansatz == "centrosymmetric":
            qml.RX(angle, wire)
            return
        # lean the Z axis to (1, 1, 1), turn about it, and back
        polar, azimuth = math.acos(1 / math.sqrt(3)), math.pi / 4
        qml.RZ(-azimuth, wire), qml.RY(-polar, wire)
        qml.RZ(angle, wire)
        qml.RY(polar, wire), qml.RZ(azimuth, wire)

    def block(place, a, b, c, d):
        turn(a, place), turn(b, place + 1)
        qml.IsingYY(d, [place, place + 1]), qml.IsingXX(c, [place, place + 1])

    def symmetric_block(place, part, a, b, c, d):
        for half in range(2):
            turn(a * part / 2, place), turn(b * part / 2, place + 1)
            if half == 0:
                qml.IsingXX(c * part, [place, place + 1])
                qml.IsingYY(d * part, [place, place + 1])

    def simple():
        for _ in range(layers):
            for place in (*even, *odd):
                block(place, *next(angles))

    def trotter():
        for _ in range(layers):
            outer, inner = [next(angles) for _ in even], [next(angles) for _ in odd]
            for places, part, chosen in ((even, 0.5, outer), (odd, 1.0, inner), (even, 0.5, outer)):
                for place, four in zip(places, chosen, strict=True):
                    symmetric_block(place, part, *four)

    def matrix(circuit):
        return torch.from_numpy(qml.matrix(circuit, wire_order=range(qubits))())

    if ansatz == "parted":
        first, second = matrix(simple), matrix(simple)
        return second @ first.T
    return matrix(trotter if ansatz == "trotter" else simple)


# importing PennyLane takes seconds
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@every_ansatz
@pytest.mark.parametrize("qubits", [2, 3, 5])
def test_pennylane_finds_the_same_matrix(ansatz, qubits):
    angles = angles_for(qubits, 2, ansatz)
    found = circuit_unitary(angles, qubits, 2, ansatz)
    # the kernels have no matrix to show, only the plan of the first qubit that it makes
    plans = operator.block_sums(CircuitProblem(angles, 1, qubits - 1, 2, ansatz))
    for one, matrix, plan in zip(angles, found, plans, strict=True):
        wanted = pennylane_unitary(one, qubits, 2, ansatz)
        torch.testing.assert_close(matrix, wanted)
        blocks = wanted.abs().square().unflatten(0, (2, -1)).unflatten(2, (2, -1))
        torch.testing.assert_close(plan, blocks.sum((1, 3)))


def test_one_block_in_words():
    a, b, c, d = angles = torch.tensor([0.3, -1.1, 0.7, 2.0], dtype=torch.float64)
    x = torch.tensor([[0, 1], [1, 0]], dtype=torch.complex128)
    y = torch.tensor([[0, -1j], [1j, 0]], dtype=torch.complex128)
    z, one = torch.diag(torch.tensor([1, -1], dtype=torch.complex128)), torch.eye(2)
    axis = (x + y + z) / 3**0.5
    factors = [c * torch.kron(x, x) + d * torch.kron(y, y), b * torch.kron(one, axis),
               a * torch.kron(axis, one)]  # fmt: skip
    wanted = torch.eye(4, dtype=torch.complex128)
    for factor in factors:
        wanted = wanted @ torch.linalg.matrix_exp(-0.5j * factor)
    torch.testing.assert_close(circuit_unitary(angles[None], 2, 1, "simple")[0], wanted)


@every_ansatz
@pytest.mark.parametrize("qubits", [0, 1, 2, 5])
def test_unitary_and_the_identity_without_angles(ansatz, qubits):
    angles = angles_for(qubits, 3, ansatz)
    matrix = circuit_unitary(angles, qubits, 3, ansatz)
    identity = torch.eye(2**qubits, dtype=torch.complex128).expand(2, -1, -1)
    torch.testing.assert_close(matrix @ matrix.mH, identity)
    torch.testing.assert_close(circuit_unitary(0 * angles, qubits, 3, ansatz), identity)


@every_ansatz
def test_taking_steps_back_is_the_gradient_of_autograd(ansatz):
    angles = angles_for(5, 3, ansatz).requires_grad_()
    slopes = []
    for run in (_run, _circuit):
        places, blocks = _assemble(angles.unflatten(-1, (-1, 4)), 5, 3, ansatz)
        torch.manual_seed(1)
        weight = torch.randn(2, 32, 32, dtype=torch.complex128)
        loss = (run(blocks, list(places), 5) * weight).real.sum()
        slopes += torch.autograd.grad(loss, angles)
    torch.testing.assert_close(*slopes)
    assert slopes[0].abs().min() > 0


def test_parted_is_a_circuit_after_another_one_transposed():
    angles = angles_for(3, 2, "parted")
    first, second = (circuit_unitary(half, 3, 2, "simple") for half in angles.chunk(2, -1))
    torch.testing.assert_close(circuit_unitary(angles, 3, 2, "parted"), second @ first.mT)
    # on pairs of qubits that start equal, it is the same as turning each half of them
    pairs = torch.eye(8, dtype=torch.complex128) / 8**0.5
    turned = torch.einsum("bij,bkl,jl->bik", second, first, pairs)
    torch.testing.assert_close(turned * 8**0.5, circuit_unitary(angles, 3, 2, "parted"))


def test_centrosymmetric_is_left_alone_by_flipping_all_bits():
    matrix = circuit_unitary(angles_for(4, 2, "centrosymmetric"), 4, 2, "centrosymmetric")
    torch.testing.assert_close(matrix, matrix.flip(-1, -2))
    other = circuit_unitary(angles_for(4, 2, "simple"), 4, 2, "simple")
    assert not torch.allclose(other, other.flip(-1, -2))


def test_trotter_runs_backwards_with_the_angles_turned():
    # a symmetric step of second order
    angles = angles_for(4, 1, "trotter")
    there, back = (circuit_unitary(a, 4, 1, "trotter") for a in (angles, -angles))
    torch.testing.assert_close(back, there.mH)
    simple, negative = (circuit_unitary(a, 4, 1, "simple") for a in (angles, -angles))
    assert not torch.allclose(negative, simple.mH)


def test_memory_does_not_grow_with_the_layers():
    def train(layers):
        angles = angles_for(7, layers, "simple").requires_grad_()
        step = lambda: circuit_unitary(angles, 7, layers, "simple").real.sum().backward()  # noqa: E731
        return allocated_by(step)[1]

    assert train(16) < 1.2 * train(2)


# torch's own rules of forward mode are scripts
@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_forward_mode():
    angles, direction = angles_for(3, 1, "simple"), angles_for(3, 1, "simple")
    run = lambda a: circuit_unitary(a, 3, 1, "simple").imag  # noqa: E731
    found = torch.func.jvp(run, (angles,), (direction,))[1]
    step = 1e-6 * direction
    torch.testing.assert_close(
        found, (run(angles + step) - run(angles - step)) / 2e-6, atol=1e-8, rtol=1e-6
    )


def test_the_reference_is_the_operator():
    blocks = torch.randn(2, 3, 4, 4, dtype=torch.complex128)
    one = _run(blocks, [0, 1, 0], 3)
    wanted = torch.eye(8, dtype=torch.complex128)
    eye = torch.eye(2, dtype=torch.complex128)
    for gate, place in enumerate([0, 1, 0]):
        matrix = torch.stack([torch.kron(b, eye) if place == 0 else torch.kron(eye, b)
                              for b in blocks[:, gate].contiguous()])  # fmt: skip
        wanted = matrix @ wanted
    torch.testing.assert_close(one, wanted)
