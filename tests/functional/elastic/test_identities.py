"""What the elastic family is, checked against its definition and against POT."""

import ot
import pytest
import torch

import bistoch
from functional.quick_backends import BACKENDS

N, M = 13, 17

every_backend = pytest.mark.parametrize("backend", BACKENDS)


def scores(n=N, m=M, size=1.0):
    return size * torch.randn(n, m, dtype=torch.float64)


@every_backend
@pytest.mark.parametrize("omega", [0.1, 0.5, 1.0, 1.3, 1.9])
@pytest.mark.parametrize("iters", [0, 1, 2, 7])
def test_omega_is_the_exponent_of_the_source_rule(backend, omega, iters):
    s = scores(N, N)
    kernel, v = s.exp(), torch.ones(N, dtype=torch.float64)
    for _ in range(iters):
        u = 1 / (kernel @ v)
        v = (1 / (kernel.T @ u)) ** omega * v ** (1 - omega)
    wanted = kernel * v / (kernel @ v)[:, None]
    found = bistoch.balance(s, lam=1.0, omega=omega, iters=iters, backend=backend)
    torch.testing.assert_close(found, wanted)


@every_backend
@pytest.mark.parametrize("omega", [0.3, 0.7, 1.0, 1.4])
def test_omega_is_a_speed_and_lam_a_softness(backend, omega):
    s = scores(N, N)
    sinkhorn = bistoch.balance(s, iters=500, backend=backend)
    torch.testing.assert_close(
        bistoch.balance(s, omega=omega, iters=500, backend=backend), sinkhorn
    )
    elastic = bistoch.balance(s, lam=0.7, iters=500, backend=backend)
    torch.testing.assert_close(
        bistoch.balance(s, lam=0.7, omega=omega, iters=500, backend=backend), elastic
    )
    assert (elastic - sinkhorn).abs().max() > 1e-3


@every_backend
@pytest.mark.parametrize("rule", [0.2, 0.6, 0.9])
def test_the_two_rules_agree_after_one_iteration(backend, rule):
    s = scores()
    torch.testing.assert_close(
        bistoch.balance(s, lam=rule, iters=1, backend=backend),
        bistoch.balance(s, omega=rule, iters=1, backend=backend),
    )


@every_backend
@pytest.mark.parametrize("options", [{"lam": 0.0}, {"iters": 0}])
def test_softmax_end_is_scaled_dot_product_attention(backend, options):
    q, k, v = (torch.randn(2, 3, n, 8, dtype=torch.float64) for n in (N, M, M))
    mask = torch.rand(2, 1, N, M) > 0.3
    torch.testing.assert_close(
        bistoch.elastic_attention(q, k, v, mask=mask, backend=backend, **options),
        torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask),
    )


@every_backend
@pytest.mark.parametrize(("n", "m"), [(N, N), (N, M), (M, N)])
def test_balanced_end_is_sinkhorn_of_pot(backend, n, m):
    s = scores(n, m)
    a, b = torch.full((n,), 1 / n, dtype=s.dtype), torch.full((m,), 1 / m, dtype=s.dtype)
    wanted = n * ot.sinkhorn(a, b, -s, reg=1.0, stopThr=1e-14, numItermax=10_000)
    torch.testing.assert_close(bistoch.balance(s, iters=1000, backend=backend), wanted)


@every_backend
def test_column_mass_is_the_second_marginal_of_pot(backend):
    s, b = scores(), torch.rand(M, dtype=torch.float64) + 0.1
    a = torch.full((N,), 1 / N, dtype=s.dtype)
    wanted = N * ot.sinkhorn(a, b / b.sum(), -s, reg=1.0, stopThr=1e-14, numItermax=10_000)
    # only the ratios of the mass matter
    for mass in (b, 100 * b):
        found = bistoch.balance(s, iters=1000, column_mass=mass, backend=backend)
        torch.testing.assert_close(found, wanted)


@every_backend
@pytest.mark.parametrize("lam", [0.1, 0.5, 0.9])
def test_between_is_the_semi_relaxed_problem_of_pot(backend, lam):
    s = scores()
    a, b = torch.ones(N, dtype=s.dtype), torch.full((M,), N / M, dtype=s.dtype)
    rho = lam / (1 - lam)
    wanted = ot.unbalanced.sinkhorn_unbalanced(
        a, b, -s, reg=1.0, reg_m=(float("inf"), rho), reg_type="kl", c=torch.ones_like(s),
        numItermax=20_000, stopThr=1e-14,
    )  # fmt: skip
    # POT ends on a column step
    wanted = wanted / wanted.sum(-1, keepdim=True)
    found = bistoch.balance(s, lam=lam, iters=2000, backend=backend)
    torch.testing.assert_close(found, wanted, atol=1e-7, rtol=1e-6)


@every_backend
@pytest.mark.parametrize("lam", [0.1, 0.5, 0.9, 1.0])
def test_certificate_of_the_fixed_point(backend, lam):
    q, k = torch.randn(N, 4, dtype=torch.float64), torch.randn(M, 4, dtype=torch.float64)
    found = bistoch.elastic_potentials(q, k, lam=lam, iters=2000, backend=backend)
    column_sums = bistoch.elastic_plan(q, k, lam=lam, iters=2000, backend=backend).sum(-2)
    certificate = (column_sums / (N / M)).log() + found.column * (1 - lam) / lam
    assert certificate.max() - certificate.min() < 1e-12
    assert found.converged
    assert found.error < 1e-12


@every_backend
@pytest.mark.parametrize("omega", [0.5, 1.0, 1.25, 1.5, 1.8])
def test_local_rate_of_the_relaxed_rule(backend, omega):
    s = scores(24, 24, size=1.5)
    limit = bistoch.balance(s, iters=3000, backend=backend)
    sigma = torch.linalg.svdvals(limit)[1:]
    predicted = (1 - omega * (1 - sigma**2)).abs().max()
    errors = [
        (bistoch.balance(s, omega=omega, iters=t, backend=backend) - limit).norm().item()
        for t in range(60)
    ]
    # late enough to be linear, early enough not to be rounding
    late = [t for t, error in enumerate(errors) if 1e-11 < error < 1e-4]
    measured = (errors[late[-1]] / errors[late[0]]) ** (1 / (late[-1] - late[0]))
    assert abs(measured - predicted) < 0.02


@every_backend
def test_column_error_falls_and_entropy_rises_with_lam(backend):
    s = scores(24, 24)
    plans = [
        bistoch.balance(s, lam=lam, iters=500, backend=backend)
        for lam in torch.linspace(0, 1, 9).tolist()
    ]
    errors = torch.stack([(p.sum(0) - 1).abs().mean() for p in plans])
    entropies = torch.stack([-(p * p.log()).sum(-1).mean() for p in plans])
    assert (errors.diff() < 0).all()
    assert (entropies.diff() > 0).all()


@every_backend
def test_potentials_make_the_plan(backend):
    q, k = torch.randn(2, N, 4, dtype=torch.float64), torch.randn(2, M, 4, dtype=torch.float64)
    options = {"lam": 0.6, "eps": 0.5, "key_mask": torch.arange(M) < M - 2, "backend": backend}
    found = bistoch.elastic_potentials(q, k, **options)
    s = q @ k.mT / 2 / 0.5
    plan = (s + found.row[..., None] + found.column[..., None, :]).exp()
    torch.testing.assert_close(plan, bistoch.elastic_plan(q, k, **options))
    # the column potential is the per-key bias that turns fused softmax attention into this operator
    v = torch.randn(2, M, 3, dtype=torch.float64)
    torch.testing.assert_close(
        torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=found.column[:, None, :].expand(2, N, M), scale=1 / 2 / 0.5
        ),
        bistoch.elastic_attention(q, k, v, **options),
    )


@every_backend
def test_scores_and_tokens_agree(backend):
    q, k = torch.randn(2, N, 4, dtype=torch.float64), torch.randn(2, M, 4, dtype=torch.float64)
    bias = scores()
    torch.testing.assert_close(
        bistoch.balance(q @ k.mT * 0.3, eps=0.5, lam=0.8, mask=bias, backend=backend),
        bistoch.elastic_plan(q, k, scale=0.3, eps=0.5, lam=0.8, mask=bias, backend=backend),
    )


@every_backend
def test_column_offsets_vanish_only_at_full_balance(backend):
    s, offset = scores(), torch.randn(M, dtype=torch.float64)
    moved = {
        lam: (bistoch.balance(s + offset, lam=lam, iters=500, backend=backend)
              - bistoch.balance(s, lam=lam, iters=500, backend=backend)).abs().max()
        for lam in (0.5, 1.0)
    }  # fmt: skip
    assert moved[1.0] < 1e-12 < 1e-2 < moved[0.5]


@every_backend
def test_one_dimensional_points_are_sorted_as_eps_falls(backend):
    x, y = torch.randn(2, 9, 1, dtype=torch.float64).unbind()
    plan = bistoch.elastic_plan(x, y, eps=0.002, iters=5000, scale=1.0, backend=backend)
    assert torch.equal(y[plan.argmax(-1), 0].argsort(), x[:, 0].argsort())


@every_backend
def test_tolerance_stops_each_problem_by_itself(backend):
    easy, difficult = scores(N, N, size=0.1), scores(N, N, size=3.0)
    q, k = torch.stack([easy, difficult]), torch.eye(N, dtype=torch.float64)
    found = bistoch.elastic_potentials(q, k, scale=1.0, iters=1000, tol=1e-5, backend=backend)
    alone = [
        bistoch.elastic_potentials(one, k, scale=1.0, iters=1000, tol=1e-5, backend=backend)
        for one in q
    ]
    assert found.converged.all()
    assert found.iterations.tolist() == [int(one.iterations) for one in alone]
    assert found.iterations[0] < found.iterations[1] < 1000
    plan = bistoch.elastic_plan(q, k, scale=1.0, iters=1000, tol=1e-5, backend=backend)
    assert ((plan.sum(-2) - 1).abs().amax(-1) <= 1e-5).all()


@every_backend
def test_an_unreached_tolerance_warns(backend):
    s = scores(size=5.0)
    with pytest.warns(
        bistoch.ConvergenceWarning, match=r"column error .* above tol=1e-06; raise iters"
    ):
        bistoch.balance(s, iters=2, tol=1e-6, backend=backend)


@every_backend
def test_many_small_matrices_at_once(backend):
    s = torch.randn(100_000, 4, 4, requires_grad=True)
    plan = bistoch.balance(s, iters=20, backend=backend)
    plan.square().sum().backward()
    assert (plan.sum(-2) - 1).abs().mean() < 1e-4
    one = s[4711].detach().clone().requires_grad_()
    alone = bistoch.balance(one, iters=20, backend=backend)
    alone.square().sum().backward()
    torch.testing.assert_close(plan[4711], alone)
    torch.testing.assert_close(s.grad[4711], one.grad)
