"""The backend "triton" in programs: who gets it, what it refuses, compilers and autocast."""

import subprocess
import sys
import types
from importlib import machinery

import pytest
import torch

import bistoch
from bistoch.functional.causal import api as causal_api
from bistoch.functional.causal import decode
from bistoch.functional.elastic import backends, triton
from bistoch.functional.kernels import gpu
from bistoch.functional.matching import slack
from precision import assert_as_good


def test_auto_takes_the_kernels_on_a_gpu_and_only_there(monkeypatch):
    def fastest(device, dtype=torch.float32, features=64):
        like = types.SimpleNamespace(device=torch.device(device), dtype=dtype)
        return backends._fastest(types.SimpleNamespace(like=like), features)

    monkeypatch.setattr(triton, "features_of", lambda scores: 64)
    monkeypatch.setattr(triton, "is_interpreted", lambda: False)
    assert fastest("cuda") == "triton"
    assert fastest("cpu") == "cpu"
    assert fastest("cuda", torch.float64) == "streaming"
    assert fastest("cuda", features=257) == "streaming"
    monkeypatch.setattr(backends, "HAS_TRITON", False)
    assert fastest("cuda") == "streaming"


@pytest.fixture
def capability(monkeypatch):
    """Set the compute capability of a GPU that is not here."""

    def pretend(*found):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: found)
        gpu._capability.cache_clear()

    yield pretend
    gpu._capability.cache_clear()


@pytest.mark.parametrize(("found", "name"), [((7, 5), "streaming"), ((8, 0), "triton"),
                                             ((8, 6), "triton"), ((12, 0), "triton")])  # fmt: skip
def test_auto_leaves_old_gpus_to_torch(found, name, capability, monkeypatch):
    capability(*found)
    device = torch.device("cuda")
    like = types.SimpleNamespace(
        device=device, dtype=torch.float32, shape=(2, 5, 3), requires_grad=False
    )
    assert backends._fastest(types.SimpleNamespace(like=like), 3) == name
    assert causal_api._fastest(types.SimpleNamespace(query=like, value=like)) == name
    assert slack._choose("auto", like) == name
    monkeypatch.setattr(decode, "choose_backend", lambda *_, **__: None)
    assert decode._choose("causal_elastic_step", "auto", like, like, like, None) == name


def test_old_gpus_are_refused_by_name(capability):
    capability(7, 5)
    gpu.check_new_enough("balance", torch.device("cpu"))
    sentence = r"^balance: .* capability 8\.0 or more .*, but cuda:1 has 7\.5; choose backend="
    with pytest.raises(bistoch.BackendUnavailableError, match=sentence):
        gpu.check_new_enough("balance", torch.device("cuda:1"))


def test_every_operator_refuses_old_gpus(monkeypatch):
    monkeypatch.setattr(gpu, "_capability", lambda device: (7, 0))
    q = torch.randn(2, 5, 3)
    calls = {
        "elastic_attention": lambda **by: bistoch.elastic_attention(q, q, q, **by),
        "balance": lambda **by: bistoch.balance(q, **by),
        "match": lambda **by: bistoch.match(q, row_price=0.0, column_price=0.0, **by),
        "causal_elastic_attention": lambda **by: bistoch.causal_elastic_attention(q, q, q, **by),
        "causal_elastic_step": lambda **by: bistoch.causal_elastic_step(q, q, q, **by),
    }
    for name, call in calls.items():
        with pytest.raises(bistoch.BackendUnavailableError, match=rf"^{name}: .* has 7\.0"):
            call(backend="triton")


def test_amd_has_no_compute_capability_to_ask_for(capability, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "7.0")
    capability(1, 0)
    assert gpu.is_new_enough(torch.device("cuda"))


def test_how_numbers_are_multiplied(monkeypatch):
    """Triton has products of 11 bits on one architecture of AMD only."""
    monkeypatch.setattr(gpu, "is_interpreted", lambda: False)
    for dtype in (torch.float16, torch.bfloat16):
        found = [gpu.products(dtype, amd) for amd in ("", "gfx942", "gfx90a", "gfx950", "gfx1100")]
        assert found == ["tf32", "tf32", "ieee", "ieee", "ieee"]
    assert [gpu.products(torch.float32, amd) for amd in ("", "gfx942")] == ["tf32x3", "ieee"]
    assert gpu.amd_architecture(torch.device("cuda")) == ""
    facts = types.SimpleNamespace(gcnArchName="gfx90a:sramecc+:xnack-")
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    assert gpu.amd_architecture(torch.device("cuda")) == "gfx90a"
    assert gpu.amd_architecture(torch.device("cpu")) == ""


def test_what_kernels_do_not_know_is_refused(monkeypatch):
    q = torch.randn(2, 5, 300)
    with pytest.raises(NotImplementedError, match=r'300 and 300 features; choose backend="stream'):
        bistoch.elastic_attention(q, q, q, backend="triton")
    monkeypatch.setattr(triton, "is_interpreted", lambda: False)
    q = torch.randn(2, 5, 3, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match=r"^elastic_attention: .*torch\.float64"):
        bistoch.elastic_attention(q, q, q, backend="triton")


PROGRAM = """
import sys
sys.modules["triton"] = None
import torch, bistoch
from bistoch.functional.kernels.gpu import triton_module
q = torch.randn(2, 5, 4)
bistoch.elastic_attention(q, q, q)
for call in (lambda: triton_module("elastic.triton.launch"),
             lambda: bistoch.elastic_attention(q, q, q, backend="triton")):
    try:
        call()
    except bistoch.BackendUnavailableError as error:
        print(error)
"""


def test_without_triton_there_is_a_sentence():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=240
    )
    missing, elsewhere = done.stdout.splitlines()
    assert "pip install 'bistoch[gpu]'" in missing
    assert (
        'works on cuda tensors, but these are on cpu; move them, or choose backend="' in elsewhere
    )


@pytest.mark.parametrize(("files", "known"), [(["__init__.py"], False),
                                              (["__init__.py", "knobs.py"], True)])  # fmt: skip
def test_a_triton_without_its_settings_is_too_old(files, known, tmp_path, monkeypatch):
    """That of torch 2.7: calls would end in an AttributeError."""
    (tmp_path / "triton").mkdir()
    for file in files:
        (tmp_path / "triton" / file).touch()
    spec = machinery.PathFinder.find_spec("triton", [str(tmp_path)])
    monkeypatch.setattr(gpu, "find_spec", lambda name: spec)
    assert gpu._has_triton() is known
    monkeypatch.setattr(gpu, "HAS_TRITON", known)
    if not known:
        with pytest.raises(bistoch.BackendUnavailableError, match=r"needs Triton 3\.4 or newer"):
            gpu.triton_module("elastic.triton.short")


@pytest.mark.slow
def test_import_stays_light():
    program = (
        "import sys, torch, bistoch; q = torch.randn(2, 5, 4); bistoch.elastic_attention(q, q, q);"
        "print('triton' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, timeout=240)
    assert done.stdout.strip() == b"False"


def test_autocast_changes_nothing():
    q = torch.randn(1, 5, 4)
    wanted = bistoch.elastic_attention(q, q, q, iters=1, backend="triton")
    with torch.autocast("cpu", torch.bfloat16):
        found = bistoch.elastic_attention(q, q, q, iters=1, backend="triton")
    assert torch.equal(found, wanted)


@pytest.mark.slow
def test_full_graphs_and_checkpointing():
    q = torch.randn(1, 5, 4, requires_grad=True)

    def attend(x):
        return bistoch.elastic_attention(x, x, x, iters=2, backend="triton")

    wanted = attend(q)
    (wanted_grad,) = torch.autograd.grad(wanted.sin().sum(), q)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    checkpointed = torch.utils.checkpoint.checkpoint(attend, q, use_reentrant=False)
    for found in (compiled(q), checkpointed):
        torch.testing.assert_close(found, wanted)
        (grad,) = torch.autograd.grad(found.sin().sum(), q)
        torch.testing.assert_close(grad, wanted_grad)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device")
@pytest.mark.parametrize("n", [61, 128, 509])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_device(n, dtype):
    """The same rule as in the interpreter: at most twice the error of the reference."""
    tokens = [torch.randn(2, 4, n, 64, device="cuda").to(dtype) for _ in range(3)]
    results = []
    for backend, kind in (("reference", torch.float64), ("reference", dtype), ("triton", dtype)):
        leaves = [x.detach().to(kind).requires_grad_() for x in tokens]
        result = bistoch.elastic_attention(*leaves, iters=5, backend=backend)
        results.append((result, *torch.autograd.grad(result.float().sin().sum(), leaves)))
    names = ("result", "query", "key", "value")
    assert_as_good(names, *([result] for result in results), terms=2 * n)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device")
def test_a_cuda_graph_repeats_the_kernels():
    q = torch.randn(2, 4, 256, 64, device="cuda")

    def attend():
        return bistoch.elastic_attention(q, q, q, iters=3, backend="triton")

    wanted = attend()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = attend()
    graph.replay()
    assert torch.equal(found, wanted)


def test_the_interpreter_is_what_runs_here():
    if not torch.cuda.is_available():
        assert gpu.is_interpreted()
        assert gpu.device_type() == "cpu"
