"""The attention layers of a model of transformers: which there are, and who may see whom."""

import inspect
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# the name by which code of transformers asks who computes attention
INTERFACE = "ALL_ATTENTION_FUNCTIONS"


def attention_layers(model: "PreTrainedModel") -> dict[str, nn.Module]:
    """The layers of a model whose attention can be swapped, by name, in the order of the model.

    They are the modules that ask the attention interface of transformers who computes. The place of
    a layer in this order is its number for `convert`.

    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2)
    >>> list(attention_layers(BertModel(config)))
    ['encoder.layer.0.attention.self', 'encoder.layer.1.attention.self']
    """
    if not isinstance(model, nn.Module) or not hasattr(model, "config"):
        raise TypeError(
            "attention_layers: model must be a model of transformers, but it is a "
            f"{type(model).__name__}; for other models use bistoch.nn.MultiheadAttention"
        )
    found = {
        name: module
        for name, module in model.named_modules()
        if _is_layer(module) and _asks_the_interface(type(module))
    }
    if not found:
        raise NotImplementedError(
            f"attention_layers: {type(model).__name__} has no layer that asks the attention "
            "interface of transformers who computes, so nothing can be swapped in; models that "
            "do are for example BERT, RoBERTa, ViT, Llama, and in recent transformers T5"
        )
    return found


def count_heads(name: str, layer: nn.Module) -> int:
    """The number of query heads of a layer."""
    for owner in (layer, layer.config):
        for word in ("num_attention_heads", "num_heads", "n_heads", "n_head"):
            count = getattr(owner, word, None)
            if isinstance(count, int):
                return count
    raise NotImplementedError(
        f"convert: the number of heads of the layer {name} ({type(layer).__name__}) is not known"
    )


def head_size(layer: nn.Module) -> int | None:
    """The features of a query head, if the layer says it."""
    for word in ("head_dim", "attention_head_size", "key_value_proj_dim"):
        size = getattr(layer, word, None)
        if isinstance(size, int):
            return size
    return None


def is_cross_attention(layer: nn.Module, name: str = "") -> bool:
    """Whether the keys of a layer are other tokens than its queries, as far as its name tells."""
    if getattr(layer, "is_cross_attention", False) or "Cross" in type(layer).__name__:
        return True
    # one class serves both in T5, BART and their kin: there the model names the layer
    own = name.rpartition(".")[2].lower()
    return "cross" in own or own in ("encdecattention", "encoder_attn")


def hides_pairs(layer: nn.Module) -> str | None:
    """What a layer does to single pairs of tokens, beside hiding padding and the future; or None.

    An operator that can leave out whole tokens only can not do that.
    """
    if getattr(layer, "sliding_window", None) is not None or getattr(layer, "is_sliding", False):
        return "lets every query see a window of keys only"
    if any("position_bias" in word for word in _words(type(layer))):
        return "adds a bias to every pair of tokens, by their distance"
    return None


def hides_the_future(name: str, layer: nn.Module) -> bool:
    """Whether the queries of a layer are a sequence in which none may know of a later one.

    Cross-attention of a decoder counts too: its mask is not causal, but its queries are.
    """
    config: Any = layer.config
    if getattr(layer, "is_causal", False) or getattr(layer, "is_decoder", False):
        return True
    if getattr(config, "is_decoder", False):
        return True
    return bool(getattr(config, "is_encoder_decoder", False)) and "decoder" in name.split(".")


def _is_layer(module: nn.Module) -> bool:
    # whole models know the interface too, but only to say who computes
    return hasattr(module, "config") and not hasattr(module, "set_attn_implementation")


def _asks_the_interface(kind: type[nn.Module]) -> bool:
    return INTERFACE in _words(kind)


def _words(kind: type[nn.Module]) -> set[str]:
    """The names that the methods of a class use."""
    own = [owner for owner in kind.__mro__ if owner not in (nn.Module, object)]
    functions = [inspect.unwrap(f) for owner in own for f in vars(owner).values() if callable(f)]
    codes = [getattr(function, "__code__", None) for function in functions]
    return {word for code in codes if code for word in (*code.co_names, *code.co_varnames)}
