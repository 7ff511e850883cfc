"""The bridge between two clouds against POT and against Gaussians."""

import ot
import pytest
import torch

import bistoch
from bistoch.flows import (
    bridge_covariance,
    bridge_variance,
    gaussian_mixture,
    schrodinger_bridge,
    self_transport,
)


def test_arrival_and_origin_are_those_of_pot(cloud):
    x, y = cloud(13, 2), cloud(17, 2, seed=1) + 1
    a, b = cloud(13, seed=2).exp(), cloud(17, seed=3).exp()
    a, b = a / a.sum(), b / b.sum()
    cost = torch.cdist(x, y) ** 2 / 2
    plan = ot.bregman.sinkhorn_log(a, b, cost, 0.5, stopThr=1e-13, numItermax=100_000)
    bridge = schrodinger_bridge(x, y, 0.5, source_weights=a, target_weights=b, tol=1e-10)
    torch.testing.assert_close(bridge.arrival(), plan @ y / a[:, None], rtol=0, atol=1e-8)
    torch.testing.assert_close(bridge.origin(), plan.T @ x / b[:, None], rtol=0, atol=1e-8)


def test_equal_weights_are_no_weights(cloud):
    x, y = cloud(2, 11, 3), cloud(2, 7, 3, seed=1)
    plain = schrodinger_bridge(x, y, 0.7, tol=1e-10)
    even = schrodinger_bridge(x, y, 0.7, source_weights=torch.ones(11), tol=1e-10)
    torch.testing.assert_close(plain.arrival(), even.arrival(), rtol=0, atol=1e-8)
    torch.testing.assert_close(plain.origin(), even.origin(), rtol=0, atol=1e-8)
    assert plain.converged.all()
    assert even.converged.all()


def test_bridge_to_itself_is_the_self_transport(cloud):
    x = cloud(19, 2)
    bridge = schrodinger_bridge(x, x, 0.4, tol=1e-11)
    g = self_transport(x, 0.4, tol=1e-11).potential
    both = bridge.row[:, None] + bridge.column
    torch.testing.assert_close(both, g[:, None] + g, rtol=0, atol=1e-8)


def test_gaussians_on_the_way():
    eps, n = 0.8, 400
    x = gaussian_mixture([1.0], [0.0], [1.0]).quantiles(n)
    y = gaussian_mixture([1.0], [3.0], [4.0]).quantiles(n)
    bridge = schrodinger_bridge(x, y, eps, tol=1e-7)
    slope = ((bridge.arrival() - 3) * x).mean() / x.square().mean()
    assert slope.item() == pytest.approx(bridge_covariance(1.0, 4.0, eps), rel=0.01)
    for t in (0.0, 0.3, 0.5, 1.0):
        places = bridge.sample(t, 20_000, generator=torch.Generator().manual_seed(0))
        assert places.mean().item() == pytest.approx(3 * t, abs=0.06)
        assert places.var().item() == pytest.approx(bridge_variance(1.0, 4.0, eps, t), rel=0.04)


def test_displacement_begins_at_the_source(cloud):
    x, y = cloud(7, 2), cloud(5, 2, seed=1)
    bridge = schrodinger_bridge(x, y, 0.5)
    torch.testing.assert_close(bridge.displacement(0.0), x)
    torch.testing.assert_close(bridge.displacement(1.0), bridge.arrival())


def test_sampling_keeps_leading_axes_and_massless_particles_apart(cloud):
    x, y = cloud(2, 3, 7, 2), cloud(2, 3, 5, 2, seed=1)
    weights = torch.ones(5)
    weights[0] = 0
    y[..., 0, :] = 100.0
    bridge = schrodinger_bridge(x, y, 0.5, target_weights=weights)
    places = bridge.sample(1.0, 50, generator=torch.Generator().manual_seed(0))
    assert places.shape == (2, 3, 50, 2)
    assert places.max() < 50
    assert bridge.sample(0.5, 0).shape == (2, 3, 0, 2)


def test_short_numbers_come_back_and_empty_clouds_have_empty_ends(cloud):
    x, y = cloud(7, 2, dtype=torch.float16), cloud(5, 2, seed=1, dtype=torch.float16)
    bridge = schrodinger_bridge(x, y, 0.5)
    ends = (bridge.arrival(), bridge.origin(), bridge.displacement(0.5), bridge.sample(0.5, 3))
    assert {end.dtype for end in ends} == {torch.float16}
    empty = schrodinger_bridge(cloud(0, 2), cloud(5, 2), 0.5)
    assert empty.arrival().shape == (0, 2)
    assert empty.origin().shape == (5, 2)
    with pytest.raises(ValueError, match=r"Bridge\.sample: count must be 0"):
        empty.sample(0.5, 3)


def test_mistakes_and_missed_tolerances(cloud):
    x, y = cloud(7, 2), cloud(5, 3)
    with pytest.raises(ValueError, match="source and target must agree"):
        schrodinger_bridge(x, y, 0.5)
    with pytest.warns(bistoch.ConvergenceWarning, match="schrodinger_bridge: the error"):
        schrodinger_bridge(x, cloud(5, 2), 0.01, source_weights=torch.ones(7), iters=1)
    with pytest.raises(ValueError, match="t must be in"):
        schrodinger_bridge(x, x, 0.5).displacement(1.5)
