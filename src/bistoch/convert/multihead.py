"""torch.nn.functional.multi_head_attention_forward around an operator."""

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional

from bistoch.convert.swap import Swap


def attend_multihead(
    swap: Swap,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The result and, if asked for, the plan of the operator; arguments are those of torch.

    Keys that a layer adds by itself (`bias_k`, `add_zero_attn`) take part in the balance like all
    others. In self-attention, where one tensor is query and key, padded keys are padded queries.
    """
    same_tokens = query is key
    batched = query.ndim == 3
    # raises torch's own sentences for shapes that do not fit
    functional._mha_shape_check(query, key, value, key_padding_mask, attn_mask, num_heads)  # type: ignore[attr-defined]
    if not batched:
        # one object stays one, as torch then projects it once
        tokens = {id(x): x.unsqueeze(1) for x in (query, key, value)}
        query, key, value = (tokens[id(x)] for x in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    if is_causal and attn_mask is None:
        raise ValueError(
            f"MultiheadAttention: {swap.where} got is_causal=True without attn_mask, which torch "
            "wants too; make it with nn.Transformer.generate_square_subsequent_mask(length)"
        )
    (n, size), m = query.shape[:2], key.shape[0]
    q, k, v = _project(
        query, key, value, in_proj_weight, in_proj_bias, use_separate_proj_weight,
        (q_proj_weight, k_proj_weight, v_proj_weight),
    )  # fmt: skip
    added = 0
    if bias_k is not None and bias_v is not None:
        k, v = (torch.cat([x, bias.repeat(1, size, 1)]) for x, bias in ((k, bias_k), (v, bias_v)))
        added += 1
    q, k, v = (x.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3) for x in (q, k, v))
    k = k if static_k is None else static_k.unflatten(0, (size, num_heads))
    v = v if static_v is None else static_v.unflatten(0, (size, num_heads))
    if add_zero_attn:
        k, v = (functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
        added += 1
    query_mask = None
    if not same_tokens:
        query_mask = torch.ones(n, dtype=torch.bool, device=q.device)
    elif key_padding_mask is not None and static_k is None:
        query_mask = ~_hidden(key_padding_mask)[:, None]
    mask = None
    if not (is_causal and key_padding_mask is None and not added):
        mask, is_causal = _join(attn_mask, key_padding_mask, size, num_heads, m, added), False
    dropout_p = dropout_p if training else 0.0
    heads = swap(q, k, v, mask, dropout_p, is_causal, query_mask=query_mask)
    merged = heads.permute(2, 0, 1, 3).reshape(n * size, -1)
    result = functional.linear(merged, out_proj_weight, out_proj_bias).view(n, size, -1)
    plan = None
    if need_weights:
        plan = swap.plan(q, k, mask, is_causal, query_mask=query_mask)
        plan = plan.mean(1) if average_attn_weights else plan
    if batched:
        return result, plan
    return result.squeeze(1), None if plan is None else plan.squeeze(0)


def _project(query, key, value, weight, bias, separate, weights) -> tuple[Tensor, Tensor, Tensor]:
    """Project as torch does, so that all numbers are the same."""
    if not separate:
        return functional._in_projection_packed(query, key, value, weight, bias)  # type: ignore[attr-defined]
    biases = (None, None, None) if bias is None else bias.chunk(3)
    return functional._in_projection(query, key, value, *weights, *biases)  # type: ignore[attr-defined]


def _join(
    mask: Tensor | None, padding: Tensor | None, size: int, heads: int, m: int, added: int
) -> Tensor | None:
    """One mask for `scaled_dot_product_attention` (True = may attend) from torch's two."""
    if mask is not None:
        mask = ~mask if mask.dtype == torch.bool else mask
        mask = mask.unflatten(0, (size, heads)) if mask.ndim == 3 else mask[None, None]
    if padding is not None:
        padding = padding.reshape(size, 1, 1, m)
        padding = ~padding if padding.dtype == torch.bool else padding
    joined = _both(mask, padding)
    if joined is None or not added:
        return joined
    # keys that the layer adds are seen by all
    return functional.pad(joined, (0, added), value=joined.dtype == torch.bool)


def _both(mask: Tensor | None, padding: Tensor | None) -> Tensor | None:
    if mask is None or padding is None:
        return padding if mask is None else mask
    if mask.dtype == torch.bool and padding.dtype == torch.bool:
        return mask & padding
    if mask.dtype == torch.bool:
        return torch.where(mask, padding, -torch.inf)
    if padding.dtype == torch.bool:
        return torch.where(padding, mask, -torch.inf)
    return mask + padding


def _hidden(padding: Tensor) -> Bool[Tensor, "b m"]:
    return padding if padding.dtype == torch.bool else padding == -torch.inf
