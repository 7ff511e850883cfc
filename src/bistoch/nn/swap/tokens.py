"""Tokens of a model as the operators take them: its scale, and keys that several heads share."""

import math

from jaxtyping import Float
from torch import Tensor

from bistoch.functional.pose import working_dtype


def scale_tokens(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None
) -> tuple[Tensor, ...]:
    """Tokens such that the scale of the operators, 1/sqrt(d), is the scale of the model.

    >>> import torch
    >>> q, k, v = torch.ones(3, 2, 4).unbind()
    >>> scale_tokens(q, k, v, 1.0)[0][0]
    tensor([2., 2., 2., 2.])
    """
    factor = 1.0 if scale is None else scale * math.sqrt(query.shape[-1])
    if math.isclose(factor, 1.0, rel_tol=1e-6):
        return query, key, value
    # a product in half precision would be rounded, or overflow
    query, key, value = (x.to(working_dtype(x.dtype)) for x in (query, key, value))
    return query * factor, key, value


def share_keys(
    heads: int, *tokens: Float[Tensor, "*b kv m d"]
) -> tuple[Float[Tensor, "*b h m d"], ...]:
    """Keys and values for every query head, where several query heads share those of one.

    >>> import torch
    >>> share_keys(8, torch.ones(2, 4, 5, 3))[0].shape
    torch.Size([2, 8, 5, 3])
    """
    counts = (heads // x.shape[-3] for x in tokens)
    return tuple(
        x if count == 1 else x.repeat_interleave(count, -3)
        for x, count in zip(tokens, counts, strict=True)
    )
