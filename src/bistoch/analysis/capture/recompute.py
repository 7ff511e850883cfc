"""The plan behind a call of attention, computed again from what the call was given.

Only the sequences that are kept are computed. Dropout is left out: it is noise on a plan.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bistoch.analysis.capture.tap import Call
from bistoch.functional import softmax_plan
from bistoch.functional.pose import working_dtype

Found = tuple[Tensor, Tensor | None]
# the sequences of a batch that are kept; None keeps them as they are
Keep = Sequence[int] | None


def sdpa_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> dict[str, Any]:
    """The arguments of `scaled_dot_product_attention` by name, however they were passed."""
    return {
        "query": query, "key": key, "value": value, "attn_mask": attn_mask,
        "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa,
    }  # fmt: skip


def sdpa_plan(call: dict[str, Any], keep: Keep) -> Found:
    """The plan of a call of `scaled_dot_product_attention`, and its values, one per head."""
    query, key, value = call["query"], call["key"], call["value"]
    mask, axes = call["attn_mask"], query.ndim
    query, key, value = (pick(x, keep, axes) for x in (query, key, value))
    if call["enable_gqa"]:
        # a head of keys serves several heads of queries that stand side by side
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    if call["is_causal"]:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
        mask = mask.tril()
    elif mask is not None:
        mask = pick(mask, keep, axes)
    precise = working_dtype(query.dtype)
    return softmax_plan(query.to(precise), key.to(precise), mask=mask, scale=call["scale"]), value


def operator_plan(module: Any, call: dict[str, Any], keep: Keep) -> Found:
    """The plan of an operator of bistoch, and its values."""
    axes = call["query"].ndim
    # own modules need not know of masses, and converted layers speak torch's language
    taken = inspect.signature(module.plan).parameters.keys() - {"query", "key", "generator"}
    masks = {name: call[name] for name in taken & call.keys()}
    options = module.options().values() if hasattr(module, "options") else ()
    shared = all(not isinstance(x, Tensor) or x.ndim < axes - 2 for x in options)
    tokens = {name: call[name] for name in ("query", "key", "value")}
    if shared:
        tokens = {name: pick(x, keep, axes) for name, x in tokens.items()}
        masks = {
            name: pick(x, keep, axes if name in ("mask", "attn_mask") else axes - 1)
            if isinstance(x, Tensor)
            else x
            for name, x in masks.items()
        }
    plan = module.plan(tokens["query"], tokens["key"], **masks)
    if not shared:
        # an option with an entry per sequence fits the whole batch only
        return pick(plan, keep, axes), pick(tokens["value"], keep, axes)
    return plan, tokens["value"]


def asked_plan(layer: Any, call: dict[str, Any], plan: Tensor, keep: Keep) -> Found:
    """The plan that a layer asked its operator for, and the values it was used on."""
    value = layer._project(*(call[name] for name in ("query", "key", "value")))[2]
    return pick(plan, keep, plan.ndim), pick(value, keep, plan.ndim)


def eager_plan(call: Call, keep: Keep) -> Found:
    """The plan of the matrix code of transformers, and its values, one per head."""
    layer, value = _argument(call, 0, "module"), _argument(call, 3, "value")
    plan = call.result[1]
    if layer.training:
        # what it returned is thinned out by dropout
        with _evaluating(layer):
            plan = call.function(*call.args, **call.kwargs)[1]
    value = value.repeat_interleave(plan.shape[-3] // value.shape[-3], -3)
    return pick(plan, keep, plan.ndim), pick(value, keep, plan.ndim)


def _argument(call: Call, place: int, name: str) -> Any:
    return call.args[place] if place < len(call.args) else call.kwargs[name]


@contextmanager
def _evaluating(layer: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in layer.modules()}
    try:
        layer.eval()
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def multihead_plan(layer: nn.MultiheadAttention, call: dict[str, Any], keep: Keep) -> Found:
    """The plan of every head of torch's layer, and its values if it adds no keys of its own."""
    tokens = [call[name] for name in ("query", "key", "value")]
    padding, mask = call.get("key_padding_mask"), call.get("attn_mask")
    if tokens[0].is_nested:
        padding = _padding_of(tokens[1])
        tokens = [torch.nested.to_padded_tensor(x, 0.0) for x in tokens]
    batched = tokens[0].ndim == 3
    if batched:
        size = tokens[0].shape[0 if layer.batch_first else 1]
        tokens = [x.transpose(0, 1) if layer.batch_first else x for x in tokens]
        if keep is not None:
            tokens = [x[:, list(keep)] for x in tokens]
            padding = None if padding is None else padding[list(keep)]
            if mask is not None and mask.ndim == 3:
                mask = mask.unflatten(0, (size, layer.num_heads))[list(keep)].flatten(0, 1)
    same = layer._qkv_same_embed_dim
    _, plan = functional.multi_head_attention_forward(
        tokens[0], tokens[1], tokens[2], layer.embed_dim, layer.num_heads, layer.in_proj_weight,
        layer.in_proj_bias, layer.bias_k, layer.bias_v, layer.add_zero_attn, 0.0,
        layer.out_proj.weight, layer.out_proj.bias, training=False, key_padding_mask=padding,
        need_weights=True, attn_mask=mask, average_attn_weights=False,
        use_separate_proj_weight=not same,
        q_proj_weight=None if same else layer.q_proj_weight,
        k_proj_weight=None if same else layer.k_proj_weight,
        v_proj_weight=None if same else layer.v_proj_weight,
    )  # fmt: skip
    # torch gives NaN to a query that may see no key
    return torch.nan_to_num(torch.as_tensor(plan), 0.0), _values(layer, tokens[2])


def multihead_shape(layer: nn.MultiheadAttention, call: dict[str, Any]) -> tuple[int, ...]:
    """The shape of the plan of torch's layer: (batch, heads, n, m), or without the batch."""
    query, key = call["query"], call["key"]
    if query.is_nested:
        lengths = [len(x) for x in query.unbind()]
        return (len(lengths), layer.num_heads, max(lengths), max(lengths))
    if query.ndim == 2:
        return (layer.num_heads, len(query), len(key))
    batch, length = (0, 1) if layer.batch_first else (1, 0)
    return (query.shape[batch], layer.num_heads, query.shape[length], key.shape[length])


def encoder_layer_call(layer: nn.TransformerEncoderLayer, call: dict[str, Any]) -> dict[str, Any]:
    """What the fused kernel of an encoder layer hands to its attention."""
    tokens = call["src"]
    if layer.norm_first:
        norm = layer.norm1
        tokens = functional.layer_norm(
            tokens, norm.normalized_shape, norm.weight, norm.bias, norm.eps
        )
    return {
        "query": tokens, "key": tokens, "value": tokens, "attn_mask": call.get("src_mask"),
        "key_padding_mask": call.get("src_key_padding_mask"),
    }  # fmt: skip


def named_arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, however they were passed."""
    return dict(inspect.signature(function).bind(*args, **kwargs).arguments)


def pick(tensor: Tensor, keep: Keep, axes: int) -> Tensor:
    """The kept sequences, if the tensor has an axis for them: the first of so many."""
    if keep is None or tensor.ndim < axes or tensor.shape[0] == 1:
        return tensor
    return tensor[list(keep)]


def _values(layer: nn.MultiheadAttention, tokens: Tensor) -> Tensor | None:
    if layer.bias_k is not None or layer.add_zero_attn:
        return None
    size = layer.embed_dim
    same = layer._qkv_same_embed_dim
    weight = layer.in_proj_weight[2 * size :] if same else layer.v_proj_weight
    bias = None if layer.in_proj_bias is None else layer.in_proj_bias[2 * size :]
    heads = functional.linear(tokens, weight, bias).unflatten(-1, (layer.num_heads, -1))
    # (length, batch, heads, size), or without the batch
    return heads.movedim(0, -2)


def _padding_of(tokens: Tensor) -> Tensor:
    lengths = torch.tensor([len(x) for x in tokens.unbind()], device=tokens.device)
    return torch.arange(int(lengths.max()), device=tokens.device) >= lengths[:, None]
