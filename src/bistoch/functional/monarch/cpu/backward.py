"""Numba kernels of the backward: the evaluations of the forward from the last to the first.

Sums that the forward has kept (totals, row potentials, what was asked and received) make every
weight one exponential. Gradients of scores are added up over all evaluations of the same means, and
go through these once.
"""

import numpy as np

from bistoch.functional.kernels.array import vector
from bistoch.functional.kernels.job import own_space
from bistoch.functional.kernels.runtime import (
    PLAIN,
    TRANSPOSED,
    jit,
    kind_of,
    size_of,
    take_next,
)
from bistoch.functional.monarch.cpu.between_backward import between_backward
from bistoch.functional.monarch.cpu.forward import (
    set_shares,
    set_shift,
    total_rows,
    write_answers,
    write_base,
    write_offsets,
    write_slopes,
    write_tilt,
)
from bistoch.functional.monarch.cpu.gather import (
    first_mean,
    first_mean_backward,
    gather,
    gather_rows,
    scatter_keys,
    scatter_rows,
)
from bistoch.functional.monarch.cpu.job import (
    base_at,
    d_base_at,
    d_tilt_at,
    fill,
    mean_at,
    multiply,
    open_job,
    received_in,
    record_at,
)
from bistoch.functional.monarch.cpu.rows import (
    add_row,
    dot_rows,
    multiply_rows,
    receive_backward,
    share_of_row,
    softmax_backward,
)


def attend_backward(pointer):
    """Take heads until none is left, and differentiate each."""
    like, job = kind_of(pointer), open_job(pointer)
    space = own_space(job, like)
    index = take_next(job.next_head)
    while index < job.batch:
        differentiate_head(job, index, space, like)
        index = take_next(job.next_head)


@jit
def differentiate_head(job, index, space, like):
    """The gradients of one head."""
    size, queries, keys = size_of(like), job.groups * job.members, job.blocks * job.width
    gather(job, index, space, like)
    gather_rows(
        job.output_grad_at + index * job.n * job.e * size, job.members_at, queries, job.e, like(1),
        space + job.o_in * size, like,
    )  # fmt: skip
    fill(space + job.dq_in * size, queries * job.d, like(0), like)
    fill(space + job.dk_in * size, keys * job.d, like(0), like)
    fill(space + job.dv_in * size, keys * job.e, like(0), like)
    for at in (job.d_bias_in, job.d_log_mass_in, job.d_column_in):
        fill(space + at * size, job.blocks * job.width_stride, like(0), like)
    for back in range(job.evaluations):
        number = job.evaluations - 1 - back
        record = record_at(job, index, space, number, like)
        means = mean_at(job, index, space, min(number, job.updates - 1), like)
        if back == 0 or number < job.updates - 1:
            open_means(job, index, space, means, min(number, job.updates - 1), like)
        if back == 0:
            open_answers(job, space, record, means, like)
        columns_backward(job, index, space, record, number, like)
        between_backward(job, space, record, means, number, like)
        within_backward(job, space, record, means, number, like)
    first_mean_backward(job, index, space, space + job.d_next_in * size, like)
    scatter_head(job, index, space, like)


@jit
def scatter_head(job, index, space, like):
    """The gradients in the order of the tokens."""
    size, queries, keys = size_of(like), job.groups * job.members, job.blocks * job.width
    sharpness = vector(job.sharpness_at, job.batch, like)[index]
    grads = vector(job.sharpness_grad_at, job.batch, like)
    at = job.query_grad_at + index * job.n * job.d * size
    # first as it is, for the gradient of the sharpness
    scatter_rows(space + job.dq_in * size, job.members_at, queries, job.d, like(1), at, like)
    grad = vector(at, job.n * job.d, like)
    query = vector(job.query_at + index * job.n * job.d * size, job.n * job.d, like)
    found = like(0)
    for c in range(job.n * job.d):
        found += grad[c] * query[c]
        grad[c] *= sharpness
    grads[index] = found
    scatter_rows(
        space + job.dk_in * size, job.keys_at, keys, job.d, like(1),
        job.key_grad_at + index * job.m * job.d * size, like,
    )  # fmt: skip
    scatter_rows(
        space + job.dv_in * size, job.keys_at, keys, job.e, like(1),
        job.value_grad_at + index * job.m * job.e * size, like,
    )  # fmt: skip
    if job.bias_grad_at:
        scatter_keys(job, index, space + job.d_bias_in * size, job.bias_grad_at, like)
    if job.log_mass_grad_at:
        scatter_keys(job, index, space + job.d_log_mass_in * size, job.log_mass_grad_at, like)


@jit
def weigh(job, space, record, block, like):
    """The weights within a block, of all groups."""
    size = size_of(like)
    end, weights = job.width_stride * size, space + job.weights_in * size
    base, shift = base_at(job, space, block, like), space + job.shift_in * size + block * end
    totals, rests = total_rows(job, record, block, like)
    for p in range(job.groups):
        if totals[p] > -np.inf:
            share_of_row(
                base + p * end, shift, like(0), totals[p], rests[p], end, weights + p * end, like
            )
        else:
            fill(weights + p * end, job.width_stride, like(0), like)


@jit
def open_means(job, index, space, means, update, like):
    """Slopes and offsets of an update again; and its tiles, if they are kept."""
    if update == 0:
        first_mean(job, index, space, means, like)
    record = record_at(job, index, space, update, like)
    set_shift(job, space, record, like)
    for k in range(job.blocks):
        write_base(job, space, means, k, like)
        weigh(job, space, record, k, like)
        write_slopes(job, space, k, like)
    for p in range(job.groups):
        write_offsets(job, space, means, p, like)
        if job.stored:
            write_tilt(job, space, p, like)
    if job.stored:
        fill(d_base_at(job, space, 0, like), job.d_base_size, like(0), like)
        fill(d_tilt_at(job, space, 0, like), job.d_tilt_size, like(0), like)


@jit
def open_answers(job, space, record, means, like):
    """The answers of the last evaluation again."""
    set_shift(job, space, record, like)
    for k in range(job.blocks):
        if not job.stored:
            write_base(job, space, means, k, like)
        weigh(job, space, record, k, like)
        write_answers(job, space, k, like)


@jit
def columns_backward(job, index, space, record, number, like):
    """A column step from behind: what arrives at the columns goes on to shares and scores."""
    size, length = size_of(like), job.blocks * job.width_stride
    fill(space + job.d_total_in * size, job.blocks * job.group_stride, like(0), like)
    fill(space + job.d_asked_in * size, job.groups * job.block_stride, like(0), like)
    if number >= job.steps or number == job.evaluations - 1:
        return
    lam, omega = (
        vector(job.lam_at, job.batch, like)[index],
        vector(job.omega_at, job.batch, like)[index],
    )
    d_lam = vector(job.lam_grad_at, job.batch, like)
    d_omega = vector(job.omega_grad_at, job.batch, like)
    bias = vector(space + job.bias_in * size, length, like)
    mass = vector(space + job.log_mass_in * size, length, like)
    received = vector(record + received_in(job, like), length, like)
    rests = vector(record + 2 * received_in(job, like), length, like)
    column = vector(record, length, like)
    d_column = vector(space + job.d_column_in * size, length, like)
    d_received = vector(space + job.d_received_in * size, length, like)
    d_bias = vector(space + job.d_bias_in * size, length, like)
    d_mass = vector(space + job.d_log_mass_in * size, length, like)
    for j in range(length):
        arriving = d_column[j]
        if received[j] > -np.inf and bias[j] > -np.inf:
            exact = mass[j] - (received[j] + rests[j]) - bias[j]
            d_lam[index] += omega * arriving * exact
            d_omega[index] += arriving * (lam * exact - column[j])
            d_received[j] = -omega * lam * arriving
            d_mass[j] += omega * lam * arriving
            d_bias[j] += d_received[j]
            d_column[j] = (like(1) - omega) * arriving
        else:
            d_received[j] = like(0)
            d_column[j] = like(0)
    receive_blocks(job, space, record, like)


@jit
def receive_blocks(job, space, record, like):
    """The gradients of scores and shares from those of what columns received."""
    size = size_of(like)
    end = job.width_stride * size
    shares = vector(space + job.constant_in * size, job.groups, like)
    for k in range(job.blocks):
        set_shares(job, space, record, k, like)
        base = base_at(job, space, k, like)
        d_base = d_base_at(job, space, k, like)
        d_totals = vector(space + (job.d_total_in + k * job.group_stride) * size, job.groups, like)
        for p in range(job.groups):
            if shares[p] > -np.inf:
                found = receive_backward(
                    base + p * end, shares[p], record + received_in(job, like) + k * end,
                    record + 2 * received_in(job, like) + k * end,
                    space + job.d_received_in * size + k * end, d_base + p * end, end, like,
                )  # fmt: skip
                d_totals[p] -= found
                at = space + (job.d_asked_in + p * job.block_stride) * size
                vector(at, job.blocks, like)[k] += found


@jit
def within_backward(job, space, record, means, number, like):
    """What is within blocks from behind, block by block."""
    size, d, e = size_of(like), job.d, job.e
    last, touched = number == job.evaluations - 1, number < job.updates
    weights, arriving = space + job.weights_in * size, space + job.d_tile_in * size
    set_shift(job, space, record, like)
    for k in range(job.blocks):
        if not job.stored:
            write_base(job, space, means, k, like)
        weigh(job, space, record, k, like)
        values = (job.v_in + k * job.width * e) * size
        keys = space + (job.k_in + k * job.width * d) * size
        d_keys = space + (job.dk_in + k * job.width * d) * size
        d_slopes = space + (job.d_slope_in + k * d) * size
        if last:
            d_answers = space + (job.d_answer_in + k * e) * size
            multiply(
                job.gemm, PLAIN, TRANSPOSED, job.groups, job.width, e,
                d_answers, job.answer_stride, space + values, max(e, 1),
                like(0), arriving, job.width_stride, like,
            )  # fmt: skip
            multiply(
                job.gemm, TRANSPOSED, PLAIN, job.width, e, job.groups, weights, job.width_stride,
                d_answers, job.answer_stride, like(1),
                space + (job.dv_in + k * job.width * e) * size, max(e, 1), like,
            )  # fmt: skip
        if touched:
            multiply(
                job.gemm, PLAIN, TRANSPOSED, job.groups, job.width, d,
                d_slopes, job.mean_stride, keys, max(d, 1),
                like(1) if last else like(0), arriving, job.width_stride, like,
            )  # fmt: skip
            multiply(
                job.gemm, TRANSPOSED, PLAIN, job.width, d, job.groups, weights, job.width_stride,
                d_slopes, job.mean_stride, like(1), d_keys, max(d, 1), like,
            )  # fmt: skip
        collect_base(job, space, k, last or touched, like)
        if touched:
            d_base = arriving
            if job.stored:
                d_base = d_base_at(job, space, k, like)
            d_means = space + (job.d_mean_in + k * d) * size
            multiply(
                job.gemm, PLAIN, PLAIN, job.groups, d, job.width, d_base, job.width_stride,
                keys, max(d, 1), like(1), d_means, job.mean_stride, like,
            )  # fmt: skip
            multiply(
                job.gemm, TRANSPOSED, PLAIN, job.width, d, job.groups, d_base, job.width_stride,
                means + k * d * size, job.mean_stride, like(1), d_keys, max(d, 1), like,
            )  # fmt: skip
    if touched:
        # what arrives at these means is what the evaluation before has to hand on
        d_means = vector(space + job.d_mean_in * size, job.groups * job.mean_stride, like)
        d_next = vector(space + job.d_next_in * size, job.groups * job.mean_stride, like)
        for c in range(job.groups * job.mean_stride):
            d_next[c] = d_means[c]


@jit
def collect_base(job, space, block, has_weights, like):
    """The gradient of the scores within a block, and of the biases and columns of its keys."""
    size = size_of(like)
    end, weights = job.width_stride * size, space + job.weights_in * size
    arriving, sums = space + job.d_tile_in * size, space + job.sums_in * size
    d_totals = vector(space + (job.d_total_in + block * job.group_stride) * size, job.groups, like)
    d_base = d_base_at(job, space, block, like)
    fill(sums, job.width_stride, like(0), like)
    for p in range(job.groups):
        here, row = weights + p * end, arriving + p * end
        if has_weights:
            dot = dot_rows(here, row, end, like)
            softmax_backward(here, row, d_totals[p] - dot, end, like)
        else:
            multiply_rows(here, d_totals[p], end, row, like)
        add_row(row, end, sums, like)
        if job.stored:
            add_row(row, end, d_base + p * end, like)
    add_row(sums, end, space + job.d_bias_in * size + block * end, like)
    add_row(sums, end, space + job.d_column_in * size + block * end, like)
