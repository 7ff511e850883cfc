"""Point clouds: order and padding do not matter, and one balanced query is refused."""

import pytest
import torch

import bistoch
from bistoch.analysis import capture
from bistoch.models import PointConfig, PointTransformer, SetConfig, SetTransformer, build_model
from bistoch.models.points import OffsetBlock
from bistoch.models.sets import ISAB, PMA
from bistoch.nn import Attention, Sinkhorn


def sets(operator="softmax", **changes):
    config = {"classes": 3, "dim": 8, "heads": 2, "inducing": 5} | changes
    return SetTransformer(SetConfig(**config), operator).double().eval()


def points(operator="softmax"):
    config = PointConfig(classes=3, dim=8, heads=2, depth=2, summary=10)
    return PointTransformer(config, operator).double().eval()


OPERATORS = ["softmax", "sinkhorn(iters=7)", "elastic(lam=0.5)"]


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("make", [sets, points])
def test_the_order_of_points_does_not_matter(make, operator):
    model, cloud = make(operator), torch.randn(2, 13, 3).double()
    turned = model(cloud[:, torch.randperm(13)])
    torch.testing.assert_close(turned, model(cloud), atol=1e-12, rtol=0)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("make", [sets, points])
def test_padding_is_invisible(make, operator):
    model, cloud = make(operator), torch.randn(2, 13, 3).double()
    mask = torch.ones(2, 17, dtype=torch.bool)
    mask[:, 13:] = False
    padded = torch.cat([cloud, 100 * torch.randn(2, 4, 3).double()], 1)
    torch.testing.assert_close(model(padded, mask), model(cloud), atol=1e-12, rtol=0)
    mask[0] = False
    assert model(padded, mask).isfinite().all()


@pytest.mark.parametrize("operator", ["sinkhorn", "sliced"])
def test_one_balanced_query_would_be_the_mean(operator):
    plan = Attention(4, 1, operator).plan(torch.randn(1, 4), torch.randn(7, 4))
    torch.testing.assert_close(plan, torch.full((1, 1, 7), 1 / 7))


@pytest.mark.parametrize("lam", [0.0, 0.3, 0.7, 1.0])
def test_one_elastic_query_is_a_flatter_softmax(lam):
    """With one row, the price of uneven columns is one more entropy: lam is a temperature."""
    scores = 3 * torch.randn(1, 7).double()
    plan = bistoch.balance(scores, lam=lam, iters=200)
    torch.testing.assert_close(plan, ((1 - lam) * scores).softmax(-1))


@pytest.mark.parametrize("operator", ["sinkhorn", "elastic(learn='head')", "hard", "sliced"])
def test_one_balanced_query_is_refused(operator):
    name = operator.split("(")[0]
    with pytest.raises(ValueError, match=f"^PMA: seeds=1 leaves the balanced operator '{name}'"):
        PMA(8, 2, 1, operator)
    with pytest.raises(ValueError, match=r"^ISAB: inducing=1 .* the mean over points; use"):
        ISAB(8, 2, 1, operator)


def test_a_balanced_model_pools_by_what_it_learns():
    model = sets("sinkhorn(iters=50)")
    cloud = torch.randn(2, 13, 3).double()
    with torch.no_grad(), capture(model) as seen:
        model(cloud)
    plans = {plan.name: plan.plan for plan in seen.plans}
    collect, pool = plans["blocks.0.collect.attention"], plans["pool.collect.attention"]
    torch.testing.assert_close(collect.sum(-2), torch.full((2, 2, 13), 5 / 13).double())
    assert pool.shape == (2, 2, 1, 13)
    assert (pool - 1 / 13).abs().max() > 1e-3
    model(cloud).sum().backward()
    assert model.pool.collect.attention.query.weight.grad.abs().max() > 1e-6


def test_two_balanced_seeds_share_the_points_out():
    pool = PMA(8, 2, 2, Sinkhorn(iters=100)).double()
    cloud = torch.randn(3, 13, 8).double()
    plan = pool.collect.attention.plan(pool.seeds.expand(3, 2, 8), cloud)
    torch.testing.assert_close(plan.sum(-2), torch.full((3, 2, 13), 2 / 13).double())
    assert (plan - 1 / 13).abs().max() > 1e-3
    model = sets("sinkhorn", seeds=2, pooling="sinkhorn")
    assert model(torch.randn(2, 7, 3).double()).shape == (2, 3)


def test_balanced_differences_sum_to_zero():
    """The Laplacian of the offset block, its projections taken out."""
    block = OffsetBlock(8, 1, Sinkhorn(iters=300)).double()
    with torch.no_grad():
        for linear in (block.attention.value, block.attention.out):
            linear.weight.copy_(torch.eye(8))
            linear.bias.zero_()
    x = torch.randn(2, 11, 8).double()
    assert (x - block.attention(x)).sum(-2).abs().max() < 1e-9
    soft = OffsetBlock(8, 1, "softmax").double()
    soft.load_state_dict(block.state_dict())
    assert (x - soft.attention(x)).sum(-2).abs().max() > 1e-3


def test_the_published_set_transformer():
    with torch.device("meta"):
        model = build_model("set_sinkformer", "sinkhorn", classes=40)
    assert len(model.blocks) == 2
    assert model.blocks[0].inducing.shape == (16, 256)
    assert model.pool.seeds.shape == (1, 256)
    assert model.classify.out_features == 40


@pytest.mark.parametrize(("make", "name"), [(sets, "SetTransformer"), (points, "PointTransformer")])
def test_mistakes_are_told(make, name):
    with pytest.raises(ValueError, match=rf"{name}: .*\(batch, points, 3\).* \(2, 5, 4\); .*=4"):
        make()(torch.zeros(2, 5, 4).double())
    with pytest.raises(ValueError, match=f"{name}: points must have at least 3 axes"):
        make()(torch.zeros(5, 3).double())
