"""Checks of what decoding carries from step to step."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bistoch.functional.inputs.tensors import kind

if TYPE_CHECKING:
    from bistoch.functional.causal import CausalState


def check_cache(operator: str, keys: int, length: int, queries: int) -> None:
    """Check that the cache holds all earlier tokens and the new ones."""
    if keys < length + queries:
        raise ValueError(
            f"{operator}: key and value must be the cache of all tokens, the {length} that the "
            f"state has seen and the {queries} new ones, but there are {keys}; append the new keys "
            "and values to the cache before the step"
        )


def check_state(operator: str, state: "CausalState", batch: Sequence[int]) -> None:
    """Check that a state belongs to as many sequences and heads as the tokens."""
    tensors = [*state] if isinstance(state, tuple) else []
    if not hasattr(state, "position") or not all(isinstance(x, Tensor) for x in tensors):
        raise TypeError(
            f"{operator}: state must be the CausalState of the step before, or None at the "
            f"beginning, but it is {kind(state)}; pass what the last step returned beside its rows"
        )
    own = state.position.shape
    try:
        fits = torch.broadcast_shapes(own, tuple(batch)) == torch.Size(batch)
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{operator}: state must have the leading axes of the tokens, {tuple(batch)}, but it "
            f"has {tuple(own)}; choose its sequences with state.index_select as those of the cache"
        )


def check_leading_axis(function: str, axis: int, axes: int) -> None:
    """Check that an axis is one of those before the tokens."""
    if not 0 <= axis < axes:
        raise ValueError(
            f"{function}: axis must be one of the {axes} leading axes, counted from 0, but it is "
            f"{axis}; tokens cannot be taken out of a state"
        )
