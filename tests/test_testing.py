"""The leak test: kept by every causal row of the table, and failed by what leaks."""

import pytest
import torch

import bistoch
from bistoch.testing import assert_causal

N = 13
PAST = torch.ones(N, N, dtype=torch.bool).tril()
CAUSAL = [row for row in bistoch.OPERATORS.values() if row.causal]


def attend(row, **options):
    # an operator that takes no mask over pairs is causal by itself
    hidden = {"mask": PAST} if row.masks == "any" else {}
    options = dict(row.small) | hidden | options
    return lambda q, k, v: row.attention(q, k, v, **options)


@pytest.mark.parametrize("row", CAUSAL, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_causal_row_is_causal(row, dtype):
    tokens = torch.randn(3, 2, N, 5, dtype=dtype).unbind()
    assert_causal(attend(row), *tokens)


def test_causal_elastic_needs_no_mask():
    assert_causal(lambda q, k, v: bistoch.causal_elastic_attention(q, k, v, block=3))
    # blocks that are long, and one that ends beyond the tokens
    tokens = torch.randn(3, 2, 100, 5).unbind()
    for at in (1, 63, 64, 65, 99):
        assert_causal(bistoch.causal_elastic_attention, *tokens, at=at)


@pytest.mark.parametrize("name", ["sinkhorn", "elastic", "anneal"])
def test_masked_balance_leaks(name):
    row = bistoch.OPERATORS[name]
    with pytest.raises(AssertionError, match="the future leaks into it"):
        assert_causal(attend(row))
    with pytest.raises(AssertionError, match=r"result \d changed by .* when the tokens from \d on"):
        assert_causal(attend(row, iters=1), gradient=False)


def test_a_leak_through_the_gradient_alone_is_found():
    class Leak(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, slope):
            return slope + slope.sum(-2, keepdim=True)

    tokens = torch.randn(2, N, 3)
    assert_causal(lambda x: Leak.apply(x), tokens, gradient=False)
    with pytest.raises(AssertionError, match="gradient of up to"):
        assert_causal(lambda x: Leak.apply(x), tokens)


def test_any_axis_and_any_place():
    tokens = torch.randn(N, 2)
    assert_causal(lambda x: x.cumsum(0), tokens, axis=0)
    with pytest.raises(AssertionError, match="when the tokens from 7 on"):
        assert_causal(lambda x: x.flip(0).cumsum(0).flip(0), tokens, axis=0, at=7)


def test_what_cannot_be_asked_is_said():
    with pytest.raises(ValueError, match="one per token"):
        assert_causal(lambda q, k, v: q.sum(-2, keepdim=True))
    with pytest.raises(ValueError, match="pass gradient=False"):
        assert_causal(lambda q, k, v: q.detach())
    with pytest.raises(TypeError, match="must be a floating-point tensor"):
        assert_causal(lambda x: x, torch.ones(3, 2, dtype=torch.int64))
