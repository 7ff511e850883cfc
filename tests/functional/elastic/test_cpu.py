"""The CPU kernels: every strategy against the reference, and safe in real programs."""

import os
import signal
import subprocess
import sys

import pytest
import torch

import bistoch
from bistoch.functional.elastic.cpu import launch as cpu

N, M, D = 37, 53, 8


def tokens(batch=(3,), dtype=torch.float64, size=1.0):
    q, k, v = (torch.randn(*batch, n, D, dtype=dtype) for n in (N, M, M))
    return size * q, k, v


@pytest.fixture(params=["small heads", "own heads", "shared heads", "nothing stored"])
def strategy(request, monkeypatch):
    """Let one kernel do all, threads take heads of their own, share them, or store only a block.

    At these sizes a block may be a whole head: test_strategies.py has several blocks of each.
    """
    if request.param != "small heads":
        monkeypatch.setattr(cpu, "SMALL_HEAD", 0)
    if request.param == "shared heads":
        monkeypatch.setattr(cpu, "OWN_HEAD_BYTES", 0)
    if request.param == "nothing stored":
        monkeypatch.setattr(cpu, "WORKSPACE_BYTES", 0)


def compare(q, k, v, **options):
    results = []
    for backend in ("reference", "cpu"):
        leaves = [t.detach().clone().requires_grad_() for t in (q, k, v)]
        result = bistoch.elastic_attention(*leaves, backend=backend, **options)
        result.sin().sum().backward()
        results.append((result.detach(), *(leaf.grad for leaf in leaves)))
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-11, rtol=1e-9)


@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize("options", [
    {},
    {"lam": 0.3, "omega": 1.4, "iters": 40},
    {"mask": torch.ones(N, M, dtype=torch.bool).tril(5), "iters": 5},
    {"key_mask": torch.arange(M) < 40, "query_mask": torch.arange(N) < 30},
    {"tol": 1e-4, "iters": 500},
    {"eps": 0.05, "iters": 15},
], ids=["plain", "elastic", "mask", "padding", "tol", "cold"])  # fmt: skip
def test_strategies_agree_with_the_reference(options):
    compare(*tokens(), **options)


@pytest.mark.usefixtures("strategy")
def test_converged_iterations_are_not_repeated_but_their_gradient_counts():
    """Equal scores are balanced from the start; the gradient still is that of all iterations."""
    q, k, v = tokens()
    compare(torch.zeros_like(q), k, v, iters=7)
    compare(q, k, v, iters=200, lam=0.5)


@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize("n", [1, 5, N])
@pytest.mark.parametrize("options", [
    {"lam": 1.0},
    {"lam": 0.6, "omega": 1.3},
    {"lam": torch.tensor([1.0, 0.9, 0.2]).double(), "omega": 0.8},
], ids=["plain", "elastic", "heads"])  # fmt: skip
def test_row_potentials_follow_potentials_that_drift(n, options):
    # a key that nobody sees keeps its share of the mass, so every iteration adds a constant
    q, k, v = tokens()
    hidden = {"mask": torch.arange(M) != 3, "query_mask": torch.ones(n, dtype=torch.bool)}
    options = {"iters": 40, **options, **hidden}
    results = []
    for backend in ("reference", "cpu"):
        leaves = [t.clone().requires_grad_() for t in (q[:, :n], k)]
        found = bistoch.elastic_potentials(*leaves, backend=backend, **options)
        (found.row.sin().sum() + found.column[:, 4:].cos().sum()).backward()
        moments = bistoch.wasserstein_moments(
            q[:, :n], k, v, v.square(), backend=backend, **options
        )
        grads = [leaf.grad for leaf in leaves]
        results.append([found.row.detach(), found.column.detach(), *moments, *grads])
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-9, rtol=1e-9)


@pytest.mark.usefixtures("strategy")
def test_columns_that_underflow_are_rescued():
    q, k, v = tokens()
    bias = torch.zeros(M, dtype=torch.float64)
    bias[3], bias[7] = -2000.0, -900.0
    compare(q, k, v, mask=bias.expand(N, M), iters=6)


def test_results_do_not_depend_on_the_number_of_threads():
    q, k, v = tokens(batch=(5,), dtype=torch.float32)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(bistoch.elastic_attention(q, k, v, backend="cpu"))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


def test_repeated_runs_are_bit_identical(strategy):
    q, k, v = tokens(dtype=torch.float32)
    first, second = (bistoch.elastic_attention(q, k, v, backend="cpu") for _ in range(2))
    assert torch.equal(first, second)


def test_a_forked_child_computes_after_its_parent():
    q, k, v = tokens()
    wanted = bistoch.elastic_attention(q, k, v, backend="cpu")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        # leave by _exit alone: this process is a copy of the test runner; and do not wait for ever
        signal.alarm(60)
        found = bistoch.elastic_attention(q, k, v, backend="cpu")
        os.write(write, b"same" if torch.equal(found, wanted) else b"else")
        os._exit(0)
    os.close(write)
    assert os.read(read, 4) == b"same"
    os.waitpid(child, 0)


class Batches(torch.utils.data.Dataset):
    """Samples that were attended in the worker."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        q, k, v = (torch.full((2, 5, 3), float(index + 1)) for _ in range(3))
        return bistoch.elastic_attention(q, k, v, backend="cpu")


def test_data_loader_workers_before_and_after_the_parent():
    for _ in range(2):
        loader = torch.utils.data.DataLoader(
            Batches(), num_workers=1, multiprocessing_context="fork", timeout=120
        )
        assert [batch[0, 0, 0, 0].item() for batch in loader] == pytest.approx([1.0, 2.0])
        bistoch.elastic_attention(*tokens(), backend="cpu")


def run_python(code):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def test_without_a_folder_for_its_cache_a_kernel_still_compiles():
    code = """
import numba.core.caching as caching
caching.CompileResultCacheImpl._locator_classes = []
import numpy as np
from numba import carray, types
from bistoch.functional.kernels.runtime import body, entry
def double(pointer):
    carray(pointer, (1,))[0] *= 2
number, kernel = np.array([1.5]), body(double, types.float64)
call, arguments = entry(kernel.address, number.ctypes.data, 1)
call(*arguments)
print(number)
"""
    assert run_python(code) == "[3.]\n"


def test_without_numba_auto_streams_and_cpu_says_why():
    code = """
import sys
sys.modules["numba"] = None
import torch, bistoch
x = torch.ones(2, 3)
print(bistoch.elastic_attention(x, x, x).shape)
try:
    bistoch.elastic_attention(x, x, x, backend="cpu")
except bistoch.BackendUnavailableError as error:
    print(error)
"""
    printed = run_python(code)
    assert "torch.Size([2, 3])" in printed
    assert "needs Numba" in printed
    assert "pip install numba" in printed


def test_threads_without_an_openmp_runtime(monkeypatch):
    from bistoch.functional.kernels import runtime

    q, k, v = tokens(batch=(5,))
    wanted = bistoch.elastic_attention(q, k, v, backend="cpu")
    monkeypatch.setattr(runtime, "team_entry", lambda: (0, 0))
    assert torch.equal(bistoch.elastic_attention(q, k, v, backend="cpu"), wanted)


def test_scipys_blas_serves_where_torchs_is_hidden(monkeypatch):
    from bistoch.functional.kernels import runtime

    monkeypatch.setattr(runtime.ctypes, "CDLL", lambda name: object())
    address = runtime.gemm_address.__wrapped__(torch.float64)
    monkeypatch.undo()
    monkeypatch.setattr(runtime, "gemm_address", lambda dtype: address)
    compare(*tokens())


def test_tensors_elsewhere_are_refused():
    q, k, v = (t.to("meta") for t in tokens())
    for function, tokens_ in (
        (bistoch.elastic_attention, (q, k, v)), (bistoch.balance, (q @ k.mT,)),
    ):  # fmt: skip
        with pytest.raises(bistoch.BackendUnavailableError, match=r"on meta.*streaming"):
            function(*tokens_, backend="cpu")


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_more_threads_than_heads_and_no_team(batch, monkeypatch):
    from bistoch.functional.kernels import runtime

    q, k, v = torch.randn(3, batch, 23, 8, dtype=torch.float64).unbind()
    wanted = bistoch.elastic_attention(q, k, v, backend="reference")
    monkeypatch.setattr(runtime, "team_entry", lambda: (0, 0))
    monkeypatch.setattr(runtime, "threads", lambda: 4)
    torch.testing.assert_close(bistoch.elastic_attention(q, k, v, backend="cpu"), wanted)


def test_auto_takes_the_kernels_at_every_size_and_small_heads_their_own(monkeypatch):
    taken, run = [], cpu._run

    def recorded(*arguments, **options):
        taken.append(options.get("small", False))
        return run(*arguments, **options)

    monkeypatch.setattr(cpu, "_run", recorded)
    bistoch.elastic_attention(*tokens())
    assert taken == [True]
    monkeypatch.setattr(cpu, "SMALL_HEAD", N * M - 1)
    bistoch.elastic_attention(*tokens())
    assert taken == [True, False]


def test_small_heads_that_leave_the_safe_range_are_left_alone_to_the_other_kernels(monkeypatch):
    """One head of three needs large factors; its neighbours stay, and all equal the reference."""
    taken, run = [], cpu._run

    def recorded(problem, *arguments, **options):
        taken.append((problem.scores.shape[0], options.get("small", False)))
        return run(problem, *arguments, **options)

    q, k, v = tokens()
    q[1] *= 60
    wanted = bistoch.elastic_attention(q, k, v, backend="reference", iters=30)
    monkeypatch.setattr(cpu, "_run", recorded)
    found = bistoch.elastic_attention(q, k, v, backend="cpu", iters=30)
    assert taken == [(3, True), (1, False)]
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("n", [1, 5, 8, 13])
@pytest.mark.parametrize("workspace", [0, 1 << 20])
def test_what_was_in_the_workspace_does_not_matter(n, workspace, monkeypatch):
    """Also where not even a small head fits into it."""
    empty = torch.empty
    monkeypatch.setattr(cpu, "WORKSPACE_BYTES", workspace)
    q, k, v = torch.randn(2, n, 3), torch.randn(2, 7, 3), torch.randn(2, 7, 4)
    wanted = bistoch.elastic_attention(q, k, v, iters=3, backend="reference")
    for number in (torch.nan, 3e38):
        with monkeypatch.context() as patch:
            patch.setattr(torch, "empty", lambda *a, x=number, **o: empty(*a, **o).fill_(x))
            found = bistoch.elastic_attention(q, k, v, iters=3, backend="cpu")
        torch.testing.assert_close(found, wanted)
