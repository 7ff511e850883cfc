"""Numba kernels of the backward between blocks: from results and means to slopes and queries."""

import numpy as np

from bistoch.functional.kernels.array import vector
from bistoch.functional.kernels.runtime import PLAIN, TRANSPOSED, jit, size_of
from bistoch.functional.monarch.cpu.forward import (
    asked_rows,
    row_sums,
    set_constants,
    weigh_group,
    write_tilt,
)
from bistoch.functional.monarch.cpu.job import d_tilt_at, fill, multiply, tilt_at
from bistoch.functional.monarch.cpu.rows import (
    add_row,
    dot_rows,
    multiply_rows,
    negate_sum,
    share_of_row,
    softmax_backward,
    subtract_share,
    sum_row,
)


@jit
def between_backward(job, space, record, means, number, like):
    """What is between blocks from behind, group by group."""
    size, last = size_of(like), number == job.evaluations - 1
    touched, advance = number < job.updates, number < job.updates - 1
    for p in range(job.groups):
        tilt = tilt_at(job, space, p, like)
        if not job.stored:
            write_tilt(job, space, p, like)
        set_constants(job, space, record, p, like)
        fill(space + job.sums_in * size, job.member_stride, like(0), like)
        if last:
            attend_group_backward(job, space, record, tilt, p, like)
        else:
            ask_backward(job, space, record, tilt, p, advance, like)
        d_tilt = collect_tilt(job, space, p, like)
        if touched:
            tilt_backward(job, space, means, d_tilt, p, like)


@jit
def attend_group_backward(job, space, record, tilt, group, like):
    """Weights, what arrives at them, and the gradients of the answers."""
    size, e = size_of(like), job.e
    end, weights = job.member_stride * size, space + job.weights_in * size
    arriving, sums = space + job.d_tile_in * size, space + job.sums_in * size
    answers = space + (job.answer_in + group * job.answer_stride) * size
    grads = space + (job.o_in + group * job.members * e) * size
    multiply(
        job.gemm, PLAIN, TRANSPOSED, job.blocks, job.members, e, answers, max(e, 1),
        grads, max(e, 1), like(0), arriving, job.member_stride, like,
    )  # fmt: skip
    weigh_group(job, space, record, tilt, group, like)
    for k in range(job.blocks):
        # what arrives times its weight, and the sum of that over blocks
        softmax_backward(weights + k * end, arriving + k * end, like(0), end, like)
        add_row(arriving + k * end, end, sums, like)
    multiply(
        job.gemm, PLAIN, PLAIN, job.blocks, e, job.members, weights, job.member_stride,
        grads, max(e, 1), like(0),
        space + (job.d_answer_in + group * job.answer_stride) * size, max(e, 1), like,
    )  # fmt: skip


@jit
def ask_backward(job, space, record, tilt, group, advance, like):
    """Shares of the members of a group in what it asks, and what arrives at their logarithms."""
    size, d = size_of(like), job.d
    end, weights = job.member_stride * size, space + job.weights_in * size
    arriving, sums = space + job.d_tile_in * size, space + job.sums_in * size
    constants = vector(space + job.constant_in * size, job.blocks, like)
    asked, rests = asked_rows(job, record, group, like)
    shift = space + job.highest_in * size
    row_highest, row_rest = row_sums(job, record, group, like)
    negate_sum(row_highest, row_rest, end, shift, like)
    d_asked = vector(space + (job.d_asked_in + group * job.block_stride) * size, job.blocks, like)
    d_means = space + (job.d_next_in + group * job.mean_stride) * size
    queries = (job.q_in + group * job.members * d) * size
    if advance:
        multiply(
            job.gemm, PLAIN, TRANSPOSED, job.blocks, job.members, d, d_means, max(d, 1),
            space + queries, max(d, 1), like(0), arriving, job.member_stride, like,
        )  # fmt: skip
    for k in range(job.blocks):
        there = asked[k] > -np.inf
        if there:
            share_of_row(
                tilt + k * end, shift, constants[k], asked[k], rests[k], end, weights + k * end,
                like,
            )  # fmt: skip
        else:
            fill(weights + k * end, job.member_stride, like(0), like)
        if advance and there:
            dot = dot_rows(weights + k * end, arriving + k * end, end, like)
            softmax_backward(weights + k * end, arriving + k * end, d_asked[k] - dot, end, like)
        else:
            multiply_rows(weights + k * end, d_asked[k], end, arriving + k * end, like)
        add_row(arriving + k * end, end, sums, like)
    if advance:
        multiply(
            job.gemm, TRANSPOSED, PLAIN, job.members, d, job.blocks, weights, job.member_stride,
            d_means, max(d, 1), like(1),
            space + (job.dq_in + group * job.members * d) * size, max(d, 1), like,
        )  # fmt: skip
    # from shares in what is asked to the weights of rows
    weigh_group(job, space, record, tilt, group, like)


@jit
def collect_tilt(job, space, group, like):
    """The gradient of the scores between blocks: where it is, with that of the totals added."""
    size = size_of(like)
    end, weights = job.member_stride * size, space + job.weights_in * size
    arriving, sums = space + job.d_tile_in * size, space + job.sums_in * size
    d_tilt = d_tilt_at(job, space, group, like)
    for k in range(job.blocks):
        left = subtract_share(weights + k * end, sums, arriving + k * end, end, like)
        at = space + (job.d_total_in + k * job.group_stride) * size
        vector(at, job.groups, like)[group] += left
        if job.stored:
            add_row(arriving + k * end, end, d_tilt + k * end, like)
    return d_tilt if job.stored else arriving


@jit
def tilt_backward(job, space, means, d_tilt, group, like):
    """From scores between blocks to slopes, queries and means."""
    size, d = size_of(like), job.d
    end = job.member_stride * size
    slopes = space + (job.slope_in + group * job.mean_stride) * size
    d_slopes = space + (job.d_slope_in + group * job.mean_stride) * size
    d_means = space + (job.d_mean_in + group * job.mean_stride) * size
    queries = (job.q_in + group * job.members * d) * size
    multiply(
        job.gemm, PLAIN, PLAIN, job.blocks, d, job.members, d_tilt, job.member_stride,
        space + queries, max(d, 1), like(0), d_slopes, max(d, 1), like,
    )  # fmt: skip
    multiply(
        job.gemm, TRANSPOSED, PLAIN, job.members, d, job.blocks, d_tilt, job.member_stride,
        slopes, max(d, 1), like(1),
        space + (job.dq_in + group * job.members * d) * size, max(d, 1), like,
    )  # fmt: skip
    for k in range(job.blocks):
        whole = sum_row(d_tilt + k * end, end, like)
        slope, d_slope = (
            vector(slopes + k * d * size, d, like),
            vector(d_slopes + k * d * size, d, like),
        )
        mean = vector(means + (group * job.mean_stride + k * d) * size, d, like)
        d_mean = vector(d_means + k * d * size, d, like)
        for c in range(d):
            d_slope[c] -= whole * mean[c]
            d_mean[c] = -whole * slope[c]
