"""Numba kernels of the backward: every head tile after tile, its strips of the plan made again."""

from bistoch.functional.delta.cpu.forward import (
    dense_scores,
    rows_from,
    sparse_scores,
    window_of,
)
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
from bistoch.functional.delta.cpu.rows import (
    add_columns,
    plan_again,
    score_grad,
    whole_lanes,
)
from bistoch.functional.kernels.array import vector
from bistoch.functional.kernels.job import own_space
from bistoch.functional.kernels.runtime import (
    PLAIN,
    TRANSPOSED,
    jit,
    kind_of,
    matmul,
    no_inline,
    size_of,
    take_next,
)


def attend_backward(pointer):
    """Take heads until none is left: tiles of one head add to the gradients of the same keys."""
    like, job = kind_of(pointer), open_job(pointer)
    space = own_space(job, like)
    index = take_next(job.next_item)
    while index < job.batch:
        for number in range(job.tiles):
            differentiate_tile(job, index, number, space, like)
        index = take_next(job.next_item)


@jit
def differentiate_tile(job, index, number, space, like):
    """Add what the rows of one tile owe to their tokens."""
    e, size, length = job.e, size_of(like), length_of(job, index)
    first = number * job.tile
    last = min(first + job.tile, length)
    if last <= first:
        return
    begin = max(length - job.tail, 0)
    arriving = job.output_grad_at + (index * job.n + first) * e * size
    grads = vectors_at(job, space, 2, like) + 2 * job.width * size
    sums = grads + job.tile * e * size
    split_grads(job, first, last, begin, arriving, grads, like)
    if job.correction != NONE:
        group = max(first // job.stride, (job.first_dense + job.stride - 1) // job.stride)
        count = (last + job.stride - 1) // job.stride - group
        if count > 0:
            gather_grads(job, first, last, group, count, grads, sums, like)
            place = index * job.count + group
            dense_rows_back(
                job, index, group * job.stride, job.stride, count,
                sums, job.dense_at + place * e * size,
                vector(job.dense_shift_at + place * size, count, like),
                vector(job.dense_factor_at + place * size, count, like), space, like,
            )  # fmt: skip
    shift = vector(job.shift_at + index * job.n * size, job.n, like)
    factor = vector(job.factor_at + index * job.n * size, job.n, like)
    a = first
    while a < last:
        b = min(a + CHUNK, last)
        at = grads + (a - first) * e * size
        sparse_rows_back(job, index, a, b, at, shift, factor, space, like)
        a = b
    a = max(first, begin)
    while a < last:
        b, place = min(a + DENSE, last), index * job.tail + a - begin
        dense_rows_back(
            job, index, a, 1, b - a, arriving + (a - first) * e * size,
            job.tail_at + place * e * size,
            vector(job.tail_shift_at + place * size, b - a, like),
            vector(job.tail_factor_at + place * size, b - a, like), space, like,
        )  # fmt: skip
        a = b


@jit
def split_grads(job, first, last, begin, arriving, grads, like):
    """What arrives at the corrected rows of a tile: at those of the tail, nothing does."""
    count, e = last - first, job.e
    own = min(max(begin - first, 0), count) * e
    source, target = vector(arriving, count * e, like), vector(grads, count * e, like)
    for c in range(own):
        target[c] = source[c]
    for c in range(own, count * e):
        target[c] = like(0)


@jit
def gather_grads(job, first, last, group, count, grads, sums, like):
    """A dense row is in all rows of its group, and takes its own sparse one out of them."""
    e, size = job.e, size_of(like)
    for r in range(count):
        a = (group + r) * job.stride
        b = min(a + job.stride, last) if job.correction == DELTA else a + 1
        sum = vector(sums + r * e * size, e, like)
        own = vector(grads + (a - first) * e * size, e, like)
        for c in range(e):
            sum[c] = own[c]
        for i in range(a + 1, b):
            row = vector(grads + (i - first) * e * size, e, like)
            for c in range(e):
                sum[c] += row[c]
        for c in range(e):
            own[c] -= sum[c]


@jit
def sparse_rows_back(job, index, a, b, grads, shift, factor, space, like):
    """Add what a chunk of sparse rows owes to its tokens."""
    size, e = size_of(like), job.e
    strip, grad = strip_at(job, space, 0, like), strip_at(job, space, 1, like)
    bias = vectors_at(job, space, 2, like)
    sparse_scores(job, index, a, b, strip, bias, space, like)
    start, apart = window_of(job, a)
    gap, rows = whole_lanes(apart, like), b - a
    width = gap + whole_lanes(b - start, like)
    value = tokens_of(job.value_at, job.batch, index)
    # what lies between sink and windows and behind them must be finite
    vector(grad, rows * job.width, like)[:] = like(0)
    if e:
        matmul(
            job.gemm, TRANSPOSED, PLAIN, b - start, rows, e, like(1),
            value + start * job.value_row * size, job.value_row, grads, e,
            like(0), grad + gap * size, job.width,
        )  # fmt: skip
        if apart:
            matmul(
                job.gemm, TRANSPOSED, PLAIN, apart, rows, e, like(1),
                value, job.value_row, grads, e, like(0), grad, job.width,
            )  # fmt: skip
    for i in range(a, b):
        row, arriving = (strip + (i - a) * job.width * size, grad + (i - a) * job.width * size)
        end = gap + whole_lanes(i + 1 - start, like)
        dot = plan_again(row, bias, arriving, end, shift[i], factor[i], like)
        score_grad(row, arriving, width, dot, like)
    owe(
        job, index, a, 1, rows, start, b - start, strip + gap * size, grad + gap * size, grads, like
    )
    if apart:
        owe(job, index, a, 1, rows, 0, apart, strip, grad, grads, like)


@jit
def dense_rows_back(job, index, first, step, count, grads, output, shift, factor, space, like):
    """Add what dense rows owe to their tokens, one block of keys at a time."""
    no_inline()
    size, e = size_of(like), job.e
    strip, grad = strip_at(job, space, 0, like), strip_at(job, space, 1, like)
    bias = vectors_at(job, space, 2, like)
    stop = first + (count - 1) * step + 1
    value = tokens_of(job.value_at, job.batch, index)
    for k0 in range(0, stop, KEYS):
        k1 = min(k0 + KEYS, stop)
        r0 = rows_from(first, step, k0)
        dense_scores(job, index, first, step, r0, count, k0, k1, strip, bias, like)
        rows, keys = count - r0, k1 - k0
        vector(grad, rows * job.width, like)[:] = like(0)
        if e:
            matmul(
                job.gemm, TRANSPOSED, PLAIN, keys, rows, e, like(1),
                value + k0 * job.value_row * size, job.value_row, grads + r0 * e * size, e,
                like(0), grad, job.width,
            )  # fmt: skip
        for r in range(r0, count):
            at = (r - r0) * job.width * size
            end = whole_lanes(min(first + r * step + 1, k1) - k0, like)
            plan_again(strip + at, bias, grad + at, end, shift[r], factor[r], like)
            own, arriving = (
                vector(output + r * e * size, e, like),
                vector(grads + r * e * size, e, like),
            )
            dot = like(0)
            for c in range(e):
                dot += own[c] * arriving[c]
            score_grad(strip + at, grad + at, whole_lanes(keys, like), dot, like)
        owe(
            job, index, first + r0 * step, step, rows, k0, keys, strip, grad,
            grads + r0 * e * size, like,
        )  # fmt: skip


@jit
def owe(job, index, first, step, rows, start, keys, strip, grad, grads, like):
    """Add what a strip of the plan and its gradient mean for queries, keys and values."""
    no_inline()
    n, d, e, size = job.n, job.d, job.e, size_of(like)
    sharpness = vector(job.sharpness_at, 1, like)[0]
    if e:
        matmul(
            job.gemm, PLAIN, TRANSPOSED, e, keys, rows, like(1), grads, e, strip, job.width,
            like(1), job.value_grad_at + (index * n + start) * e * size, e,
        )  # fmt: skip
    if d:
        query = tokens_of(job.query_at, job.batch, index) + first * job.query_row * size
        matmul(
            job.gemm, PLAIN, TRANSPOSED, d, keys, rows, sharpness,
            query, step * job.query_row, grad, job.width,
            like(1), job.key_grad_at + (index * n + start) * d * size, d,
        )  # fmt: skip
        key = tokens_of(job.key_at, job.batch, index) + start * job.key_row * size
        matmul(
            job.gemm, PLAIN, PLAIN, d, rows, keys, sharpness, key, job.key_row, grad, job.width,
            like(1), job.query_grad_at + (index * n + first) * d * size, step * d,
        )  # fmt: skip
    if job.bias_grad_at:
        sums = vector(job.bias_grad_at + (index * n + start) * size, keys, like)
        add_columns(grad, job.width * size, rows, keys, sums, like)
