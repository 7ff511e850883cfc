"""Numba kernels of the forward: one evaluation of the two factors after the other.

An evaluation goes over the blocks of keys, with a tile of what is within each, then over the groups
of queries, with a tile of what is between blocks. Tiles are made by one product, softened, and used
by the next product while they are in the cache.
"""

import numpy as np

from bistoch.functional.kernels.array import vector
from bistoch.functional.kernels.job import own_space
from bistoch.functional.kernels.runtime import (
    PLAIN,
    TRANSPOSED,
    jit,
    kind_of,
    logarithm,
    size_of,
    take_next,
)
from bistoch.functional.monarch.cpu.gather import first_mean, gather, scatter_rows
from bistoch.functional.monarch.cpu.job import (
    asked_in,
    base_at,
    fill,
    mean_at,
    multiply,
    open_job,
    received_in,
    record_at,
    row_sum_in,
    tilt_at,
    total_in,
)
from bistoch.functional.monarch.cpu.rows import (
    add_over_rows,
    add_rows,
    keep_real,
    negate_sum,
    scale_row,
    share_of_columns,
    soften,
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
    size = size_of(like)
    gather(job, index, space, like)
    first_mean(job, index, space, mean_at(job, index, space, 0, like), like)
    fill(record_at(job, index, space, 0, like), job.blocks * job.width_stride, like(0), like)
    for number in range(job.evaluations):
        record = record_at(job, index, space, number, like)
        means = mean_at(job, index, space, min(number, job.updates - 1), like)
        within(job, space, record, means, number, like)
        after = mean_at(job, index, space, min(number + 1, job.updates - 1), like)
        between(job, space, record, means, after, number, like)
        if number + 1 < job.evaluations:
            following = record_at(job, index, space, number + 1, like)
            move_columns(job, index, space, record, following, number, like)
    scatter_rows(
        space + job.o_in * size, job.members_at, job.groups * job.members, job.e, like(1),
        job.output_at + index * job.n * job.e * size, like,
    )  # fmt: skip


@jit
def set_shift(job, space, record, like):
    """The bias of every key with its column potential."""
    size = size_of(like)
    length = job.blocks * job.width_stride * size
    add_rows(space + job.bias_in * size, record, length, space + job.shift_in * size, like)


@jit
def write_base(job, space, means, block, like):
    """The scores of the mean queries with the keys of a block."""
    size, d = size_of(like), job.d
    multiply(
        job.gemm, PLAIN, TRANSPOSED, job.groups, job.width, d,
        means + block * d * size, job.mean_stride,
        space + (job.k_in + block * job.width * d) * size, max(d, 1),
        like(0), base_at(job, space, block, like), job.width_stride, like,
    )  # fmt: skip


@jit
def write_tilt(job, space, group, like):
    """The inner products of the slopes of a group with its queries."""
    size, d = size_of(like), job.d
    multiply(
        job.gemm, PLAIN, TRANSPOSED, job.blocks, job.members, d,
        space + (job.slope_in + group * job.mean_stride) * size, max(d, 1),
        space + (job.q_in + group * job.members * d) * size, max(d, 1),
        like(0), tilt_at(job, space, group, like), job.member_stride, like,
    )  # fmt: skip


@jit
def write_slopes(job, space, block, like):
    """The mean keys of a block under the weights of every group."""
    size, d = size_of(like), job.d
    multiply(
        job.gemm, PLAIN, PLAIN, job.groups, d, job.width,
        space + job.weights_in * size, job.width_stride,
        space + (job.k_in + block * job.width * d) * size, max(d, 1),
        like(0), space + (job.slope_in + block * d) * size, job.mean_stride, like,
    )  # fmt: skip


@jit
def write_answers(job, space, block, like):
    """The mean values of a block under the weights of every group."""
    size, e = size_of(like), job.e
    multiply(
        job.gemm, PLAIN, PLAIN, job.groups, e, job.width,
        space + job.weights_in * size, job.width_stride,
        space + (job.v_in + block * job.width * e) * size, max(e, 1),
        like(0), space + (job.answer_in + block * e) * size, job.answer_stride, like,
    )  # fmt: skip


@jit
def write_offsets(job, space, means, group, like):
    """The inner products of the slopes of a group with its mean queries."""
    size, d = size_of(like), job.d
    offsets = vector(
        space + (job.offset_in + group * job.block_stride) * size, job.block_stride, like
    )
    for k in range(job.blocks):
        slope = vector(space + (job.slope_in + group * job.mean_stride + k * d) * size, d, like)
        mean = vector(means + (group * job.mean_stride + k * d) * size, d, like)
        found = like(0)
        for c in range(d):
            found += slope[c] * mean[c]
        offsets[k] = found


@jit
def within(job, space, record, means, number, like):
    """Totals of all blocks; their slopes if the means are new, their answers at the end."""
    size = size_of(like)
    touched, last = number < job.updates, number == job.evaluations - 1
    end, weights = job.width_stride * size, space + job.weights_in * size
    set_shift(job, space, record, like)
    for k in range(job.blocks):
        if touched:
            write_base(job, space, means, k, like)
        base, shift = base_at(job, space, k, like), space + job.shift_in * size + k * end
        totals, rests = total_rows(job, record, k, like)
        for p in range(job.groups):
            out = weights + p * end if touched or last else 0
            totals[p], rest = soften(base + p * end, shift, like(0), end, out, like)
            rests[p] = logarithm(rest) if rest > like(0) else like(0)
            if out and rest > like(0):
                scale_row(out, end, like(1) / rest, like)
        if touched:
            write_slopes(job, space, k, like)
        if last:
            write_answers(job, space, k, like)


@jit
def total_rows(job, record, block, like):
    """The totals of a block by group: largest score, and the log of the sum over that."""
    size = size_of(like)
    at = record + total_in(job, like) + block * job.group_stride * size
    behind = job.blocks * job.group_stride * size
    return vector(at, job.groups, like), vector(at + behind, job.groups, like)


@jit
def asked_rows(job, record, group, like):
    """What a group asks of blocks: largest log, and the log of the sum over that."""
    size = size_of(like)
    at = record + asked_in(job, like) + group * job.block_stride * size
    behind = job.groups * job.block_stride * size
    return vector(at, job.blocks, like), vector(at + behind, job.blocks, like)


@jit
def row_sums(job, record, group, like):
    """Where the row potentials of a group are: largest score, and the log of the sum over that."""
    size = size_of(like)
    at = record + row_sum_in(job, like) + group * job.member_stride * size
    return at, at + job.groups * job.member_stride * size


@jit
def set_constants(job, space, record, group, like):
    """What all scores of a group with a block have in common: its total less the offset."""
    size = size_of(like)
    constants = vector(space + job.constant_in * size, job.blocks, like)
    offsets = vector(space + (job.offset_in + group * job.block_stride) * size, job.blocks, like)
    for k in range(job.blocks):
        totals, rests = total_rows(job, record, k, like)
        total = totals[group]
        constants[k] = total + rests[group] - offsets[k] if total > -np.inf else total


@jit
def between(job, space, record, means, after, number, like):
    """Row potentials of all groups; what they ask, or their results at the end."""
    size = size_of(like)
    touched, last = number < job.updates, number == job.evaluations - 1
    advance, step = number < job.updates - 1, number < job.steps
    end, constant = job.member_stride * size, space + job.constant_in * size
    for p in range(job.groups):
        if touched:
            write_tilt(job, space, p, like)
            write_offsets(job, space, means, p, like)
        set_constants(job, space, record, p, like)
        tilt = tilt_at(job, space, p, like)
        highest, rest = row_sums(job, record, p, like)
        add_over_rows(
            tilt, job.member_stride, job.blocks, constant, end, space + job.sums_in * size,
            highest, rest, like(np.inf), like,
        )  # fmt: skip
        keep_real(highest, space + job.real_in * size + p * end, end, like(np.inf), like)
        if last:
            attend_group(job, space, record, tilt, p, like)
        elif advance or step:
            ask(job, space, record, tilt, after, p, advance, like)


@jit
def weigh_group(job, space, record, tilt, group, like):
    """The weights between blocks of the queries of a group."""
    size = size_of(like)
    end, weights = job.member_stride * size, space + job.weights_in * size
    constants = vector(space + job.constant_in * size, job.blocks, like)
    highest, rest = row_sums(job, record, group, like)
    for k in range(job.blocks):
        share_of_columns(tilt + k * end, constants[k], highest, rest, end, weights + k * end, like)


@jit
def attend_group(job, space, record, tilt, group, like):
    """The results of the queries of a group."""
    size, e = size_of(like), job.e
    weights = space + job.weights_in * size
    weigh_group(job, space, record, tilt, group, like)
    multiply(
        job.gemm, TRANSPOSED, PLAIN, job.members, e, job.blocks, weights, job.member_stride,
        space + (job.answer_in + group * job.answer_stride) * size, max(e, 1),
        like(0), space + (job.o_in + group * job.members * e) * size, max(e, 1), like,
    )  # fmt: skip


@jit
def ask(job, space, record, tilt, after, group, advance, like):
    """What a group asks of every block in all, and the means of its queries there."""
    size, d = size_of(like), job.d
    end, weights = job.member_stride * size, space + job.weights_in * size
    constants = vector(space + job.constant_in * size, job.blocks, like)
    asked, rests = asked_rows(job, record, group, like)
    shift = space + job.sums_in * size
    row_highest, row_rest = row_sums(job, record, group, like)
    negate_sum(row_highest, row_rest, end, shift, like)
    for k in range(job.blocks):
        out = weights + k * end if advance else 0
        asked[k], rest = soften(tilt + k * end, shift, constants[k], end, out, like)
        rests[k] = logarithm(rest) if rest > like(0) else like(0)
        if out and rest > like(0):
            scale_row(out, end, like(1) / rest, like)
    if advance:
        multiply(
            job.gemm, PLAIN, PLAIN, job.blocks, d, job.members, weights, job.member_stride,
            space + (job.q_in + group * job.members * d) * size, max(d, 1),
            like(0), after + group * job.mean_stride * size, max(d, 1), like,
        )  # fmt: skip


@jit
def move_columns(job, index, space, record, following, number, like):
    """The columns of the next evaluation: after a column step, or the same."""
    size, length = size_of(like), job.blocks * job.width_stride
    column, after = vector(record, length, like), vector(following, length, like)
    if number >= job.steps:
        for j in range(length):
            after[j] = column[j]
        return
    lam, omega = (
        vector(job.lam_at, job.batch, like)[index],
        vector(job.omega_at, job.batch, like)[index],
    )
    end = job.width_stride * size
    bias = vector(space + job.bias_in * size, length, like)
    mass = vector(space + job.log_mass_in * size, length, like)
    received = vector(record + received_in(job, like), length, like)
    rests = vector(record + 2 * received_in(job, like), length, like)
    for k in range(job.blocks):
        set_shares(job, space, record, k, like)
        add_over_rows(
            base_at(job, space, k, like), job.width_stride, job.groups,
            space + job.constant_in * size, end, space + job.sums_in * size,
            record + received_in(job, like) + k * end,
            record + 2 * received_in(job, like) + k * end, like(-np.inf), like,
        )  # fmt: skip
        for j in range(k * job.width_stride, (k + 1) * job.width_stride):
            if received[j] > -np.inf and bias[j] > -np.inf:
                exact = mass[j] - (received[j] + rests[j]) - bias[j]
                after[j] = (like(1) - omega) * column[j] + omega * lam * exact
            else:
                after[j] = like(0)


@jit
def set_shares(job, space, record, block, like):
    """What every group has for a unit of score in a block: what it asks less the total."""
    size = size_of(like)
    shares = vector(space + job.constant_in * size, job.groups, like)
    totals, rests = total_rows(job, record, block, like)
    for p in range(job.groups):
        asked, more = asked_rows(job, record, p, like)
        shares[p] = like(-np.inf)
        if asked[block] > -np.inf and totals[p] > -np.inf:
            shares[p] = asked[block] + more[block] - (totals[p] + rests[p])
