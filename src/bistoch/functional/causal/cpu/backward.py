"""Numba kernels of the backward: every head block before block, its strip made again.

    dP = dO V^T + dsum,   dS = P (dP - <P, dP>),   dQ = dS K,   dK = dS^T Q,   dV = P^T dO

The gradient of the column sums comes from all later blocks, through the account; the gradient of
the bias, which is made of column sums too, goes to the account that earlier blocks left.
"""

import numpy as np

from bistoch.functional.causal.cpu.forward import (
    forbid,
    harmonic_share,
    open_account,
    open_block,
    read_tile,
    write_scores,
)
from bistoch.functional.causal.cpu.job import (
    BEFORE,
    BIAS,
    BIAS_GRAD,
    RECEIVED,
    RECEIVED_GRAD,
    SUM_GRAD,
    WANTED,
    account_at,
    account_columns,
    length_of,
    open_job,
    over_keys,
    over_rows,
    rows_of_tile,
    strip_at,
    tokens_of,
    whole_lanes,
)
from bistoch.functional.causal.cpu.rows import close_row, differentiate_rows, plan_again
from bistoch.functional.causal.cpu.update import open_back, receive_back, weigh_back
from bistoch.functional.elastic.cpu.head import NO_MASK, of_head, whole
from bistoch.functional.kernels.array import start_of, vector
from bistoch.functional.kernels.runtime import (
    PLAIN,
    TRANSPOSED,
    jit,
    kind_of,
    matmul,
    size_of,
    take_next,
)


def attend_backward(pointer):
    """Take heads until none is left, and differentiate each."""
    like, job = kind_of(pointer), open_job(pointer)
    worker = take_next(job.next_worker)
    space = job.workspace_at + worker * job.workspace_stride * size_of(like)
    index = take_next(job.next_head)
    while index < job.batch:
        backward_head(job, index, space, worker, like)
        index = take_next(job.next_head)


@jit
def backward_head(job, index, space, worker, like):
    """The gradients of one head, a span of tiles at a time."""
    length = length_of(job, index)
    open_account(job, index, space, like)
    for which in (BEFORE, BIAS_GRAD, RECEIVED_GRAD, SUM_GRAD):
        over_keys(job, space, which, like)[:] = like(0)
    # tiles between two accounts that are kept
    together = max(1, job.span * job.block // job.tile)
    if job.block > job.tile:
        together = job.span * ((job.block + job.tile - 1) // job.tile)
    if job.span == 1:
        together = job.tiles
    for bottom in range((job.tiles - 1) // together * together, -1, -together):
        top = min(bottom + together, job.tiles)
        if job.span > 1:
            replay(job, index, space, bottom, top, like)
        for number in range(top - 1, bottom - 1, -1):
            first, last = rows_of_tile(job, number, length)
            if first < last:
                backward_tile(job, index, space, worker, first, last, like)


@jit
def replay(job, index, space, bottom, top, like):
    """Read some tiles again for the accounts between them."""
    length = length_of(job, index)
    first, _ = rows_of_tile(job, bottom, length)
    if first >= length:
        return
    open_account(job, index, space, like)
    read_account(job, index, space, RECEIVED, first // job.block, like)
    shift, factor = over_rows(job, space, 0, like), over_rows(job, space, 1, like)
    # what lies behind the last block of the span is kept already
    for number in range(bottom, top):
        first, last = rows_of_tile(job, number, length)
        if first < last:
            read_tile(job, index, space, first, last, shift, factor, 2, like)


@jit
def read_account(job, index, space, which, block, like):
    """The account before a block, with its own keys, and the bias of its rows."""
    stop = block * job.block
    received, wanted = over_keys(job, space, which, like), over_keys(job, space, WANTED, like)
    if block:
        at = account_at(job, index, space, block, 2, like)
        kept = vector(at, stop, like)
        for j in range(stop):
            received[j] = kept[j]
        if account_columns(job) == 2:
            more = vector(at + stop * size_of(like), stop, like)
            for j in range(stop):
                wanted[j] = more[j]
        else:
            harmonic_share(job, stop, wanted, like)
    open_block(job, index, space, which, stop, like)


@jit
def backward_tile(job, index, space, worker, first, last, like):
    """The gradients that the rows of a tile bring."""
    n, d, e, size, one, zero = job.n, job.d, job.e, size_of(like), like(1), like(0)
    rows, stride = last - first, job.stride
    plan, grad = strip_at(job, space, 0, like), strip_at(job, space, 1, like)
    place, values = (index * n + first) * size, index * n * size
    write_scores(job, index, space, first, last, like)
    if e:
        matmul(
            job.gemm, TRANSPOSED, PLAIN, last, rows, e, one,
            tokens_of(job.value_at, job.batch, index), job.value_row,
            job.output_grad_at + place * e, e, zero, grad, stride,
        )  # fmt: skip
    else:
        vector(grad, rows * stride, like)[:] = zero
    end = last
    while end > first:
        start = max((end - 1) // job.block * job.block, first)
        if end % job.block == 0 or end == length_of(job, index):
            leave_block(job, index, space, (end - 1) // job.block, end, like)
        if job.mask_kind != NO_MASK:
            forbid(job, index, plan, first, start, end, like)
        backward_rows(job, index, space, first, start, end, whole_lanes(last, like), like)
        end = start
    if job.mask_grad_at:
        add_mask_grad(job, index, worker, grad, first, last, like)
    sharpness = vector(job.sharpness_at, job.batch, like)[index]
    if d:
        matmul(
            job.gemm, PLAIN, PLAIN, d, rows, last, one,
            tokens_of(job.key_at, job.batch, index), job.key_row, grad, stride,
            zero, job.query_grad_at + place * d, d,
        )  # fmt: skip
        matmul(
            job.gemm, PLAIN, TRANSPOSED, d, last, rows, sharpness,
            tokens_of(job.query_at, job.batch, index) + first * job.query_row * size,
            job.query_row, grad, stride, one, job.key_grad_at + values * d, d,
        )  # fmt: skip
        sharpen(job, index, first, last, sharpness, like)
    if e:
        matmul(
            job.gemm, PLAIN, TRANSPOSED, e, last, rows, one, job.output_grad_at + place * e, e,
            plan, stride, one, job.value_grad_at + values * e, e,
        )  # fmt: skip


@jit
def leave_block(job, index, space, block, end, like):
    """Come to the last row of a block: its bias, and the gradient of its column sums."""
    bias, sums_grad = over_keys(job, space, BIAS, like), over_keys(job, space, SUM_GRAD, like)
    before, after = over_keys(job, space, BEFORE, like), over_keys(job, space, RECEIVED, like)
    wanted, length = over_keys(job, space, WANTED, like), length_of(job, index)
    bias_grad = over_keys(job, space, BIAS_GRAD, like)
    received_grad = over_keys(job, space, RECEIVED_GRAD, like)
    if end < length:
        start, stop = block * job.block, min(end + job.block, length)
        read_account(job, index, space, RECEIVED, block + 1, like)
        lam = vector(job.lam_at, job.batch, like)[index]
        vector(job.lam_grad_at, job.batch, like)[index] += weigh_back(
            after, wanted, lam, bias_grad, received_grad, stop, like
        )
        open_back(
            after[start:end], wanted[start:end], received_grad[start:end], received_grad[end:stop],
            like,
        )  # fmt: skip
    read_account(job, index, space, BEFORE, block, like)
    if end < length:
        receive_back(before, after, bias, received_grad, sums_grad, end, like)
    bias_grad[:] = like(0)


@jit
def backward_rows(job, index, space, first, start, end, width, like):
    """The plan of some rows again, and the gradient of their scores."""
    n, step = job.n, job.stride * size_of(like)
    shift = vector(job.shift_at + index * n * size_of(like), n, like)
    factor = vector(job.factor_at + index * n * size_of(like), n, like)
    plan, grad = strip_at(job, space, 0, like), strip_at(job, space, 1, like)
    bias = start_of(over_keys(job, space, BIAS, like))
    sums_grad = start_of(over_keys(job, space, SUM_GRAD, like))
    bias_grad = start_of(over_keys(job, space, BIAS_GRAD, like))
    dots = over_rows(job, space, 0, like)
    for top in range(start, end, 4):
        bottom = min(top + 4, end)
        for i in range(top, bottom):
            row = (i - first) * step
            seen = close_row(plan + row, i + 1, width, like(-np.inf), like)
            close_row(grad + row, i + 1, width, like(0), like)
            dots[i - top] = plan_again(
                plan + row, bias, grad + row, sums_grad, seen, shift[i], factor[i], like
            )
        row = (top - first) * step
        differentiate_rows(
            plan + row, grad + row, step, bottom - top, whole_lanes(bottom, like), dots, sums_grad,
            bias_grad, like,
        )  # fmt: skip


@jit
def sharpen(job, index, first, last, sharpness, like):
    """The gradient of the queries came without the sharpness, whose own is their product."""
    query = tokens_of(job.query_at, job.batch, index)
    grad = of_head(job.query_grad_at, index, job.n, job.d, like)
    found = like(0)
    for i in range(first, last):
        row = vector(query + i * job.query_row * size_of(like), job.d, like)
        for c in range(job.d):
            found += row[c] * grad[i, c]
            grad[i, c] *= sharpness
    vector(job.sharpness_grad_at, job.batch, like)[index] += found


@jit
def add_mask_grad(job, index, worker, grad, first, last, like):
    """Add the gradient of the scores to that of a float mask; every worker has its own."""
    which, stride, size = whole(job.mask_index_at)[index], job.mask_column_stride, size_of(like)
    for i in range(first, last):
        row = vector(grad + (i - first) * job.stride * size, i + 1, like)
        here = worker * job.mask_grad_size + which * job.mask_stride + i * job.mask_row_stride
        found = vector(job.mask_grad_at + here * size, i * stride + 1, like)
        for j in range(i + 1):
            found[j * stride] += row[j]
