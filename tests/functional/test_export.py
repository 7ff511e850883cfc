"""Programs for any length, and what each backend says to those who rewrite its operations."""

import warnings

import pytest
import torch

import bistoch
from bistoch.functional import OPERATORS

LENGTHS = (5, 16, 29)
length = torch.export.Dim("length")

BACKENDS = ("reference", "streaming", "cpu", "auto")
# the others of the family take the same way
EVERY = ("elastic", "causal_elastic")
CASES = [
    pytest.param(
        name,
        backend,
        marks=[] if name in EVERY or backend in (None, "auto") else pytest.mark.slow,
    )
    for name, row in OPERATORS.items()
    for backend in (
        [one for one in BACKENDS if one == "auto" or one in row.backends]
        if "cpu" in row.backends
        else (None,)
    )
    # a weight is made for one number of tokens
    if name != "mixing"
]


class Call(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function, **options):
        super().__init__()
        self.function, self.options = function, options

    def forward(self, *tensors):
        return self.function(*tensors, **self.options)


def tokens(n, count=3):
    generator = torch.Generator().manual_seed(n)
    return tuple(torch.randn(2, 3, n, 4, generator=generator) for _ in range(count))


def export(module, inputs, shapes):
    with warnings.catch_warnings():
        # torch warns about its own deprecated internals while exporting
        warnings.simplefilter("ignore")
        return torch.export.export(module, inputs, dynamic_shapes=shapes)


def compare(module, make, shapes, lengths=LENGTHS):
    program = export(module, make(7), shapes).module()
    for n in lengths:
        inputs = make(n)
        torch.testing.assert_close(program(*inputs), module(*inputs), atol=1e-5, rtol=1e-4)


def attend(name, backend, **options):
    options |= {} if backend is None else {"backend": backend}
    if name != "wasserstein":
        return Call(OPERATORS[name].attention, **options)

    def gaussian(q, k, v, **options):
        variances = {"query_variance": q.exp(), "key_variance": k.exp()}
        return bistoch.wasserstein_attention(q, k, v, **variances, **options)

    return Call(gaussian, **options)


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_any_length(name, backend):
    compare(attend(name, backend), tokens, (({2: length},) * 3,))


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_length_of_scores(backend):
    module = Call(bistoch.balance, backend=backend)
    compare(module, lambda n: (torch.randn(2, n, n),), (({1: length, 2: length},),))
    # many small matrices
    compare(module, lambda n: (torch.randn(n, 3, 3),), (({0: length},),))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["elastic", "causal_elastic"])
def test_any_length_with_masks(name, backend):
    options = {"block": 4} if name == "causal_elastic" else {"tol": 1e-2, "iters": 50}

    def masked(q, k, v, bias, real):
        return OPERATORS[name].attention(
            q, k, v, mask=bias, query_mask=real, key_mask=real, backend=backend, **options
        )

    def make(n):
        real = torch.ones(2, 1, n, dtype=torch.bool)
        real[0, :, n // 2 + 1 :] = False
        return (*tokens(n), torch.linspace(-1, 1, n * n).reshape(n, n), real)

    shapes = (*({2: length},) * 3, {0: length, 1: length}, {2: length})
    compare(Call(masked), make, (shapes,))


def test_any_batch_and_two_lengths():
    batch, keys = torch.export.Dim("batch"), torch.export.Dim("keys")

    def make(n):
        return tuple(torch.randn(n, 2, size, 4) for size in (n + 1, n + 3, n + 3))

    shapes = ({0: batch, 2: length}, {0: batch, 2: keys}, {0: batch, 2: keys})
    compare(attend("elastic", "auto"), make, (shapes,), (3, 8))


@pytest.mark.parametrize(
    "layer",
    [
        bistoch.nn.Attention(8, 2, operator="elastic(lam=0.5)"),
        bistoch.nn.Attention(8, 2, operator="causal_elastic(block=4)"),
    ],
)
def test_layers_for_any_length(layer):
    compare(layer.eval(), lambda n: (torch.randn(2, n, 8),), ({1: length},))


def test_operator_modules_and_multihead_for_any_length():
    compare(bistoch.nn.Elastic(lam=0.5, heads=3, learn="head"), tokens, ({2: length},) * 3)
    layer = bistoch.nn.MultiheadAttention(8, 2, operator="elastic", batch_first=True)
    compare(Call(lambda x: layer(x, x, x)[0]), lambda n: (torch.randn(2, n, 8),), (({1: length},),))


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *(("elastic", backend) for backend in BACKENDS[:3]),
        *(("causal_elastic", backend) for backend in BACKENDS[:3]),
        ("delta", None),
    ],
)
def test_a_program_exported_for_inference_has_gradients(name, backend):
    module = attend(name, backend)
    program = export(module, tokens(7), (({2: length},) * 3,)).module()

    def gradients(function):
        inputs = [x.requires_grad_() for x in tokens(13)]
        return torch.autograd.grad(function(*inputs).square().sum(), inputs)

    torch.testing.assert_close(gradients(program), gradients(module))


def test_what_cannot_be_written_down_is_refused():
    module = attend("quantum", None, shots=5, generator=torch.Generator())
    with pytest.raises(TypeError, match="generator cannot be part of a program"):
        export(module, tokens(7), (({2: length},) * 3,))


# the table of docs/export.md


def a_loss(name, backend):
    _, k, v = tokens(5)
    function = attend(name, backend)
    return lambda q: function(q, k, v).square().sum(), tokens(5)[0]


# has operations of its own, as does the other backend of causal_elastic that is not here
OWN = [("elastic", "streaming"), ("elastic", "cpu"), ("causal_elastic", "cpu")]
PLAIN = [
    ("elastic", "reference"), ("elastic", "auto"), ("causal_elastic", "reference"),
    ("causal_elastic", "streaming"), ("causal_elastic", "auto"),
]  # fmt: skip

# torch warns about its own deprecated parts when it first loads forward mode or a tracer
ignores_torch = pytest.mark.filterwarnings("ignore")


def transforms(loss, q):
    return {
        "grad": lambda: torch.func.grad(loss)(q),
        "vmap": lambda: torch.func.vmap(loss)(q[None]),
        "jvp": lambda: torch.func.jvp(loss, (q,), (q,)),
        "jacrev": lambda: torch.func.jacrev(loss)(q),
        "hessian": lambda: torch.func.hessian(loss)(q),
        "trace": lambda: torch.jit.trace(loss, (q,)),
    }


@ignores_torch
@pytest.mark.parametrize(("name", "backend"), OWN)
def test_a_backend_with_its_own_operations_refuses(name, backend):
    for call in transforms(*a_loss(name, backend)).values():
        with pytest.raises(NotImplementedError, match=r'^\w+: torch\..*choose backend="reference"'):
            call()


@ignores_torch
@pytest.mark.parametrize(("name", "backend"), PLAIN)
def test_transforms_of_plain_backends(name, backend):
    loss, q = a_loss(name, backend)
    leaf = q.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(loss(leaf), leaf)
    call = transforms(loss, q)
    torch.testing.assert_close(call["grad"](), wanted)
    torch.testing.assert_close(call["jacrev"](), wanted)
    torch.testing.assert_close(call["vmap"]()[0], loss(q))
    torch.testing.assert_close(call["jvp"]()[1], (wanted * q).sum())
    assert call["hessian"]().shape == (*q.shape, *q.shape)
    torch.testing.assert_close(call["trace"]()(q + 1), loss(q + 1))


@pytest.mark.parametrize(("name", "backend"), OWN)
# a sum sends back ones, which have no gradient themselves
@pytest.mark.parametrize("power", [1, 2])
def test_second_derivatives_are_refused(name, backend, power):
    _, k, v = tokens(5)
    q = tokens(5)[0].requires_grad_()
    loss = attend(name, backend)(q, k, v).pow(power).sum()
    (first,) = torch.autograd.grad(loss, q, create_graph=True)
    with pytest.raises(RuntimeError, match=r'for second ones choose backend="reference"'):
        first.square().sum().backward()


def test_second_derivatives_of_many_small_matrices_are_refused():
    scores = torch.randn(4, 3, 3, requires_grad=True)
    loss = bistoch.balance(scores, backend="cpu")[..., 0].sum()
    (first,) = torch.autograd.grad(loss, scores, create_graph=True)
    with pytest.raises(RuntimeError, match=r'for second ones choose backend="reference"'):
        first.square().sum().backward()


def test_onnx_needs_plain_operations(monkeypatch):
    import torch.onnx

    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    graph = export(attend("elastic", "auto"), tokens(5), None).graph
    assert not any("bistoch" in str(node.target) for node in graph.nodes)
    with pytest.raises(NotImplementedError, match=r'torch\.onnx.*choose backend="reference"'):
        export(attend("elastic", "streaming"), tokens(5), None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_without_numbers(backend):
    tensors = [x.to("meta") for x in tokens(5)]
    if backend == "cpu":
        with pytest.raises(bistoch.BackendUnavailableError, match='choose backend="streaming"'):
            bistoch.elastic_attention(*tensors, backend=backend)
        return
    found = bistoch.elastic_attention(*tensors, tol=0.1, backend=backend)
    assert found.is_meta
    assert found.shape == tensors[0].shape


@ignores_torch
@pytest.mark.parametrize("backend", BACKENDS)
def test_nested_tensors_are_refused_with_a_remedy(backend):
    ragged = torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)], layout=torch.jagged)
    with pytest.raises(TypeError, match=r"to_padded_tensor.*query_mask and key_mask"):
        bistoch.elastic_attention(ragged, ragged, ragged, backend=backend)


@ignores_torch
def test_constants_of_a_transform_are_not_kept():
    # sizes that no other test has
    q = torch.randn(3, 2, 11, 4)
    for call in (torch.func.vmap(lambda x: bistoch.balance(x @ x.mT, lam=0.37)), torch.func.grad(
        lambda x: bistoch.elastic_attention(x, x, x, lam=0.37).sum())):  # fmt: skip
        call(q)
    assert bistoch.elastic_attention(q[0], q[0], q[0], lam=0.37).isfinite().all()
    assert bistoch.elastic_attention(q, q, q, lam=0.37).isfinite().all()
    assert bistoch.balance(q[0] @ q[0].mT, lam=0.37).isfinite().all()
