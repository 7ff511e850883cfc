"""Masks of layers: very low numbers, other dtypes, and padding that is told for keys alone."""

import pytest
import torch

import bistoch


@pytest.mark.parametrize("operator", ["softmax", "elastic(lam=0.5)", "sinkhorn", "sliced"])
@pytest.mark.parametrize("low", [-1e4, -1e9, torch.finfo(torch.float32).min, -torch.inf])
def test_very_low_padding_is_padding(operator, low):
    ours = bistoch.nn.MultiheadAttention(12, 3, batch_first=True, operator=operator).eval()
    x, real = torch.randn(2, 7, 12), torch.arange(7) < torch.tensor([[7], [4]])
    wanted = ours(x, x, x, key_padding_mask=~real)[0]
    found = ours(x, x, x, key_padding_mask=torch.zeros(2, 7).masked_fill(~real, low))[0]
    alone = ours(x[1:, :4], x[1:, :4], x[1:, :4])[0]
    torch.testing.assert_close(found[real], wanted[real])
    torch.testing.assert_close(found[1:, :4], alone)


def test_padding_of_other_tokens_says_nothing_of_the_queries():
    # as many of them as keys; no warning, since there is no argument to say more with
    ours = bistoch.nn.MultiheadAttention(12, 3, batch_first=True, operator="sinkhorn").eval()
    x, y, real = torch.randn(2, 7, 12), torch.randn(2, 7, 12), torch.arange(7) < 5
    output, weights = ours(x, y, y, key_padding_mask=~real.expand(2, 7))
    assert not weights[..., 5:].any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 7))
    torch.testing.assert_close(output, ours(x, y[:, :5], y[:, :5])[0])


@pytest.mark.parametrize("operator", ["softmax", "sigmoid", "sink"])
@pytest.mark.parametrize("low", [-1e5, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_future_stays_hidden_under_autocast(operator, low, dtype):
    earlier = torch.zeros(7, 7).masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), low)
    x = torch.randn(2, 7, 12)
    other = torch.cat([x[:, :4], torch.randn(2, 3, 12)], 1)
    multihead = bistoch.nn.MultiheadAttention(12, 3, batch_first=True, operator=operator)
    attention = bistoch.nn.Attention(12, 3, operator=operator)
    with torch.autocast("cpu", dtype=dtype):
        for layer in (
            lambda x: multihead(x, x, x, attn_mask=earlier, need_weights=False)[0],
            lambda x: multihead(x, x, x, attn_mask=earlier)[0],
            lambda x: attention(x, mask=earlier),
        ):
            assert torch.equal(layer(x)[:, :4], layer(other)[:, :4])
