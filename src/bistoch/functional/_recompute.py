"""Trading time for memory: what a step computes on its way is computed again in the backward."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

# intermediate numbers below which nothing is recomputed: 256 KiB in float32
FEW = 1 << 16


def checkpointed(numbers: int, step: Callable[..., Any], *inputs: Any) -> Any:
    """Call a step so that autograd keeps its inputs only, and none of its intermediate tensors.

    Args:
        numbers: how many numbers the step makes on its way; if they are few, they are kept.
        step: a function of tensors that gives the same result when it is called again.
        inputs: what to call it with.

    >>> x = torch.ones(3, requires_grad=True)
    >>> checkpointed(1_000_000, lambda x: (x * x).exp().sum(), x).backward()
    >>> bool(torch.allclose(x.grad, 2 * torch.e * torch.ones(3)))
    True
    """
    # a compiler decides by itself what it keeps; and numbers may be open in a program for export
    if torch.compiler.is_compiling() or numbers <= FEW or not torch.is_grad_enabled():
        return step(*inputs)
    return checkpoint(step, *inputs, use_reentrant=False, preserve_rng_state=False)
