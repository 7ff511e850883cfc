"""The CPU kernels of Monarch attention: every shape, mask and option is the reference."""

import subprocess
import sys

import pytest
import torch

import bistoch
from bistoch.functional.monarch import operator
from bistoch.functional.monarch.api import _fastest
from bistoch.functional.monarch.problem import Form, pose_monarch
from bistoch.functional.pose import ScoreOptions
from bistoch.lab.bench.memory import allocated_by

MIB = 1 << 20
BATCH = (2, 3)


def tokens(n, m, d=5, e=3, batch=BATCH, dtype=torch.float64, size=1.0):
    return (
        size * torch.randn(*batch, n, d, dtype=dtype),
        size * torch.randn(*batch, m, d, dtype=dtype),
        torch.randn(*batch, m, e, dtype=dtype),
    )


def run(name, backend, leaves, **options):
    """The result and the gradients of a fixed loss; tensors among the options are leaves too."""
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    for option, value in options.items():
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
            options[option] = value.detach().clone().requires_grad_()
            leaves.append(options[option])
    attention = bistoch.OPERATORS[name].attention
    result = attention(*leaves[:3], backend=backend, **options)
    grads = torch.autograd.grad(
        result.sin().sum(), leaves, allow_unused=True, materialize_grads=True
    )
    return result.detach(), *grads


def compare(name, leaves, **options):
    wanted, found = (run(name, backend, leaves, **options) for backend in ("reference", "cpu"))
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other, one, atol=1e-11, rtol=1e-9)


def per_head(m):
    """Options that differ by head, and a mass per key."""
    return {
        "lam": torch.tensor([0.1, 0.6, 1.0], dtype=torch.float64),
        "omega": torch.tensor([0.7, 1.0, 1.3], dtype=torch.float64),
        "eps": torch.tensor([0.7, 1.0, 1.3], dtype=torch.float64),
        "column_mass": torch.rand(m, dtype=torch.float64) + 0.3,
    }


# less than a vector, one token, whole blocks, padding on both sides, one block, blocks of one
SIZES = [(1, 1, None), (7, 7, 3), (37, 37, None), (36, 36, 6), (53, 29, 4), (13, 61, None),
         (7, 11, 50), (7, 11, 1), (131, 137, None)]  # fmt: skip


@pytest.mark.parametrize("pad", ["post", "pre"])
@pytest.mark.parametrize(("n", "m", "block"), SIZES)
def test_every_size_is_the_reference(n, m, block, pad):
    leaves, options = tokens(n, m), per_head(m)
    compare("monarch", leaves, block=block, pad=pad, eps=options["eps"], iters=3)
    compare("elastic_monarch", leaves, block=block, pad=pad, iters=4, **options)


# column steps along with the updates, behind them, and fewer than these
@pytest.mark.parametrize(("updates", "iters"), [(1, 1), (1, 5), (2, 1), (2, 7), (4, 2), (3, 0)])
def test_every_order_of_updates_and_steps(updates, iters):
    compare("elastic_monarch", tokens(41, 37), updates=updates, iters=iters, **per_head(37))


@pytest.mark.filterwarnings("ignore:.*without:bistoch.PaddingWarning")
@pytest.mark.parametrize("name", ["monarch", "elastic_monarch"])
def test_masks(name):
    leaves = tokens(37, 31)
    query_mask, key_mask = torch.rand(2, 3, 37) > 0.3, torch.rand(2, 3, 31) > 0.4
    # no query, no key, a block without a key, one key
    query_mask[0, 1] = key_mask[0, 0] = key_mask[1, 0, 6:12] = key_mask[1, 1] = False
    key_mask[1, 1, 17] = True
    for pad in ("post", "pre"):
        compare(name, leaves, pad=pad, query_mask=query_mask, key_mask=key_mask)
    bias = torch.randn(3, 1, 31, dtype=torch.float64)
    compare(name, leaves, mask=bias)
    compare(name, leaves, mask=bias > -0.5, key_mask=key_mask)
    compare(name, leaves, mask=bias.masked_fill(bias < -1, -torch.inf), query_mask=query_mask)


@pytest.mark.parametrize("name", ["monarch", "elastic_monarch"])
def test_tokens_without_features_and_none(name):
    q, k, v = tokens(30, 23)
    compare(name, (q[..., :0], k[..., :0], v))
    compare(name, (q, k, v[..., :0]))
    for some in ((q[:0], k[:0], v[:0]), (q[..., :0, :], k, v), (q, k[..., :0, :], v[..., :0, :])):
        attention = bistoch.OPERATORS[name].attention
        assert attention(*some, backend="cpu").shape == (*some[0].shape[:-1], 3)


@pytest.mark.parametrize("name", ["monarch", "elastic_monarch"])
@pytest.mark.parametrize("size", [0.1, 1.0, 3.0, 10.0])
def test_float32_errs_no_more_than_the_reference(name, size):
    errors = {"reference": [], "cpu": []}
    for _ in range(3):
        leaves = tokens(211, 197, 16, 16, dtype=torch.float32, size=size)
        exact = run(name, "reference", [x.double() for x in leaves])
        for backend, found in errors.items():
            rounded = run(name, backend, leaves)
            found.append([one - other for one, other in zip(rounded, exact, strict=True)])
    for position, what in enumerate(("result", "query", "key", "value")):
        theirs, ours = (
            torch.stack([draw[position] for draw in found]).square().mean().sqrt()
            for found in errors.values()
        )
        assert ours <= 2 * theirs + 1e-6, what


@pytest.mark.parametrize("name", ["monarch", "elastic_monarch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_scores_stay_finite(name, dtype):
    leaves = tokens(67, 71, dtype=dtype)
    for size in (0.0, 1e2, 1e4):
        found = run(name, "cpu", (size * leaves[0], leaves[1], leaves[2]))
        assert all(x.isfinite().all() for x in found)
    # a key that outweighs all others: what is left for these is below what float32 can hold
    q, k, v = leaves
    q, k = torch.cat([q, torch.ones_like(q[..., :1])], -1), torch.cat([k, 0 * k[..., :1]], -1)
    k[..., 5, -1] = 200 * 6**0.5
    exact = run(name, "reference", [x.double() for x in (q, k, v)])
    for one, best in zip(run(name, "cpu", (q, k, v)), exact, strict=True):
        torch.testing.assert_close(one.double(), best, atol=3e-3, rtol=1e-3)


@pytest.mark.parametrize("batch", [(1,), (5,)])
def test_threads_change_nothing(batch):
    leaves = tokens(131, 113, batch=batch, dtype=torch.float32)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(run("elastic_monarch", "cpu", leaves))
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, results[0], other) for other in results[1:])


def test_without_numba_auto_is_the_reference_and_cpu_says_why():
    code = """
import sys
sys.modules["numba"] = None
import torch, bistoch
x = torch.ones(2, 300, 3)
print(bistoch.monarch_attention(x, x, x).shape)
try:
    bistoch.monarch_attention(x, x, x, backend="cpu")
except bistoch.BackendUnavailableError as error:
    print(error)
"""
    command = [sys.executable, "-c", code]
    printed = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert "torch.Size([2, 300, 3])" in printed
    assert "needs Numba" in printed


def pose(n, batch, device="cpu"):
    q, k, _ = (x.to(device) for x in tokens(n, n, batch=batch))
    pairs, form = ScoreOptions(1.0, None, None, None, None), Form(2)
    return pose_monarch("test", q.shape[:-2], q, k, None, pairs, None, form).problem


def test_auto_takes_the_kernels_where_they_pay(monkeypatch):
    assert _fastest(pose(256, (2,))) == "cpu"
    # a compiler that must be waited for, a device without kernels, threads that would be idle
    assert _fastest(pose(31, (2,))) == "reference"
    assert _fastest(pose(256, (2,), "meta")) == "reference"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert _fastest(pose(256, (2,))) == "reference"


@pytest.mark.parametrize("name", ["monarch", "elastic_monarch"])
def test_compile_full_graph(name):
    leaves = [x.requires_grad_() for x in tokens(29, 23)]
    bias = torch.randn(23, dtype=torch.float64, requires_grad=True)

    def attend(q, k, v, bias):
        return bistoch.OPERATORS[name].attention(q, k, v, mask=bias, backend="cpu")

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    results = [call(*leaves, bias) for call in (compiled, attend)]
    torch.testing.assert_close(*results)
    every = [*leaves, bias]
    torch.testing.assert_close(*(torch.autograd.grad(x.sin().sum(), every) for x in results))


@pytest.mark.parametrize("balanced", [False, True])
def test_the_operator_is_known_to_torch(balanced):
    q, k, v = (x.requires_grad_() for x in tokens(13, 11, batch=(2,)))
    one = torch.ones(2, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, 11, dtype=torch.float64, requires_grad=True)
    balance = (one, one, torch.zeros_like(bias)) if balanced else (None, None, None)
    layout = pose(13, (2,)).layout
    keys = pose(11, (2,)).layout.keys
    own = torch.zeros(len(layout.members), len(keys), dtype=torch.int64)
    real = torch.rand(2, 13) > 0.2
    steps = 3 if balanced else 0
    arguments = (q, k, v, bias, real, one, *balance, layout.members, keys, own, 2, steps, True)
    torch.library.opcheck(operator.monarch_cpu, arguments)


# torch warns about its own deprecated parts when it first loads forward mode
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forward_mode_is_refused_instead_of_wrong():
    q, k, v = tokens(9, 9)
    with pytest.raises(NotImplementedError, match=r'backend="reference"'):
        torch.func.jvp(lambda q: bistoch.monarch_attention(q, k, v, backend="cpu"), (q,), (q,))


def test_strided_tokens_and_gradients():
    q, k, v = (x.mT.contiguous().mT for x in tokens(37, 37))
    compare("elastic_monarch", (q, k, v))
    compare("monarch", (q[:1, :1].expand(2, 3, 37, 5), k, v[:, :1].expand(2, 3, 37, 3)))


@pytest.mark.parametrize("name", ["monarch", "elastic_monarch"])
def test_memory_is_far_below_a_matrix(name):
    q, k, v = (torch.randn(8192, 8, requires_grad=True) for _ in range(3))
    attention = bistoch.OPERATORS[name].attention

    def train():
        attention(q, k, v, backend="cpu").sum().backward()

    # a float32 matrix of all pairs is 256 MiB; two factors and their gradients are 12 MiB
    assert allocated_by(train)[1] < (32 if name == "elastic_monarch" else 12) * MIB


@pytest.mark.slow
@pytest.mark.parametrize("name", ["monarch", "elastic_monarch"])
def test_long_inputs_are_the_reference(name):
    leaves = tokens(16384, 16384, 64, 64, batch=(1,), dtype=torch.float32)
    exact = run(name, "reference", [x.double() for x in leaves])
    for one, other, best in zip(
        run(name, "cpu", leaves), run(name, "reference", leaves), exact, strict=True
    ):
        ours, theirs = ((x - best).square().mean().sqrt() for x in (one, other))
        assert ours <= 2 * theirs + 1e-7
