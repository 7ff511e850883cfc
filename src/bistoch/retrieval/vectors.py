"""Vectors of users: checked, in blocks, with one more coordinate."""

import warnings
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

# scores that are held in memory at once: 64 MiB in float32
BLOCK_ELEMENTS = 1 << 24

Vectors = TypeVar("Vectors", np.ndarray, Tensor)


def in_blocks(vectors: Tensor, others: int) -> Iterator[Tensor]:
    """Rows in blocks whose scores against so many others keep to the budget."""
    yield from vectors.split(max(1, BLOCK_ELEMENTS // max(1, others)))


def append(vectors: Vectors, column: Tensor) -> Vectors:
    """Vectors with one more coordinate."""
    if isinstance(vectors, np.ndarray):
        column_array = column.cpu().numpy().astype(vectors.dtype)
        return np.concatenate([vectors, column_array[:, None]], 1)
    return torch.cat([vectors, column.to(vectors)[:, None]], 1)


def as_tensor(name: str, vectors: Any) -> Tensor:
    """Vectors as a checked tensor in working precision."""
    if isinstance(vectors, np.ndarray):
        # torch knows neither other byte orders nor extended precision
        work = np.float64 if vectors.dtype.itemsize > 4 else np.float32
        is_float = vectors.dtype.kind == "f"
        with warnings.catch_warnings():
            # a file that is mapped into memory for reading; nothing here writes to vectors
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            found = torch.from_numpy(np.ascontiguousarray(vectors, work)) if is_float else None
    else:
        found = vectors.detach() if isinstance(vectors, Tensor) else None
    if found is None or not found.is_floating_point():
        kind = getattr(vectors, "dtype", type(vectors).__name__)
        raise TypeError(
            f"HubCorrection: {name} must be a numpy array or a tensor of floats, one vector per "
            f"row, but it is {kind}; convert it, for example with numpy.asarray(x, 'float32')"
        )
    if found.ndim != 2 or 0 in found.shape:
        raise ValueError(
            f"HubCorrection: {name} must be a matrix with at least one vector per row, but its "
            f"shape is {tuple(found.shape)}; stack the vectors to (count, features)"
        )
    found = found if found.dtype == torch.float64 else found.float()
    bad = ~found.isfinite().all(-1)
    if bool(bad.any()):
        raise ValueError(
            f"HubCorrection: {name} must be finite, but {int(bad.sum())} of {len(found)} vectors "
            f"hold NaN or infinity, the first at row {int(bad.nonzero()[0])}; leave them out"
        )
    return found


def check_widths(name: str, vectors: Tensor, other: str, width: int) -> None:
    """Refuse vectors of another encoder."""
    if vectors.shape[1] != width:
        raise ValueError(
            f"HubCorrection: {name} have {vectors.shape[1]} features, but {other} have {width}; "
            "use vectors of the same encoder"
        )
