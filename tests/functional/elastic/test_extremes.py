"""No NaN for finite input, and the documented result."""

import pytest
import torch

import bistoch
from functional.quick_backends import BACKENDS

N, M = 13, 17

every_backend = pytest.mark.parametrize("backend", BACKENDS)


def attend(backend, q, k, v, **options):
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    result = bistoch.elastic_attention(*leaves, backend=backend, **options)
    grads = torch.autograd.grad(result.float().square().sum(), leaves)
    assert all(t.isfinite().all() for t in (result, *grads))
    return result


@every_backend
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("lam", [0.5, 1.0])
def test_temperatures_and_precisions(backend, dtype, eps, lam):
    q, k, v = (torch.randn(2, size, 5).to(dtype) for size in (N, M, M))
    result = attend(backend, q, k, v, eps=eps, lam=lam)
    assert result.dtype == dtype
    wanted = attend("reference", q.double(), k.double(), v.double(), eps=eps, lam=lam)
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(
        dtype, 1e-3 if eps == 1e-3 else 1e-5
    )
    torch.testing.assert_close(result.double(), wanted, atol=tolerance, rtol=tolerance)


@every_backend
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_scores_of_ten_thousand(backend, size):
    scores = size * torch.randint(0, 2, (N, M)).float()
    scores.requires_grad_()
    plan = bistoch.balance(scores, backend=backend)
    plan.square().sum().backward()
    assert plan.isfinite().all()
    assert scores.grad.isfinite().all()
    torch.testing.assert_close(plan.sum(-1), torch.ones(N))


@every_backend
def test_potentials_beyond_the_range_of_floats(backend):
    """Column factors of e^300 and more: representable as logarithms only."""
    scores = torch.randn(N, N)
    scores[:, 0] -= 400
    scores[3] += 700
    plan = bistoch.balance(scores, iters=100, backend=backend)
    torch.testing.assert_close(plan.sum(-2), torch.ones(N), atol=1e-3, rtol=0)
    wanted = bistoch.balance(scores.double(), iters=100, backend="reference")
    torch.testing.assert_close(plan.double(), wanted, atol=1e-3, rtol=1e-3)


@every_backend
def test_a_bias_of_minus_infinity_is_a_mask(backend):
    q, k, v = (torch.randn(size, 5, dtype=torch.float64) for size in (N, M, M))
    allowed = torch.rand(N, M) > 0.4
    bias = torch.zeros(N, M, dtype=torch.float64).masked_fill(~allowed, -torch.inf)
    torch.testing.assert_close(
        attend(backend, q, k, v, mask=bias), attend(backend, q, k, v, mask=allowed)
    )


@every_backend
def test_half_precision_is_computed_in_float32(backend):
    q, k, v = (torch.randn(size, 5).bfloat16() for size in (N, M, M))
    wanted = bistoch.elastic_attention(q.float(), k.float(), v.float(), iters=50, backend=backend)
    found = bistoch.elastic_attention(q, k, v, iters=50, backend=backend)
    torch.testing.assert_close(found, wanted.bfloat16(), atol=0, rtol=0)
    assert bistoch.elastic_potentials(q, k, backend=backend).row.dtype == torch.float32


@every_backend
@pytest.mark.parametrize("n", [1, 5, 211])
def test_scores_whose_rounding_exceeds_one(backend, n):
    # the terms of columns far below the best of every row underflow, and are summed in the log
    # domain, where a sum that is rounded in another order is off by thousands
    generator = torch.Generator().manual_seed(0)
    q, k = (1e6 * torch.randn(n, size, 3, generator=generator) for size in (5, 13))
    found = bistoch.elastic_potentials(q, k, iters=1, backend=backend)
    wanted = bistoch.elastic_potentials(q.double(), k.double(), iters=1, backend="reference")
    assert found.column.isfinite().all()
    size = wanted.column.abs().max()
    torch.testing.assert_close(found.column.double(), wanted.column, atol=1e-5 * size, rtol=0)
