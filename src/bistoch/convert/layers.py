"""The attention layers of any model: which there are, how many heads they have, who sees whom."""

import inspect
import sys
from collections.abc import Iterator
from functools import lru_cache, partial
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from bistoch.convert.modules import original_class
from bistoch.convert.swap import Swap
from bistoch.integrations.huggingface import layers as huggingface
from bistoch.models.lm import CausalAttention
from bistoch.nn import Attention, MultiheadAttention

# the functions of torch that a swap replaces
FUNCTIONS = ("scaled_dot_product_attention", "multi_head_attention_forward", "varlen_attn")
# the layers of bistoch, which have an operator to replace
OWN = (Attention, MultiheadAttention, CausalAttention)
# what layers call the number of their heads, and the features of each
COUNTS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "heads", "nhead", "nheads")
SIZES = ("head_dim", "dim_head", "attention_head_size", "head_size")
# how many calls deep a function of attention may stand behind the methods of a layer
DEPTH = 3


class Layer(NamedTuple):
    """An attention layer.

    `kind` says how it is swapped: "torch" (it calls torch's functions), "bistoch" (it has an
    operator already) or "transformers" (it asks the interface of that library). `owner` is the
    model of transformers that it belongs to, and `number` its place there.
    """

    name: str
    module: nn.Module
    kind: str
    owner: Any = None
    number: int = 0


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers of a model whose attention can be swapped, by name, in the order of the model.

    The place of a layer in this order is its number for `convert`.

    >>> layer = nn.TransformerDecoderLayer(16, 4)
    >>> list(attention_layers(nn.TransformerDecoder(layer, 1)))
    ['layers.0.self_attn', 'layers.0.multihead_attn']
    """
    return {layer.name: layer.module for layer in find_layers(model)}


def find_layers(model: nn.Module) -> list[Layer]:
    """As `attention_layers`, with the way in which each is swapped."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"convert: model must be a torch.nn.Module, but it is a {type(model).__name__}"
        )
    found = list(_find(model))
    if not found:
        raise NotImplementedError(
            f"convert: {type(model).__name__} has no attention layer that can be swapped; those "
            "that can are nn.MultiheadAttention, layers that call scaled_dot_product_attention or "
            "multi_head_attention_forward, and models of transformers. A layer that multiplies its "
            "own matrices must call scaled_dot_product_attention instead"
        )
    return found


def count_heads(layer: Layer) -> int | None:
    """The number of query heads of a layer, None if it does not say."""
    return _number(layer.module, COUNTS)


def head_size(layer: Layer) -> int | None:
    """The features of a head, None if the layer does not say."""
    count, query = count_heads(layer), getattr(layer.module, "query", None)
    if layer.kind == "bistoch" and count is not None and isinstance(query, nn.Linear):
        return query.out_features // count
    return _number(layer.module, SIZES)


def is_ordered(layer: Layer) -> bool:
    """Whether the queries of a layer are a sequence, as far as its attributes and name tell."""
    said = any(getattr(layer.module, word, False) is True for word in ("is_causal", "causal"))
    return said or "causal" in type(layer.module).__name__.lower()


def is_cross_attention(layer: Layer) -> bool:
    """Whether the keys of a layer are other tokens than its queries, as far as its name tells."""
    # torch's decoder layers call it so
    own = layer.name.rpartition(".")[2]
    return own == "multihead_attn" or huggingface.is_cross_attention(layer.module, layer.name)


def _find(model: nn.Module) -> Iterator[Layer]:
    inside: list[str] = []
    for name, module in model.named_modules():
        if any(f"{name}.".startswith(prefix) for prefix in inside):
            continue
        if _is_transformers(module):
            try:
                own = huggingface.attention_layers(module)
            except NotImplementedError:
                # none of its layers asks; some may call torch's functions
                own = {}
            for number, (inner, layer) in enumerate(own.items()):
                yield Layer(f"{name}.{inner}".strip("."), layer, "transformers", module, number)
            if own:
                inside.append(f"{name}.".lstrip("."))
        elif isinstance(module, Swap):
            # part of a layer that was converted already
            inside.append(f"{name}.")
        elif isinstance(module, OWN):
            yield Layer(name, module, "bistoch")
            inside.append(f"{name}.".lstrip("."))
        elif not isinstance(module, torch.jit.ScriptModule) and _attends(module):
            yield Layer(name, module, "torch")


def _is_transformers(module: nn.Module) -> bool:
    # whoever made such a model has loaded the library
    library = sys.modules.get("transformers.modeling_utils")
    return library is not None and isinstance(module, library.PreTrainedModel)


def _attends(module: nn.Module) -> bool:
    kind = original_class(type(module))
    if isinstance(module, nn.MultiheadAttention) or _class_attends(kind):
        return True
    # layers of diffusers leave their attention to an object that is no module
    return any(_is_attention(value) for value in vars(module).values())


def _is_attention(value: Any) -> bool:
    value = value.func if isinstance(value, partial) else value
    if value is torch._C._nn.scaled_dot_product_attention:
        return True
    if isinstance(value, FunctionType):
        return _reaches(value, DEPTH)
    ours = isinstance(value, nn.Module | type | ModuleType) or type(value).__module__ == "builtins"
    return not ours and callable(value) and _class_attends(value.__class__)


@lru_cache(maxsize=4096)
def _class_attends(kind: Any) -> bool:
    """Whether the methods of a class call one of the functions, by themselves or by others."""
    if kind.__module__.partition(".")[0] in ("torch", "bistoch"):
        return False
    owners = [owner for owner in kind.__mro__ if owner.__module__.partition(".")[0] != "torch"]
    members = [inspect.unwrap(x) for owner in owners for x in vars(owner).values() if callable(x)]
    return any(_reaches(x, DEPTH) for x in members if isinstance(x, FunctionType))


def _reaches(function: FunctionType, depth: int) -> bool:
    words = set(_words(function.__code__))
    if words & set(FUNCTIONS):
        return True
    known = [function.__globals__[word] for word in words if word in function.__globals__]
    modules = [x for x in known if isinstance(x, ModuleType)]
    known += [vars(x)[word] for x in modules for word in words if word in vars(x)]
    if any(x is torch._C._nn.scaled_dot_product_attention for x in known):
        # under another name
        return True
    helpers = [inspect.unwrap(x) for x in known if isinstance(x, FunctionType)]
    return depth > 0 and any(_reaches(x, depth - 1) for x in helpers if _may_attend(x))


def _may_attend(function: Any) -> bool:
    return isinstance(function, FunctionType) and (
        (function.__module__ or "").partition(".")[0] not in ("torch", "bistoch", "transformers")
    )


def _words(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _words(inner)


def _number(module: nn.Module, words: tuple[str, ...]) -> int | None:
    for owner in (module, getattr(module, "config", None)):
        for word in words:
            number = getattr(owner, word, None)
            if isinstance(number, int) and not isinstance(number, bool) and number > 0:
                return number
    return None
