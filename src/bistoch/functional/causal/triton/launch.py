"""Causal balance on GPUs: the forward is one launch, in which every program takes a head."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bistoch.functional.causal.triton.attend import attend_kernel
from bistoch.functional.causal.triton.blocks import VECTOR, blocks_of, layout_of
from bistoch.functional.causal.triton.operator import Inputs, Kept
from bistoch.functional.elastic.triton.launch import _arithmetic, _bytes
from bistoch.functional.elastic.triton.scores import BIAS, BOOLEAN, NONE
from bistoch.functional.kernels.gpu import chunk, dense, launch, width


class Pairs(NamedTuple):
    """Tokens as kernels take them: pointers, sizes, strides, and what they are compiled for."""

    tensors: dict[str, Any]
    sizes: dict[str, int]
    kinds: dict[str, Any]

    def arguments(self) -> dict[str, Any]:
        """All of them, by the names that kernels give them."""
        return self.tensors | self.sizes | self.kinds


def pairs_of(inputs: Inputs, prior: float, block: int) -> Pairs:
    """What all kernels need to know of tokens, masks and options."""
    query, key, mask, index = dense(inputs.query), dense(inputs.key), inputs.mask, inputs.mask_index
    (_, n, features), work = query.shape, inputs.sharpness
    strides: tuple[int, ...] = (0, 0, 0)
    kind = NONE
    if mask is not None:
        kind = BOOLEAN if mask.dtype == torch.bool else BIAS
        strides = tuple(0 if mask.shape[a] == 1 and a else mask.stride(a) for a in range(3))
    tensors = {
        "query": query, "key": key, "mask": work if mask is None else _bytes(mask),
        "mask_index": None if index is None else index.contiguous(),
        "sharpness": work.contiguous(), "lam": inputs.lam.contiguous(),
        "prior": work.new_full((1,), prior),
        "lengths": None if inputs.length is None else inputs.length.contiguous(),
    }  # fmt: skip
    sizes = {
        # a longer block is one of all rows, and its end may be more than 32 bits count
        "n": n, "block": min(block, max(n, 1)), "mask_each": strides[0], "mask_row": strides[1],
        "mask_column": strides[2],
    }  # fmt: skip
    kinds = {
        "FEATURES": features, "WIDTH": width(features), "CHUNK": chunk(features, query.dtype),
        "MASK": kind.value, **_arithmetic(query),
    }  # fmt: skip
    return Pairs(tensors, sizes, kinds)


def least(dtype: torch.dtype) -> float:
    """The smallest column sum that is told from zero."""
    return torch.finfo(dtype).tiny


def forward(
    inputs: Inputs, prior: float, block: int, keep: bool, output: Tensor, kept: Kept
) -> None:
    """Fill the result, and what its backward needs if it is to be kept."""
    size, n, _ = inputs.query.shape
    if not size * n:
        return
    work, features = inputs.sharpness, inputs.value.shape[2]
    common = pairs_of(inputs, prior, block).arguments() | {"VALUES": features}
    layout, blocks = layout_of(n, block), blocks_of("attend", common)
    levels = kept.levels if keep else work.new_empty(size, layout.blocks)
    rows = [work.new_empty(size, n) for _ in range(3)]
    shift, factor, share = (kept.shift, kept.factor, kept.share) if keep else rows
    launch(
        attend_kernel, size, **common, **blocks.arguments(), value=dense(inputs.value),
        accounts=work.new_empty(size, 2, 2, n), history=kept.history if keep else None,
        levels=levels, output=output, shift=shift, factor=factor, share=share, every=layout.every,
        history_each=kept.history.stride(0) if keep else 0, levels_each=layout.blocks,
        VALUE_WIDTH=width(features), LEAST=least(work.dtype), VECTOR=VECTOR,
    )  # fmt: skip
