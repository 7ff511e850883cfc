"""Numba kernels of the forward: sparse rows chunk by chunk, dense rows one block of keys at a time.

A strip of scores is made by one product, softened in place, and used by the product with the values
while it is still in the cache. Nothing is copied: strided rows are read where they are.
"""

import numpy as np

from bistoch.functional.delta.cpu.job import (
    CHUNK,
    DELTA,
    DENSE,
    KEYS,
    NONE,
    length_of,
    open_job,
    strip_at,
    tokens_of,
    vectors_at,
)
from bistoch.functional.delta.cpu.rows import clear, fill, soften, times, whole_lanes
from bistoch.functional.kernels.array import vector
from bistoch.functional.kernels.job import own_space
from bistoch.functional.kernels.runtime import (
    PLAIN,
    TRANSPOSED,
    exponential,
    jit,
    kind_of,
    matmul,
    no_inline,
    size_of,
    take_next,
)


def attend(pointer):
    """Take tiles of heads until none is left, and attend with each; the longest come first."""
    like, job = kind_of(pointer), open_job(pointer)
    space = own_space(job, like)
    item = take_next(job.next_item)
    while item < job.batch * job.tiles:
        attend_tile(job, item % job.batch, job.tiles - 1 - item // job.batch, space, like)
        item = take_next(job.next_item)


@jit
def attend_tile(job, index, number, space, like):
    """The rows of one tile: sparse ones, dense ones, and what these change."""
    e, size, length = job.e, size_of(like), length_of(job, index)
    first = number * job.tile
    stop = min(first + job.tile, job.n)
    last = min(stop, length)
    output = job.output_at + index * job.n * e * size
    shift = vector(job.shift_at + index * job.n * size, job.n, like)
    factor = vector(job.factor_at + index * job.n * size, job.n, like)
    a = first
    while a < last:
        b = min(a + CHUNK, last)
        sparse_rows(job, index, a, b, output + a * e * size, shift, factor, space, like)
        a = b
    if job.correction != NONE and last > first:
        correct(job, index, first, last, output, space, like)
    begin = max(length - job.tail, 0)
    a = max(first, begin)
    while a < last:
        b, place = min(a + DENSE, last), index * job.tail + a - begin
        at = job.tail_at + place * e * size
        high = vector(job.tail_shift_at + place * size, b - a, like)
        one_over = vector(job.tail_factor_at + place * size, b - a, like)
        dense_rows(job, index, a, 1, b - a, at, high, one_over, space, like)
        source, target = (
            vector(at, (b - a) * e, like),
            vector(output + a * e * size, (b - a) * e, like),
        )
        for c in range((b - a) * e):
            target[c] = source[c]
        a = b
    a = max(first, last)
    if a < stop:
        vector(output + a * e * size, (stop - a) * e, like)[:] = like(0)
        shift[a:stop] = like(0)
        factor[a:stop] = like(0)


@jit
def correct(job, index, first, last, output, space, like):
    """Dense rows of a tile, and what they change in the rows up to the next one."""
    e, size, stride = job.e, size_of(like), job.stride
    # rows before see all that dense rows see
    group = max(first // stride, (job.first_dense + stride - 1) // stride)
    count = (last + stride - 1) // stride - group
    if count <= 0:
        return
    place = index * job.count + group
    at = job.dense_at + place * e * size
    high = vector(job.dense_shift_at + place * size, count, like)
    one_over = vector(job.dense_factor_at + place * size, count, like)
    dense_rows(job, index, group * stride, stride, count, at, high, one_over, space, like)
    change = vector(vectors_at(job, space, 1, like), e, like)
    for r in range(count):
        a = (group + r) * stride
        b = min(a + stride, last) if job.correction == DELTA else a + 1
        own = vector(output + a * e * size, e, like)
        dense = vector(at + r * e * size, e, like)
        for c in range(e):
            change[c] = dense[c] - own[c]
        # the row itself without a rounding
        for c in range(e):
            own[c] = dense[c]
        for i in range(a + 1, b):
            row = vector(output + i * e * size, e, like)
            for c in range(e):
                row[c] += change[c]


@jit
def window_of(job, a):
    """The first key of the windows of rows from `a` on, and how many keys of the sink are apart."""
    start = max(0, a - job.window + 1)
    if start <= job.sink:
        return 0, 0
    return start, job.sink


@jit
def read_bias(job, index, start, keys, at, like):
    """Put the bias of some keys in a vector of the workspace, zeros behind it."""
    width = whole_lanes(keys, like)
    part = vector(at, width, like)
    part[:] = like(0)
    if job.bias_at:
        bias = vector(job.bias_at + (index * job.n + start) * size_of(like), keys, like)
        for j in range(keys):
            part[j] = bias[j]


@jit
def sparse_scores(job, index, a, b, strip, bias, space, like):
    """The scores of a chunk with the keys of its sink and of its windows; the width of a row."""
    no_inline()
    start, apart = window_of(job, a)
    size, d, keys = size_of(like), job.d, b - start
    gap = whole_lanes(apart, like)
    query = tokens_of(job.query_at, job.batch, index) + a * job.query_row * size
    key = tokens_of(job.key_at, job.batch, index)
    sharpness = vector(job.sharpness_at, 1, like)[0]
    read_bias(job, index, 0, apart, bias, like)
    read_bias(job, index, start, keys, bias + gap * size, like)
    if d:
        matmul(
            job.gemm, TRANSPOSED, PLAIN, keys, b - a, d, sharpness,
            key + start * job.key_row * size, job.key_row, query, job.query_row,
            like(0), strip + gap * size, job.width,
        )  # fmt: skip
        if apart:
            matmul(
                job.gemm, TRANSPOSED, PLAIN, apart, b - a, d, sharpness,
                key, job.key_row, query, job.query_row, like(0), strip, job.width,
            )  # fmt: skip
    else:
        vector(strip, (b - a) * job.width, like)[:] = like(0)
    never = like(-np.inf)
    width = gap + whole_lanes(keys, like)
    for i in range(a, b):
        row = strip + (i - a) * job.width * size
        fill(row, apart, gap, never, like)
        fill(row, gap + max(job.sink - start, 0), gap + i + 1 - job.window - start, never, like)
        end = gap + whole_lanes(i + 1 - start, like)
        fill(row, gap + i + 1 - start, end, never, like)
        clear(row, end, width, like)


@jit
def sparse_rows(job, index, a, b, output, shift, factor, space, like):
    """The result of a chunk of sparse rows, and what its backward needs."""
    size, e = size_of(like), job.e
    strip, bias = strip_at(job, space, 0, like), vectors_at(job, space, 1, like)
    sparse_scores(job, index, a, b, strip, bias, space, like)
    start, apart = window_of(job, a)
    gap = whole_lanes(apart, like)
    for i in range(a, b):
        row = strip + (i - a) * job.width * size
        end = gap + whole_lanes(i + 1 - start, like)
        high, sum = soften(row, bias, end, like(-np.inf), like(0), like)
        shift[i], factor[i] = high, like(1) / sum
    if not e:
        return
    value = tokens_of(job.value_at, job.batch, index)
    matmul(
        job.gemm, PLAIN, PLAIN, e, b - a, b - start, like(1),
        value + start * job.value_row * size, job.value_row,
        strip + gap * size, job.width, like(0), output, e,
    )  # fmt: skip
    if apart:
        matmul(
            job.gemm, PLAIN, PLAIN, e, b - a, apart, like(1),
            value, job.value_row, strip, job.width, like(1), output, e,
        )  # fmt: skip
    for i in range(a, b):
        times(output + (i - a) * e * size, e, factor[i], like)


@jit
def dense_scores(job, index, first, step, r0, count, k0, k1, strip, bias, like):
    """The scores of dense rows with a block of keys, minus infinity behind a row's own."""
    no_inline()
    size, d, keys = size_of(like), job.d, k1 - k0
    read_bias(job, index, k0, keys, bias, like)
    if d:
        query = tokens_of(job.query_at, job.batch, index)
        matmul(
            job.gemm, TRANSPOSED, PLAIN, keys, count - r0, d, vector(job.sharpness_at, 1, like)[0],
            tokens_of(job.key_at, job.batch, index) + k0 * job.key_row * size, job.key_row,
            query + (first + r0 * step) * job.query_row * size, step * job.query_row,
            like(0), strip, job.width,
        )  # fmt: skip
    else:
        vector(strip, (count - r0) * job.width, like)[:] = like(0)
    width = whole_lanes(keys, like)
    for r in range(r0, count):
        row = strip + (r - r0) * job.width * size
        seen = min(first + r * step + 1, k1) - k0
        end = whole_lanes(seen, like)
        fill(row, seen, end, like(-np.inf), like)
        clear(row, end, width, like)


@jit
def rows_from(first, step, k0):
    """The first of some rows that sees a key."""
    return 0 if first >= k0 else (k0 - first + step - 1) // step


@jit
def dense_rows(job, index, first, step, count, output, shift, factor, space, like):
    """Rows over all keys up to their own: a softmax that is continued from block to block."""
    no_inline()
    size, e = size_of(like), job.e
    strip, bias = strip_at(job, space, 0, like), vectors_at(job, space, 1, like)
    stop = first + (count - 1) * step + 1
    value = tokens_of(job.value_at, job.batch, index)
    vector(output, count * e, like)[:] = like(0)
    shift[:count] = like(-np.inf)
    # the sums, until the end
    factor[:count] = like(0)
    for k0 in range(0, stop, KEYS):
        k1 = min(k0 + KEYS, stop)
        r0 = rows_from(first, step, k0)
        dense_scores(job, index, first, step, r0, count, k0, k1, strip, bias, like)
        for r in range(r0, count):
            seen = whole_lanes(min(first + r * step + 1, k1) - k0, like)
            row, before = strip + (r - r0) * job.width * size, shift[r]
            shift[r], factor[r] = soften(row, bias, seen, before, factor[r], like)
            if shift[r] > before and k0:
                times(output + r * e * size, e, exponential(before - shift[r]), like)
        if e:
            matmul(
                job.gemm, PLAIN, PLAIN, e, count - r0, k1 - k0, like(1),
                value + k0 * job.value_row * size, job.value_row, strip, job.width,
                like(1), output + r0 * e * size, e,
            )  # fmt: skip
    for r in range(count):
        factor[r] = like(1) / factor[r]
        times(output + r * e * size, e, factor[r], like)
