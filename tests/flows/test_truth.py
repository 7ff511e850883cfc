"""Mixtures against autograd, quadrature and scipy; distances against POT and known answers."""

import math

import ot
import pytest
import torch
from scipy import optimize, stats

from bistoch.flows import (
    flow_variance,
    gaussian_mixture,
    self_transport_slope,
    step_variance,
    two_bumps,
    w2_exact,
    w2_line,
    w2_sliced,
    w2_to_law,
)


@pytest.fixture
def plane():
    a = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    b = torch.tensor([[0.3, 0.0], [0.0, 0.7]], dtype=torch.float64)
    return gaussian_mixture([1.0, 3.0], [[0.0, 1.0], [2.0, -1.0]], torch.stack((a, b)))


def test_density_is_that_of_scipy(plane, cloud):
    x = cloud(5, 2)
    right = sum(
        w.item() * stats.multivariate_normal(m.numpy(), c.numpy()).pdf(x.numpy())
        for w, m, c in zip(plane.weights, plane.means, plane.covariances, strict=True)
    )
    torch.testing.assert_close(plane.density(x), torch.from_numpy(right))


def test_score_is_the_gradient_and_heat_is_the_heat_equation(plane, cloud):
    x = cloud(5, 2).requires_grad_()
    (gradient,) = torch.autograd.grad(plane.log_density(x).sum(), x)
    torch.testing.assert_close(plane.score(x), gradient)
    # d rho/dt against half the laplacian
    h = 1e-4
    change = (plane.after(0.5 + h).density(x) - plane.after(0.5 - h).density(x)) / (2 * h)
    later = plane.after(0.5)
    (slope,) = torch.autograd.grad(later.density(x).sum(), x, create_graph=True)
    laplacian = sum(torch.autograd.grad(slope[:, k].sum(), x, retain_graph=True)[0][:, k]
                    for k in range(2))  # fmt: skip
    torch.testing.assert_close(change, laplacian / 2, rtol=1e-5, atol=1e-9)


def test_samples_have_the_moments(plane):
    x = plane.after(0.4).sample(40_000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(x.mean(0), plane.mean, rtol=0, atol=0.03)
    torch.testing.assert_close(x.T.cov(), plane.after(0.4).covariance, rtol=0, atol=0.06)


def test_quantiles_invert_the_cdf_and_carry_is_the_probability_flow():
    law = two_bumps()
    shares = torch.tensor([1e-9, 0.01, 0.3, 0.5, 0.99], dtype=torch.float64)
    torch.testing.assert_close(law.cdf(law.quantile(shares)), shares)
    assert law.quantiles(7).shape == (7, 1)
    # dx/dt = -score/2, by small steps
    x = torch.tensor([-3.0, -0.1, 2.5], dtype=torch.float64)
    y, count = x.clone(), 400
    for k in range(count):
        middle = law.after((k + 0.5) * 0.5 / count)
        half = y - 0.25 / count * middle.score(y[:, None])[:, 0] / 2
        y = y - 0.5 / count * middle.score(half[:, None])[:, 0] / 2
    torch.testing.assert_close(law.carry(x, 0.5), y, rtol=0, atol=1e-5)
    # far to the right, where the share to the left is one in float64
    far = torch.tensor([11.0, 15.0], dtype=torch.float64)
    torch.testing.assert_close(law.carry(far, 1.0), -law.carry(-far, 1.0))


def test_mixture_mistakes(plane):
    with pytest.raises(ValueError, match="one entry per part"):
        gaussian_mixture([1.0], [0.0, 1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="must be positive"):
        gaussian_mixture([1.0], [0.0], [-1.0])
    with pytest.raises(ValueError, match="must be finite"):
        gaussian_mixture([1.0], [math.nan], [1.0])
    with pytest.raises(ValueError, match="and covariances symmetric"):
        gaussian_mixture([1.0], [[0.0, 0.0]], torch.tensor([[[1.0, 0.9], [0.0, 1.0]]]))
    with pytest.raises(ValueError, match="one entry per part"):
        gaussian_mixture([], [], [])
    with pytest.raises(ValueError, match="must have 2 coordinates"):
        plane.score(torch.zeros(3))
    with pytest.raises(ValueError, match="count must be at least 1"):
        plane.sample(0)
    with pytest.raises(ValueError, match="on the line only"):
        plane.cdf(torch.zeros(3))
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        two_bumps().quantile(torch.tensor([0.0]))


def test_slope_solves_the_fixed_point():
    eps, v = 0.3, 1.7
    for lam in (0.0, 0.2, 0.7, 0.999999999):
        slope = self_transport_slope(v, eps, lam).item()
        p = (1 / slope - 1) / eps
        f = 1 / (eps + 1 / p)
        q = 1 / v - f
        assert 1 / v - p == pytest.approx(lam / (eps + 1 / q), rel=1e-6)
    exact = self_transport_slope(v, eps).item()
    assert self_transport_slope(v, eps, 1 - 1e-12).item() == pytest.approx(exact, abs=1e-9)
    assert self_transport_slope(v, eps, 0.0).item() == pytest.approx(v / (v + eps))


def test_flow_of_variances():
    assert flow_variance(1.0, 2.0, 0.1)[-1] == pytest.approx(2.9991, abs=5e-5)
    assert len(flow_variance(1.0, 1.0, 0.3)) == 5
    with pytest.raises(ValueError, match="variance must be a variance, finite and not negative"):
        step_variance(-1.0, 0.1)
    with pytest.raises(ValueError, match="flow_variance: eps must be positive"):
        flow_variance(1.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="flow_variance: time must be"):
        flow_variance(1.0, -1.0, 0.1)
    # clusters: the inverse direction shrinks
    assert step_variance(1.0, 0.1, direction="cluster") < 1 < step_variance(1.0, 0.1)


def test_distances_on_the_line(cloud):
    x, y = cloud(13), cloud(17, seed=1)
    a, b = cloud(13, seed=2).exp(), cloud(17, seed=3).exp()
    a, b = a / a.sum(), b / b.sum()
    right = ot.emd2_1d(*(tensor.numpy() for tensor in (x, y, a, b)), metric="sqeuclidean") ** 0.5
    assert w2_line(x, y, a, b) == pytest.approx(right, rel=1e-9)
    assert w2_line(x, x) == 0
    law = gaussian_mixture([1.0], [0.0], [1.0])
    # two laws of one family: between standard deviations
    many = 3 * law.quantiles(2000)
    assert w2_to_law(many, law.quantile) == pytest.approx(2.0, rel=2e-3)


def test_distances_in_space(cloud):
    x, y = cloud(23, 3), cloud(23, 3, seed=1) + 2
    cost = ot.dist(x.numpy(), y.numpy())
    rows, columns = optimize.linear_sum_assignment(cost)
    assert w2_exact(x, y) == pytest.approx((cost[rows, columns].mean()) ** 0.5, rel=1e-9)
    shift = torch.tensor([3.0, 0.0, 4.0], dtype=torch.float64)
    assert w2_exact(x, x + shift) == pytest.approx(5.0)
    generator = torch.Generator().manual_seed(0)
    sliced = w2_sliced(x, x + shift, projections=4000, generator=generator)
    assert sliced == pytest.approx(5 / 3**0.5, rel=0.03)
    # sizes may differ
    doubled = torch.cat((x, x))
    assert w2_sliced(x, doubled, generator=generator) == pytest.approx(0, abs=1e-7)
    with pytest.raises(ValueError, match="use w2_sliced"):
        w2_exact(torch.zeros(5000, 1), torch.zeros(5000, 1))
    with pytest.raises(ValueError, match="must be a list of numbers"):
        w2_line(x, y)


def test_distances_are_between_single_clouds(cloud):
    for first in (cloud(0, 2), cloud(2, 3, 2)):
        second = cloud(*first.shape[:-2], 5, 2)
        for distance in (w2_exact, w2_sliced):
            with pytest.raises(ValueError, match="must be one cloud with a particle or more"):
                distance(first, second)
    with pytest.raises(ValueError, match="projections must be at least 1"):
        w2_sliced(cloud(3, 2), cloud(3, 2), projections=0)
