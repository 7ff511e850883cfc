"""A padded batch gives, on its valid part, what the sequences give one by one."""

import pytest
import torch

import bistoch
from functional.quick_backends import BACKENDS

LENGTHS = [(7, 11), (4, 11), (7, 5), (3, 2)]
N, M = 7, 11


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("junk", [0.0, 1e4], ids=["zeros", "junk"])
@pytest.mark.parametrize("which", ["keys", "queries", "both"])
@pytest.mark.parametrize("options", [{}, {"lam": 0.4, "omega": 1.3}, {"tol": 1e-3, "iters": 200}],
                         ids=["sinkhorn", "elastic", "tol"])  # fmt: skip
def test_padded_batch_equals_one_by_one(backend, junk, which, options):
    lengths = [(n if which != "keys" else N, m if which != "queries" else M) for n, m in LENGTHS]
    q, k, v = (junk * torch.ones(len(lengths), size, 5, dtype=torch.float64) for size in (N, M, M))
    singles = []
    for i, (n, m) in enumerate(lengths):
        one = [torch.randn(size, 5, dtype=torch.float64, requires_grad=True) for size in (n, m, m)]
        singles.append(one)
        q[i, :n], k[i, :m], v[i, :m] = (t.detach() for t in one)
    for tensor in (q, k, v):
        tensor.requires_grad_()
    queries, keys = torch.tensor(lengths).T
    result = bistoch.elastic_attention(
        q, k, v, backend=backend,
        query_mask=None if which == "keys" else torch.arange(N) < queries[:, None],
        key_mask=None if which == "queries" else torch.arange(M) < keys[:, None],
        **options,
    )  # fmt: skip
    result.sin().sum().backward()
    for i, (n, m) in enumerate(lengths):
        alone = bistoch.elastic_attention(*singles[i], backend=backend, **options)
        alone.sin().sum().backward()
        torch.testing.assert_close(result[i, :n], alone)
        assert not result[i, n:].any()
        for padded, single, length in zip((q, k, v), singles[i], (n, m, m), strict=True):
            torch.testing.assert_close(padded.grad[i, :length], single.grad)
            assert not padded.grad[i, length:].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_and_columns_without_partner(backend):
    mask = torch.ones(N, M, dtype=torch.bool)
    mask[2], mask[:, 3] = False, False
    q, k, v = (torch.randn(size, 5, dtype=torch.float64, requires_grad=True) for size in (N, M, M))
    result = bistoch.sinkhorn_attention(q, k, v, mask=mask, iters=500, backend=backend)
    result.square().sum().backward()
    assert not result[2].any()
    assert all(t.grad.isfinite().all() for t in (q, k, v))
    rows, columns = torch.arange(N) != 2, torch.arange(M) != 3
    alone = bistoch.sinkhorn_attention(q[rows], k[columns], v[columns], iters=500, backend=backend)
    torch.testing.assert_close(result[rows], alone)
    found = bistoch.elastic_potentials(q, k, mask=mask, iters=500, backend=backend)
    assert found.row.isinf().nonzero().flatten().tolist() == [2]
    assert found.column.isinf().nonzero().flatten().tolist() == [3]
    assert found.converged
