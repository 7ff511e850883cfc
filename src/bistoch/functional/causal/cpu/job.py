"""What a job tells the kernels, and where the numbers of one head lie while it is worked on.

Rows come in tiles: some whole blocks if these are small, or a part of one. The scores of a tile are
a strip, as long as the keys that its last row sees; everything else is a vector over keys.
"""

import numpy as np

from bistoch.functional.elastic.cpu.head import NO_MASK, padded, whole
from bistoch.functional.kernels.array import vector
from bistoch.functional.kernels.job import reader
from bistoch.functional.kernels.runtime import address_of, jit, size_of
from bistoch.functional.kernels.vector import lanes_of

# the numbers of a job in their order; names ending in _at are addresses, those of tokens being
# tables with one address for every head, and names ending in _row steps between rows
FIELDS = (
    "next_head", "next_worker", "gemm", "batch", "n", "d", "e",
    "block", "tile", "tiles", "span", "stride", "workspace_stride",
    "query_at", "query_row", "key_at", "key_row", "value_at", "value_row",
    "sharpness_at", "lam_at", "prior_at", "harmonic_at",
    "mask_at", "mask_kind", "mask_index_at", "mask_stride", "mask_row_stride",
    "mask_column_stride", "length_at",
    "output_at", "shift_at", "factor_at", "history_at", "history_stride",
    "output_grad_at", "query_grad_at", "key_grad_at", "value_grad_at", "sharpness_grad_at",
    "lam_grad_at", "mask_grad_at", "mask_grad_size", "workspace_at",
    "state_at", "state_step", "state_row", "level_at",
)  # fmt: skip
_job_at = reader(FIELDS)

# vectors over keys in the workspace of a head; behind them two vectors over the rows of a tile
BIAS, RECEIVED, WANTED, SUM, BEFORE, BIAS_GRAD, RECEIVED_GRAD, SUM_GRAD = range(8)
KEY_VECTORS = 8
# accounts that are kept for the backward, at most; what lies between them is computed again
KEPT = 128
# rows of a tile, at most; many make products efficient, few stay in the cache
LARGEST = 128
SMALLEST = 64


def tile_rows(block: int) -> int:
    """How many rows are worked on together."""
    if block <= LARGEST:
        return block * max(1, SMALLEST // block)
    parts = -(-block // LARGEST)
    return -(-block // parts)


def tile_count(n: int, block: int, tile: int) -> int:
    """How many tiles there are; the last ones may be empty."""
    if block <= tile:
        return -(-n // tile)
    return -(-n // block) * -(-block // tile)


def kept_span(n: int, block: int) -> int:
    """Blocks from one account that is kept to the next: one, or whole tiles."""
    span = -(-n // (block * KEPT))
    together = max(1, tile_rows(block) // block)
    return 1 if span <= 1 else -(-span // together) * together


def row_stride(n: int, size: int) -> int:
    """From one row of a strip to the next: an odd number of whole vectors.

    At a power of two, the same key of all rows would compete for the same lines of the cache.
    """
    one = padded(1, size)
    return one * (padded(n, size) // one | 1)


def history_elements(n: int, block: int, columns: int) -> int:
    """Numbers of all kept accounts of a head: each has as many keys as there were."""
    span = kept_span(n, block)
    count = -(-n // (span * block))
    return columns * span * block * count * (count - 1) // 2


def workspace_elements(
    stride: int, tile: int, span: int, columns: int, backward: bool, size: int
) -> int:
    """How many numbers the work on one head needs."""
    strips = 2 if backward else 1
    replayed = span * columns * stride if backward and span > 1 else 0
    return strips * tile * stride + KEY_VECTORS * stride + 2 * padded(tile, size) + replayed


@jit
def open_job(pointer):
    """The numbers of a job by name."""
    return _job_at(address_of(pointer))


@jit
def tokens_of(table, batch, index):
    """Where the tokens of a head begin: heads may share them."""
    return vector(table, batch, np.int64)[index]


@jit
def over_keys(job, space, which, like):
    """A vector of the head over its keys, in whole vectors."""
    return vector(space + which * job.stride * size_of(like), job.stride, like)


@jit
def over_rows(job, space, which, like):
    """A vector over the rows of a tile: their shifts, and their factors."""
    behind = KEY_VECTORS * job.stride + which * whole_lanes(job.tile, like)
    return vector(space + behind * size_of(like), job.tile, like)


@jit
def strip_at(job, space, which, like):
    """Where a strip begins: scores, which become the plan, or its gradient."""
    behind = KEY_VECTORS * job.stride + 2 * whole_lanes(job.tile, like)
    return space + (behind + which * job.tile * job.stride) * size_of(like)


@jit
def whole_lanes(length, like):
    """A length in whole vectors."""
    wide = lanes_of(like)
    return (length + wide - 1) // wide * wide


@jit
def length_of(job, index):
    """How many tokens of a head are real; these are the first."""
    return whole(job.length_at)[index] if job.length_at else job.n


@jit
def rows_of_tile(job, number, length):
    """The rows of a tile; there may be none."""
    if job.block <= job.tile:
        return number * job.tile, min((number + 1) * job.tile, length)
    parts = (job.block + job.tile - 1) // job.tile
    block = number // parts
    first = block * job.block + number % parts * job.tile
    return first, min(first + job.tile, (block + 1) * job.block, length)


@jit
def account_columns(job):
    """Vectors of an account that is kept: with a mask, what was wanted is not known otherwise."""
    return 1 if job.mask_kind == NO_MASK else 2


@jit
def account_at(job, index, space, block, strips, like):
    """Where the account before a block is kept: for good, or only while its span is replayed."""
    columns = account_columns(job)
    number, between = block // job.span, block % job.span
    if between == 0:
        keys = job.span * job.block
        behind = index * job.history_stride + columns * keys * (number * (number - 1) // 2)
        return job.history_at + behind * size_of(like)
    replayed = strip_at(job, space, strips, like)
    return replayed + between * columns * job.stride * size_of(like)
