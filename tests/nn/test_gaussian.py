"""A layer for Gaussian tokens: two streams through one plan."""

import pytest
import torch
from torch.nn.functional import elu

import bistoch
from bistoch.nn import GaussianAttention


def gaussian(*shape):
    return bistoch.Gaussian(torch.randn(*shape), torch.rand(*shape))


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_both_streams_go_through_one_plan(lam):
    layer, tokens = GaussianAttention(12, heads=3, lam=lam), gaussian(2, 5, 12)
    found, plan = layer(tokens), layer.plan(tokens)
    assert plan.shape == (2, 3, 5, 5)
    torch.testing.assert_close(plan.sum(-1), torch.ones(2, 3, 5))
    value = layer.mean["value"](tokens.mean).unflatten(-1, (3, 4)).transpose(1, 2)
    spread = (elu(layer.variance["value"](tokens.variance)) + 1).unflatten(-1, (3, 4))
    mean = (plan @ value).transpose(1, 2).flatten(-2)
    variance = (plan.square() @ spread.transpose(1, 2)).transpose(1, 2).flatten(-2)
    torch.testing.assert_close(found.mean, layer.mean["out"](mean), atol=1e-5, rtol=1e-4)
    wanted = elu(layer.variance["out"](variance)) + 1
    torch.testing.assert_close(found.variance, wanted, atol=1e-5, rtol=1e-4)


def test_the_projections_are_doubled_and_all_learn():
    layer, tokens = GaussianAttention(8, heads=2), gaussian(2, 5, 8)
    assert sum(p.numel() for p in layer.parameters()) == 2 * 4 * (8 * 8 + 8)
    found = layer(tokens)
    (found.mean.square().sum() + found.variance.square().sum()).backward()
    assert all(p.grad.any() for p in layer.parameters())
    assert (found.variance > 0).all()


def test_cross_attention_masks_and_padding():
    layer, tokens, memory = GaussianAttention(8, heads=2), gaussian(2, 5, 8), gaussian(2, 7, 8)
    assert layer(tokens, memory).mean.shape == (2, 5, 8)
    real = torch.arange(5) < torch.tensor([5, 3])[:, None]
    padded = layer(tokens, query_mask=real)
    alone = layer(bistoch.Gaussian(*(x[1:, :3] for x in tokens)))
    for with_padding, without in zip(padded, alone, strict=True):
        torch.testing.assert_close(with_padding[1:, :3], without)
    hidden = torch.ones(5, 7, dtype=torch.bool)
    hidden[:, 2] = False
    assert not layer.plan(tokens, memory, mask=hidden)[..., 2].any()


def test_an_elasticity_per_head_is_part_of_the_layer():
    layer = GaussianAttention(8, heads=2, lam=torch.tensor([0.0, 1.0]), iters=100)
    assert "lam" in layer.state_dict()
    columns = layer.plan(gaussian(2, 5, 8)).sum(-2)
    assert (columns[:, 1] - 1).abs().max() < 1e-4 < (columns[:, 0] - 1).abs().max()


def test_mistakes_are_told():
    with pytest.raises(ValueError, match="GaussianAttention: dim must be divisible by heads"):
        GaussianAttention(8, heads=3)
    layer = GaussianAttention(8, heads=2)
    with pytest.raises(TypeError, match=r"query must be a bistoch\.Gaussian .* it is a Tensor"):
        layer(torch.randn(2, 5, 8))
    with pytest.raises(ValueError, match=r"query\.variance must have 8 features"):
        layer(bistoch.Gaussian(torch.randn(2, 5, 8), torch.rand(2, 5, 6)))
