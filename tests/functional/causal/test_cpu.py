"""The CPU kernels of causal balance: every way of cutting the work is the reference."""

import os
import signal
import subprocess
import sys

import pytest
import torch

import bistoch
from bistoch.functional.backends import choose_backend
from bistoch.functional.causal import operator
from bistoch.functional.causal.api import _MODULES, _fastest
from bistoch.functional.causal.cpu import job as cpu_job
from bistoch.functional.causal.cpu import launch as cpu
from bistoch.functional.causal.pose import Rule, pose_stream
from bistoch.lab.bench.memory import allocated_by, largest_allocation
from bistoch.testing import assert_causal

D, E = 7, 5
MIB = 1 << 20


def tokens(n, batch=(2, 3), dtype=torch.float64, size=2.0):
    q, k = size * torch.randn(2, *batch, n, D, dtype=dtype)
    return q, k, torch.randn(*batch, n, E, dtype=dtype)


def run(backend, leaves, **options):
    """The result and the gradients of a fixed loss; tensors among the options are leaves too."""
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    for name, option in options.items():
        if isinstance(option, torch.Tensor) and option.dtype.is_floating_point:
            options[name] = option.detach().clone().requires_grad_()
            leaves.append(options[name])
    result = bistoch.causal_elastic_attention(*leaves[:3], backend=backend, **options)
    grads = torch.autograd.grad(
        result.sin().sum(), leaves, allow_unused=True, materialize_grads=True
    )
    return result.detach(), *grads


def compare(*leaves, **options):
    wanted, found = (run(backend, leaves, **options) for backend in ("reference", "cpu"))
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other, one, atol=1e-11, rtol=1e-9)


def per_head():
    return {
        "lam": torch.tensor([0.0, 0.6, 1.0], dtype=torch.float64),
        "eps": torch.tensor([0.7, 1.0, 1.3], dtype=torch.float64),
    }


# less than a vector, tiles of several blocks, of one, of a part of one; one block, and its end
SIZES = [(1, 4), (7, 3), (53, 5), (131, 1), (197, 64), (128, 64), (263, 17), (307, 150), (101, 512)]


@pytest.mark.parametrize(("n", "block"), SIZES)
def test_every_cut_is_the_reference(n, block):
    compare(*tokens(n), block=block, prior=0.05, **per_head())


# one of the masks is the same for all queries, which may be a padding mask that lacks its half
@pytest.mark.filterwarnings("ignore:.*without query_mask:bistoch.PaddingWarning")
@pytest.mark.parametrize("shape", [(3, 83, 83), (83, 83), (2, 1, 1, 83), (3, 83, 1), (1, 1)])
@pytest.mark.parametrize("kind", ["boolean", "bias"])
def test_masks(shape, kind):
    mask = torch.randn(shape, dtype=torch.float64)
    if kind == "boolean":
        mask = mask > -0.7
    else:
        mask = mask.masked_fill(mask < -1.5, -torch.inf)
    compare(*tokens(83), block=9, mask=mask, **per_head())


def test_padding_with_a_mask():
    real = (torch.arange(83) % torch.tensor([3, 7])[:, None] != 1)[:, None]
    compare(*tokens(83), block=9, key_mask=real, **per_head())
    compare(*tokens(83), block=9, key_mask=real, mask=torch.rand(83, 83) > 0.2, **per_head())
    nobody = torch.zeros(2, 1, 83, dtype=torch.bool)
    nobody[1] = True
    compare(*tokens(83), block=9, key_mask=nobody, **per_head())


def test_a_row_that_sees_nothing():
    mask = torch.ones(40, 40, dtype=torch.bool)
    mask[[0, 17]] = False
    mask[:, 23] = False
    q, k, v = tokens(40)
    compare(q, k, v, block=6, mask=mask)
    result, q_grad, k_grad, v_grad = run("cpu", (q, k, v), block=6, mask=mask)
    assert not result[..., [0, 17], :].any()
    assert not q_grad[..., [0, 17], :].any()
    assert not k_grad[..., 23, :].any()
    assert not v_grad[..., 23, :].any()


@pytest.mark.parametrize("block", [1, 5, 150])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_accounts_that_were_not_kept_are_made_again(block, masked, monkeypatch):
    monkeypatch.setattr(cpu_job, "KEPT", 2)
    cpu._layout.cache_clear()
    try:
        n = 701 if block == 150 else 307
        assert cpu._layout(n, block, 8, 1, False).span > 1
        mask = {"mask": torch.rand(n, n) > 0.3} if masked else {}
        compare(*tokens(n, (2,)), block=block, **mask)
    finally:
        cpu._layout.cache_clear()


def test_tokens_without_features():
    q, k, v = tokens(30)
    compare(q[..., :0], k[..., :0], v, block=4)
    compare(q, k, v[..., :0], block=4)


@pytest.mark.parametrize("size", [0.1, 3.0, 30.0])
def test_float32_errs_no_more_than_the_reference(size):
    errors = {"reference": [], "cpu": []}
    for _ in range(3):
        leaves = [x.float() for x in tokens(211, size=size)]
        exact = run("reference", [x.double() for x in leaves], block=16)
        for backend, found in errors.items():
            rounded = run(backend, leaves, block=16)
            found.append([one - other for one, other in zip(rounded, exact, strict=True)])
    for position, name in enumerate(("result", "query", "key", "value")):
        theirs, ours = (
            torch.stack([draw[position] for draw in found]).square().mean().sqrt()
            for found in errors.values()
        )
        assert ours <= 2 * theirs + 1e-7, name


def test_a_sink_that_outweighs_all_others():
    # 90 above all other scores: what is left for these is below what float32 can hold
    q, k, v = tokens(150, (), torch.float32, size=1.0)
    q, k = torch.cat([q, torch.ones(150, 1)], -1), torch.cat([k, torch.zeros(150, 1)], -1)
    k[0, -1] = 90 * 8**0.5
    exact = run("reference", [x.double() for x in (q, k, v)], block=4)
    found, theirs = (run(name, (q, k, v), block=4) for name in ("cpu", "streaming"))
    for one, other, best in zip(found, theirs, exact, strict=True):
        assert one.isfinite().all()
        error, their_error = ((x - best).square().mean().sqrt() for x in (one, other))
        # gradients of the sink are as good as zero
        assert error <= 2 * their_error + 1e-6 * best.abs().max().clamp_min(1e-6)


@pytest.mark.parametrize("block", [1, 8, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_leaks_bit_by_bit(block, dtype):
    def alone(q, k, v):
        return bistoch.causal_elastic_attention(
            q.to(dtype), k.to(dtype), v.to(dtype), block=block, backend="cpu"
        )

    assert_causal(alone)
    q, k, v = tokens(150, (), dtype)
    before = alone(q, k, v)
    for place in (1, 63, 64, 100, 149):
        changed = [torch.cat([x[:place], torch.randn_like(x[place:])]) for x in (q, k, v)]
        assert torch.equal(alone(*changed)[:place], before[:place])


@pytest.mark.parametrize("batch", [(1,), (5,)])
def test_threads_change_nothing(batch):
    leaves = tokens(131, batch, torch.float32)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(run("cpu", leaves, block=16, mask=torch.linspace(0, 1, 131)))
    finally:
        torch.set_num_threads(before)
    for result in results:
        # the gradient of a mask is shared by heads, and summed over threads
        *own, shared = zip(result, results[0], strict=True)
        assert all(torch.equal(*pair) for pair in own)
        torch.testing.assert_close(*shared)


def test_threads_without_an_openmp_runtime(monkeypatch):
    from bistoch.functional.kernels import runtime

    monkeypatch.setattr(runtime, "team_entry", lambda: (0, 0))
    monkeypatch.setattr(runtime, "threads", lambda: 4)
    compare(*tokens(37), block=5)


def test_a_forked_child_computes_after_its_parent():
    q, k, v = tokens(70)
    wanted = bistoch.causal_elastic_attention(q, k, v, backend="cpu")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        # leave by _exit alone: this process is a copy of the test runner; and do not wait for ever
        signal.alarm(60)
        found = bistoch.causal_elastic_attention(q, k, v, backend="cpu")
        os.write(write, b"same" if torch.equal(found, wanted) else b"else")
        os._exit(0)
    os.close(write)
    assert os.read(read, 4) == b"same"
    os.waitpid(child, 0)


def test_without_numba_auto_streams_and_cpu_says_why():
    code = """
import sys
sys.modules["numba"] = None
import torch, bistoch
x = torch.ones(2, 3)
print(bistoch.causal_elastic_attention(x, x, x).shape)
try:
    bistoch.causal_elastic_attention(x, x, x, backend="cpu")
except bistoch.BackendUnavailableError as error:
    print(error)
"""
    command = [sys.executable, "-c", code]
    printed = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert "torch.Size([2, 3])" in printed
    assert "needs Numba" in printed


def pose(n, batch, device="cpu"):
    q, k, v = (x.to(device) for x in tokens(n, batch))
    rule = Rule(1.0, 1.0, 64, 0.01, None)
    return pose_stream("causal_elastic_attention", q.shape[:-2], q, k, v, rule, None, None, None)


def test_tensors_elsewhere_are_refused():
    with pytest.raises(bistoch.BackendUnavailableError, match=r"on meta.*streaming"):
        choose_backend("causal_elastic_attention", "cpu", _MODULES, torch.device("meta"), "cpu")


def test_auto_takes_the_kernels_where_they_pay(monkeypatch):
    assert _fastest(pose(256, (2,))) == "cpu"
    # a compiler that must be waited for, a device without kernels, threads that would be idle
    assert _fastest(pose(64, (2,))) == "streaming"
    assert _fastest(pose(256, (2,), "meta")) == "streaming"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert _fastest(pose(256, (2,))) == "streaming"


def attend_scaled(q, k, v, lam, bias, length):
    real = None if length is None else torch.arange(q.shape[-2]) < length
    return bistoch.causal_elastic_attention(
        q, k, v, lam=lam, mask=bias, key_mask=real, block=4, backend="cpu"
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("length", [None, 11])
def test_compile_full_graph(dynamic, length):
    leaves = [*tokens(13), torch.rand(3, dtype=torch.float64), torch.randn(13, 13).double()]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    compiled = torch.compile(attend_scaled, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    results = [call(*leaves, length) for call in (compiled, attend_scaled)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(x.sin().sum(), leaves) for x in results))


@pytest.mark.parametrize("masked", [False, True])
def test_the_operator_is_known_to_torch(masked):
    q, k, v = (x.requires_grad_() for x in tokens(13, (2,)))
    one = torch.ones(2, dtype=torch.float64, requires_grad=True)
    mask = torch.randn(1, 13, 13, dtype=torch.float64, requires_grad=True) if masked else None
    index = torch.zeros(2, dtype=torch.int64) if masked else None
    arguments = (q, k, v, mask, index, torch.tensor([13, 9]), one, one, 0.01, 4, True)
    torch.library.opcheck(operator.causal_cpu, arguments)


# torch warns about its own deprecated parts when it first loads forward mode
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forward_mode_is_refused_instead_of_wrong():
    q, k, v = tokens(9)
    with pytest.raises(NotImplementedError, match=r'backend="reference"'):
        torch.func.jvp(
            lambda q: bistoch.causal_elastic_attention(q, k, v, backend="cpu"), (q,), (q,)
        )


def test_strided_tokens_and_gradients():
    q, k, v = (x.mT.contiguous().mT for x in tokens(37))
    compare(q, k, v, block=5)
    q, k, v = tokens(37)
    compare(q[:1, :1].expand(2, 3, 37, D), k, v[:, :1].expand(2, 3, 37, E), block=5)


def train(n, batch=(), **options):
    q, k, v = (torch.randn(*batch, n, 4, requires_grad=True) for _ in range(3))

    def step():
        bistoch.causal_elastic_attention(q, k, v, backend="cpu", **options).sum().backward()

    return step


@pytest.mark.parametrize("block", [16, 32])
def test_memory_grows_linearly(block):
    small, large = (allocated_by(train(n, block=block))[1] for n in (4096, 8192))
    # kept accounts become as many as they may be; a matrix would make it four times as much
    assert large <= 2.5 * small
    # one float32 matrix of all scores would be 256 MiB
    assert largest_allocation(train(8192, block=block)) < 8 * MIB
