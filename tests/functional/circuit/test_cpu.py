"""The CPU kernels of circuits: plans and gradients are those of the reference."""

import math

import pytest
import torch
from torch.autograd import forward_ad

import bistoch
from bistoch.functional.circuit import ANSAETZE, CircuitProblem, choose, count_angles, reference
from bistoch.functional.circuit import operator as kernels

every_ansatz = pytest.mark.parametrize("ansatz", ANSAETZE)


def angles_for(form, batch, dtype=torch.float64, size=1.0):
    qubits, ancilla, layers, ansatz = form
    return size * torch.randn(batch, count_angles(qubits + ancilla, layers, ansatz), dtype=dtype)


def solve(backend, angles, form, weight):
    """Plans, and the gradient of a fixed loss of them."""
    angles = angles.detach().requires_grad_()
    qubits, ancilla, layers, ansatz = form
    plan = backend.block_sums(CircuitProblem(angles, qubits, ancilla, layers, ansatz))
    (grad,) = torch.autograd.grad((plan * weight.to(plan.dtype)).sum(), angles)
    return plan.detach(), grad


def weights(form, batch):
    return torch.randn(batch, 2 ** form[0], 2 ** form[0], dtype=torch.float64)


def compare(angles, form):
    weight = weights(form, len(angles))
    for found, wanted in zip(
        solve(kernels, angles, form, weight), solve(reference, angles, form, weight), strict=True
    ):
        torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)


# qubits, ancilla, layers, and how many circuits: lanes are eight doubles
SIZES = [(1, 1, 1, 3), (2, 0, 3, 7), (2, 1, 2, 8), (3, 2, 2, 11), (1, 3, 5, 1), (3, 3, 1, 9)]


@every_ansatz
@pytest.mark.parametrize(("qubits", "ancilla", "layers", "batch"), SIZES)
def test_the_kernels_are_the_reference(ansatz, qubits, ancilla, layers, batch):
    form = (qubits, ancilla, layers, ansatz)
    compare(angles_for(form, batch), form)


@every_ansatz
@pytest.mark.parametrize("angles", [0.0, math.pi, math.pi / 2, -3 * math.pi, 1e6])
def test_angles_at_which_sines_or_cosines_vanish(ansatz, angles):
    form = (2, 1, 2, ansatz)
    compare(torch.full_like(angles_for(form, 3), angles), form)
    # and each alone among others
    mixed = angles_for(form, 5)
    mixed[:, ::3] = angles
    compare(mixed, form)


@every_ansatz
def test_single_precision_is_as_good_as_that_of_the_reference(ansatz):
    # where it really runs: eight tokens, and more circuits than lanes
    form = (3, 2, 16, ansatz)
    angles, weight = angles_for(form, 19, size=2.0), weights(form, 19)
    exact = solve(reference, angles, form, weight)
    single, found = (solve(b, angles.float(), form, weight) for b in (reference, kernels))
    for best, theirs, ours in zip(exact, single, found, strict=True):
        rounding = 4 * torch.finfo(torch.float32).eps * best.abs().max()
        assert (ours - best).abs().max() <= 2 * (theirs - best).abs().max() + rounding


@every_ansatz
def test_the_gradient_is_that_of_small_differences(ansatz):
    form = (1, 2, 2, ansatz)
    angles = angles_for(form, 2).requires_grad_()

    def plan(angles):
        return kernels.block_sums(CircuitProblem(angles, *form))

    assert torch.autograd.gradcheck(plan, angles)


def test_every_worker_takes_groups_of_its_own():
    form, before = (2, 1, 2, "parted"), torch.get_num_threads()
    angles, weight = angles_for(form, 53), weights((2,), 53)
    try:
        torch.set_num_threads(1)
        alone = solve(kernels, angles, form, weight)
        torch.set_num_threads(3)
        together = solve(kernels, angles, form, weight)
    finally:
        torch.set_num_threads(before)
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one, other)


def test_matrices_are_kept_for_a_backward_only():
    angles = angles_for((2, 1, 2, "simple"), 3).unflatten(-1, (-1, 4))
    for keep in (False, True):
        _, states, _, _ = kernels.circuit_cpu(angles, 3, 2, 2, "simple", keep)
        assert states.numel() == (2 * 4**3 * 8 if keep else 0)
    # what was made for inference can still be differentiated
    angles.requires_grad_()
    plan, *_ = kernels.circuit_cpu(angles, 3, 2, 2, "simple", False)
    (grad,) = torch.autograd.grad(plan[:, 0, 0].sum(), angles)
    assert grad.abs().max() > 0


def test_who_is_chosen():
    def chosen(batch, qubits, backend="auto"):
        angles = torch.zeros(batch, count_angles(qubits + 2, 4, "parted"))
        return choose("quantum_plan", CircuitProblem(angles, qubits, 2, 4, "parted"), backend).name

    # a batch of the published size, a few small circuits, and one that is too large
    assert [chosen(100, 3), chosen(4, 2), chosen(100, 7)] == ["cpu", "reference", "reference"]
    assert chosen(4, 2, "cpu") == "cpu"
    q, k = torch.randn(2, 64, 8, 3).unbind()
    plans = [bistoch.quantum_plan(q, k, backend=b) for b in ("auto", "cpu", "reference")]
    assert torch.equal(plans[0], plans[1])
    torch.testing.assert_close(plans[1], plans[2], atol=1e-6, rtol=0)


@pytest.mark.parametrize("layers", [0, 1])
def test_circuits_without_a_gate_and_batches_without_a_circuit(layers):
    q, k = torch.randn(2, 5, 1, 3).unbind()
    plan = bistoch.quantum_plan(q, k, layers=layers, ancilla=0, backend="cpu")
    assert torch.equal(plan, torch.ones(5, 1, 1))
    tokens = torch.randn(2, 0, 4, 3, requires_grad=True)
    plan = bistoch.quantum_plan(*tokens.unbind(), layers=1, backend="cpu")
    assert plan.shape == (0, 4, 4)
    plan.sum().backward()


# torch's own rules of forward mode are scripts
@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_what_the_kernels_cannot_do_is_said():
    q, k = torch.randn(2, 4, 4, 3, dtype=torch.float64).unbind()
    run = lambda q: bistoch.quantum_plan(q, k, backend="cpu")  # noqa: E731
    sentence = r'for torch\.func\.jvp choose backend="reference"'
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=sentence):
        run(forward_ad.make_dual(q, q))
    q.requires_grad_()
    (grad,) = torch.autograd.grad(run(q).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match='for second ones choose backend="reference"'):
        grad.sum().backward()
    with pytest.raises(ValueError, match="backend must be one of 'auto', 'reference', 'cpu'"):
        bistoch.quantum_plan(q, k, backend="streaming")
