"""The state of a causal operator, kept beside the keys in the cache of a model."""

import functools
from typing import Any

import torch
from torch import nn

from bistoch.functional import CausalState
from bistoch.functional.causal.growing import GrowingState

# the state of a layer of a cache, in that layer
STATE = "bistoch_state"


def find_cache_layer(module: nn.Module, arguments: tuple, options: dict[str, Any]) -> Any:
    """The layer of the cache that is passed to a call of an attention layer, None without one."""
    from transformers.cache_utils import Cache

    given = (*arguments, *options.values())
    cache: Any = next((one for one in given if isinstance(one, Cache)), None)
    # a decoder with cross-attention has two caches in one
    cache = getattr(cache, "self_attention_cache", cache)
    number = getattr(module, "layer_idx", None)
    if cache is None or not isinstance(number, int):
        return None
    # a cache that grows makes its layers when they are first used
    return _Late(cache, number)


class _Late:
    """A layer of a cache that may not exist yet."""

    def __init__(self, cache: Any, number: int) -> None:
        self.cache, self.number = cache, number

    def get(self) -> Any:
        return self.cache.layers[self.number]


def recall(found: _Late, name: str, new: int) -> CausalState | GrowingState | None:
    """The state before the new tokens, which the cache holds already; None at the beginning."""
    layer = found.get()
    if getattr(layer, "is_sliding", False):
        raise NotImplementedError(
            f"attend: {name} needs all keys, but this cache drops those that leave a window; "
            "generate with use_cache=False, or leave the layer out of the swap"
        )
    state: CausalState | GrowingState | None = getattr(layer, STATE, None)
    seen, before = int(layer.get_seq_length()), 0 if state is None else state.length
    if seen != before + new:
        raise ValueError(
            f"attend: {name} remembers {before} tokens, but the cache held {seen - new} before "
            f"these {new}; start with an empty cache, and do not crop it"
        )
    return state


def remember(found: _Late, state: CausalState | GrowingState) -> None:
    """Keep the state in the layer of the cache, so that whatever moves its keys moves it too."""
    layer = found.get()
    if not hasattr(layer, STATE):
        kind: Any = type(layer)
        layer.__class__ = _remembering(kind)
    setattr(layer, STATE, state)


@functools.cache
def _remembering(kind: Any) -> Any:
    """A layer of a cache that does to its state what it does to its keys."""

    # an object can only take a class of the same layout: one that inherits from its own alone
    class Remembering(kind):
        # transformers must not take it for the layer of that name
        _layer_type = None
        bistoch_state: CausalState | GrowingState | None = None

        def reset(self) -> None:
            super().reset()
            self.bistoch_state = None

        def reorder_cache(self, beam_idx: torch.Tensor) -> None:
            super().reorder_cache(beam_idx)
            self._choose(beam_idx)

        def batch_select_indices(self, indices: torch.Tensor) -> None:
            super().batch_select_indices(indices)
            self._choose(indices)

        def batch_repeat_interleave(self, repeats: int) -> None:
            super().batch_repeat_interleave(repeats)
            if self.bistoch_state is not None:
                size = len(self.bistoch_state.position)
                self._choose(torch.arange(size).repeat_interleave(repeats))

        def _choose(self, index: torch.Tensor) -> None:
            state = self.bistoch_state
            if state is not None:
                self.bistoch_state = state.index_select(0, index.to(state.position.device))

    Remembering.__name__ = Remembering.__qualname__ = kind.__name__
    return Remembering
