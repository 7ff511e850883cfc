"""Numba kernels of the forward for heads whose K does not fit: K in bytes, used for changes only.

A pass with exact numbers at the column potentials g0 gives the row sums `r0 = K 1` and the column
totals `c0 = K^T u0`, `u0 = 1 / r0`, and keeps a code of one byte for every entry of K. From then on

    r = r0 + K~ (w - 1),   u = 1 / r,   c = c0 + K~^T (u - u0),   w = exp(g - g0)

where K~ is read from the codes: an error of K~ is multiplied by what has changed since, which is
little, and sums over many keys average it. The result needs no K~: the last row step is exact, and
so is the column error after it, by which a head is accepted or done again without codes.

A code holds the root of an entry in 255 steps. Rounding differs from lane to lane and from one
group of eight rows to the next (a dither, which decoding takes off again), so that equal entries do
not have equal errors. A zero stays zero.
"""

import numpy as np

from bistoch.functional.elastic.cpu.head import (
    FACTOR,
    PARTIAL,
    RESIDUAL,
    SUM,
    TOTAL,
    WEIGHED,
    WEIGHT,
    block_place,
    build_block,
    kernel_of,
    next_slot,
    of_slot,
    open_job,
    open_phase,
    over_columns,
    over_keys,
    over_queries,
    row_mass,
    rows_of_slot,
    slot_at,
)
from bistoch.functional.elastic.cpu.rows import add_columns, dot_rows, flush
from bistoch.functional.kernels.array import part, row_at, start_of, vector
from bistoch.functional.kernels.math import choose_above, square_roots
from bistoch.functional.kernels.runtime import jit, kind_of, no_inline, size_of
from bistoch.functional.kernels.vector import (
    add_vectors,
    lanes_of,
    load,
    load_bytes,
    multiply_add,
    multiply_vectors,
    spaced,
    spread,
    store,
    store_bytes,
    total,
)

STEPS = 255.0
# the mean of the square of an error that is evenly spread over one step
BIAS = 1 / 12
GOLDEN = 0.6180339887498949


@jit
def anchor_totals(job, space, like):
    """The column totals of the exact pass."""
    return vector(slot_at(job, space, job.slots, like), job.m, like)


@jit
def anchor_factors(job, space, like):
    """The row factors of the exact pass."""
    behind = slot_at(job, space, job.slots, like) + job.stride * size_of(like)
    return vector(behind, job.n, like)


@jit
def codes_at(job, space, i, like):
    """Where the codes of a row begin."""
    padded = (job.n + 15) // 16 * 16
    behind = slot_at(job, space, job.slots, like) + (job.stride + padded) * size_of(like)
    return behind + i * job.stride


@jit
def dither(i, like):
    """What is added to the roots of a row before they are cut off: all of [0, 1)."""
    shift = (i // 8) * GOLDEN
    places = add_vectors(spaced(like), spread(like(shift - np.floor(shift))))
    # below one also after rounding, so that no code is above 255
    limit = spread(like(0.999))
    return choose_above(places, limit, add_vectors(places, spread(like(-0.999))), places)


@jit
def encode_rows(job, space, first, last, block, like):
    """Codes of rows [first, last) of K, as far as there is room for them."""
    no_inline()
    wide, size, steps = lanes_of(like), size_of(like), spread(like(STEPS))
    for i in range(first, min(last, job.coded_rows)):
        at, to = row_at(block, i - first), codes_at(job, space, i, like)
        added = dither(i, like)
        for j in range(0, job.stride, wide):
            root = square_roots(load(at + j * size, like))
            store_bytes(to + j, multiply_add(root, steps, added))


@jit
def decoded(at, taken, like):
    """Entries of K times 255 squared."""
    code = load_bytes(at, like)
    root = add_vectors(code, taken)
    entry = multiply_add(root, root, spread(like(-BIAS)))
    return choose_above(code, spread(like(0)), entry, spread(like(0)))


@jit
def dot_codes(job, space, top, bottom, taken, weights, sums, like):
    """Products of coded rows with weights, four rows at a time."""
    wide, size, zero, step = lanes_of(like), size_of(like), like(0), job.stride
    weights_at, i = start_of(weights), top
    while i + 4 <= bottom:
        at = codes_at(job, space, i, like)
        s0, s1, s2, s3 = spread(zero), spread(zero), spread(zero), spread(zero)
        for j in range(0, job.stride, wide):
            w = load(weights_at + j * size, like)
            s0 = multiply_add(decoded(at + j, taken, like), w, s0)
            s1 = multiply_add(decoded(at + j + step, taken, like), w, s1)
            s2 = multiply_add(decoded(at + j + 2 * step, taken, like), w, s2)
            s3 = multiply_add(decoded(at + j + 3 * step, taken, like), w, s3)
        sums[i], sums[i + 1], sums[i + 2], sums[i + 3] = total(s0), total(s1), total(s2), total(s3)
        i += 4
    while i < bottom:
        at, s = codes_at(job, space, i, like), spread(zero)
        for j in range(0, job.stride, wide):
            s = multiply_add(decoded(at + j, taken, like), load(weights_at + j * size, like), s)
        sums[i] = total(s)
        i += 1


@jit
def add_codes(job, space, top, bottom, taken, factor, totals, like):
    """Add coded rows times factors to the column totals, four rows at a time."""
    wide, size, step = lanes_of(like), size_of(like), job.stride
    to, i = start_of(totals), top
    while i + 4 <= bottom:
        at = codes_at(job, space, i, like)
        f0, f1, f2, f3 = (
            spread(factor[i]), spread(factor[i + 1]), spread(factor[i + 2]), spread(factor[i + 3])
        )  # fmt: skip
        for j in range(0, job.stride, wide):
            a = multiply_add(decoded(at + j, taken, like), f0, load(to + j * size, like))
            b = multiply_vectors(decoded(at + j + step, taken, like), f1)
            a = multiply_add(decoded(at + j + 2 * step, taken, like), f2, a)
            b = multiply_add(decoded(at + j + 3 * step, taken, like), f3, b)
            store(to + j * size, add_vectors(a, b))
        i += 4
    while i < bottom:
        at, f = codes_at(job, space, i, like), spread(factor[i])
        for j in range(0, job.stride, wide):
            here = decoded(at + j, taken, like)
            store(to + j * size, multiply_add(here, f, load(to + j * size, like)))
        i += 1


@jit
def take_row_step(job, index, space, i, sum_, like):
    """The row factor for a row sum; returns by how much the row counts more than at the anchor."""
    factor, before = over_queries(job, space, FACTOR, like), anchor_factors(job, space, like)
    one, zero = like(1), like(0)
    factor[i] = one / sum_ if sum_ > zero and before[i] > zero else zero
    return (factor[i] - before[i]) * row_mass(job, index, i, like)


def iterate_codes(pointer):
    """Phase: one pass over the codes, and over rows made again where there was no room for them."""
    like, phase = kind_of(pointer), open_phase(pointer)
    job = open_job(phase.job_at)
    index, space, one, zero = phase.index, phase.space, like(1), like(0)
    kernel = kernel_of(job, space, like)
    before = anchor_factors(job, space, like)
    # row sums, and then by how much rows count more
    sums = over_queries(job, space, WEIGHED, like)
    weight, change = (
        over_columns(job, space, WEIGHT, like),
        over_columns(job, space, RESIDUAL, like),
    )
    half, minus, unit = spread(like(0.5)), spread(like(-1)), like(STEPS * STEPS)
    slot, tried = next_slot(job, pointer, 0), 1
    while slot >= 0:
        totals = of_slot(job, space, slot, SUM, like)
        partial = of_slot(job, space, slot, PARTIAL, like)
        totals[:] = zero
        partial[:] = zero
        first, last = rows_of_slot(job, slot)
        coded = max(first, min(last, job.coded_rows))
        for start in range(first, coded, job.block):
            end = min(start + job.block, coded)
            for top in range(start, end, 8):
                bottom = min(top + 8, end)
                taken = multiply_add(dither(top, like), minus, half)
                dot_codes(job, space, top, bottom, taken, change, sums, like)
                for i in range(top, bottom):
                    was = one / before[i] if before[i] > zero else zero
                    sums[i] = take_row_step(job, index, space, i, was + sums[i], like) / unit
                add_codes(job, space, top, bottom, taken, sums, partial, like)
            flush(totals, partial)
        for start in range(coded, last, job.block):
            end = min(start + job.block, last)
            place = block_place(job, start, slot)
            block = part(kernel, place, place + end - start)
            build_block(job, index, space, start, end, block, like)
            dot_rows(block, weight, part(sums, start, end))
            for i in range(start, end):
                sums[i] = take_row_step(job, index, space, i, sums[i], like)
            for top in range(0, end - start, 8):
                bottom = min(top + 8, end - start)
                add_columns(
                    part(block, top, bottom), part(sums, start + top, start + bottom), partial
                )
            flush(totals, partial)
        slot, tried = next_slot(job, pointer, tried), tried + 1


@jit
def set_changes(job, space, like):
    """By how much column factors have changed since the exact pass, in units of a code."""
    no_inline()
    weight, change = over_keys(job, space, WEIGHT, like), over_keys(job, space, RESIDUAL, like)
    for j in range(job.m):
        change[j] = (weight[j] - like(1)) / like(STEPS * STEPS)


@jit
def lost_a_column(job, space, like):
    """Whether an error of the codes has made a column total vanish."""
    no_inline()
    # logs by now
    now, before = over_keys(job, space, TOTAL, like), anchor_totals(job, space, like)
    lost = False
    for j in range(job.m):
        lost = lost or (before[j] > like(0) and now[j] == -np.inf)
    return lost


@jit
def lost_a_row(job, space, like):
    """Whether an error of the codes has made a row sum vanish."""
    no_inline()
    factor, before = over_queries(job, space, FACTOR, like), anchor_factors(job, space, like)
    lost = False
    for i in range(job.n):
        lost = lost or (before[i] > like(0) and not factor[i] > like(0))
    return lost
