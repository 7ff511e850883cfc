"""The masks of models in the words of the operators: pairs, biases, and who is padding."""

from collections.abc import Callable, Hashable
from typing import Any, TypedDict, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional._masks import FORBIDDEN

Found = TypeVar("Found")

# where a mask keeps what was derived from it
KEPT = "_bistoch_derived"


class Masks(TypedDict):
    """What an operator is told besides its tokens."""

    mask: Tensor | None
    query_mask: Tensor | None
    key_mask: Tensor | None


def read_masks(
    attention_mask: Tensor | None,
    position_bias: Float[Tensor, "#b #h n m"] | None,
    *,
    queries: int,
    keys: int,
    causal: bool,
    hide_queries: bool,
    device: torch.device,
) -> Masks:
    """Tell padding from patterns and biases.

    A key that no query may see is padding. In self-attention its query is padding too, and an
    operator whose rows depend on each other must not count it: models never say so, since for
    softmax it makes no difference.

    Args:
        attention_mask: as transformers makes it: boolean, or a float bias with very low entries,
            (b, h, n, m) with axes of size one where it is shared, or (b, m) of zeros and ones.
        position_bias: what the model adds to its scores.
        queries, keys: their numbers, n and m.
        causal: whether a missing mask stands for the causal one.
        hide_queries: whether the padded keys are the padded queries too.
        device: where the tokens are.

    >>> real = torch.tensor([[1, 1, 0]])
    >>> masks = read_masks(real, None, queries=3, keys=3, causal=False, hide_queries=True,
    ...                    device=real.device)
    >>> masks["mask"], masks["query_mask"].tolist(), masks["key_mask"].tolist()
    (None, [[[True, True, False]]], [[[True, True, False]]])
    """
    allowed, bias = _split(attention_mask, keys)
    if allowed is None and causal and queries > 1:
        # transformers leaves the mask out where torch's is_causal says the same
        allowed = torch.ones(queries, keys, dtype=torch.bool, device=device).tril()[None, None]
    if position_bias is not None:
        bias = position_bias if bias is None else position_bias + bias
    if allowed is None:
        return Masks(mask=bias, query_mask=None, key_mask=None)
    real = allowed.any(-2)
    query_mask = real if hide_queries else None
    if _is_padding(allowed, real, query_mask):
        return Masks(mask=bias, query_mask=query_mask, key_mask=real)
    mask = allowed if bias is None else torch.where(allowed, bias, -torch.inf)
    return Masks(mask=mask, query_mask=query_mask, key_mask=real)


def once_per_forward(
    tensor: Tensor | None, reader: object, what: Hashable, make: Callable[[], Found]
) -> Found:
    """What layers derive from a tensor that they all are given: made by the first of them.

    It is kept with the tensor. A layer that asks again begins another forward, for which it is made
    anew: whoever made the tensor may have changed it since.

    Args:
        tensor: a mask; without one nothing is kept.
        reader: who asks.
        what: is asked for.
        make: derives it.

    >>> mask, made = torch.ones(3), []
    >>> for layer in ("first", "second", "first", "second"):
    ...     _ = once_per_forward(mask, layer, "sum", lambda: made.append(mask.sum()))
    >>> len(made)
    2
    """
    if tensor is None or torch.compiler.is_compiling():
        return make()
    # another value, or another kind of what is derived from it
    version = None if tensor.is_inference() else tensor._version
    what = what, version, torch.is_inference_mode_enabled()
    kept: dict[Hashable, tuple[Any, set]] | None = getattr(tensor, KEPT, None)
    if kept is None:
        kept = {}
        setattr(tensor, KEPT, kept)
    found, readers = kept.get(what, (None, {reader}))
    if reader in readers:
        found, readers = _apart(make(), tensor), set()
        kept[what] = found, readers
    readers.add(reader)
    return found


def _apart(found: Found, tensor: Tensor) -> Found:
    """Copies of views of a tensor: one that is kept with it would keep it alive for ever."""
    if not isinstance(found, dict):
        return found
    bases = {id(tensor), id(tensor._base)} - {id(None)}
    return {
        name: x.clone() if isinstance(x, Tensor) and bases & {id(x), id(x._base)} else x
        for name, x in found.items()
    }  # type: ignore[return-value]


def looks_causal(masks: Masks) -> bool:
    """Whether a mask hides every later token from every earlier one.

    >>> later = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    >>> [looks_causal(Masks(mask=m, query_mask=None, key_mask=None)) for m in (later, later.tril())]
    [False, True]
    """
    mask = masks["mask"]
    if mask is None or torch.compiler.is_compiling() or mask.shape[-1] != mask.shape[-2]:
        return False
    allowed = mask if mask.dtype == torch.bool else mask > -torch.inf
    several = bool((allowed.any(-2).sum(-1) > 1).any())
    return several and not bool(allowed.triu(1).any())


def forget_causal(masks: Masks) -> Masks:
    """Leave out a mask that hides nothing but padding and, from every token, those behind it.

    >>> past, real = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril(), torch.arange(4) < 3
    >>> forget_causal(Masks(mask=past & real, query_mask=None, key_mask=real))["mask"] is None
    True
    """
    mask, real, queries = masks["mask"], masks["key_mask"], masks["query_mask"]
    if mask is None or mask.dtype != torch.bool or torch.compiler.is_compiling():
        return masks
    if mask.shape[-1] != mask.shape[-2]:
        return masks
    past = torch.ones_like(mask).tril()
    same = mask == (past if real is None else past & real[..., None, :])
    # what a padded query sees does not matter
    same = same if queries is None else same | ~queries[..., None]
    if not bool(same.all()):
        return masks
    return Masks(mask=None, query_mask=queries, key_mask=real)


def _split(mask: Tensor | None, keys: int) -> tuple[Bool[Tensor, "..."] | None, Tensor | None]:
    """A mask as the pairs it allows and the bias it adds to them, if any."""
    if mask is None:
        return None, None
    mask = mask[..., :keys]
    if mask.ndim == 2:
        return mask[:, None, None, :].bool(), None
    if not mask.is_floating_point():
        return mask.bool(), None
    # "forbidden" is written as the lowest number of the dtype or as -1e4, plus at times a bias
    allowed = mask > -FORBIDDEN
    bias = mask.masked_fill(~allowed, 0)
    is_plain = not torch.compiler.is_compiling() and not bool(bias.any())
    return allowed, None if is_plain else bias


def _is_padding(allowed: Tensor, real: Tensor, query_mask: Tensor | None) -> bool:
    """Whether all (real) queries see the same keys, so that keys alone need to be hidden."""
    if torch.compiler.is_compiling():
        # values cannot be read; the whole mask says the same, at a higher price
        return allowed.shape[-2] == 1
    same = allowed == real[..., None, :]
    return bool((same if query_mask is None else same | ~query_mask[..., None]).all())
