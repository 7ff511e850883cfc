"""The operator inside real programs: compilers, autocast, checkpoints, export, threads."""

import copy
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import bistoch
from functional.quick_backends import BACKENDS

N, M, D = 7, 11, 5

every_backend = pytest.mark.parametrize("backend", BACKENDS)


def tokens(**options):
    return tuple(torch.randn(2, 3, size, D, **options) for size in (N, M, M))


class Layer(torch.nn.Module):
    def __init__(self, backend):
        super().__init__()
        self.backend = backend
        self.project = torch.nn.Linear(D, D)
        self.lam = torch.nn.Parameter(torch.full((3,), 0.5))

    def forward(self, q, k, v):
        return bistoch.elastic_attention(
            self.project(q), k, v, lam=self.lam, iters=3, backend=self.backend
        )


def gradients(layer, module, inputs):
    layer.zero_grad()
    module(*inputs).square().sum().backward()
    return [parameter.grad.clone() for parameter in layer.parameters()]


@every_backend
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_full_graph(backend, dynamic):
    layer, inputs = Layer(backend), tokens()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    torch.testing.assert_close(compiled(*inputs), layer(*inputs))
    torch.testing.assert_close(gradients(layer, compiled, inputs), gradients(layer, layer, inputs))


@every_backend
def test_compile_with_a_tolerance(backend):
    inputs = tokens()

    def attend(q, k, v):
        return bistoch.elastic_attention(q, k, v, iters=20, tol=0.01, backend=backend)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), attend(*inputs))


@every_backend
def test_autocast_computes_in_float32(backend):
    q, k, v = tokens()
    wanted = bistoch.elastic_attention(q, k, v, iters=20, backend=backend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = bistoch.elastic_attention(q, k, v, iters=20, backend=backend)
        assert torch.equal(found, wanted)
        layer = Layer(backend)
        low = layer(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert low.dtype == torch.bfloat16
    low.float().sum().backward()
    assert layer.lam.grad.isfinite().all()


@every_backend
def test_checkpoint(backend):
    layer, inputs = Layer(backend), tokens()

    def checkpointed(*args):
        return torch.utils.checkpoint.checkpoint(layer, *args, use_reentrant=False)

    torch.testing.assert_close(
        gradients(layer, checkpointed, inputs), gradients(layer, layer, inputs)
    )


@every_backend
def test_deepcopy(backend):
    layer, inputs = Layer(backend), tokens()
    torch.testing.assert_close(copy.deepcopy(layer)(*inputs), layer(*inputs))


@every_backend
def test_export(backend):
    layer, inputs = Layer(backend), tokens()
    with warnings.catch_warnings():
        # torch warns about its own deprecated internals while exporting
        warnings.simplefilter("ignore")
        exported = torch.export.export(layer, inputs).module()
    torch.testing.assert_close(exported(*inputs), layer(*inputs))


# torch warns about its own deprecated parts when it first loads forward mode
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "reference"])
def test_forward_mode_is_refused_instead_of_wrong(backend):
    q, k, v = tokens()
    with pytest.raises(NotImplementedError, match=r'backend="reference"'):
        torch.func.jvp(lambda q: bistoch.elastic_attention(q, k, v, backend=backend), (q,), (q,))


@every_backend
def test_inference_and_no_grad(backend):
    layer, inputs = Layer(backend), tokens()
    wanted = layer(*inputs).detach()
    with torch.no_grad():
        assert torch.equal(layer(*inputs), wanted)
    with torch.inference_mode():
        assert torch.equal(layer(*inputs), wanted)


@every_backend
def test_concurrent_calls_from_threads(backend):
    inputs = [tokens() for _ in range(8)]
    wanted = [bistoch.elastic_attention(*t, backend=backend) for t in inputs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda t: bistoch.elastic_attention(*t, backend=backend), inputs * 5))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted * 5, strict=True))


@pytest.mark.parametrize("op", [b for b in BACKENDS if b != "reference"])
@pytest.mark.parametrize("masked", [False, True])
def test_opcheck(op, masked):
    batch, n, m = 2, 3, 5
    query, key, value = (torch.randn(batch, s, 2, requires_grad=True) for s in (n, m, m))
    mask = torch.randn(1, n, m, requires_grad=True) if masked else None
    index = torch.zeros(batch, dtype=torch.int64) if masked else None
    padding = torch.ones(batch, m, dtype=torch.bool) if masked else None
    options = [torch.full((batch,), x, requires_grad=True) for x in (1.0, 0.5, 1.2)]
    log_mass = torch.zeros(batch, m, requires_grad=True)
    row_mass = torch.zeros(batch, n, requires_grad=True) if masked else None
    start = torch.zeros(batch, m, requires_grad=True) if masked else None
    rest = (mask, index, None, padding, *options, log_mass, row_mass, start, 3, None, True)
    arguments = (query, key, None, value, *rest)
    torch.library.opcheck(getattr(torch.ops.bistoch, f"elastic_{op}").default, arguments)
    # permuted, but dense
    query, key, value = (
        t.detach().mT.contiguous().mT.requires_grad_() for t in (query, key, value)
    )
    arguments = (query, key, None, value, *rest)
    torch.library.opcheck(getattr(torch.ops.bistoch, f"elastic_{op}").default, arguments)
