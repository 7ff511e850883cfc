"""Attention layers as other libraries and users write them; no part of their code."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.functional import scaled_dot_product_attention as attend_by_another_name


class Own(nn.Module):
    """A user's layer, with every argument of scaled_dot_product_attention within reach."""

    def __init__(self, dim=12, heads=3, groups=None):
        super().__init__()
        self.num_heads, self.groups = heads, groups or heads
        size = dim // heads
        self.query, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.key, self.value = (nn.Linear(dim, size * self.groups) for _ in range(2))

    def forward(self, x, memory=None, **options):
        memory = x if memory is None else memory
        q = self.query(x).unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)
        k = self.key(memory).unflatten(-1, (self.groups, -1)).transpose(-3, -2)
        v = self.value(memory).unflatten(-1, (self.groups, -1)).transpose(-3, -2)
        heads = F.scaled_dot_product_attention(q, k, v, **options)
        return self.out(heads.transpose(-3, -2).flatten(-2))


class LikeTimm(nn.Module):
    """The layer of timm's vision Transformers: fused if a flag says so, else by matrices."""

    fused_attn: torch.jit.Final[bool]

    def __init__(self, dim=12, num_heads=3, attn_drop=0.0, fused=True):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.fused_attn = fused
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.attn_drop = nn.Dropout(attn_drop)

    def forward(self, x, attn_mask=None):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if self.fused_attn:
            drop = self.attn_drop.p if self.training else 0.0
            x = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=drop)
        else:
            scores = q * self.head_dim**-0.5 @ k.transpose(-2, -1)
            x = self.attn_drop(scores.softmax(-1)) @ v
        return self.proj(x.transpose(1, 2).reshape(b, n, c))


class LikeSwin(nn.Module):
    """Attention in windows of a grid, shifted ones with a mask, all with a learned bias."""

    fused_attn: torch.jit.Final[bool]

    def __init__(self, dim=12, num_heads=3, side=4, window=2, shift=0):
        super().__init__()
        self.num_heads, self.window, self.side, self.shift = num_heads, window, side, shift
        self.fused_attn = False
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        area = window**2
        self.bias = nn.Parameter(torch.randn(num_heads, area, area))
        place = torch.arange(side) // window if shift == 0 else (torch.arange(side) + shift) // side
        region = self.cut((place[:, None] * side + place)[None, :, :, None].float())[..., 0]
        differs = region[:, None, :] != region[:, :, None]
        mask = torch.zeros(differs.shape).masked_fill(differs, -100.0) if shift else None
        self.register_buffer("mask", mask)

    def cut(self, x):
        b, side, _, c = x.shape
        count = side // self.window
        x = x.view(b, count, self.window, count, self.window, c).transpose(2, 3)
        return x.reshape(b * count**2, self.window**2, c)

    def forward(self, x):
        b, c = x.shape[0], x.shape[-1]
        grid = x.view(b, self.side, self.side, c).roll((-self.shift, -self.shift), (1, 2))
        windows = self.cut(grid)
        n, count = windows.shape[1], (self.side // self.window) ** 2
        qkv = self.qkv(windows).reshape(-1, n, 3, self.num_heads, c // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.bias[None]
        if self.mask is not None:
            mask = self.mask.view(1, count, 1, n, n).expand(b, -1, self.num_heads, -1, -1)
            bias = bias + mask.reshape(-1, self.num_heads, n, n)
        if self.fused_attn:
            heads = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            scores = q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1) + bias
            heads = scores.softmax(-1) @ v
        return self.proj(heads.transpose(1, 2).reshape(b, -1, c))


class Processor:
    """As in diffusers: the layer holds the weights, an object that is no module computes."""

    def __call__(self, layer, x, memory=None):
        memory = x if memory is None else memory
        q, k, v = (
            project(tokens).unflatten(-1, (layer.heads, -1)).transpose(1, 2)
            for project, tokens in ((layer.to_q, x), (layer.to_k, memory), (layer.to_v, memory))
        )
        heads = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=False)
        return layer.to_out(heads.transpose(1, 2).flatten(2))


class LikeDiffusers(nn.Module):
    def __init__(self, dim=12, heads=3, memory_dim=None):
        super().__init__()
        self.heads, self.processor = heads, Processor()
        self.to_q, self.to_out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.to_k, self.to_v = (nn.Linear(memory_dim or dim, dim) for _ in range(2))

    def forward(self, x, memory=None):
        return self.processor(self, x, memory)


def helper(q, k, v):
    return attend_by_another_name(q, k, v)


class ByHelper(nn.Module):
    """The call stands in a function of the file, under another name."""

    def __init__(self, dim=12, n_head=3):
        super().__init__()
        self.n_head, self.qkv = n_head, nn.Linear(dim, 3 * dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_head, -1)).movedim(-3, 0).transpose(2, 3)
        return helper(q, k, v).transpose(1, 2).flatten(2)


class CausalSelfAttention(nn.Module):
    """As in nanoGPT."""

    def __init__(self, dim=12, n_head=3):
        super().__init__()
        self.n_head, self.qkv = n_head, nn.Linear(dim, 3 * dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_head, -1)).movedim(-3, 0).transpose(2, 3)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return heads.transpose(1, 2).flatten(2)


class ByMatrices(nn.Module):
    """Calls no function that could be swapped."""

    def __init__(self, dim=12):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT).softmax(-1) @ v
