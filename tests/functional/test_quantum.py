"""Plans that a circuit draws: exactness, sizes, theta, shots, and what was published of them."""

import pytest
import torch

import bistoch
from bistoch.functional.circuit import ANSAETZE, count_angles
from bistoch.functional.circuit.reference import circuit_unitary
from bistoch.functional.quantum import default_theta, theta_length

every_ansatz = pytest.mark.parametrize("ansatz", ANSAETZE)


def plan_of(scores, **options):
    """The plan of scores that are there already."""
    eye = torch.eye(scores.shape[-1], dtype=scores.dtype)
    return bistoch.quantum_plan(scores, eye, scale=1.0, **options)


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@every_ansatz
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 13])
@pytest.mark.parametrize("ancilla", [0, 1, 3])
def test_doubly_stochastic_in_single_precision(ansatz, n, ancilla):
    q, k = torch.randn(2, 2, n, 5).unbind()
    plan = bistoch.quantum_plan(q, k, ansatz=ansatz, ancilla=ancilla, layers=2)
    for axis in (-1, -2):
        torch.testing.assert_close(plan.sum(axis), torch.ones(2, n), atol=1e-6, rtol=0)
    assert (plan >= 0).all()


def test_the_plan_is_the_block_average_of_the_circuit():
    scores = random(4, 4)
    length = count_angles(5, 2, "simple")
    assert length == 2 * 4 * 4
    theta = random(length)
    angles = theta * scores.flatten().repeat(2)
    squares = circuit_unitary(angles[None], 5, 2, "simple")[0].abs().square()
    wanted = torch.stack([
        torch.stack([squares[8 * i : 8 * i + 8, 8 * j : 8 * j + 8].sum() / 8 for j in range(4)])
        for i in range(4)
    ])  # fmt: skip
    found = plan_of(scores, theta=theta, ansatz="simple", layers=2, ancilla=3)
    torch.testing.assert_close(found, wanted)


def test_every_score_is_used_even_if_there_are_more_than_angles():
    # 64 scores for 12 angles
    scores = random(8, 8).requires_grad_()
    plan = plan_of(scores, ansatz="simple", layers=1, ancilla=1)
    assert theta_length(3, 1, 1, "simple") == 64 > count_angles(4, 1, "simple")
    plan.square().sum().backward()
    assert scores.grad.abs().min() > 0


def test_scores_of_zero_leave_every_token_alone():
    torch.testing.assert_close(plan_of(torch.zeros(8, 8)), torch.eye(8))


@every_ansatz
def test_gradients(ansatz):
    q, k = (random(2, 3, 2).requires_grad_() for _ in range(2))
    real = torch.arange(3) < torch.tensor([[3], [2]])
    theta = random(2, theta_length(2, 1, 1, ansatz)).requires_grad_()

    def plan(q, k, theta):
        return bistoch.quantum_plan(
            q, k, theta=theta, ansatz=ansatz, layers=1, ancilla=1, query_mask=real, key_mask=real
        )

    assert torch.autograd.gradcheck(plan, (q, k, theta))


def test_a_theta_per_head():
    q, k = random(2, 3, 2, 4, 5).unbind()
    theta = random(2, theta_length(2, 2, 4, "parted"))
    together = bistoch.quantum_plan(q, k, theta=theta)
    for head in range(2):
        alone = bistoch.quantum_plan(q[:, head], k[:, head], theta=theta[head])
        torch.testing.assert_close(together[:, head], alone)


def test_the_default_theta_is_spread_over_its_range():
    theta = default_theta(1000, torch.zeros(1))
    assert theta.abs().max() <= 1
    assert theta.unique().numel() == 1000
    counts = torch.histc(theta, bins=10, min=-1, max=1)
    assert counts.min() > 95


def test_shots_are_unbiased_with_rows_of_one():
    scores = random(3, 3)
    exact = plan_of(scores)
    generator = torch.Generator().manual_seed(0)
    drawn = plan_of(scores.expand(4000, 3, 3), shots=7, generator=generator)
    torch.testing.assert_close(drawn.sum(-1), torch.ones_like(drawn[..., 0]))
    torch.testing.assert_close(7 * drawn, (7 * drawn).round())
    deviation = (exact * (1 - exact) / 7).sqrt()
    assert ((drawn.mean(0) - exact).abs() < 4 * deviation / 4000**0.5).all()
    torch.testing.assert_close(drawn.std(0), deviation, rtol=0.06, atol=0)


def test_shots_follow_their_generator_and_skip_padding():
    q, k = random(2, 2, 5, 3).unbind()
    real = torch.arange(5) < torch.tensor([[5], [3]])
    masks = {"query_mask": real, "key_mask": real}

    def draw(seed):
        return bistoch.quantum_plan(
            q, k, shots=11, generator=torch.Generator().manual_seed(seed), **masks
        )

    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))
    torch.testing.assert_close(draw(0).sum(-1), real.double())
    assert not draw(0)[1, :, 3:].any()


@pytest.mark.parametrize("n", [0, 1])
def test_shots_of_the_smallest_plans(n):
    plan = bistoch.quantum_plan(torch.randn(2, n, 3), torch.randn(2, n, 3), shots=5)
    assert torch.equal(plan, torch.ones(2, n, n))


def test_the_gradient_of_shots_is_that_of_the_exact_plan():
    q, k, v = random(3, 5, 4).unbind()
    q.requires_grad_()
    weight = random(5, 4)
    slopes = [
        torch.autograd.grad((bistoch.quantum_attention(q, k, v, shots=shots) * weight).sum(), q)[0]
        for shots in (None, 9)
    ]
    torch.testing.assert_close(*slopes)


def test_published_size_of_the_default_circuit():
    # 8 x 8, four ancillas, 16 qubits of which half are the other ends of pairs, 16 layers
    qubits, ancilla = 3, 4
    assert 2 * (qubits + ancilla + 1) == 16
    plan = plan_of(torch.randn(8, 8), layers=16, ancilla=ancilla + 1)
    for axis in (0, 1):
        torch.testing.assert_close(plan.sum(axis), torch.ones(8), atol=1e-6, rtol=0)


def test_published_constant_rows_are_told_apart():
    # softmax and Sinkhorn give 1/n for every matrix with constant rows; a circuit does not
    rows = torch.linspace(-1, 1, 8)[:, None].expand(8, 8)
    torch.testing.assert_close(bistoch.balance(rows), torch.full((8, 8), 1 / 8))
    plans = [plan_of(rows.roll(shift, 0)) for shift in range(4)]
    gaps = [(a - b).abs().max() for i, a in enumerate(plans) for b in plans[:i]]
    assert min(gaps) > 0.02


def test_published_inputs_that_collide():
    # 4 x 4 inputs with entries -1, 0, 1; plans rounded to three decimals. One plan per input from
    # eight layers on; QR and Sinkhorn collide
    grid = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0])] * 6)
    rest = torch.tensor([1.0, -1, 0, 1, 1, -1, 0, 0, 1, -1]).expand(len(grid), 10)
    scores = torch.cat([grid, rest], -1).reshape(-1, 4, 4).double()
    eye = torch.eye(4, dtype=torch.float64)

    def distinct(plans):
        return len(plans.mul(1000).round().flatten(1).unique(dim=0))

    circuits = distinct(plan_of(scores, layers=8))
    sinkhorn = distinct(bistoch.balance(scores, iters=200))
    directions = distinct(bistoch.orthogonal_plan(scores, eye, scale=1.0))
    assert circuits == len(grid) == 729
    assert directions < sinkhorn < circuits


@pytest.mark.parametrize(("options", "error", "sentence"), [
    ({"ansatz": "deep"}, ValueError, "ansatz must be one of 'simple', 'parted', 'centrosymmetric'"),
    ({"layers": -1}, ValueError, "layers must be at least 0, but it is -1"),
    ({"ancilla": 1.5}, TypeError, "ancilla must be a whole number"),
    ({"shots": 0}, ValueError, "shots must be at least 1, but it is 0"),
    ({"qubits": 2}, ValueError, "2 of them count 4, and there are 5; take 3, or None"),
    ({"theta": torch.ones(3)}, ValueError, r"theta must have 128 entries.*shape is \(3,\)"),
    ({"theta": torch.ones(2, 128)}, ValueError, r"theta must broadcast to .*\(2, 128\)"),
    ({"theta": 1.0}, TypeError, "theta must be a torch.Tensor"),
])  # fmt: skip
def test_mistakes_are_named(options, error, sentence):
    q, k = torch.randn(2, 5, 3).unbind()
    with pytest.raises(error, match=sentence):
        bistoch.quantum_plan(q, k, **options)
