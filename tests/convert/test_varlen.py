"""Sequences of different lengths: nested tensors, and packed ones with offsets."""

import pytest
import torch
from torch import nn

import bistoch
from foreign_layers import Own

LENGTHS = (5, 2, 7)
ROWS = [torch.randn(n, 12, generator=torch.Generator().manual_seed(n)).double() for n in LENGTHS]
OPERATORS = ["softmax", "sinkhorn", "elastic(learn='head')"]


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("heads", [None, [0, 2]])
def test_jagged_tensors(operator, heads):
    layer = bistoch.convert(Own().double(), operator, heads=heads)
    x = torch.nested.as_nested_tensor(ROWS, layout=torch.jagged)
    x.requires_grad_()
    found = layer(x)
    assert (found + x).shape == x.shape
    for one, row in zip(found.unbind(), ROWS, strict=True):
        torch.testing.assert_close(one, layer(row[None])[0])
    (grad,) = torch.autograd.grad(found.values().square().sum(), x)
    row = ROWS[2].clone().requires_grad_()
    (wanted,) = torch.autograd.grad(layer(row[None]).square().sum(), row)
    torch.testing.assert_close(grad.unbind()[2], wanted)


def test_jagged_cross_attention_and_order():
    layer = bistoch.convert(Own().double(), "sinkhorn")
    x = torch.nested.as_nested_tensor(ROWS, layout=torch.jagged)
    memory = torch.nested.as_nested_tensor(ROWS[::-1], layout=torch.jagged)
    for one, row, other in zip(layer(x, memory).unbind(), ROWS, ROWS[::-1], strict=True):
        torch.testing.assert_close(one, layer(row[None], other[None])[0])
    with pytest.raises(ValueError, match="must not know of later ones"):
        layer(x, is_causal=True)
    bistoch.convert(layer, "causal_elastic(lam=0.5, block=2)")
    for one, row in zip(layer(x, is_causal=True).unbind(), ROWS, strict=True):
        torch.testing.assert_close(one, layer(row[None], is_causal=True)[0])
    with pytest.raises(ValueError, match="attn_mask must be None for nested tensors"):
        layer(x, attn_mask=torch.ones(7, 7, dtype=torch.bool))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_strided_nested_tensors():
    swap = bistoch.convert(Own().double(), "sinkhorn")
    q = torch.nested.as_nested_tensor([torch.randn(3, n, 4).double() for n in LENGTHS])

    class Call(nn.Module):
        num_heads = 3

        def forward(self, q):
            return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    found = bistoch.convert(Call(), "sinkhorn")(q)
    for one, row in zip(found.unbind(), q.unbind(), strict=True):
        torch.testing.assert_close(one, swap.bistoch(row, row, row))


class Packed(nn.Module):
    """A layer of packed tokens, for kernels that only GPUs have."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.qkv = 3, nn.Linear(12, 36)

    def forward(self, x, offsets, window_size=(-1, -1), **options):
        from torch.nn.attention.varlen import varlen_attn

        q, k, v = self.qkv(x).unflatten(-1, (3, 3, 4)).unbind(1)
        longest = int(offsets.diff().max())
        options["window_size"] = window_size
        return varlen_attn(q, k, v, offsets, offsets, longest, longest, **options).flatten(1)


def test_offsets():
    pytest.importorskip("torch.nn.attention.varlen")
    layer = bistoch.convert(Packed().double(), "sinkhorn")
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    found = layer(torch.cat(ROWS), offsets).split(LENGTHS)
    for one, row in zip(found, ROWS, strict=True):
        q, k, v = layer.qkv(row).unflatten(-1, (3, 3, 4)).permute(1, 2, 0, 3)
        wanted = bistoch.sinkhorn_attention(q, k, v).transpose(0, 1).flatten(1)
        torch.testing.assert_close(one, wanted)
    with pytest.raises(ValueError, match="must not know of later ones"):
        layer(torch.cat(ROWS), offsets, (-1, 0))
    with pytest.raises(NotImplementedError, match=r"window_size must be \(-1, -1\) or \(-1, 0\)"):
        layer(torch.cat(ROWS), offsets, (4, 4))
    with pytest.raises(NotImplementedError, match=r"caches of keys \(seqused_k, block_table\)"):
        layer(torch.cat(ROWS), offsets, seqused_k=torch.tensor(LENGTHS))
    bistoch.convert(layer, "softmax")
    causal = layer(torch.cat(ROWS), offsets, (-1, 0)).split(LENGTHS)
    q, k, v = layer.qkv(ROWS[0]).unflatten(-1, (3, 3, 4)).permute(1, 2, 0, 3)
    wanted = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(causal[0], wanted.transpose(0, 1).flatten(1))
