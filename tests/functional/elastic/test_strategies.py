"""Every way in which the CPU kernels share out and store a head, proven where it really runs.

A test at sizes of one block, one worker or one slot proves nothing about several of them: so each
asserts which layout was taken, before it compares with the reference in float64.
"""

import pytest
import torch

import bistoch
from bistoch.functional.elastic.cpu import launch as cpu

# several blocks of 64 rows for each of three threads, and rows that fill neither blocks nor vectors
N, M, D, E = 433, 419, 5, 3
HEADS, THREADS = 4, 3

LIMITS = {
    "own heads": {"OWN_HEAD_BYTES": 1 << 60},
    "shared heads": {"OWN_HEAD_BYTES": 0},
    "own heads, nothing stored": {"OWN_HEAD_BYTES": 1 << 60, "WORKSPACE_BYTES": 1 << 19},
    "shared heads, nothing stored": {"OWN_HEAD_BYTES": 0, "WORKSPACE_BYTES": 1 << 19},
}


@pytest.fixture
def threads():
    """A number of threads that all tests here may change."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=LIMITS)
def strategy(request, monkeypatch, threads):
    """Limits with which each strategy is the one to take at the sizes above."""
    for name, bytes_ in ({"BLOCK_BYTES": 1, "SMALL_HEAD": 0} | LIMITS[request.param]).items():
        monkeypatch.setattr(cpu, name, bytes_)
    return request.param


def assert_taken(strategy, layouts, *, directions=2):
    """All layouts are those of the strategy, with several workers or slots, and blocks of each."""
    assert len(layouts) == directions
    for layout in layouts:
        shared = strategy.startswith("shared")
        assert (layout.workers, layout.slots) == ((1, THREADS) if shared else (THREADS, 1))
        assert layout.slots * 2 * layout.block < N
        assert (layout.stored_rows < N) == strategy.endswith("nothing stored")


def run(backend, tensors, dtype=torch.float64, **options):
    """Attention and the gradients of a fixed loss."""
    leaves = {name: t.to(dtype).detach().requires_grad_() for name, t in tensors.items()}
    q, k, v = (leaves.pop(name) for name in ("query", "key", "value"))
    result = bistoch.elastic_attention(q, k, v, backend=backend, **leaves, **options)
    weights = torch.linspace(-1, 9, result.numel(), dtype=dtype).reshape(result.shape).cos()
    inputs = (q, k, v, *leaves.values())
    return (result.detach(), *torch.autograd.grad((result * weights).sum(), inputs))


def problem(size=1.0):
    return {
        "query": size * torch.randn(HEADS, N, D),
        "key": torch.randn(HEADS, M, D),
        "value": torch.randn(HEADS, M, E),
        "lam": 0.3 + 0.7 * torch.rand(HEADS),
        "eps": 0.5 + torch.rand(HEADS),
        "omega": 0.7 + 0.6 * torch.rand(HEADS),
    }


OPTIONS = {
    "plain": {"iters": 4},
    "mask": {"iters": 3, "mask": torch.ones(N, M, dtype=torch.bool).tril(M // 2)},
    "padding": {
        "iters": 3,
        "query_mask": torch.arange(N) < torch.tensor([[N], [7], [300], [N]]),
        "key_mask": torch.arange(M) < torch.tensor([[M], [400], [11], [100]]),
    },
    "tol": {"iters": 60, "tol": 1e-3},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_strategy_equals_the_reference(strategy, layouts, options):
    tensors = problem()
    if options.get("tol"):
        # steps that are chosen
        del tensors["omega"]
    found = run("cpu", tensors, **options)
    assert_taken(strategy, layouts)
    for ours, theirs in zip(found, run("reference", tensors, **options), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-8)


def test_every_strategy_with_a_bias_and_column_masses(strategy, layouts):
    tensors = problem() | {
        "mask": torch.randn(HEADS, N, M),
        "column_mass": 0.5 + torch.rand(HEADS, M),
    }
    found = run("cpu", tensors, iters=3)
    assert_taken(strategy, layouts)
    for ours, theirs in zip(found, run("reference", tensors, iters=3), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-8)


def test_every_strategy_with_cold_scores(strategy, layouts):
    """Column factors that leave the range of the kernels, so that K is built around them."""
    tensors = problem(40.0)
    found = run("cpu", tensors, iters=8)
    assert_taken(strategy, layouts)
    for ours, theirs in zip(found, run("reference", tensors, iters=8), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-6)


def test_potentials_that_drift_in_every_strategy(strategy, layouts):
    """A key that nobody sees: columns move by a constant when all else stands still."""
    q, k = torch.randn(2, HEADS, max(N, M), D, dtype=torch.float64).unbind()
    options = {"iters": 12, "lam": 0.9, "eps": 4.0, "mask": torch.arange(M) != 3}
    options["query_mask"] = torch.ones(N, dtype=torch.bool)
    found, wanted = (
        bistoch.elastic_potentials(q[:, :N], k[:, :M], backend=backend, **options)
        for backend in ("cpu", "reference")
    )
    assert_taken(strategy, layouts, directions=1)
    torch.testing.assert_close(found.row, wanted.row, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(found.column, wanted.column, atol=1e-10, rtol=1e-10)


def test_potentials_of_every_strategy(strategy, layouts):
    q, k = torch.randn(HEADS, N, D), torch.randn(HEADS, M, D)
    found = bistoch.elastic_potentials(q, k, iters=4, backend="cpu")
    assert_taken(strategy, layouts, directions=1)
    wanted = bistoch.elastic_potentials(q.double(), k.double(), iters=4, backend="reference")
    torch.testing.assert_close(found.column.double(), wanted.column, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.row.double(), wanted.row, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.error.double(), wanted.error, atol=1e-5, rtol=1e-3)


def test_plans_of_every_strategy(strategy, layouts):
    scores = torch.randn(HEADS, N, M, dtype=torch.float64)
    found = bistoch.balance(scores, iters=4, backend="cpu")
    assert_taken(strategy, layouts, directions=1)
    wanted = bistoch.balance(scores, iters=4, backend="reference")
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-9)


# tokens that are repeated so often that a head of them exceeds the workspace
COPIES, KINDS = 100, 83


def test_beyond_the_workspace_at_its_real_size(layouts):
    """8300 tokens, each a copy of one of 83: the plan is that of the 83, shared among the copies.

    So the reference has the whole answer, though it could not hold the matrices.
    """
    n = COPIES * KINDS
    small = [size * torch.randn(1, KINDS, D) for size in (2, 1, 1)]
    of_queries, of_keys = (torch.randperm(n) % KINDS for _ in range(2))
    copies = (of_queries, of_keys, of_keys)
    weights = torch.randn(1, KINDS, D)

    def run(backend, tokens, weights, iters):
        leaves = [t.clone().requires_grad_() for t in tokens]
        result = bistoch.elastic_attention(*leaves, iters=iters, lam=0.9, backend=backend)
        return result.detach(), *torch.autograd.grad((result * weights).sum(), leaves)

    large = [t[:, kinds] for t, kinds in zip(small, copies, strict=True)]
    found = run("cpu", large, weights[:, of_queries], 3)
    for layout in layouts:
        # several blocks of rows, one after the other in the same place
        assert layout.stored_rows == layout.block * layout.slots < n / 2
    doubles = [t.double() for t in small]
    exact, softmax = (run("reference", doubles, weights.double(), iters) for iters in (3, 0))
    places = (of_queries, *copies)
    for ours, best, other, kinds in zip(found, exact, softmax, places, strict=True):
        size = best.abs().max()
        assert (other - best).abs().max() > 0.1 * size
        # softmax attention by torch itself errs by 5e-6 here: sums of 8300 terms in float32
        assert (ours.double() - best[:, kinds]).abs().max() < 5e-5 * size
