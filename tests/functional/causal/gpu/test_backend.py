"""The kernels of causal balance in programs: who gets them, what they refuse, compilers."""

import os
import subprocess
import sys
import types

import pytest
import torch

import bistoch
from bistoch.functional.causal import api, decode, triton
from bistoch.functional.causal.triton import operator
from precision import assert_as_good

slow = pytest.mark.slow


def like(device, features=64, dtype=torch.float32):
    fields = {"device": torch.device(device), "dtype": dtype, "shape": (2, 300, features)}
    return types.SimpleNamespace(**fields, requires_grad=False)


def test_auto_takes_the_kernels_on_a_gpu_and_only_there(monkeypatch):
    def fastest(device, **more):
        tensor = like(device, **more)
        return api._fastest(types.SimpleNamespace(query=tensor, value=tensor))

    monkeypatch.setattr(triton, "is_interpreted", lambda: False)
    monkeypatch.setattr(api, "_threads", lambda: 1)
    assert fastest("cuda") == "triton"
    assert fastest("cpu") == "cpu"
    assert fastest("cuda", dtype=torch.float64) == "streaming"
    assert fastest("cuda", features=257) == "streaming"
    monkeypatch.setattr(api, "HAS_TRITON", False)
    assert fastest("cuda") == "streaming"


def test_auto_takes_the_kernels_for_steps_without_a_gradient(monkeypatch):
    monkeypatch.setattr(decode, "choose_backend", lambda *_, **__: None)

    def chosen(tensor, lam=1.0):
        return decode._choose("causal_elastic_step", "auto", tensor, tensor, tensor, None, lam)

    assert chosen(like("cuda")) == "triton"
    assert chosen(like("cpu")) == "streaming"
    lam = torch.ones(1, requires_grad=True)
    assert chosen(like("cuda"), lam) == "streaming"
    with torch.no_grad():
        assert chosen(like("cuda"), lam) == "triton"


def test_what_kernels_do_not_know_is_refused(monkeypatch):
    q = torch.randn(2, 5, 300)
    for call in (bistoch.causal_elastic_attention, bistoch.causal_elastic_step):
        with pytest.raises(NotImplementedError, match=r'300 and 300 features; choose backend="st'):
            call(q, q, q, backend="triton")
    monkeypatch.setattr(triton, "is_interpreted", lambda: False)
    q = torch.randn(2, 5, 3, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match=r"^causal_elastic_attention: .*torch\.float64"):
        bistoch.causal_elastic_attention(q, q, q, backend="triton")


PROGRAM = """
import torch, bistoch, sys
q = torch.randn(2, 5, 4)
bistoch.causal_elastic_attention(q, q, q)
bistoch.causal_elastic_step(q, q, q)
print("triton" in sys.modules)
for call in (bistoch.causal_elastic_attention, bistoch.causal_elastic_step):
    try:
        call(q, q, q, backend="triton")
    except bistoch.BackendUnavailableError as error:
        print(error)
"""


@slow
def test_import_stays_light_and_without_a_device_there_is_a_sentence():
    command = [sys.executable, "-c", PROGRAM]
    environment = {"TRITON_INTERPRET": "0"}
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=240,
        env={**os.environ, **environment},
    )  # fmt: skip
    loaded, *sentences = done.stdout.splitlines()
    assert loaded == "False"
    assert len(sentences) == 2
    for sentence in sentences:
        assert "works on cuda tensors, but these are on cpu; move them, or choose" in sentence


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forward_mode_is_refused_instead_of_wrong():
    q = torch.randn(1, 5, 4)
    with pytest.raises(NotImplementedError, match=r'backend="reference"'):
        torch.func.jvp(
            lambda x: bistoch.causal_elastic_attention(x, q, q, backend="triton"), (q,), (q,)
        )


def test_autocast_changes_nothing():
    q = torch.randn(1, 5, 4)
    wanted = bistoch.causal_elastic_attention(q, q, q, block=2, backend="triton")
    with torch.autocast("cpu", torch.bfloat16):
        found = bistoch.causal_elastic_attention(q, q, q, block=2, backend="triton")
    assert torch.equal(found, wanted)


def attend_scaled(q, lam, bias):
    return bistoch.causal_elastic_attention(q, q, q, lam=lam, mask=bias, block=3, backend="triton")


@slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_full_graphs_and_checkpointing(dynamic):
    leaves = [torch.randn(2, 7, 4), torch.rand(2), torch.randn(7, 7)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    wanted = attend_scaled(*leaves)
    slopes = torch.autograd.grad(wanted.sin().sum(), leaves)
    compiled = torch.compile(attend_scaled, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    checkpointed = torch.utils.checkpoint.checkpoint(attend_scaled, *leaves, use_reentrant=False)
    for found in (compiled(*leaves), checkpointed):
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(torch.autograd.grad(found.sin().sum(), leaves), slopes)


@slow
def test_a_step_is_a_full_graph():
    q, k, v = torch.randn(3, 2, 9, 4).unbind()
    _, state = bistoch.causal_elastic_step(q[:, :8], k[:, :8], v[:, :8], block=3, backend="triton")

    def step(q, k, v, state):
        return bistoch.causal_elastic_step(q, k, v, state, block=3, backend="triton")

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    wanted, found = (call(q[:, 8:], k, v, state) for call in (step, compiled))
    torch.testing.assert_close(found[0], wanted[0])
    torch.testing.assert_close(tuple(found[1]), tuple(wanted[1]))


@slow
@pytest.mark.parametrize("masked", [False, True])
def test_the_operators_are_known_to_torch(masked):
    q, k, v = (torch.randn(2, 7, 3, requires_grad=True) for _ in range(3))
    one = torch.ones(2, requires_grad=True)
    mask = torch.randn(1, 7, 7, requires_grad=True) if masked else None
    index = torch.zeros(2, dtype=torch.int64) if masked else None
    given = (q, k, v, mask, index, torch.tensor([7, 5]), one, one, 0.01, 3, True)
    torch.library.opcheck(operator.causal_triton, given)
    ready = [None if x is None else x.detach() for x in (q, k, v, mask, index)]
    vector, flags = torch.zeros(2, 7), torch.tensor([True, False])
    given = (
        *ready, None, one.detach(), one.detach(), vector, vector, vector + 1, vector[:, 0], flags,
        0, 7, 3,
    )  # fmt: skip
    torch.library.opcheck(operator.causal_triton_step, given)


@slow
def test_a_program_is_exported_and_has_gradients():
    class Attend(torch.nn.Module):
        def forward(self, q):
            return bistoch.causal_elastic_attention(q, q, q, block=3, backend="triton")

    q = torch.randn(1, 7, 4)
    program = torch.export.export(Attend(), (q,)).module()
    leaves = [q.clone().requires_grad_() for _ in range(2)]
    results = [call(leaf) for call, leaf in zip((program, Attend()), leaves, strict=True)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(
        *(torch.autograd.grad(x.sin().sum(), leaf) for x, leaf in zip(results, leaves, strict=True))
    )


on_a_device = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA or ROCm device"
)


@pytest.mark.gpu
@on_a_device
@pytest.mark.parametrize(("n", "block"), [(61, 16), (509, 64), (2503, 64), (300, 150)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_on_a_device(n, block, dtype, masked):
    """The same rule as in the interpreter: at most twice the error of the reference."""
    tokens = [torch.randn(2, 4, n, 64, device="cuda").to(dtype) for _ in range(3)]
    mask = torch.rand(n, n, device="cuda") > 0.2 if masked else None
    results = []
    for backend, kind in (("reference", torch.float64), ("reference", dtype), ("triton", dtype)):
        leaves = [x.detach().to(kind).requires_grad_() for x in tokens]
        result = bistoch.causal_elastic_attention(*leaves, block=block, mask=mask, backend=backend)
        results.append((result, *torch.autograd.grad(result.float().sin().sum(), leaves)))
    names = ("result", "query", "key", "value")
    assert_as_good(names, *([result] for result in results), terms=2 * n)


@pytest.mark.gpu
@on_a_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_device_a_row_that_sees_one_key_has_no_gradient(dtype):
    """Features of a pair are added up in the same order in tiles of every shape."""
    q, k, v = (torch.randn(4, 300, 64, device="cuda").to(dtype).requires_grad_() for _ in range(3))
    mask = torch.eye(300, dtype=torch.bool, device="cuda")
    found = bistoch.causal_elastic_attention(1000 * q, 1000 * k, v, mask=mask, backend="triton")
    query_grad, key_grad = torch.autograd.grad((found * torch.randn_like(found)).sum(), (q, k))
    assert not query_grad.any()
    assert not key_grad.any()


@pytest.mark.gpu
@on_a_device
def test_steps_on_a_device_are_one_call():
    q, k, v = torch.randn(3, 2, 4, 700, 64, device="cuda").unbind()
    wanted = bistoch.causal_elastic_attention(q, k, v, backend="triton")
    rows, state = bistoch.causal_elastic_step(
        q[..., :600, :], k[..., :600, :], v[..., :600, :], backend="triton"
    )
    parts = [rows]
    for t in range(600, 700):
        cache = k[..., : t + 1, :], v[..., : t + 1, :]
        rows, state = bistoch.causal_elastic_step(
            q[..., t : t + 1, :], *cache, state, backend="triton"
        )
        parts.append(rows)
    torch.testing.assert_close(torch.cat(parts, -2), wanted, atol=1e-4, rtol=1e-4)


def training_step(q, k, v):
    result = bistoch.causal_elastic_attention(q, k, v, backend="triton")
    return result, *torch.autograd.grad(result.float().sin().sum(), (q, k, v))


def on_device_tokens(n=300):
    return [
        torch.randn(2, n, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]


@pytest.mark.gpu
@on_a_device
def test_on_a_device_results_are_the_same_in_every_run():
    tokens = on_device_tokens()
    first, second = (training_step(*tokens) for _ in "ab")
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.gpu
@on_a_device
def test_cuda_graphs_repeat_forward_and_backward():
    tokens = on_device_tokens()
    wanted = training_step(*tokens)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        training_step(*tokens)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = training_step(*tokens)
    graph.replay()
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.gpu
@on_a_device
def test_compiled_programs_and_autocast_on_a_device():
    tokens = on_device_tokens()

    def loss(q, k, v):
        return bistoch.causal_elastic_attention(2 * q, k, v).float().sin().sum()

    wanted = torch.autograd.grad(loss(*tokens), tokens)
    found = torch.autograd.grad(torch.compile(loss, fullgraph=True)(*tokens), tokens)
    with torch.autocast("cuda", torch.bfloat16):
        cast = torch.autograd.grad(loss(*tokens), tokens)
    for one, other, third in zip(wanted, found, cast, strict=True):
        assert (other - one).norm() < 2e-2 * one.norm()
        assert torch.equal(third, one)
