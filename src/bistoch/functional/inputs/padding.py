"""A warning where padding is told for keys alone."""

import torch
from torch import Tensor

from bistoch.functional._masks import FORBIDDEN
from bistoch.functional.inputs.tensors import values_are_at_hand
from bistoch.functional.inputs.warn import warn_caller


class PaddingWarning(UserWarning):
    """Keys are hidden from all queries, but which queries are padding was not said."""


def warn_half_padding(
    operator: str,
    queries: int,
    keys: int,
    mask: Tensor | None,
    query_mask: Tensor | None,
    key_mask: Tensor | None,
) -> None:
    """Warn where padded keys are hidden and padded queries seem to be forgotten.

    For softmax a padded query is harmless; where rows depend on each other it changes the others.
    The query mask is not inferred: as many queries as keys may be other tokens. Decided from
    shapes, so that no accelerator has to wait; a bias, which may hide nothing, only if its values
    can be read.
    """
    # first, since a comparison of sizes would fix them in a program that is exported
    if torch.compiler.is_compiling():
        return
    if query_mask is not None or queries != keys or queries < 2:
        return
    if key_mask is not None:
        what = "key_mask"
    elif mask is not None and _is_same_for_all_queries(mask) and _may_hide(mask):
        what = "a mask that is the same for all queries"
    else:
        return
    warn_caller(
        f"{operator}: {what} hides keys, but without query_mask all {queries} queries count, and "
        "padded ones change the results of the others; if queries and keys are the same tokens, "
        "pass both query_mask and key_mask (True = real), else say that all queries are real with "
        f"query_mask=torch.ones({queries}, dtype=torch.bool)",
        PaddingWarning,
    )


def _is_same_for_all_queries(mask: Tensor) -> bool:
    if mask.ndim == 0 or mask.shape[-1] == 1:
        return False
    return mask.ndim == 1 or mask.shape[-2] == 1 or mask.stride(-2) == 0


def _may_hide(mask: Tensor) -> bool:
    if mask.dtype == torch.bool:
        return True
    if not values_are_at_hand(mask):
        return False
    bias = mask.detach()
    below = bias - bias.amax(-1, keepdim=True)
    return bool(((below <= -FORBIDDEN) | (bias == -torch.inf)).any())
