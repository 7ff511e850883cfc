"""A block of a Transformer: where norms and skips stand, and what may be left out."""

import pytest
import torch

from bistoch.nn import Block, Elastic


def make(**changes):
    return Block(8, 2, "elastic(lam=0.5)", **changes).double().eval()


def test_pre_and_post_norm():
    x = torch.randn(2, 7, 8).double()
    block = make(norm="pre")
    y = x + block.attention(block.attention_norm(x))
    torch.testing.assert_close(block(x), y + block.mlp(block.mlp_norm(y)))
    block = make(norm="post")
    y = block.attention_norm(x + block.attention(x))
    torch.testing.assert_close(block(x), block.mlp_norm(y + block.mlp(y)))


def test_without_a_network_only_attention_is_left():
    block = make(mlp=0)
    x = torch.randn(2, 7, 8).double()
    torch.testing.assert_close(block(x), x + block.attention(block.attention_norm(x)))
    assert not any(name.startswith("mlp") for name, _ in block.named_parameters())


def test_hidden_features_are_counted_in_units_of_dim():
    assert make(mlp=3).mlp[0].out_features == 24


def test_padding_neither_sends_nor_receives():
    block, x = make(), torch.randn(2, 7, 8).double()
    mask = torch.tensor([[True] * 5 + [False] * 2] * 2)
    torch.testing.assert_close(block(x, mask)[:, :5], block(x[:, :5]))


def test_an_injected_module_is_copied():
    operator = Elastic(learn="head", heads=2)
    one, other = Block(8, 2, operator), Block(8, 2, operator)
    assert one.attention.operator.lam is not other.attention.operator.lam
    assert one.attention.operator.lam is not operator.lam


def test_mistakes_are_told():
    with pytest.raises(ValueError, match=r"^Block: norm must be one of 'pre', 'post'"):
        make(norm="first")
    with pytest.raises(ValueError, match=r"^Block: mlp must be at least 0, but it is -1"):
        make(mlp=-1)
