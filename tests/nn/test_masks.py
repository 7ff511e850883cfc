"""Masks of layers: very low numbers, other dtypes, and padding that is told for keys alone."""

import gc
import weakref

import pytest
import torch

import bistoch
from bistoch.nn.swap.masks import once_per_forward


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


def test_what_is_kept_with_a_mask_keeps_it_not_alive():
    mask = torch.ones(1, 1, 4, 6, dtype=torch.bool)
    found = once_per_forward(mask, "layer", "half", lambda: {"mask": mask[..., :4]})
    gone = weakref.ref(mask)
    assert torch.equal(found["mask"], mask[..., :4])
    del mask
    gc.collect()
    assert gone() is None


def test_a_changed_mask_is_derived_again_by_another_reader():
    mask = torch.zeros(3)
    assert once_per_forward(mask, "first model", "sum", lambda: mask.sum().item()) == 0
    mask += 1
    assert once_per_forward(mask, "second model", "sum", lambda: mask.sum().item()) == 3
