"""Sequences of different lengths without padding: nested tensors, and packed ones with offsets."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from bistoch.convert.swap import Swap


def attend_nested(
    swap: "Swap",
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attend within every sequence of nested tensors (batch, heads, length, features)."""
    if attn_mask is not None:
        raise ValueError(
            f"scaled_dot_product_attention in {swap.where}: attn_mask must be None for nested "
            "tensors, as in torch; pad them with torch.nested.to_padded_tensor to use one"
        )
    if query.layout != torch.jagged:
        rows = zip(query.unbind(), key.unbind(), value.unbind(), strict=True)
        made = [
            swap(*row, None, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
            for row in rows
        ]
        return torch.nested.as_nested_tensor(made)
    # jagged tensors are made with the ragged axis in second place
    q, k, v = (_jagged(x) for x in (query, key, value))
    result = attend_packed(
        swap, q.values(), k.values(), v.values(), q.offsets(), k.offsets(), dropout_p, is_causal,
        scale, enable_gqa,
    )  # fmt: skip
    return torch.nested.nested_tensor_from_jagged(result, offsets=q.offsets()).transpose(1, 2)


def attend_varlen(
    swap: "Swap",
    query: Float[Tensor, "queries h d"],
    key: Float[Tensor, "keys kv d"],
    value: Float[Tensor, "keys kv e"],
    cu_seq_q: Int[Tensor, "sequences_and_one"],
    cu_seq_k: Int[Tensor, "sequences_and_one"] | None,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: Sequence[int] | None = None,
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, None, None]:
    """Attend as `torch.nn.attention.varlen.varlen_attn` does, but without its log-sum-exp."""
    window = (-1, -1) if window_size is None else tuple(window_size)
    if window not in ((-1, -1), (-1, 0)):
        raise NotImplementedError(
            f"varlen_attn in {swap.where}: window_size must be (-1, -1) or (-1, 0), but it is "
            f"{window}; write the window as an attn_mask of scaled_dot_product_attention"
        )
    if cu_seq_k is None or seqused_k is not None or block_table is not None:
        raise NotImplementedError(
            f"varlen_attn in {swap.where}: caches of keys (seqused_k, block_table) are not "
            "supported; leave the layer out with layers="
        )
    made = attend_packed(
        swap, query, key, value, cu_seq_q, cu_seq_k, 0.0, is_causal, scale, enable_gqa
    )
    return made, None, None


def attend_packed(
    swap: "Swap",
    query: Float[Tensor, "queries h d"],
    key: Float[Tensor, "keys kv d"],
    value: Float[Tensor, "keys kv e"],
    query_offsets: Int[Tensor, "sequences_and_one"],
    key_offsets: Int[Tensor, "sequences_and_one"],
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Float[Tensor, "queries h e"]:
    """Attend within every sequence of packed tokens: in one padded batch, with the masks for it."""
    real_queries, real_keys = _real(query_offsets), _real(key_offsets)
    if is_causal and not torch.equal(real_queries, real_keys):
        raise NotImplementedError(
            f"varlen attention in {swap.where}: causal sequences need as many queries as keys, but "
            "the offsets differ; run whole sequences without a cache of keys"
        )
    allowed = real_keys[:, None, None, :]
    if is_causal:
        size = allowed.shape[-1]
        allowed = allowed & torch.ones(size, size, dtype=torch.bool, device=query.device).tril()
    result = swap(
        _pad(query, real_queries), _pad(key, real_keys), _pad(value, real_keys), allowed, dropout_p,
        scale=scale, enable_gqa=enable_gqa, query_mask=real_queries[:, None],
    )  # fmt: skip
    return result.transpose(1, 2)[real_queries]


def _jagged(tokens: Tensor) -> Any:
    return tokens.transpose(1, 2).contiguous()


def _real(offsets: Int[Tensor, "sequences_and_one"]) -> Bool[Tensor, "sequences longest"]:
    lengths = offsets.diff()
    return torch.arange(int(lengths.max()), device=offsets.device) < lengths[:, None]


def _pad(tokens: Float[Tensor, "all h d"], real: Bool[Tensor, "b n"]) -> Float[Tensor, "b h n d"]:
    padded = tokens.new_zeros(*real.shape, *tokens.shape[1:])
    return padded.index_put((real,), tokens).transpose(1, 2)
