"""Registration: Kabsch's formula, the plans behind it, and clouds with known motions."""

import math

import pytest
import torch
from scipy.spatial.transform import Rotation

import bistoch
from bistoch.lab.registration import (
    Motion,
    angle,
    anneal,
    elastic,
    fit_motion,
    nearest,
    register,
    slack,
    turn,
)


@pytest.fixture
def clouds():
    generator = torch.Generator().manual_seed(0)
    source = torch.rand(3, 61, 3, generator=generator).double() * torch.tensor([2.0, 1.0, 0.5])
    axes = torch.randn(3, 3, generator=generator).double()
    motion = Motion(turn(axes, 0.4), torch.full((3, 1, 3), 0.3).double())
    order = torch.randperm(61, generator=generator)
    return source, motion(source)[:, order], motion


def test_rotations_are_those_of_scipy():
    axes = torch.randn(5, 3, dtype=torch.float64)
    unit = axes / axes.norm(dim=-1, keepdim=True)
    expected = torch.from_numpy(Rotation.from_rotvec((0.7 * unit).numpy()).as_matrix())
    torch.testing.assert_close(turn(axes, 0.7), expected)
    still = torch.eye(3, dtype=torch.float64).expand(5, 3, 3)
    torch.testing.assert_close(angle(expected, still), torch.full((5,), math.degrees(0.7)).double())


def test_the_motion_is_exact_and_never_a_reflection(clouds):
    source, _, motion = clouds
    weight = torch.rand(3, 61, dtype=torch.float64)
    found = fit_motion(source, motion(source), weight)
    torch.testing.assert_close(found.rotation, motion.rotation)
    torch.testing.assert_close(found.shift, motion.shift)
    mirrored = source * torch.tensor([1, 1, -1])
    turned = fit_motion(source, mirrored, weight).rotation
    torch.testing.assert_close(torch.linalg.det(turned), torch.ones(3, dtype=torch.float64))


def test_points_of_no_weight_do_not_count(clouds):
    source, _, motion = clouds
    goal, weight = motion(source), torch.ones(3, 61, dtype=torch.float64)
    goal[:, :7], weight[:, :7] = 50.0, 0.0
    torch.testing.assert_close(fit_motion(source, goal, weight).rotation, motion.rotation)


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_goals_are_means_under_the_elastic_plan(clouds, lam):
    source, target, _ = clouds
    goal, weight = elastic(lam, 7)(source, target, 0.2)
    scores = -torch.cdist(source, target).square() / (2 * 0.2**2)
    plan = bistoch.balance(scores, lam=lam, iters=7)
    torch.testing.assert_close(goal, plan @ target)
    assert (weight == 1).all()


def test_slack_is_the_plan_with_prices_of_zero_at_its_reach(clouds):
    source, target, _ = clouds
    scores = (0.5**2 - torch.cdist(source, target).square()) / (2 * 0.2**2)
    f, g = torch.zeros(3, 61, 1).double(), torch.zeros(3, 1, target.shape[1]).double()
    for _ in range(4):
        # a score of zero beside all others is the price of staying single
        f = -torch.cat([scores + g, torch.zeros_like(f)], -1).logsumexp(-1, keepdim=True)
        g = -torch.cat([scores + f, torch.zeros_like(g)], -2).logsumexp(-2, keepdim=True)
    plan = (scores + f + g).exp()
    goal, weight = slack(0.5, 4)(source, target, 0.2)
    torch.testing.assert_close(weight, plan.sum(-1))
    torch.testing.assert_close(goal * weight[..., None], plan @ target)


def test_slack_leaves_what_is_out_of_reach(clouds):
    source, target, motion = clouds
    source = motion(source)
    source[:, 0] += 9.0
    goal, weight = slack(0.2, 50)(source, target, 0.05)
    assert weight[:, 0].max() < 1e-6
    assert goal.isfinite().all()
    assert weight[:, 1:].min() > 0.5


@pytest.mark.parametrize("assign", [elastic(0.0), elastic(1.0), slack(0.5)])
def test_known_motions_are_found(clouds, assign):
    source, target, motion = clouds
    found = register(source, target, assign, anneal(0.5, 0.02, 20))
    assert angle(found.rotation, motion.rotation).max() < 0.5
    torch.testing.assert_close(found(source), motion(source), atol=0.02, rtol=0)


def test_nearest_points_end_a_registration_that_is_almost_done(clouds):
    source, target, motion = clouds
    moved = motion(source) + 0.001
    found = register(moved, target, nearest, [0.0] * 5)
    torch.testing.assert_close(found(moved), motion(source), atol=1e-4, rtol=0)
