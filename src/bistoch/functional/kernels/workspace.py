"""Working memory of kernels that is kept for the next call, so that its pages are not made again.

Memory of this size is given back to the system when it is freed, and a new page costs as much as
hundreds of exponentials: at n = 4096 that was a third of a call.
"""

import torch
from torch import Tensor

# bytes of a workspace that is worth keeping, and of the largest that is kept: one at a time
SHORTEST, LONGEST = 16 << 20, 160 << 20

_KEPT: list[Tensor] = []


def borrow(count: int, dtype: torch.dtype) -> Tensor:
    """Room for so many numbers, to be given back."""
    size = count * dtype.itemsize
    if _is_kept(size):
        try:
            # taken out of the list, so that no other thread can have it
            kept = _KEPT.pop()
        except IndexError:
            pass
        else:
            if kept.numel() >= size:
                return kept[:size].view(dtype)
    # kernels read addresses of this machine, whatever the default device is
    return torch.empty(count, dtype=dtype, device="cpu")


def give_back(workspace: Tensor) -> None:
    """Keep a workspace for later, if it is neither small nor very large."""
    storage = workspace.untyped_storage()
    if _is_kept(storage.nbytes()):
        _KEPT[:] = [torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)]


def release() -> None:
    """Free what is kept."""
    _KEPT.clear()


def _is_kept(size: int) -> bool:
    return SHORTEST <= size <= LONGEST
