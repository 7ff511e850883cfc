"""Numba kernels of the forward: every head block after block, a strip of scores at a time.

A strip is made by one product, softened in place, added up over its rows, and used by the product
with the values while it is still in the cache. Then the account of the keys is brought up to date.
"""

import numpy as np

from bistoch.functional.causal.cpu.job import (
    BIAS,
    RECEIVED,
    SUM,
    WANTED,
    account_at,
    account_columns,
    length_of,
    open_job,
    over_keys,
    rows_of_tile,
    strip_at,
    tokens_of,
    whole_lanes,
)
from bistoch.functional.causal.cpu.rows import add_rows, close_row, soften
from bistoch.functional.causal.cpu.update import level_of, open_keys, receive, weigh
from bistoch.functional.elastic.cpu.head import BIAS as FLOAT_MASK
from bistoch.functional.elastic.cpu.head import NO_MASK, of_head, whole
from bistoch.functional.kernels.array import row_at, start_of, vector
from bistoch.functional.kernels.job import own_space
from bistoch.functional.kernels.runtime import (
    PLAIN,
    TRANSPOSED,
    jit,
    kind_of,
    logarithm,
    matmul,
    size_of,
    take_next,
)


def attend(pointer):
    """Take heads until none is left, and attend with each."""
    like, job = kind_of(pointer), open_job(pointer)
    space = own_space(job, like)
    index = take_next(job.next_head)
    while index < job.batch:
        attend_head(job, index, space, like)
        index = take_next(job.next_head)


@jit
def attend_head(job, index, space, like):
    """The result of one head, and what its backward needs."""
    length, n = length_of(job, index), job.n
    shift = vector(job.shift_at + index * n * size_of(like), n, like)
    factor = vector(job.factor_at + index * n * size_of(like), n, like)
    output = of_head(job.output_at, index, n, job.e, like)
    open_account(job, index, space, like)
    for number in range(job.tiles):
        first, last = rows_of_tile(job, number, length)
        if first < last:
            own = shift[first:last], factor[first:last]
            read_tile(job, index, space, first, last, own[0], own[1], 1, like)
            weigh_values(job, index, space, first, last, factor, output, like)
    if job.state_at:
        leave_state(job, index, space, like)
    shift[length:] = like(0)
    factor[length:] = like(0)
    output[length:] = like(0)


@jit
def leave_state(job, index, space, like):
    """The account after the last row, for decoding that goes on from there."""
    length, size = length_of(job, index), size_of(like)
    bias, sums = over_keys(job, space, BIAS, like), over_keys(job, space, SUM, like)
    received, wanted = over_keys(job, space, RECEIVED, like), over_keys(job, space, WANTED, like)
    begun = (length - 1) // job.block * job.block
    # new keys begin at the level of the block before, and have received nothing since
    level = logarithm(prior_of(job, like)) - received[begun]
    receive(received, sums, bias, length, like)
    harmonic_share(job, length, wanted, like)
    if length % job.block == 0:
        level, _ = level_of(received[begun:length], wanted[begun:length], like)
        level = min(level, like(0))
        weigh(received, wanted, vector(job.lam_at, job.batch, like)[index], bias, length, like)
    vector(job.level_at, job.batch, like)[index] = level
    for which in range(3):
        at = job.state_at + (which * job.state_step + index * job.state_row) * size
        kept, source = vector(at, length, like), over_keys(job, space, which, like)
        for j in range(length):
            kept[j] = source[j]


@jit
def open_account(job, index, space, like):
    """The account of keys that no row has seen yet."""
    for which in (BIAS, RECEIVED, SUM):
        over_keys(job, space, which, like)[:] = like(0)
    over_keys(job, space, WANTED, like)[:] = prior_of(job, like)
    open_block(job, index, space, RECEIVED, 0, like)


@jit
def open_block(job, index, space, which, first, like):
    """Let the keys of a block begin, and set the bias for its rows."""
    stop = min(first + job.block, length_of(job, index))
    lam = vector(job.lam_at, job.batch, like)[index]
    received, wanted = over_keys(job, space, which, like), over_keys(job, space, WANTED, like)
    level = like(0)
    if first:
        last = first - job.block
        level, _ = level_of(received[last:first], wanted[last:first], like)
    open_keys(received[first:stop], wanted[first:stop], level, prior_of(job, like), like)
    bias = over_keys(job, space, BIAS, like)
    weigh(received, wanted, lam, bias, stop, like)


@jit
def prior_of(job, like):
    """The mass that every key is thought to have been owed and given before its first row."""
    return vector(job.prior_at, 1, like)[0]


@jit
def read_tile(job, index, space, first, last, shift, factor, strips, like):
    """The strip of a tile, its rows not yet divided by their sums, and the account after it.

    Accounts that are needed again are kept; `strips` says how many strips lie before those that
    are kept in the workspace.
    """
    write_scores(job, index, space, first, last, like)
    length, step = length_of(job, index), job.stride * size_of(like)
    bias, sums = over_keys(job, space, BIAS, like), over_keys(job, space, SUM, like)
    strip, start = strip_at(job, space, 0, like), first
    width = whole_lanes(last, like)
    while start < last:
        end = min((start // job.block + 1) * job.block, last)
        if job.mask_kind != NO_MASK:
            forbid(job, index, strip, first, start, end, like)
            share(job, space, strip, first, start, end, like)
        for top in range(start, end, 8):
            bottom = min(top + 8, end)
            for i in range(top, bottom):
                row, place = strip + (i - first) * step, i - first
                seen = close_row(row, i + 1, width, like(-np.inf), like)
                shift[place], factor[place] = soften(row, start_of(bias), seen, like)
            add_rows(
                strip + (top - first) * step, step, bottom - top, whole_lanes(bottom, like),
                factor[top - first : bottom - first], start_of(sums), like,
            )  # fmt: skip
        if end % job.block == 0 and end < length:
            close_block(job, index, space, end, strips, like)
        start = end


@jit
def write_scores(job, index, space, first, last, like):
    """The scores of some rows with all keys up to the last of them."""
    d, size, strip = job.d, size_of(like), strip_at(job, space, 0, like)
    if d:
        sharpness = vector(job.sharpness_at, job.batch, like)[index]
        matmul(
            job.gemm, TRANSPOSED, PLAIN, last, last - first, d, sharpness,
            tokens_of(job.key_at, job.batch, index), job.key_row,
            tokens_of(job.query_at, job.batch, index) + first * job.query_row * size,
            job.query_row, like(0), strip, job.stride,
        )  # fmt: skip
    else:
        vector(strip, (last - first) * job.stride, like)[:] = like(0)


@jit
def forbid(job, index, strip, first, start, end, like):
    """Add the mask to rows of a strip, minus infinity where it forbids a pair."""
    which, never = whole(job.mask_index_at)[index], like(-np.inf)
    stride = job.mask_column_stride
    for i in range(start, end):
        row = vector(strip + (i - first) * job.stride * size_of(like), i + 1, like)
        here = which * job.mask_stride + i * job.mask_row_stride
        if job.mask_kind == FLOAT_MASK:
            bias = vector(job.mask_at + here * size_of(like), i * stride + 1, like)
            for j in range(i + 1):
                row[j] += bias[j * stride]
        else:
            bits = vector(job.mask_at + here, i * stride + 1, np.uint8)
            for j in range(i + 1):
                row[j] = row[j] if bits[j * stride] else never


@jit
def share(job, space, strip, first, start, end, like):
    """What every row would give if it shared equally among the keys that it sees."""
    wanted = over_keys(job, space, WANTED, like)
    for i in range(start, end):
        row = vector(strip + (i - first) * job.stride * size_of(like), i + 1, like)
        seen = 0
        for j in range(i + 1):
            seen += row[j] > -np.inf
        part = like(1) / like(max(seen, 1))
        for j in range(i + 1):
            wanted[j] += part if row[j] > -np.inf else like(0)


@jit
def close_block(job, index, space, stop, strips, like):
    """Bring the account up to date after the last row before `stop`, and keep it if needed."""
    bias, sums = over_keys(job, space, BIAS, like), over_keys(job, space, SUM, like)
    received, wanted = over_keys(job, space, RECEIVED, like), over_keys(job, space, WANTED, like)
    receive(received, sums, bias, stop, like)
    if job.mask_kind == NO_MASK:
        harmonic_share(job, stop, wanted, like)
    block = stop // job.block
    if job.history_at and (block % job.span == 0) == (strips == 1):
        at = account_at(job, index, space, block, strips, like)
        kept = vector(at, stop, like)
        for j in range(stop):
            kept[j] = received[j]
        if account_columns(job) == 2:
            more = vector(at + stop * size_of(like), stop, like)
            for j in range(stop):
                more[j] = wanted[j]
    open_block(job, index, space, RECEIVED, stop, like)


@jit
def harmonic_share(job, stop, wanted, like):
    """What keys should have: what uniform causal attention of all rows before `stop` gives."""
    harmonic, prior = vector(job.harmonic_at, job.n + 1, np.float64), prior_of(job, like)
    for j in range(stop):
        wanted[j] = like(harmonic[stop] - harmonic[j]) + prior


@jit
def weigh_values(job, index, space, first, last, factor, output, like):
    """The product of a strip with the values, rows divided by their sums."""
    e = job.e
    if not e:
        return
    matmul(
        job.gemm, PLAIN, PLAIN, e, last - first, last, like(1),
        tokens_of(job.value_at, job.batch, index), job.value_row,
        strip_at(job, space, 0, like), job.stride,
        like(0), row_at(output, first), e,
    )  # fmt: skip
    for i in range(first, last):
        for c in range(e):
            output[i, c] *= factor[i]
