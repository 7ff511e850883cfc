"""The operator that makes the rows of delta attention, from the text that names it."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional._operator import check_options, parse_operator
from bistoch.functional.backends import assume_constant_result
from bistoch.functional.problem import row_softmax


def inner_operator(operator: str, text: str, part: str) -> Callable[..., Tensor]:
    """The attention or the plan of the inner operator, with its options."""
    # the table holds this operator too, so it is not there yet when this file is read
    from bistoch.functional import OPERATORS

    name, options = _read(operator, text)
    function = getattr(OPERATORS[name], part)
    return lambda *tokens, mask: function(*tokens, mask=mask, **dict(options))


def safe_softmax(sharpness: float, part: str) -> Callable[..., Tensor]:
    """As the inner softmax, for scores that are too large where the mask forbids them.

    Fused kernels add minus infinity to them, which is no number if they are infinite.
    """

    def plan(query: Tensor, key: Tensor, *, mask: Tensor) -> Tensor:
        scores = query @ key.mT * sharpness
        allowed = mask
        if mask.dtype != torch.bool:
            allowed, scores = mask != -torch.inf, scores + mask
        return row_softmax(scores.masked_fill(~allowed, -torch.inf))

    def attend(query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor) -> Tensor:
        return plan(query, key, mask=mask) @ value

    return plan if part == "plan" else attend


def softmax_sharpness(operator: str, text: str, features: int) -> float | None:
    """The factor of the dot products, if the inner operator is softmax, which has kernels."""
    name, options = _read(operator, text)
    if name != "softmax":
        return None
    given = dict(options)
    scale = given.get("scale")
    scale = 1 / math.sqrt(max(features, 1)) if scale is None else scale
    return float(scale / given.get("eps", 1.0))


# the same text always means the same operator: a compiler need not look inside
@assume_constant_result
def _read(operator: str, text: str) -> tuple[str, tuple[tuple[str, Any], ...]]:
    inputs.check_text(operator, "inner", text, "softmax(eps=0.5)")
    return _read_text(operator, text)


@lru_cache(maxsize=64)
def _read_text(operator: str, text: str) -> tuple[str, tuple[tuple[str, Any], ...]]:
    from bistoch.functional import OPERATORS

    try:
        row, options = parse_operator(text, OPERATORS)
        check_options(row.name, options, row.options())
        # a call with one token says whether the options are legal
        row.attention(*torch.zeros(3, 1, 1).unbind(), **options)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{operator}: inner={text!r} cannot be used: {error}") from None
    inputs.check_inner(operator, row)
    return row.name, tuple(options.items())
