"""A NaN or an infinity in elastic problems: potentials, plans, masks and gradients on all backends.

The law for attention and plans of every operator is in test_laws_nonfinite.py.
"""

import struct

import pytest
import torch

import bistoch
from bistoch.functional.elastic.cpu import lanes
from bistoch.functional.elastic.cpu import launch as cpu
from functional.quick_backends import BACKENDS

N, M, D, E = 13, 17, 5, 3
HERE = 1

every_backend = pytest.mark.parametrize("backend", BACKENDS)


def tokens(n=N, m=M, heads=3, dtype=torch.float64):
    return [torch.randn(heads, *size, dtype=dtype) for size in ((n, D), (m, D), (m, E))]


def negative_nan(payload):
    """The bits of a NaN are free: compilers make negative ones, and others carry numbers."""
    return struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0000 | payload))[0]


@pytest.mark.parametrize("number", [torch.nan, negative_nan(0), negative_nan(0x1FF), torch.inf])
@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_kernels_look_at_every_token(number, place, which, monkeypatch):
    """In every slot and block of a shared head, and in the rest behind the last whole vector."""
    monkeypatch.setattr(cpu, "OWN_HEAD_BYTES", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        broken = tokens(n=211, m=197)
        broken[which][(HERE, 0, 0) if place == "first" else (HERE, -1, -1)] = number
        result = bistoch.elastic_attention(*broken, iters=2, backend="cpu")
    finally:
        torch.set_num_threads(before)
    assert result[HERE].isnan().all()
    assert result[[0, 2]].isfinite().all()


def test_ordinary_input_is_looked_at_by_the_kernels_alone(monkeypatch):
    for module in (cpu, lanes):
        monkeypatch.setattr(module, "cleaned", lambda *_, **__: pytest.fail("a second look"))
    mask = torch.zeros(N, M, dtype=torch.float64)
    mask[2, 3], mask[4, 5] = -torch.inf, torch.finfo(torch.float64).min
    leaves = [x.requires_grad_() for x in tokens()]
    bistoch.elastic_attention(*leaves, mask=mask, backend="cpu").sum().backward()
    bistoch.balance(mask.requires_grad_(), backend="cpu").square().sum().backward()


@every_backend
@pytest.mark.parametrize("which", ["query", "key", "bias"])
def test_potentials(backend, which):
    q, k, _ = tokens()
    bias, seen = torch.zeros(3, N, M, dtype=q.dtype), torch.ones(3, M, dtype=torch.bool)
    seen[:, -1] = False
    {"query": q, "key": k, "bias": bias}[which][HERE, 2, 3] = torch.nan
    leaves = [q.requires_grad_(), k.requires_grad_()]
    found = bistoch.elastic_potentials(*leaves, mask=bias, key_mask=seen, backend=backend)
    assert found.row[HERE].isnan().all()
    # a key that nobody sees depends on nothing
    assert found.column[HERE, :-1].isnan().all()
    assert (found.column[:, -1] == -torch.inf).all()
    assert found.error[HERE].isnan()
    assert not found.converged[HERE]
    for part in (found.row, found.column[:, :-1], found.error):
        assert part[[0, 2]].isfinite().all()
    for part in (found.row.sum(), found.column[:, :-1].sum()):
        query_grad, key_grad = torch.autograd.grad(part, leaves, retain_graph=True)
        for grad in (query_grad, key_grad[:, :-1]):
            assert grad[HERE].isnan().all()
            assert grad[[0, 2]].isfinite().all()


@every_backend
@pytest.mark.parametrize("shape", [(3, 5, 7), (3, 67, 71)], ids=["lanes", "matrices"])
@pytest.mark.parametrize("number", [torch.nan, -torch.nan, torch.inf])
def test_scores_that_exist_already(backend, shape, number):
    scores = torch.randn(shape, dtype=torch.float64)
    scores[:, 0, 0] = -torch.inf
    scores[:, 3] = -torch.inf
    wanted = bistoch.balance(scores, iters=3, backend="reference")
    scores[HERE, -1, -1] = number
    scores.requires_grad_()
    plan = bistoch.balance(scores, iters=3, backend=backend)
    torch.testing.assert_close(plan[[0, 2]], wanted[[0, 2]])
    rows = torch.arange(shape[1]) != 3
    assert plan[HERE, rows].isnan().all()
    # a row without any key is zero and depends on nothing
    assert not plan[HERE, 3].any()
    (grad,) = torch.autograd.grad(plan.square().sum(), scores)
    assert grad[HERE, rows][:, 1:].isnan().all()
    assert grad[[0, 2]].isfinite().all()


@every_backend
def test_without_iterations_rows_stand_alone(backend):
    q, k, v = tokens()
    wanted = bistoch.elastic_attention(q, k, v, iters=0, backend="reference")
    q[HERE, 2] = torch.inf
    q.requires_grad_()
    found = bistoch.elastic_attention(q, k, v, iters=0, backend=backend)
    rows = torch.zeros(3, N, dtype=torch.bool)
    rows[HERE, 2] = True
    assert torch.equal(found.isnan().all(-1), rows)
    torch.testing.assert_close(found[~rows], wanted[~rows])
    (grad,) = torch.autograd.grad(found.sum(), q)
    assert torch.equal(grad.isnan().all(-1), rows)


@every_backend
@pytest.mark.parametrize("iters", [0, 3])
def test_what_is_masked_has_the_gradients_of_a_healthy_problem(backend, iters):
    q, k, v = tokens()
    bias = torch.randn(N, M, dtype=q.dtype)
    real, seen = torch.arange(N) != 4, torch.arange(M) != 6
    hidden = {"query_mask": real, "key_mask": seen, "iters": iters, "backend": backend}

    def run(*leaves):
        leaves = [x.detach().clone().requires_grad_() for x in leaves]
        result = bistoch.elastic_attention(*leaves[:3], mask=leaves[3], **hidden)
        return result, *torch.autograd.grad(result.square().sum(), leaves)

    wanted = run(q, k, v, bias)
    q[HERE, 4], k[HERE, 6], v[HERE, 6] = torch.nan, torch.inf, -torch.inf
    bias[4, 3], bias[2, 6] = torch.nan, torch.inf
    for found, best in zip(run(q, k, v, bias), wanted, strict=True):
        torch.testing.assert_close(found, best)


@every_backend
def test_gradients_of_everything_that_a_broken_head_was_made_of(backend):
    q, k, v = tokens()
    k[HERE, 3, 1] = torch.nan
    options = {
        "lam": torch.full((3,), 0.7), "eps": torch.ones(3), "omega": torch.ones(3),
        "column_mass": torch.ones(3, M), "mask": torch.zeros(3, N, M),
    }  # fmt: skip
    leaves = {"query": q, "key": k, "value": v} | {n: t.double() for n, t in options.items()}
    leaves = {name: leaf.requires_grad_() for name, leaf in leaves.items()}
    result = bistoch.elastic_attention(**leaves, iters=3, backend=backend)
    # a loss that hides it
    grads = torch.autograd.grad(result.nan_to_num(1.0).sum(), list(leaves.values()))
    for name, grad in zip(leaves, grads, strict=True):
        assert grad[HERE].isnan().all(), name
        assert grad[[0, 2]].isfinite().all(), name


@every_backend
def test_large_tokens_that_fit_are_solved(backend):
    """Kernels look again at tokens of 1e25 in float32; with such small keys nothing is wrong."""
    q, k, v = tokens(dtype=torch.float32)
    leaves = [q * 1e25, k * 1e-25, v]
    leaves = [x.requires_grad_() for x in leaves]
    found = bistoch.elastic_attention(*leaves, iters=4, backend=backend)
    wanted = bistoch.elastic_attention(q, k, v, iters=4, backend="reference")
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    value_grad = torch.autograd.grad(found.sum(), leaves[2])[0]
    assert value_grad.isfinite().all()


@every_backend
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_that_overflowed(backend, dtype):
    q, k, v = (x.to(dtype) for x in tokens())
    # what a layer in half precision makes of numbers that are too large for it
    q[HERE, 2, 1] = torch.tensor(3.39e38 if dtype == torch.bfloat16 else 6e4) * 10
    found = bistoch.elastic_attention(q, k, v, backend=backend)
    assert found.dtype == dtype
    assert found[HERE].isnan().all()
    assert found[[0, 2]].isfinite().all()


@every_backend
def test_a_tolerance_is_not_reached_by_a_nan(backend):
    q, k, v = tokens()
    q[HERE, 2, 1] = torch.nan
    found = bistoch.elastic_attention(q, k, v, iters=99, tol=1e-3, backend=backend)
    assert found[HERE].isnan().all()
    assert found[[0, 2]].isfinite().all()
    assert not bistoch.elastic_potentials(q, k, iters=99, tol=1e-3, backend=backend).converged[HERE]


@pytest.mark.parametrize("option", ["lam", "eps", "omega", "column_mass"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 67, 71)], ids=["lanes", "matrices"])
def test_options_that_could_not_be_read(option, shape):
    """A compiled graph does not look at its options: the kernels do."""
    scores = torch.randn(shape)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(scores, value):
        return bistoch.balance(scores, **{option: value}, iters=2, backend="cpu")

    value = torch.ones(2, shape[-1]) if option == "column_mass" else torch.full((2,), 0.5)
    assert compiled(scores, value).isfinite().all()
    value[HERE, ...] = torch.nan
    plan = compiled(scores, value)
    assert plan[HERE].isnan().all()
    assert plan[1 - HERE].isfinite().all()


@pytest.mark.parametrize("backend", ["reference", "streaming", "cpu"])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_score_that_is_forbidden_breaks_nothing(backend, number):
    torch.manual_seed(0)
    scores, bias = torch.randn(2, 3, 5, 7), torch.zeros(5, 7)
    bias[1, 2] = -torch.inf
    wanted = bistoch.balance(scores, mask=bias, backend=backend)
    scores[0, 0, 1, 2] = number
    assert torch.equal(bistoch.balance(scores, mask=bias, backend=backend), wanted)
