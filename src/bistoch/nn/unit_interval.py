"""Keep a learned number between zero and one without losing its gradient at the ends."""

import torch
from jaxtyping import Float
from torch import Tensor


def clamp_to_unit(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Clamp to [0, 1], with a gradient that lets an entry at or beyond an end come back.

        dx = dy  inside, or where a descent step x - dy leads back inside;   dx = 0  elsewhere

    The plain clamp gives nothing outside, so an entry that overshot would stay there for ever.

    >>> import torch
    >>> x = torch.tensor([-0.5, -0.5, 0.5], requires_grad=True)
    >>> clamp_to_unit(x).tolist()
    [0.0, 0.0, 0.5]
    >>> clamp_to_unit(x).backward(torch.tensor([1.0, -1.0, 1.0]))
    >>> x.grad
    tensor([ 0., -1.,  1.])
    """
    return _clamp(x)


# a custom operator and not an autograd.Function: compiling the latter raises a warning inside torch
@torch.library.custom_op("bistoch::clamp_to_unit", mutates_args=())
def _clamp(x: Tensor) -> Tensor:
    return x.clamp(0, 1)


@_clamp.register_fake
def _(x):
    return torch.empty_like(x)


def _keep_input(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    # descent moves against the gradient: a positive one lowers x, a negative one raises it
    leaves = ((x <= 0) & (grad > 0)) | ((x >= 1) & (grad < 0))
    return grad.masked_fill(leaves, 0)


_clamp.register_autograd(_differentiate, setup_context=_keep_input)
