"""Where kernels find tokens: read where they lie, also where heads share them."""

import numpy as np
import torch
from torch import Tensor

# numbers from one row to the next, at most: BLAS counts them in 32 bits, times a stride of rows
FARTHEST = 1 << 20


def readable_rows(tokens: Tensor) -> Tensor:
    """Tokens whose numbers lie side by side, and whose rows do not overlap; copied if need be."""
    tokens = tokens.detach()
    features = tokens.shape[-1]
    if tokens.stride(-1) == 1 and features <= tokens.stride(-2) < FARTHEST:
        return tokens
    return tokens.contiguous()


def addresses(tokens: Tensor, batch: torch.Size) -> np.ndarray:
    """Where the tokens of every problem begin; their leading axes broadcast to those of a batch.

    >>> x = torch.zeros(2, 1, 5, 4)
    >>> (addresses(x, torch.Size((2, 3))) - x.data_ptr()).tolist()
    [0, 0, 0, 80, 80, 80]
    """
    steps = tokens.expand(*batch, *tokens.shape[-2:]).stride()[:-2]
    places = np.zeros((), np.int64)
    for length, step in zip(batch, steps, strict=True):
        places = places[..., None] + np.arange(length, dtype=np.int64) * step
    return tokens.data_ptr() + places.reshape(-1) * tokens.element_size()


def row_step(tokens: Tensor) -> int:
    """Numbers from one row to the next, as BLAS wants it."""
    return max(tokens.stride(-2), tokens.shape[-1], 1)


def padded(length: int, size: int) -> int:
    """A length in whole vectors of 64 bytes, for numbers of so many bytes.

    >>> padded(5, 4), padded(16, 4), padded(17, 8)
    (16, 16, 24)
    """
    lanes = 64 // size
    return -(-length // lanes) * lanes
