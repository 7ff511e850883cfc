"""Iterations of free slack by products with a matrix, and problems that stop at different times."""

import pytest
import torch

import bistoch
from bistoch.functional.matching import iterations
from bistoch.functional.matching.iterations import Slack, iterate

N, M = 7, 11


def normal(*shape, seed=0):
    made = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=made, dtype=torch.float64)


def run(leaves, **options):
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    scores, rows, columns = leaves
    found = bistoch.match(scores, row_price=rows, column_price=columns, **options)
    results = [x.masked_fill(x == -torch.inf, 0) for x in found[4:7]]
    loss = sum((x * torch.linspace(1, 9, x.numel()).cos().reshape(x.shape)).sum() for x in results)
    return [*results, *torch.autograd.grad(loss, leaves)]


def assert_same(ours, theirs, tolerance):
    for one, other in zip(ours, theirs, strict=True):
        size = other.abs().max().clamp_min(1)
        assert (one - other).abs().max() <= tolerance * size


def drifting():
    """Few columns for many rows, and a high price: potentials rise for as long as it runs."""
    return 100 * normal(2, M, N), torch.full((2, M), 1e4).double(), normal(2, N)


@pytest.mark.parametrize("end", ["rows", "columns"])
@pytest.mark.parametrize("backend", ["streaming", "cpu"])
def test_potentials_that_leave_their_matrix(backend, end):
    leaves = drifting()
    options = {"iters": 100, "end": end}
    wanted = run(leaves, backend="reference", **options)
    assert_same(run(leaves, backend=backend, **options), wanted, 1e-9)


def test_a_new_matrix_is_made_where_they_leave_it():
    scores, rows, columns = drifting()
    slack = Slack(scores, -rows, -columns)
    near = iterate(slack, torch.zeros(2, N).double(), 100, None, by_products=True).near
    assert near[0] == -1
    assert 2 <= near.count(-1) < 20
    assert len(set(near)) > 2
    mild = Slack(normal(2, M, N), normal(2, M), normal(2, N))
    near = iterate(mild, torch.zeros(2, N).double(), 40, None, by_products=True).near
    assert near == [-1] + [0] * 39


@pytest.mark.parametrize("near", [0.01, 1.0])
def test_many_short_stretches(near, monkeypatch):
    monkeypatch.setattr(iterations, "NEAR", near)
    leaves = 2 * normal(3, N, M), normal(3, N), normal(3, M)
    options = {"iters": 15, "mask": torch.rand(N, M) > 0.2}
    wanted = run(leaves, backend="reference", **options)
    assert_same(run(leaves, backend="cpu", **options), wanted, 1e-12)


@pytest.mark.parametrize("end", ["rows", "columns"])
@pytest.mark.parametrize("backend", ["streaming", "cpu"])
@pytest.mark.filterwarnings("ignore::bistoch.ConvergenceWarning")
def test_problems_that_stop_at_different_times(backend, end):
    size = torch.tensor([0.1, 1.0, 4.0]).double()[:, None, None]
    leaves = size * normal(3, N, M), normal(3, N), normal(3, M)
    options = {"iters": 30, "tol": 1e-3, "end": end}
    wanted = run(leaves, backend="reference", **options)
    assert_same(run(leaves, backend=backend, **options), wanted, 1e-11)
    slack = Slack(leaves[0], -leaves[1], -leaves[2])
    trace = iterate(slack, torch.zeros(3, M).double(), 30, 1e-3, by_products=True)
    assert len(trace.iterations.unique()) == 3


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_single_precision_is_as_good_as_logarithms(scale):
    scores, rows, columns = scale * normal(2, 61, 53), normal(2, 61), normal(2, 53)
    exact = bistoch.match(scores, row_price=rows, column_price=columns, backend="reference")
    errors = []
    for backend in ("reference", "cpu"):
        found = bistoch.match(
            scores.float(), row_price=rows.float(), column_price=columns.float(), backend=backend
        )
        errors.append((found.plan.double() - exact.plan).abs().max())
    rounding = torch.finfo(torch.float32).eps * (60 + 4 * scale)
    assert errors[1] <= 2 * errors[0] + rounding
