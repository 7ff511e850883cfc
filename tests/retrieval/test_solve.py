"""The solver in blocks against the specification of the operator, and its memory."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import bistoch
from bistoch.retrieval import HubCorrection, vectors
from bistoch.retrieval.solve import solve


def draw(queries=211, documents=97, features=13, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(queries + documents, features, generator=generator, dtype=torch.float64)
    return scale * found[:queries], found[queries:]


def expected(queries, documents, eps, lam, iters=20000):
    return bistoch.elastic_potentials(
        queries, documents, lam=lam, eps=eps, scale=1.0, iters=iters, tol=1e-10,
        backend="reference",
    )  # fmt: skip


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("height", [211, 53, 1])
def test_blocks_give_the_potentials_of_the_operator(lam, height, monkeypatch):
    monkeypatch.setattr(vectors, "BLOCK_ELEMENTS", 97 * height)
    queries, documents = draw()
    found = solve(queries, documents, eps=2.0, lam=lam, tol=1e-10, iters=20000)
    wanted = expected(queries, documents, 2.0, lam)
    # at lam = 1 a constant moves between rows and columns freely
    level = (found.column - wanted.column).mean()
    torch.testing.assert_close(found.column - level, wanted.column, atol=1e-8, rtol=0)
    torch.testing.assert_close(found.row + level, wanted.row, atol=1e-8, rtol=0)


@pytest.mark.parametrize("scale", [1e-6, 1e2, 1e4])
def test_no_score_is_too_large(scale, monkeypatch):
    monkeypatch.setattr(vectors, "BLOCK_ELEMENTS", 19 * 31)
    queries, documents = draw(61, 19, 5, scale)
    # a document that nobody is near to: its exponentials underflow
    documents[7] = -20 * documents.abs().max()
    for dtype in (torch.float64, torch.float32):
        found = solve(queries.to(dtype), documents.to(dtype), eps=1.0, lam=0.5, tol=1e-2, iters=500)
        assert found.row.isfinite().all()
        assert found.column.isfinite().all()
    if scale < 1e4:
        wanted = expected(queries, documents, 1.0, 0.5)
        exact = solve(queries, documents, eps=1.0, lam=0.5, tol=1e-8, iters=2000)
        torch.testing.assert_close(exact.column, wanted.column, atol=1e-5, rtol=1e-5)


def test_single_precision_reaches_the_tolerance():
    queries, documents = draw()
    exact = solve(queries, documents, eps=0.5, lam=0.9, tol=1e-8, iters=2000).column
    found = solve(queries.float(), documents.float(), eps=0.5, lam=0.9, tol=1e-3, iters=2000)
    assert found.error <= 1e-3
    # the error is blind to a constant, as rankings are; a residual r is at most r / (1 - lam) away
    apart = found.column - exact
    assert (apart - apart.mean()).abs().max() < 1e-2


class Largest(TorchDispatchMode):
    """The most elements that a tensor had."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for one in found if isinstance(found, (tuple, list)) else [found]:
            if isinstance(one, torch.Tensor):
                self.elements = max(self.elements, one.numel())
        return found


def test_nothing_of_the_size_of_all_scores_is_made(monkeypatch):
    monkeypatch.setattr(vectors, "BLOCK_ELEMENTS", 97 * 31)
    queries, documents = draw()
    with Largest() as seen:
        correction = HubCorrection().fit(queries, documents)
        correction.report()
        correction.add(documents)
    assert seen.elements <= max(97 * 31, 211 * 13, 2 * 97 * 14)
