"""Squared orthogonal matrices: closed forms, numpy as the oracle, and what was published."""

import numpy as np
import pytest
import torch

import bistoch
from bistoch.analysis.metrics import birkhoff_distance
from bistoch.functional.orthogonal import METHODS
from bistoch.functional.unitary import hermitian

every_method = pytest.mark.parametrize("method", METHODS)


def plan_of(scores, **options):
    """The plan of scores that are there already."""
    n = scores.shape[-1]
    eye = torch.eye(n, dtype=scores.dtype)
    return bistoch.orthogonal_plan(scores, eye, scale=1.0, **options)


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_qr_is_that_of_numpy():
    scores = random(4, 7, 7)
    wanted = np.linalg.qr(scores.numpy()).Q ** 2
    found = plan_of(scores, ridge=1e-7)
    torch.testing.assert_close(found, torch.from_numpy(wanted), atol=1e-9, rtol=0)
    # the default ridge is felt only by directions that are nearly none
    torch.testing.assert_close(plan_of(scores), found, atol=1e-5, rtol=0)


def test_lq_is_the_mirror_image():
    q, k = random(2, 3, 7, 4).unbind()
    mask = torch.arange(7) < torch.tensor([[7], [5], [2]])
    masks = {"query_mask": mask, "key_mask": mask}
    for ancilla in (1, 3):
        mirrored = bistoch.orthogonal_plan(k, q, ancilla=ancilla, **masks).mT
        found = bistoch.orthogonal_plan(q, k, method="lq", ancilla=ancilla, **masks)
        torch.testing.assert_close(found, mirrored)
    # the first query takes its direction whole
    scores = random(5, 5)
    shares = scores[0].square() / scores[0].square().sum()
    torch.testing.assert_close(plan_of(scores, method="lq")[0], shares, atol=1e-6, rtol=0)


def test_without_rank_it_is_the_mean_of_the_published_noise():
    # more tokens than features: keys after the third have no direction of their own
    q, k = random(2, 6, 3).unbind()
    noise = 1e-7 * np.random.default_rng(0).standard_normal((20_000, 6, 6))
    drawn = np.linalg.qr((q @ k.T).numpy() + noise).Q ** 2
    found = bistoch.orthogonal_plan(q, k, scale=1.0)
    torch.testing.assert_close(found, torch.from_numpy(drawn.mean(0)), atol=0.01, rtol=0)
    assert drawn.std(0)[:, 3:].min() > 0.02
    shared = found[:, 3:]
    torch.testing.assert_close(shared, shared[:, :1].expand(6, 3), atol=1e-6, rtol=0)


def test_no_scores_at_all_are_shared_out_evenly():
    zero = torch.zeros(5, 3, dtype=torch.float64, requires_grad=True)
    plan = bistoch.orthogonal_plan(zero, random(5, 3))
    torch.testing.assert_close(plan, torch.full((5, 5), 0.2, dtype=torch.float64))
    plan.square().sum().backward()
    assert not zero.grad.any()


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identical_tokens_have_a_plan_and_a_gradient(method, dtype):
    x = torch.randn(7, 11, dtype=dtype)
    x[2] = x[4] = x[0]
    x.requires_grad_()
    plan = bistoch.orthogonal_plan(x, x, method=method)
    plan.square().sum().backward()
    for axis in (0, 1):
        torch.testing.assert_close(plan.sum(axis), torch.ones(7, dtype=dtype), atol=1e-6, rtol=0)
    assert x.grad.abs().max() < 100


@every_method
@pytest.mark.parametrize("ancilla", [1, 2])
def test_gradients(method, ancilla):
    q, k = (random(2, 3, 2).requires_grad_() for _ in range(2))
    real = torch.arange(3) < torch.tensor([[3], [2]])
    eps = torch.tensor([0.7, 1.3], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda q, k, eps: bistoch.orthogonal_plan(
            q, k, eps=eps, method=method, ancilla=ancilla, query_mask=real, key_mask=real
        ),
        (q, k, eps),
    )


@every_method
def test_single_precision_follows_double(method):
    # more tokens than features: most keys have no direction of their own
    q, k = torch.randn(2, 61, 16).unbind()
    plans = [bistoch.orthogonal_plan(q.to(t), k.to(t), method=method).double() for t in
             (torch.float32, torch.float64)]  # fmt: skip
    torch.testing.assert_close(*plans, atol=3e-6, rtol=0)


@every_method
def test_as_many_tokens_as_a_vision_transformer_has(method):
    q, k = torch.randn(2, 197, 64).unbind()
    plan = bistoch.orthogonal_plan(q.requires_grad_(), k, method=method)
    for axis in (0, 1):
        torch.testing.assert_close(plan.sum(axis), torch.ones(197), atol=2e-6, rtol=0)
    plan.square().sum().backward()
    assert q.grad.isfinite().all()


@every_method
def test_who_minds_the_order(method):
    q, k = random(2, 7, 7).unbind()
    order = torch.randperm(7)
    plan = bistoch.orthogonal_plan(q, k, method=method)
    together = bistoch.orthogonal_plan(q[order], k[order], method=method)
    queries = bistoch.orthogonal_plan(q[order], k, method=method)
    keys = bistoch.orthogonal_plan(q, k[order], method=method)
    # all tokens of self-attention in another order; queries alone; keys alone
    assert torch.allclose(together, plan[order][:, order]) == (method in ("cayley", "expm"))
    assert torch.allclose(queries, plan[order]) == (method == "qr")
    assert torch.allclose(keys, plan[:, order]) == (method == "lq")


def test_an_ancilla_is_the_block_average_of_one_large_unitary_matrix():
    scores = random(5, 5)
    basis, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.complex128))
    strength = basis * torch.tensor([1 / 3, 1, 5 / 3]) @ basis.mH
    large = torch.linalg.matrix_exp(1j * torch.kron(hermitian(scores), strength))
    blocks = large.abs().square().reshape(5, 3, 5, 3).sum((1, 3)) / 3
    torch.testing.assert_close(plan_of(scores, method="expm", ancilla=3), blocks)


def test_an_ancilla_of_qr_starts_at_other_keys():
    scores = random(6, 6)
    plans = []
    for start in (0, 2, 4):
        turned = np.linalg.qr(np.roll(scores.numpy(), -start, axis=1)).Q ** 2
        plans.append(np.roll(turned, start, axis=1))
    wanted = torch.from_numpy(np.mean(plans, 0))
    torch.testing.assert_close(plan_of(scores, ancilla=3, ridge=1e-7), wanted, atol=1e-9, rtol=0)


def test_published_scores_of_columns_lose_sign_and_size():
    scores = random(6, 6)
    factors = torch.tensor([-1.0, 2.0, -0.5, 3.0, 1.0, -2.0], dtype=torch.float64)
    torch.testing.assert_close(plan_of(scores), plan_of(scores * factors), atol=1e-5, rtol=0)
    # the smooth methods keep both
    for method in ("cayley", "expm"):
        different = plan_of(scores, method=method) - plan_of(scores * factors, method=method)
        assert different.abs().max() > 0.05


def test_published_distances_to_the_polytope():
    # softmax 1.12, Sinkhorn 0.84 after 3 half steps and 0.23 after 21, QR below 2e-4, the circuit
    # below 5e-6, on 8 x 8 scores of a trained network; here random ones that are about as far away
    # for softmax
    scores, keys = 5 * torch.randn(2, 32, 8, 8)
    plans = {
        "softmax": scores.softmax(-1),
        "3 half steps": bistoch.balance(scores, iters=1),
        "21 half steps": bistoch.balance(scores, iters=10),
        "qr": plan_of(scores),
        "cayley": plan_of(scores, method="cayley"),
        "quantum": bistoch.quantum_plan(scores, torch.eye(8), scale=1.0),
        "sliced": bistoch.sliced_plan(scores, keys),
        "sliced, soft": bistoch.sliced_plan(scores, keys, eps=1.0),
    }
    far = {name: birkhoff_distance(plan.double()).mean().item() for name, plan in plans.items()}
    assert 1.0 < far["softmax"] < 1.9
    assert 0.1 * far["softmax"] < far["3 half steps"] < 0.8 * far["softmax"]
    assert 0.01 < far["21 half steps"] < 0.5 * far["3 half steps"]
    assert 0.02 < far["sliced, soft"] < 0.2
    assert max(far[name] for name in ("qr", "cayley", "quantum", "sliced")) < 5e-6


# the laws compile the default
@pytest.mark.parametrize("method", ["expm"])
def test_compiles(method):
    q, k, v = torch.randn(3, 2, 5, 3).unbind()
    q.requires_grad_()

    def attend(q, k, v):
        return bistoch.orthogonal_attention(q, k, v, method=method)

    found = torch.compile(attend, fullgraph=True, backend="aot_eager")(q, k, v)
    torch.testing.assert_close(found, attend(q, k, v))
    slopes = [torch.autograd.grad(x.sin().sum(), q)[0] for x in (found, attend(q, k, v))]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize(("options", "error", "sentence"), [
    ({"method": "svd"}, ValueError, "method must be one of 'qr', 'lq', 'cayley', 'expm', but"),
    ({"ancilla": 0}, ValueError, "ancilla must be at least 1, but it is 0"),
    ({"ancilla": 2.0}, TypeError, "ancilla must be a whole number"),
    ({"ridge": 0.0}, ValueError, "ridge must be a positive number, small against 1, but it is 0.0"),
])  # fmt: skip
def test_mistakes_are_named(options, error, sentence):
    q, k = torch.randn(2, 5, 3).unbind()
    with pytest.raises(error, match=sentence):
        bistoch.orthogonal_plan(q, k, **options)
