"""From tokens in their order to groups of queries and blocks of keys, and back."""

import numpy as np

from bistoch.functional.elastic.cpu.head import whole
from bistoch.functional.kernels.array import vector
from bistoch.functional.kernels.runtime import jit, size_of
from bistoch.functional.monarch.cpu.job import fill


@jit
def gather(job, index, space, like):
    """The tokens of a head by group and by block; where there is none, zeros."""
    size, sharpness = size_of(like), vector(job.sharpness_at, job.batch, like)[index]
    queries, keys = job.groups * job.members, job.blocks * job.width
    gather_rows(
        job.query_at + index * job.n * job.d * size, job.members_at, queries, job.d, sharpness,
        space + job.q_in * size, like,
    )  # fmt: skip
    gather_rows(
        job.key_at + index * job.m * job.d * size, job.keys_at, keys, job.d, like(1),
        space + job.k_in * size, like,
    )  # fmt: skip
    gather_rows(
        job.value_at + index * job.m * job.e * size, job.keys_at, keys, job.e, like(1),
        space + job.v_in * size, like,
    )  # fmt: skip
    gather_real(job, index, space, like)
    gather_keys(job, index, space, like)


@jit
def gather_rows(tokens, order, count, features, factor, out, like):
    """Rows in another order, times a factor; a negative number is a row of zeros."""
    size, places = size_of(like), whole(order)
    for i in range(count):
        into = vector(out + i * features * size, features, like)
        if places[i] < 0:
            for c in range(features):
                into[c] = like(0)
        else:
            row = vector(tokens + places[i] * features * size, features, like)
            for c in range(features):
                into[c] = row[c] * factor


@jit
def gather_real(job, index, space, like):
    """One for every query that is real, zero for padding and behind the last."""
    size, places = size_of(like), whole(job.members_at)
    bits = vector(job.real_at + index * job.n, job.n, np.uint8)
    for p in range(job.groups):
        real = vector(space + (job.real_in + p * job.member_stride) * size, job.member_stride, like)
        for member in range(job.member_stride):
            place = places[p * job.members + member] if member < job.members else -1
            there = place >= 0
            if there and job.real_at:
                there = bits[place] != 0
            real[member] = like(1) if there else like(0)


@jit
def gather_keys(job, index, space, like):
    """The bias and the mass of every key, minus infinity for padding and behind the last."""
    size, places = size_of(like), whole(job.keys_at)
    given = vector(job.bias_at + index * job.m * size, job.m, like)
    mass = vector(job.log_mass_at + index * job.m * size, job.m, like)
    for k in range(job.blocks):
        at = k * job.width_stride * size
        bias = vector(space + job.bias_in * size + at, job.width_stride, like)
        log_mass = vector(space + job.log_mass_in * size + at, job.width_stride, like)
        for i in range(job.width_stride):
            place = places[k * job.width + i] if i < job.width else -1
            bias[i] = like(-np.inf)
            log_mass[i] = like(0)
            if place >= 0:
                bias[i] = given[place] if job.bias_at else like(0)
                if job.log_mass_at:
                    log_mass[i] = mass[place]


@jit
def scatter_rows(rows, order, count, features, factor, out, like):
    """Rows back in the order of the tokens, times a factor."""
    size, places = size_of(like), whole(order)
    for i in range(count):
        if places[i] >= 0:
            row = vector(rows + i * features * size, features, like)
            into = vector(out + places[i] * features * size, features, like)
            for c in range(features):
                into[c] = row[c] * factor


@jit
def scatter_keys(job, index, grads, out, like):
    """Numbers of keys [k, i] back in the order of the keys."""
    size, places = size_of(like), whole(job.keys_at)
    into = vector(out + index * job.m * size, job.m, like)
    for k in range(job.blocks):
        row = vector(grads + k * job.width_stride * size, job.width_stride, like)
        for i in range(job.width):
            place = places[k * job.width + i]
            if place >= 0:
                into[place] = row[i]


@jit
def count_real(job, space, group, like):
    """How many members of a group are real."""
    at = space + (job.real_in + group * job.member_stride) * size_of(like)
    real, count = vector(at, job.member_stride, like), like(0)
    for member in range(job.members):
        count += real[member]
    return count


@jit
def own_member(job, space, group, block, like):
    """Which member a group has in the block of the same number, if it is real, or -1."""
    member = whole(job.own_at)[group * job.blocks + block]
    if member < 0:
        return member
    at = space + (job.real_in + group * job.member_stride) * size_of(like)
    real = vector(at, job.member_stride, like)
    return member if real[member] > like(0) else -1


@jit
def first_mean(job, index, space, means, like):
    """What the queries of a group ask of a block before anything is known.

    The query of the block of the same number; where there is none, the mean of the group.
    """
    size, d = size_of(like), job.d
    middle = vector(space + job.middle_in * size, d, like)
    for p in range(job.groups):
        queries = space + (job.q_in + p * job.members * d) * size
        share = like(1) / max(count_real(job, space, p, like), like(1))
        real = vector(space + (job.real_in + p * job.member_stride) * size, job.member_stride, like)
        fill(space + job.middle_in * size, d, like(0), like)
        for member in range(job.members):
            if real[member] > like(0):
                row = vector(queries + member * d * size, d, like)
                for c in range(d):
                    middle[c] += row[c] * share
        for k in range(job.blocks):
            into = vector(means + (p * job.mean_stride + k * d) * size, d, like)
            member = own_member(job, space, p, k, like)
            row = vector(queries + member * d * size, d, like) if member >= 0 else middle
            for c in range(d):
                into[c] = row[c]


@jit
def first_mean_backward(job, index, space, d_means, like):
    """Add the gradients of the first means to those of the queries."""
    size, d = size_of(like), job.d
    middle = vector(space + job.middle_in * size, d, like)
    for p in range(job.groups):
        queries = space + (job.dq_in + p * job.members * d) * size
        share = like(1) / max(count_real(job, space, p, like), like(1))
        real = vector(space + (job.real_in + p * job.member_stride) * size, job.member_stride, like)
        fill(space + job.middle_in * size, d, like(0), like)
        for k in range(job.blocks):
            row = vector(d_means + (p * job.mean_stride + k * d) * size, d, like)
            member = own_member(job, space, p, k, like)
            into = vector(queries + member * d * size, d, like) if member >= 0 else middle
            for c in range(d):
                into[c] += row[c]
        for member in range(job.members):
            if real[member] > like(0):
                into = vector(queries + member * d * size, d, like)
                for c in range(d):
                    into[c] += middle[c] * share
