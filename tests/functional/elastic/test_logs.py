"""Potentials and log plans of scores: against independent code, on every backend."""

import pytest
import torch

import bistoch
from bistoch.functional.elastic import tiles
from functional.quick_backends import BACKENDS

every_backend = pytest.mark.parametrize("backend", BACKENDS)
N, M = 13, 17


def normal(*shape, seed=0, dtype=torch.float64):
    made = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=made, dtype=dtype)


def in_logs(scores, lam, iters, row_mass=None, column_mass=None, start=None):
    """The definition, by torch.logsumexp and autograd, for scores without a dead row or column."""
    n, m = scores.shape[-2:]
    rows = torch.ones(n, dtype=scores.dtype) if row_mass is None else row_mass
    columns = torch.ones(m, dtype=scores.dtype) if column_mass is None else column_mass
    columns = columns * rows.sum(-1, keepdim=True) / columns.sum(-1, keepdim=True)
    g = scores.new_zeros(*scores.shape[:-2], m) if start is None else start
    for _ in range(iters):
        f = rows.log() - torch.logsumexp(scores + g[..., None, :], -1)
        g = lam[..., None] * (columns.log() - torch.logsumexp(scores + f[..., None], -2))
    f = rows.log() - torch.logsumexp(scores + g[..., None, :], -1)
    return scores + f[..., None] + g[..., None, :]


def leaves(scale=2.0):
    mass = normal(M, seed=2).exp()
    return {
        "scores": scale * normal(3, N, M),
        "lam": torch.tensor([0.3, 0.8, 1.0], dtype=torch.float64),
        "row_mass": normal(3, N, seed=1).exp(),
        "column_mass": mass,
        "start": normal(3, M, seed=3),
    }


def with_grads(function, given):
    given = {name: x.detach().clone().requires_grad_() for name, x in given.items()}
    result = function(**given)
    finite = result.masked_fill(result == -torch.inf, 0)
    weights = torch.linspace(1, 9, result.numel(), dtype=result.dtype).cos().reshape(result.shape)
    loss = (finite * weights).sum()
    grads = torch.autograd.grad(
        loss, list(given.values()), allow_unused=True, materialize_grads=True
    )
    return result.detach(), *grads


def balanced(given):
    """Masses of which the totals are the same."""
    total = given["row_mass"].sum(-1, keepdim=True)
    scaled = given["column_mass"] * total / given["column_mass"].sum(-1, keepdim=True)
    return given | {"column_mass": scaled}


@every_backend
@pytest.mark.parametrize("iters", [0, 1, 7, 60])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_log_plan_is_its_definition(backend, iters, scale, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_ELEMENTS", 5 * M)
    given = leaves(scale)

    def ours(**leaf):
        return bistoch.log_balance(**balanced(leaf), iters=iters, backend=backend)

    def wanted(**leaf):
        return in_logs(iters=iters, **balanced(leaf))

    for one, other in zip(with_grads(ours, given), with_grads(wanted, given), strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-8)


@every_backend
def test_log_plan_where_the_plan_underflows(backend):
    scores = 300 * normal(2, N, M, seed=5, dtype=torch.float32)
    lam = torch.tensor([0.5, 1.0])
    found = bistoch.log_balance(scores, lam=lam, iters=3, backend=backend)
    exact = in_logs(scores.double(), lam.double(), 3)
    assert bistoch.balance(scores, lam=lam, iters=3, backend=backend).eq(0).any()
    assert found.isfinite().all()
    torch.testing.assert_close(found.double(), exact, atol=5e-3, rtol=1e-5)


@every_backend
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_log_plan_is_the_log_of_the_plan(backend, dtype):
    scores, mass = normal(2, N, M, dtype=torch.float32).to(dtype), torch.rand(N).to(dtype) + 0.5
    options = {"row_mass": mass, "eps": 0.7, "lam": 0.9, "backend": backend}
    logs, plan = bistoch.log_balance(scores, **options), bistoch.balance(scores, **options)
    assert logs.dtype == dtype
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(logs.exp(), plan, atol=8 * step, rtol=16 * step)


HIDDEN = {
    "padding": {
        "query_mask": torch.arange(N) < torch.tensor([[N], [4], [0]]),
        "key_mask": torch.arange(M) < torch.tensor([[M], [6], [11]]),
    },
    "mask": {"mask": torch.rand(N, M, generator=torch.Generator().manual_seed(1)) > 0.5},
    "dead row and column": {"mask": (torch.arange(N) != 3)[:, None] & (torch.arange(M) != 2)},
    "bias": {"mask": 3 * normal(N, M, seed=9)},
    "low bias": {"mask": normal(N, M).masked_fill(torch.arange(N)[:, None] == 4, -1e9)},
    "mass zero": {"row_mass": (torch.arange(N) % 3).double()},
}


@every_backend
@pytest.mark.parametrize("options", HIDDEN.values(), ids=HIDDEN.keys())
def test_what_is_hidden(backend, options):
    scores = normal(3, N, M)
    plan = bistoch.balance(scores, iters=6, backend=backend, **options)
    logs, grad = with_grads(
        lambda scores: bistoch.log_balance(scores, iters=6, backend=backend, **options),
        {"scores": scores},
    )
    torch.testing.assert_close(logs.exp(), plan)
    assert logs[plan == 0].eq(-torch.inf).all()
    assert grad.isfinite().all()
    assert grad[plan == 0].eq(0).all()
    found = bistoch.balance_potentials(scores, iters=6, backend=backend, **options)
    bias = options.get("mask", torch.ones(1, 1, dtype=torch.bool))
    biased = scores.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else scores + bias
    made = (biased + found.row[..., None] + found.column[..., None, :]).exp()
    # a bias of -1e9 leaves the scores of its row, and their potential, seven digits
    torch.testing.assert_close(made, plan, atol=1e-6, rtol=1e-6)


@every_backend
def test_no_gradient_comes_from_a_forbidden_pair(backend):
    """A loss that reads minus infinities is of no use, but must not move the others."""
    allowed = torch.rand(N, M, generator=torch.Generator().manual_seed(1)) > 0.4
    scores = normal(N, M).requires_grad_()
    logs = bistoch.log_balance(scores, mask=allowed, backend=backend)
    all_of_it = torch.autograd.grad(logs.sum(), scores, retain_graph=True)[0]
    allowed_only = torch.autograd.grad(logs[allowed].sum(), scores)[0]
    torch.testing.assert_close(all_of_it, allowed_only)


@every_backend
def test_potentials_are_those_of_tokens(backend):
    q, k = normal(2, N, 5), normal(2, M, 5, seed=1)
    options = {"lam": 0.8, "iters": 40, "tol": 1e-6, "backend": backend, "eps": 0.5}
    ours = bistoch.balance_potentials(q @ k.mT / 5**0.5, **options)
    theirs = bistoch.elastic_potentials(q, k, **options)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    assert ours.converged.all()
    assert (ours.iterations < 40).all()


@every_backend
def test_gradients_of_log_plans_are_exact(backend):
    scores, mass = normal(5, 3, 4).requires_grad_(), normal(5, 3).exp().requires_grad_()
    lam, eps = (torch.full((5,), x, dtype=torch.float64, requires_grad=True) for x in (0.7, 1.3))
    start = normal(4).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda s, a, lam, eps, g: bistoch.log_balance(
            s, row_mass=a, lam=lam, eps=eps, start=g, iters=3, backend=backend
        ),
        (scores, mass, lam, eps, start),
    )
    assert torch.autograd.gradcheck(
        lambda s, a: bistoch.balance_potentials(s, row_mass=a, iters=3, backend=backend)[:2],
        (scores, mass),
    )


@every_backend
@pytest.mark.parametrize("iters", [0, 5])
def test_a_nan_shows(backend, iters):
    scores = normal(2, N, M)
    scores[1, 2, 3] = torch.nan
    logs = bistoch.log_balance(scores, iters=iters, backend=backend)
    assert logs[0].isfinite().all()
    assert logs[1, 2].isnan().all()
    assert logs[1].isnan().all() == (iters > 0)


class TestPublishedSinkhorn:
    """The three steps of SwAV and DINOv2, in the exp domain, as their papers describe them."""

    @staticmethod
    def three_steps(scores, eps):
        codes = (scores.double() / eps).exp().mT
        prototypes, samples = codes.shape
        codes = codes / codes.sum()
        for _ in range(3):
            codes = codes / codes.sum(1, keepdim=True) / prototypes
            codes = codes / codes.sum(0, keepdim=True) / samples
        return (codes * samples).mT

    @every_backend
    @pytest.mark.parametrize("shape", [(64, 10), (37, 53)], ids=str)
    def test_two_iterations_from_a_prototype_step(self, backend, shape):
        scores, eps = normal(*shape, seed=4), 0.3
        samples, prototypes = shape
        target = torch.tensor(samples / prototypes, dtype=torch.float64).log()
        start = target - torch.logsumexp(scores / eps, 0)
        found = bistoch.balance(scores, eps=eps, start=start, iters=2, backend=backend)
        wanted = self.three_steps(scores, eps)
        torch.testing.assert_close(found, wanted, atol=1e-14, rtol=1e-12)
        # a start on samples is another plan
        other = bistoch.balance(scores, eps=eps, iters=3, backend=backend)
        assert (other - wanted).abs().max() > 1e-2

    def test_where_the_published_code_overflows(self):
        scores = normal(64, 10, dtype=torch.float32) * 10
        start = torch.tensor(6.4).log() - torch.logsumexp(scores / 0.04, 0)
        found = bistoch.balance(scores, eps=0.04, start=start, iters=2)
        assert (scores / 0.04).exp().isinf().any()
        assert found.isfinite().all()
        torch.testing.assert_close(found.sum(-1), torch.ones(64))


def test_a_temperature_of_each_row_is_a_division():
    scores, eps = normal(2, N, M), torch.rand(N).double() + 0.5
    with pytest.raises(ValueError, match=r"balance: eps must broadcast .* divide the queries or"):
        bistoch.balance(scores, eps=eps)
    q, k = normal(2, N, 5), normal(2, M, 5)
    one = bistoch.elastic_plan(q / eps[:, None], k, scale=1.0)
    torch.testing.assert_close(one, bistoch.balance((q @ k.mT) / eps[:, None]))


def test_a_lam_of_each_column_is_refused_with_the_reason():
    for function in (bistoch.balance, bistoch.log_balance, bistoch.balance_potentials):
        with pytest.raises(ValueError, match=f"^{function.__name__}: lam must .* rows are always"):
            function(normal(2, N, M), lam=torch.rand(M))
