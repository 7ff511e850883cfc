"""What a float mask says, in the precision in which it is added: forbidden, or only unlikely."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# how far below the highest bias of its row a bias forbids the pair: half of the smallest number
# that is in use for that, -1e4, so that another bias may have been added to it
FORBIDDEN = 5e3


class Bias(NamedTuple):
    """A float mask as the operators use it.

    `level` is what was taken from all entries of a row in which all of them are very low, and is
    zero in other rows. `lost` marks rows so low that beside their bias scores do not differ, though
    they do by themselves.
    """

    bias: Float[Tensor, "*M #n #m"]
    level: Float[Tensor, "*M #n 1"]
    lost: Bool[Tensor, "*M #n 1"]


def read_bias(
    mask: Float[Tensor, "*M #n #m"],
    dtype: torch.dtype,
    reach: Float[Tensor, "*R #n 1"] | None = None,
) -> Bias:
    """Tell what a float mask forbids from what it only makes less likely.

    A very low number is how many programs write "may not attend". A row softmax does not tell it
    from minus infinity, but a column step would add what is missing, and a count would count it. So
    a pair becomes minus infinity if its bias lies `FORBIDDEN` or more below the best of its row,
    after all that its score could make up for. In a row where all biases are as low, differences
    are all that is left, as in a softmax.

    Args:
        mask: the bias.
        dtype: the precision in which it is added.
        reach: by how much the scores of a row can differ; None if they are not asked.

    >>> read_bias(torch.tensor([[0.0, 1.0, -1e4], [-1e9, -1e9, -2e9]]), torch.float32).bias
    tensor([[0., 1., -inf],
            [0., 0., -inf]])
    """
    bias = as_bias(mask, dtype)
    if bias.shape[-1] == 0:
        none = bias.new_zeros(*bias.shape[:-1], 1)
        return Bias(bias, none, none.bool())
    # what is neither a number nor minus infinity is not for a mask to judge
    top = bias.detach().nan_to_num(-torch.inf, -torch.inf, -torch.inf).amax(-1, keepdim=True)
    below = bias - top
    is_low = (top < -FORBIDDEN) & (top > -torch.inf)
    level = torch.where(is_low, top, 0)
    rounding, differ = -top * torch.finfo(dtype).eps, 1 if reach is None else reach
    lost = is_low & (rounding > differ) & (differ > 0)
    forbidden = below.detach() + (0 if reach is None else reach) <= -FORBIDDEN
    return Bias(torch.where(is_low, below, bias).masked_fill(forbidden, -torch.inf), level, lost)


def forbid_low(mask: Float[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
    """As `read_bias`, for operators that are causal by themselves: the number alone decides.

    What else is in its row may belong to later keys, which must not decide over earlier pairs; and
    while a sequence grows, they are not known yet.

    >>> forbid_low(torch.tensor([[-1e4, 1.0], [-1e9, -2e9]]), torch.float32)
    tensor([[-inf, 1.],
            [-inf, -inf]])
    """
    bias = as_bias(mask, dtype)
    return bias.masked_fill(bias.detach() <= -FORBIDDEN, -torch.inf)


def as_bias(mask: Float[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
    """A float mask in another precision; what is finite stays so, and infinite what is infinite.

    >>> lowest = torch.tensor([torch.finfo(torch.float64).min], dtype=torch.float64)
    >>> as_bias(lowest, torch.float32) == torch.finfo(torch.float32).min
    tensor([True])
    """
    if mask.dtype == dtype or torch.finfo(mask.dtype).max <= torch.finfo(dtype).max:
        return mask.to(dtype)
    limit = torch.finfo(dtype).max
    return torch.where(mask.isinf(), mask, mask.clamp(-limit, limit)).to(dtype)
