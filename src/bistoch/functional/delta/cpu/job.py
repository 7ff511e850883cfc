"""What a job tells the kernels, and where the numbers of one worker lie while it works.

The rows of a head come in tiles: whole groups, a group being the rows between two dense ones. A
tile depends on no other, so that workers take them in any order, the longest first.
"""

import numpy as np

from bistoch.functional.kernels.array import vector
from bistoch.functional.kernels.job import reader
from bistoch.functional.kernels.runtime import address_of, jit, size_of
from bistoch.functional.kernels.vector import BYTES

# the numbers of a job in their order; names ending in _at are addresses, in _row steps between rows
FIELDS = (
    "next_item", "next_worker", "gemm", "batch", "n", "d", "e",
    "window", "sink", "stride", "correction", "tail", "first_dense", "tile", "tiles", "count",
    "width", "workspace_at", "workspace_stride", "sharpness_at", "length_at", "bias_at",
    "query_at", "query_row", "key_at", "key_row", "value_at", "value_row",
    "output_at", "shift_at", "factor_at",
    "dense_at", "dense_shift_at", "dense_factor_at",
    "tail_at", "tail_shift_at", "tail_factor_at",
    "output_grad_at", "query_grad_at", "key_grad_at", "value_grad_at", "bias_grad_at",
)  # fmt: skip
_job_at = reader(FIELDS)

NONE, RECOMPUTE, DELTA = range(3)
CORRECTIONS = ("none", "recompute", "delta")

# dense rows that are computed together, and the keys that they see at a time
DENSE = 64
KEYS = 512
# sparse rows that are computed together: each sees keys that the first or the last does not see
CHUNK = 64
# rows of a tile, at most, if a group is not longer
TILE = 4096


def padded(length: int, size: int) -> int:
    """A length in whole vectors, for numbers of so many bytes."""
    lanes = BYTES // size
    return -(-length // lanes) * lanes


def tile_rows(n: int, stride: int) -> int:
    """How many rows are one item of work: whole groups."""
    return stride * max(1, min(DENSE, TILE // stride, -(-n // stride)))


def strip_width(n: int, window: int, sink: int, size: int) -> int:
    """From one row of a strip to the next: the sink, the windows of a chunk, an odd number."""
    one = padded(1, size)
    keys = max(min(n, sink + window + CHUNK) + one, KEYS)
    return one * ((padded(keys, size) + one) // one | 1)


def workspace_elements(width: int, tile: int, d: int, e: int, backward: bool, size: int) -> int:
    """How many numbers a worker needs."""
    rows = max(DENSE, CHUNK)
    strips = 2 if backward else 1
    grads = (tile + DENSE) * e if backward else 0
    return strips * rows * width + 2 * width + 4 * padded(rows, size) + rows * e + grads + e


@jit
def open_job(pointer):
    """The numbers of a job by name."""
    return _job_at(address_of(pointer))


@jit
def length_of(job, index):
    """How many tokens of a head are real; these are the first."""
    return vector(job.length_at, job.batch, np.int64)[index] if job.length_at else job.n


@jit
def tokens_of(table, batch, index):
    """Where the tokens of a head begin: heads may share them."""
    return vector(table, batch, np.int64)[index]


@jit
def strip_at(job, space, which, like):
    """Where a strip begins: scores, which become the plan, or its gradient."""
    return space + which * max(DENSE, CHUNK) * job.width * size_of(like)


@jit
def vectors_at(job, space, strips, like):
    """Where the vectors of a worker begin: behind its strips."""
    return space + strips * max(DENSE, CHUNK) * job.width * size_of(like)
