"""The heat flow against what is known: Gaussians, invariances, orders, and degenerate clouds."""

import math

import pytest
import torch

import bistoch
import bistoch.flows.cloud as cloud_module
from bistoch.flows import (
    FrozenWarning,
    barycentric_projection,
    flow_variance,
    gaussian_mixture,
    heat_flow,
    heat_step,
    score_estimate,
    self_transport_slope,
    step_variance,
    two_bumps,
    w2_line,
    w2_to_law,
)


def last(states):
    return list(states)[-1]


def normal(variance=1.0):
    return gaussian_mixture([1.0], [0.0], [variance])


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("direction", ["heat", "cluster"])
def test_one_step_of_a_gaussian_tends_to_the_closed_form(lam, direction):
    errors = []
    for n in (101, 401):
        x = normal().quantiles(n)
        moved = heat_step(x, 0.5, lam=lam, direction=direction, tol=1e-8, iters=1000)
        slope = self_transport_slope(1.0, 0.5, lam)
        right = x * (slope if direction == "cluster" else 2 - slope)
        middle = slice(n // 10, n - n // 10)
        errors.append((moved - right)[middle].abs().max().item())
    # quantiles approach the law like 1/n, up to its tails
    assert errors[1] < errors[0] / 2
    assert errors[1] < 4e-3


def test_one_step_in_more_dimensions_moves_each_axis_by_its_own_variance():
    generator = torch.Generator().manual_seed(0)
    covariance = torch.tensor([[2.0, 0.6], [0.6, 0.5]], dtype=torch.float64)
    x = gaussian_mixture([1.0], [[1.0, -3.0]], covariance[None]).sample(1500, generator=generator)
    moved = heat_step(x, 0.5, tol=1e-6)
    # the closed form of the cloud's own covariance
    values, axes = torch.linalg.eigh(x.T.cov())
    right = axes @ torch.diag(step_variance(values, 0.5)) @ axes.T
    torch.testing.assert_close(moved.T.cov(), right, rtol=0.02, atol=0.02)
    torch.testing.assert_close(moved.mean(0), x.mean(0), rtol=0, atol=1e-5)


def test_variance_grows_by_the_time():
    generator = torch.Generator().manual_seed(0)
    x = normal().sample(600, generator=generator)
    x = (x - x.mean()) / x.std(correction=0)
    end = last(heat_flow(x, 2.0, 0.1))
    assert end.time == pytest.approx(2.0)
    assert end.particles.var(correction=0).item() == pytest.approx(3.0, rel=0.015)
    assert flow_variance(1.0, 2.0, 0.1)[-1] == pytest.approx(3.0, rel=0.001)


def test_the_published_cost_without_its_half_goes_at_half_the_speed():
    # |x - y|² / eps is our cost at half the temperature, moved as if it were the whole
    x = normal().quantiles(300)
    for _ in range(20):
        x = 2 * x - barycentric_projection(x, 0.05)
    assert x.var().item() == pytest.approx(2.0, rel=0.02)


def test_mixture_is_carried_as_well_as_sampling_allows():
    law, n = two_bumps(), 301
    x = law.sample(n, generator=torch.Generator().manual_seed(1))
    end = last(heat_flow(x, 0.5, 0.05))
    truth = law.after(0.5)
    ours = w2_to_law(end.particles, truth.quantile)
    draws = [truth.sample(n, generator=torch.Generator().manual_seed(s))[:, 0] for s in range(20)]
    sampled = sorted(w2_to_law(draw, truth.quantile) for draw in draws)
    assert ours < sampled[-2]
    # and particle by particle, along the flow of the law
    assert w2_line(end.particles, law.carry(x[:, 0], 0.5)) < sampled[-2]


def test_the_error_of_one_step_is_of_third_order():
    # the variance gains eps - eps³/8 instead of eps
    steps = torch.tensor([0.2, 0.1, 0.05, 0.025], dtype=torch.float64)
    gaps = torch.stack([1 + eps - step_variance(1.0, eps.item()) for eps in steps])
    torch.testing.assert_close(gaps, steps**3 / 8, rtol=0.06, atol=0)
    # mean-shift, at twice the speed, is of second order
    gaps = torch.stack([1 + 2 * e - step_variance(1.0, e.item(), lam=0.0) for e in steps])
    assert 1.8 < (gaps[-2] / gaps[-1]).log2() < 2.2


def test_score_error_falls_with_n():
    law, eps = normal(), 0.2
    at = torch.linspace(-1, 1, 9, dtype=torch.float64)[:, None]
    right = at * (self_transport_slope(1.0, eps) - 1) / eps
    errors = []
    for n in (60, 960):
        squares = []
        for seed in range(8):
            x = law.sample(n, generator=torch.Generator().manual_seed(seed))
            squares.append((score_estimate(x, eps, at=at) - right).square().mean())
        errors.append(torch.stack(squares).mean().sqrt().item())
    # sixteen times as many particles: a quarter of the error
    assert 0.12 < errors[1] / errors[0] < 0.45


def test_score_bias_is_of_first_order_in_eps():
    x, at = normal().quantiles(1200), torch.tensor([[0.8]], dtype=torch.float64)
    gaps = [score_estimate(x, eps, at=at, tol=1e-8).item() + 0.4 for eps in (0.4, 0.2)]
    assert gaps[0] / gaps[1] == pytest.approx(2, rel=0.1)
    # and its size is eps/8 times x, by the closed form
    assert gaps[1] == pytest.approx(0.8 * 0.2 / 8, rel=0.1)


def test_lam_zero_is_mean_shift(cloud):
    x = cloud(19, 3)
    kernel = (-(torch.cdist(x, x) ** 2) / (2 * 0.7)).softmax(-1)
    torch.testing.assert_close(barycentric_projection(x, 0.7, lam=0.0), kernel @ x)


@pytest.mark.parametrize("direction", ["heat", "cluster"])
def test_balanced_flow_keeps_the_weighted_mean_and_follows_motions(cloud, direction):
    x, weights = cloud(31, 3), cloud(31, seed=1).exp()
    turn = torch.linalg.qr(cloud(3, 3, seed=2)).Q
    shift = torch.tensor([5.0, -1.0, 2.0], dtype=torch.float64)
    options = {"direction": direction, "weights": weights, "tol": 1e-11}
    moved = heat_step(x, 0.3, **options)
    torch.testing.assert_close(weights @ moved, weights @ x, rtol=0, atol=1e-8)
    elsewhere = heat_step(x @ turn + shift, 0.3, **options)
    torch.testing.assert_close(elsewhere, moved @ turn + shift, rtol=0, atol=1e-8)
    # lengths and temperature in other units
    torch.testing.assert_close(heat_step(3 * x, 2.7, **options), 3 * moved, rtol=0, atol=1e-8)


def test_projection_elsewhere_agrees_on_the_particles(cloud):
    x = cloud(23, 2)
    inside = barycentric_projection(x, 0.2, tol=1e-9)
    torch.testing.assert_close(barycentric_projection(x, 0.2, at=x, tol=1e-9), inside)
    assert barycentric_projection(x, 0.2, at=x[:5] + 1).shape == (5, 2)


def test_flow_counts_its_steps_and_goes_on_from_a_state(cloud):
    x = cloud(29, 1)
    states = list(heat_flow(x, 1.0, 0.3, tol=1e-9))
    assert [(s.step, s.steps) for s in states] == [(k, 4) for k in range(5)]
    assert states[-1].time == pytest.approx(1.0)
    torch.testing.assert_close(states[0].particles, x)
    half = states[2]
    rest = last(heat_flow(half.particles, 0.5, 0.25, potential=half.potential, tol=1e-9))
    torch.testing.assert_close(rest.particles, states[-1].particles, rtol=0, atol=1e-7)


def test_warm_starts_save_work(cloud):
    x = two_bumps().quantiles(101)
    states = list(heat_flow(x, 0.3, 0.02))
    assert states[-1].iterations < states[1].iterations / 2


def test_eps_below_the_spacing_freezes_and_says_so():
    x = normal().quantiles(50)
    with pytest.warns(FrozenWarning, match="frozen by its spacing") as caught:
        end = last(heat_flow(x, 1e-3, 1e-4))
    assert len(caught) == 1
    assert end.self_weight > 0.5
    # heat would have added 1e-3 to the variance
    assert (end.particles.var() - x.var()).item() < 7e-4


def test_a_tolerance_that_is_missed_warns_once(cloud):
    with pytest.warns(bistoch.ConvergenceWarning, match="heat_flow: the error") as caught:
        states = list(heat_flow(cloud(37, 1), 1.0, 0.25, iters=1, tol=1e-12))
    assert len(caught) == 1
    assert not any(state.converged for state in states[1:])


def test_degenerate_clouds():
    same = torch.full((7, 2), 0.1, dtype=torch.float64)
    assert torch.equal(last(heat_flow(same, 1.0, 0.5)).particles, same)
    assert torch.equal(score_estimate(same, 1e-9), torch.zeros(7, 2, dtype=torch.float64))
    one = torch.tensor([[3.0, 4.0]])
    assert torch.equal(last(heat_flow(one, 1.0, 0.5)).particles, one)
    empty = torch.zeros(0, 3)
    assert last(heat_flow(empty, 1.0, 0.5)).particles.shape == (0, 3)
    assert last(heat_flow(torch.zeros(0, 5, 3), 1.0, 0.5)).particles.shape == (0, 5, 3)
    # duplicates move together
    pairs = torch.tensor([[0.0], [0.0], [1.0]])
    moved = heat_step(pairs, 0.3)
    assert torch.equal(moved[0], moved[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_short_numbers_are_computed_in_float32(cloud, dtype):
    x = cloud(53, 2, dtype=dtype)
    moved = heat_step(x, 0.5)
    assert moved.dtype == dtype
    right = heat_step(x.double(), 0.5)
    allowed = torch.finfo(dtype).eps * 8 if dtype != torch.float32 else 2e-4
    torch.testing.assert_close(moved.double(), right, rtol=allowed, atol=allowed)


def test_huge_masses_are_as_good_as_small_ones(cloud):
    x = cloud(7, 2, dtype=torch.float32)
    for mass in (1e-40, 3e38):
        found = heat_step(x, 0.5, weights=torch.full((7,), mass))
        torch.testing.assert_close(found, heat_step(x, 0.5))


def test_huge_eps_looks_at_the_mean(cloud):
    x = cloud(13, 2)
    torch.testing.assert_close(barycentric_projection(x, 1e300), x.mean(0).expand(13, 2))
    assert score_estimate(x, 1e300).abs().max() < 1e-299


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"particles": torch.tensor([[1.0], [math.nan]])}, "particles must be finite, but 1 of"),
        ({"particles": torch.zeros(3)}, "must have at least 2 axes"),
        ({"eps": 0.0}, "eps must be positive"),
        ({"eps": 1e-30}, "eps is too small for this cloud"),
        ({"lam": 1.5}, "lam must be in"),
        ({"weights": torch.tensor([1.0, -1.0])}, "not negative, but its smallest entry is -1"),
        ({"weights": torch.zeros(2)}, "must leave every cloud some mass"),
        ({"weights": torch.ones(3)}, r"one mass per particle, \(2,\), but its shape is \(3,\)"),
        ({"potential": torch.zeros(3)}, "potential must hold one finite number per particle"),
        ({"potential": torch.full((2,), math.inf)}, "particle, but 2 are NaN or infinite"),
        ({"eps": 1e-40, "particles": torch.tensor([[0.0], [1e-25]])}, "eps must lie between 1.18e"),
        ({"direction": "back"}, "direction must be one of 'heat', 'cluster'"),
        ({"tol": 0.0}, "tol must be a positive number"),
        ({"iters": 0}, "iters must be at least 1"),
    ],
)
def test_mistakes_are_one_sentence(change, sentence):
    options = {"particles": torch.tensor([[0.0], [1.0]]), "eps": 0.5} | change
    particles, eps = options.pop("particles"), options.pop("eps")
    with pytest.raises(ValueError, match=sentence) as caught:
        heat_step(particles, eps, **options)
    assert str(caught.value).startswith("heat_step: ")


def test_points_to_look_from_are_checked(cloud):
    x = cloud(7, 2)
    for at in (cloud(3, 3), cloud(3, 2).float(), cloud(1, 3, 2)):
        with pytest.raises(ValueError, match="particles and at must agree in everything but"):
            barycentric_projection(x, 0.5, at=at)
    with pytest.raises(TypeError, match="score_estimate: at must be a torch"):
        score_estimate(x, 0.5, at=[[0.0, 0.0]])
    with pytest.raises(ValueError, match="at must be finite"):
        score_estimate(x, 0.5, at=torch.full((1, 2), math.inf, dtype=torch.float64))


def test_no_gradients_flow(cloud):
    x = cloud(7, 2).requires_grad_()
    assert not heat_step(x, 0.5).requires_grad
    assert not any(state.particles.requires_grad for state in heat_flow(x, 10.0, 5.0))


def test_time_is_checked_before_the_first_state():
    with pytest.raises(ValueError, match="heat_flow: time must be zero or positive"):
        heat_flow(torch.zeros(2, 1), -1.0, 0.1)
    assert [s.step for s in heat_flow(torch.zeros(2, 1), 0.0, 0.1)] == [0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"lam": 2.0}, "lam must be in"),
        ({"tol": -1.0}, "tol must be a positive number"),
        ({"weights": torch.zeros(2)}, "must leave every cloud some mass"),
        ({"eps": torch.ones(2)}, r"eps must broadcast to the leading axes \*b = \(\)"),
        ({"eps": 1e-30}, "eps is too small for this cloud"),
    ],
)
def test_a_flow_is_checked_before_the_first_state(change, sentence):
    options = {"eps": 0.5} | change
    with pytest.raises(ValueError, match=f"heat_flow: .*{sentence}"):
        heat_flow(torch.tensor([[0.0], [1.0]]), 1.0, **options)
    with pytest.raises(TypeError, match="heat_flow: eps must be a number"):
        heat_flow(torch.zeros(2, 1), 1.0, "0.1")


def test_a_flow_is_checked_once(cloud, monkeypatch):
    checked = []
    check = cloud_module.check_cloud
    monkeypatch.setattr(cloud_module, "check_cloud", lambda *a: (checked.append(a), check(*a)))
    states = list(heat_flow(cloud(17, 2), 1.0, 0.25, weights=torch.ones(17), direction="cluster"))
    assert len(states) == 5
    assert len(checked) == 1
