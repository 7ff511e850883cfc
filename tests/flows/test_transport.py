"""The self-transport of a cloud: its plan is symmetric, balanced, and the operator's own."""

import ot
import pytest
import torch

import bistoch
from bistoch.flows import barycentric_projection, self_transport
from bistoch.flows.cloud import Cloud, pair, soft_minimum
from bistoch.flows.transport import SHARES


def joint(x, found, eps, weights=None):
    """The plan with total mass one."""
    n = x.shape[-2]
    mass = torch.full((n,), 1 / n, dtype=x.dtype) if weights is None else weights / weights.sum()
    cost = torch.cdist(x, x) ** 2 / 2
    g = found.potential
    return mass[:, None] * mass * (g[..., :, None] + g[..., None, :] - cost / eps).exp()


@pytest.mark.parametrize("eps", [0.5, 2.0, 30.0])
def test_plan_is_that_of_pot(cloud, eps):
    x = cloud(23, 3)
    found = self_transport(x, eps, tol=1e-10)
    mass = torch.full((23,), 1 / 23, dtype=torch.float64)
    cost = torch.cdist(x, x) ** 2 / 2
    theirs = ot.bregman.sinkhorn_log(mass, mass, cost, eps, stopThr=1e-12, numItermax=20_000)
    assert found.converged
    torch.testing.assert_close(joint(x, found, eps), theirs, rtol=0, atol=1e-9)


def test_weights_are_the_marginals_and_repeat_particles(cloud):
    x, weights = cloud(11, 2), torch.arange(1.0, 12.0, dtype=torch.float64)
    found = self_transport(x, 0.2, weights=weights, tol=1e-11)
    plan = joint(x, found, 0.2, weights)
    torch.testing.assert_close(plan.sum(0), weights / weights.sum(), rtol=1e-9, atol=0)
    # a particle of weight three is three particles in one place
    copies = torch.repeat_interleave(torch.arange(11), torch.arange(1, 12))
    repeated = self_transport(x[copies], 0.2, tol=1e-11)
    torch.testing.assert_close(repeated.potential, found.potential[copies], rtol=0, atol=1e-9)


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
def test_massless_particles_see_and_are_not_seen(cloud, lam):
    x = cloud(17, 2)
    weights = torch.ones(17, dtype=torch.float64)
    weights[:4] = 0
    found = self_transport(x, 0.3, weights=weights, tol=1e-11, lam=lam)
    without = self_transport(x[4:], 0.3, tol=1e-11, lam=lam)
    torch.testing.assert_close(found.potential[4:], without.potential, rtol=0, atol=1e-10)
    assert found.self_weight.item() == pytest.approx(without.self_weight.item(), abs=1e-10)
    # g = lam T(T(g)) holds for them too
    scores = found.potential[4:] - torch.cdist(x, x[4:]) ** 2 / 0.6 - torch.tensor(13.0).log()
    row = -scores.logsumexp(-1)
    scores = row[4:] - torch.cdist(x, x[4:]) ** 2 / 0.6 - torch.tensor(13.0).log()
    right = -lam * scores.logsumexp(-1)
    torch.testing.assert_close(found.potential, right, rtol=0, atol=1e-6)


@pytest.mark.parametrize("lam", [0.0, 0.4, 0.9, 1.0])
def test_lam_is_that_of_the_operator(cloud, lam):
    x, eps = cloud(31, 2), 0.5
    found = self_transport(x, eps, lam=lam, tol=1e-11, iters=2000)
    bias = -x.square().sum(-1)[None] / (2 * eps)
    theirs = bistoch.elastic_plan(x, x, lam=lam, eps=eps, scale=1.0, mask=bias, iters=500)
    ours = (found.potential - torch.cdist(x, x) ** 2 / (2 * eps)).softmax(-1)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_error_bounds_what_particles_receive_wrongly(cloud):
    x = cloud(41, 2)
    with pytest.warns(bistoch.ConvergenceWarning, match="self_transport: the error is"):
        found = self_transport(x, 0.05, iters=3)
    rows = (found.potential - torch.cdist(x, x) ** 2 / 0.1).softmax(-1)
    wrong = rows.sum(0).log().abs().max()
    assert not found.converged
    assert 1e-3 < wrong <= found.error


def test_two_steps_shrink_errors_seventeen_times(cloud):
    x, eps = cloud(101, 1), torch.tensor([0.02], dtype=torch.float64)
    cloud_ = Cloud(x, x[:1] * 0, torch.full((101,), -4.6, dtype=torch.float64), "reference")
    pairs = pair("test", x, cloud_, eps)
    limit = self_transport(x, 0.02, tol=1e-13).potential
    shape = cloud(101, seed=1)
    start = 1e-4 * (shape - shape.mean())
    base = _limit(pairs, limit)
    g = start + base
    for share in SHARES:
        g = g + share * (soft_minimum("test", pairs, g) - g)
    # in the norm in which the plan is symmetric; the plain average would leave a quarter
    assert (g - base).norm() < start.norm() / 16.5


def _limit(pairs, g):
    for _ in range(60):
        g = (g + soft_minimum("test", pairs, g)) / 2
    return g


def test_a_warm_start_is_taken_and_changes_nothing_else(cloud):
    x = cloud(37, 2)
    cold = self_transport(x, 0.1, tol=1e-9)
    warm = self_transport(x, 0.1, tol=1e-9, potential=cold.potential)
    assert warm.iterations == 1 < cold.iterations
    torch.testing.assert_close(warm.potential, cold.potential, rtol=0, atol=1e-8)


@pytest.mark.parametrize("backend", ["streaming", "cpu"])
def test_products_that_are_kept_change_nothing(cloud, backend, monkeypatch):
    x, weights = cloud(2, 37, 41), cloud(37, seed=1).exp()
    eps = torch.tensor([20.0, 60.0], dtype=torch.float64)
    options = {"weights": weights, "tol": 1e-10, "backend": backend}
    kept, seen = self_transport(x, eps, **options), barycentric_projection(x, eps, **options)
    monkeypatch.setattr("bistoch.functional.elastic.cpu.launch.WORKSPACE_BYTES", 0)
    again = self_transport(x, eps, **options)
    torch.testing.assert_close(kept.potential, again.potential, rtol=0, atol=1e-10)
    assert torch.equal(kept.iterations, again.iterations)
    torch.testing.assert_close(seen, barycentric_projection(x, eps, **options))


def test_self_weight_is_the_diagonal(cloud):
    x = cloud(23, 1)
    found = self_transport(x, 0.1, tol=1e-10)
    rows = (found.potential - torch.cdist(x, x) ** 2 / 0.2).softmax(-1)
    assert found.self_weight.item() == pytest.approx(rows.diagonal().mean().item(), rel=1e-8)
    # far apart, every particle sees itself alone
    assert self_transport(1e3 * x, 1e-3).self_weight.item() == pytest.approx(1, abs=1e-3)


def test_clouds_of_a_batch_do_not_feel_each_other(cloud):
    x = cloud(2, 3, 13, 2)
    eps = torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64).expand(2, 3)
    found = self_transport(x, eps, tol=1e-8)
    for i in range(2):
        for j in range(3):
            alone = self_transport(x[i, j], eps[i, j].item(), tol=1e-8)
            torch.testing.assert_close(found.potential[i, j], alone.potential)
            assert found.iterations[i, j] == alone.iterations


@pytest.mark.parametrize("backend", ["reference", "streaming", "cpu"])
def test_backends_agree(cloud, backend):
    x = cloud(43, 2)
    found = self_transport(x, 0.1, tol=1e-9, backend=backend)
    right = self_transport(x, 0.1, tol=1e-9, backend="reference")
    torch.testing.assert_close(found.potential, right.potential, rtol=0, atol=1e-10)


def test_far_from_the_origin_is_as_good_as_near(cloud):
    x = cloud(29, 2, dtype=torch.float32)
    near = self_transport(x, 0.1)
    far = self_transport(x + 1024, 0.1)
    torch.testing.assert_close(near.potential, far.potential, rtol=0, atol=2e-2)


def test_memory_stays_below_all_pairs(cloud):
    from bistoch.lab.bench.memory import allocated_by

    x = cloud(2003, 2, dtype=torch.float32)
    _, peak = allocated_by(lambda: self_transport(x, 0.5, tol=1e-2, backend="streaming"))
    assert peak < 4 * 2003**2
