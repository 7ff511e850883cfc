"""Mean and maximum over the real tokens."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def mean_of_real(
    x: Float[Tensor, "*b n d"], mask: Bool[Tensor, "*b n"] | None
) -> Float[Tensor, "*b d"]:
    """The mean of the real tokens, zeros if there are none.

    >>> mean_of_real(torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([True, True, False]))
    tensor([2.])
    """
    if mask is None:
        return x.sum(-2) / max(x.shape[-2], 1)
    weight = mask.to(x.dtype)
    # padding is overwritten and not only multiplied by zero: it may be infinite
    total = x.masked_fill(~mask[..., None], 0).sum(-2)
    return total / weight.sum(-1, keepdim=True).clamp(min=1)


def max_of_real(
    x: Float[Tensor, "*b n d"], mask: Bool[Tensor, "*b n"] | None
) -> Float[Tensor, "*b d"]:
    """The largest entry of each feature among the real tokens, zeros if there are none.

    >>> max_of_real(torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([True, True, False]))
    tensor([3.])
    """
    if x.shape[-2] == 0:
        return x.sum(-2)
    if mask is None:
        return x.amax(-2)
    largest = x.masked_fill(~mask[..., None], -torch.inf).amax(-2)
    return largest.masked_fill(~mask.any(-1, keepdim=True), 0)
