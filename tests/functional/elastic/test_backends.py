"""Every fast path is proven against the reference: results and gradients, on awkward problems."""

import pytest
import torch

import bistoch
from bistoch.functional.elastic import tiles
from functional.quick_backends import BACKENDS

FAST = [backend for backend in BACKENDS if backend != "reference"]
N, M, D, E = 13, 17, 5, 3
BATCH = (2, 3)

every_fast_backend = pytest.mark.parametrize("backend", FAST)
every_backend = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(params=["one tile", "many tiles"])
def tile_size(request, monkeypatch):
    """Cut problems into tiles of a few rows, as large ones would be."""
    if request.param == "many tiles":
        monkeypatch.setattr(tiles, "TILE_ELEMENTS", 5 * M)


def problem(size=1.0, n=N, m=M, batch=BATCH):
    """Every differentiable input, with options that differ from problem to problem."""
    return {
        "query": size * torch.randn(*batch, n, D),
        "key": torch.randn(*batch, m, D),
        "value": torch.randn(*batch, m, E),
        "lam": torch.rand(batch[-1]),
        "eps": 0.5 + torch.rand(batch[0], 1),
        "omega": 0.5 + torch.rand(batch),
    }


MASKS = {
    "plain": {},
    "mask": {"mask": torch.rand(3, N, M, generator=torch.Generator().manual_seed(1)) > 0.3},
    "shared mask": {"mask": torch.ones(N, M, dtype=torch.bool).tril()},
    "padding": {
        "query_mask": torch.arange(N) < torch.tensor([[N], [4], [9]]),
        "key_mask": torch.arange(M) < torch.tensor([[[M]], [[6]]]),
    },
    "dead rows": {"mask": (torch.arange(N) % 3 > 0)[:, None]},
    "nothing allowed": {"key_mask": torch.zeros(M, dtype=torch.bool)},
}


@every_fast_backend
@pytest.mark.parametrize("iters", [0, 1, 3, 20])
@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_and_gradients(
    backend, iters, options, dtype, tile_size, assert_as_good_as_reference
):
    assert_as_good_as_reference(backend, problem, dtype=dtype, iters=iters, **options)


@every_fast_backend
@pytest.mark.parametrize("shape", [(3, N, M), (N, M), (2, 1, N, 1), (1, M), (3, 1, 1)])
def test_gradient_of_a_bias(backend, shape, tile_size, assert_as_good_as_reference):
    assert_as_good_as_reference(backend, lambda: problem() | {"mask": torch.randn(shape)}, iters=5)


@every_fast_backend
def test_gradient_of_the_column_mass(backend, tile_size, assert_as_good_as_reference):
    assert_as_good_as_reference(
        backend,
        lambda: problem() | {"column_mass": torch.rand(3, M) + 0.1},
        iters=5,
        **MASKS["padding"],
    )


@every_fast_backend
@pytest.mark.parametrize("size", [10.0, 100.0, 1000.0])
def test_large_scores(backend, size, assert_as_good_as_reference):
    assert_as_good_as_reference(backend, lambda: problem(size), iters=10, draws=10)


@every_fast_backend
@pytest.mark.parametrize("options", [MASKS["plain"], MASKS["padding"]], ids=["plain", "padding"])
def test_early_stopping(backend, options, tile_size, assert_as_good_as_reference):
    assert_as_good_as_reference(
        backend, problem, dtype=torch.float64, iters=50, tol=0.05, **options
    )


@every_backend
@pytest.mark.parametrize("iters", [0, 1, 3])
@pytest.mark.parametrize("options", [MASKS["plain"], MASKS["padding"], MASKS["dead rows"]],
                         ids=["plain", "padding", "dead rows"])  # fmt: skip
def test_gradcheck(backend, iters, options):
    tensors = problem() | {"mask": torch.randn(3, N, M)}
    if "mask" in options:
        tensors["mask"] = tensors["mask"].masked_fill(~options["mask"], -torch.inf)
    tensors = {name: t.double().requires_grad_() for name, t in tensors.items()}
    padding = {name: mask for name, mask in options.items() if name != "mask"}
    # a few coordinates of each input, since a numerical Jacobian of all would take minutes
    generator = torch.Generator().manual_seed(2)
    q, k, v, lam, eps, omega, bias = tensors.values()

    def attend(q, k, v, lam, eps, omega, bias):
        return bistoch.elastic_attention(
            q,
            k,
            v,
            lam=lam,
            eps=eps,
            omega=omega,
            mask=bias,
            iters=iters,
            backend=backend,
            **padding,
        )

    inputs = (q, k, v, lam, eps, omega, bias)
    result = attend(*inputs)
    weights = torch.randn(result.shape, dtype=torch.float64, generator=generator)
    grads = torch.autograd.grad((result * weights).sum(), inputs, allow_unused=True)
    for position, (tensor, grad) in enumerate(zip(inputs, grads, strict=True)):
        grad = torch.zeros_like(tensor) if grad is None else grad
        direction = torch.randn(tensor.shape, dtype=torch.float64, generator=generator)
        direction = direction.masked_fill(tensor.detach().isinf(), 0)
        step = 1e-6
        ends = []
        for sign in (step, -step):
            moved = list(inputs)
            moved[position] = tensor.detach() + sign * direction
            ends.append((attend(*moved) * weights).sum())
        slope = (ends[0] - ends[1]) / (2 * step)
        torch.testing.assert_close((grad * direction).sum(), slope, atol=1e-7, rtol=1e-5)


@every_backend
def test_full_gradcheck_at_prime_sizes(backend):
    tensors = problem(n=3, m=5, batch=(2, 1)) | {"mask": torch.randn(3, 5)}
    names, inputs = zip(
        *((n, t.double().requires_grad_()) for n, t in tensors.items()), strict=True
    )

    def attend(*inputs):
        q, k, v, *rest = inputs
        return bistoch.elastic_attention(
            q, k, v, iters=3, backend=backend, **dict(zip(names[3:], rest, strict=True))
        )

    assert torch.autograd.gradcheck(attend, inputs)


@every_backend
def test_potentials_are_differentiable(backend):
    q, k = (torch.randn(2, n, D, dtype=torch.float64, requires_grad=True) for n in (3, 5))
    hidden = torch.tensor([True, True, False, True, True])

    def potentials(q, k, lam):
        found = bistoch.elastic_potentials(q, k, lam=lam, iters=3, key_mask=hidden, backend=backend)
        return found.row, found.column[..., hidden]

    lam = torch.tensor([0.3, 0.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(potentials, (q, k, lam))


@every_backend
def test_gradient_of_a_plan(backend):
    scores = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda s: bistoch.balance(s, lam=0.7, iters=3, backend=backend), (scores,)
    )


def test_the_reference_has_second_derivatives():
    scores = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(
        lambda s: bistoch.balance(s, lam=0.7, iters=2, backend="reference"), (scores,)
    )
