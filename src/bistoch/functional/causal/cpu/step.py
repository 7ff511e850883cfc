"""Numba kernel for one new token: a row over the cache, and the account after it, in place.

Query heads that share keys are computed together, so that a cache is read once for all of them.
"""

import numpy as np

from bistoch.functional.causal.cpu.job import whole_lanes
from bistoch.functional.causal.cpu.rows import close_row, soften
from bistoch.functional.causal.cpu.update import level_of, receive, weigh
from bistoch.functional.kernels.array import start_of, vector
from bistoch.functional.kernels.job import own_space, reader
from bistoch.functional.kernels.runtime import (
    PLAIN,
    TRANSPOSED,
    address_of,
    jit,
    kind_of,
    logarithm,
    matmul,
    size_of,
    take_next,
)

# the numbers of a step in their order: names ending in _at are addresses, in _batch, _head and _row
# steps between the parts of a tensor
STEP_FIELDS = (
    "next_group", "next_worker", "gemm", "groups", "shared", "heads", "keys", "d", "e", "block",
    "query_at", "query_batch", "query_head", "key_at", "key_batch", "key_head", "key_row",
    "value_at", "value_batch", "value_head", "value_row", "real_at",
    "sharpness_at", "lam_at", "prior_at", "state_at", "state_step", "state_row",
    "level_at", "position_at", "output_at", "workspace_at", "workspace_stride", "stride",
)  # fmt: skip
_step_at = reader(STEP_FIELDS)


def advance(pointer):
    """Take groups of heads until none is left, and give each its next row."""
    like, job = kind_of(pointer), _step_at(address_of(pointer))
    space = own_space(job, like)
    group = take_next(job.next_group)
    while group < job.groups:
        advance_group(job, group, space, like)
        group = take_next(job.next_group)


@jit
def advance_group(job, group, space, like):
    """The rows of query heads that share keys, and their accounts."""
    b, shared = group // job.shared, group % job.shared
    query = job.query_batch * b + job.query_head * shared * job.heads
    key = job.key_batch * b + job.key_head * shared
    value = job.value_batch * b + job.value_head * shared
    size, keys, heads, e = size_of(like), job.keys, job.heads, job.e
    output = job.output_at + group * heads * e * size
    real = job.real_at + b * keys if job.real_at else 0
    if real and not vector(real, keys, np.uint8)[keys - 1]:
        vector(output, heads * e, like)[:] = like(0)
        for head in range(group * heads, (group + 1) * heads):
            open_key(job, head, like)
        return
    if job.d:
        matmul(
            job.gemm, TRANSPOSED, PLAIN, keys, heads, job.d, like(1),
            job.key_at + key * size, job.key_row, job.query_at + query * size, job.query_head,
            like(0), space, job.stride,
        )  # fmt: skip
    else:
        vector(space, heads * job.stride, like)[:] = like(0)
    count = keys
    if real:
        count = 0
        for j in range(keys):
            count += vector(real, keys, np.uint8)[j] != 0
    for place in range(heads):
        head, row = group * heads + place, space + place * job.stride * size
        open_key(job, head, like)
        soften_row(job, head, row, real, like)
    if e:
        matmul(
            job.gemm, PLAIN, PLAIN, e, heads, keys, like(1),
            job.value_at + value * size, job.value_row, space, job.stride, like(0), output, e,
        )  # fmt: skip
    for place in range(heads):
        head, row = group * heads + place, space + place * job.stride * size
        settle(job, head, row, real, count, like)


@jit
def column_of(job, head, which, like):
    """Bias, received or wanted of the keys of a head, with room up to whole vectors."""
    at = job.state_at + (which * job.state_step + head * job.state_row) * size_of(like)
    return vector(at, whole_lanes(job.keys, like), like)


@jit
def open_key(job, head, like):
    """The new key begins at the level of new keys."""
    level = vector(job.level_at, head + 1, like)[head]
    prior, last = vector(job.prior_at, 1, like)[0], job.keys - 1
    column_of(job, head, 0, like)[last] = vector(job.lam_at, head + 1, like)[head] * level
    column_of(job, head, 1, like)[last] = logarithm(prior) - level
    column_of(job, head, 2, like)[last] = prior


@jit
def soften_row(job, head, row, real, like):
    """Dot products become the row of the plan."""
    keys, never = job.keys, like(-np.inf)
    scores = vector(row, whole_lanes(keys, like), like)
    sharpness = vector(job.sharpness_at, head + 1, like)[head]
    for j in range(keys):
        scores[j] *= sharpness
    if real:
        seen = vector(real, keys, np.uint8)
        for j in range(keys):
            scores[j] = scores[j] if seen[j] else never
    end = close_row(row, keys, len(scores), never, like)
    bias = column_of(job, head, 0, like)
    # behind the keys is whatever was there: it must be a number
    bias[keys:] = like(0)
    _, factor = soften(row, start_of(bias), end, like)
    for j in range(keys):
        scores[j] *= factor


@jit
def settle(job, head, row, real, count, like):
    """Bring the account of a head up to date; the row becomes zeros."""
    keys, block = job.keys, job.block
    bias, received = column_of(job, head, 0, like), column_of(job, head, 1, like)
    wanted = column_of(job, head, 2, like)
    received[keys:] = like(0)
    receive(received, vector(row, len(received), like), bias, keys, like)
    share = like(1) / like(count)
    if real:
        seen = vector(real, keys, np.uint8)
        for j in range(keys):
            wanted[j] += share if seen[j] else like(0)
    else:
        for j in range(keys):
            wanted[j] += share
    position = vector(job.position_at, head + 1, np.int64)
    position[head] += 1
    if position[head] % block:
        return
    level = like(0)
    if real:
        # the keys of the block side by side, in the row that is not needed any more
        seen, found = vector(real, keys, np.uint8), 0
        own = vector(row, 2 * block, like)
        for j in range(keys - 1, -1, -1):
            if seen[j] and found < block:
                own[found], own[block + found] = received[j], wanted[j]
                found += 1
        level, _ = level_of(own[:block], own[block : 2 * block], like)
    else:
        level, _ = level_of(received[keys - block : keys], wanted[keys - block : keys], like)
    vector(job.level_at, head + 1, like)[head] = min(level, like(0))
    wanted[keys:] = like(1)
    weigh(received, wanted, vector(job.lam_at, head + 1, like)[head], bias, keys, like)
