"""Numba kernels of the forward: one stored kernel matrix per head, one read of it per iteration.

A head writes `K = exp(S + absorbed - rowmax)` once; an iteration is then one pass over K, eight
rows at a time while they are in the first-level cache: `u = 1 / (K w)`, `totals += K^T u`. There
are no exponentials in it. When the column factors `w = exp(g - absorbed)` leave the safe range, g
is absorbed and K is built again, so that the result equals the log-domain reference always.
"""

import numpy as np

from bistoch.functional.elastic.cpu.head import (
    FACTOR,
    PARTIAL,
    SHIFT,
    SUM,
    WEIGHT,
    behind_vectors,
    block_place,
    build_block,
    kernel_of,
    look,
    next_slot,
    of_head,
    of_slot,
    open_job,
    open_phase,
    over_columns,
    over_queries,
    rows_of_slot,
    weigh_rows,
)
from bistoch.functional.elastic.cpu.quantised import encode_rows
from bistoch.functional.elastic.cpu.rows import add_columns, dot_rows, flush
from bistoch.functional.kernels.array import part, row_at, start_of, vector
from bistoch.functional.kernels.runtime import (
    PLAIN,
    jit,
    kind_of,
    logarithm,
    matmul,
    size_of,
)


def build(pointer):
    """Phase: K with the column potentials absorbed, its row factors, and the column totals."""
    like, phase = kind_of(pointer), open_phase(pointer)
    job = open_job(phase.job_at)
    kernel = kernel_of(job, phase.space, like)
    slot, tried = next_slot(job, pointer, 0), 1
    while slot >= 0:
        total = of_slot(job, phase.space, slot, SUM, like)
        partial = of_slot(job, phase.space, slot, PARTIAL, like)
        total[:] = like(0)
        partial[:] = like(0)
        if job.look and phase.t == 0:
            look(job, phase.index, slot, like)
        first, last = rows_of_slot(job, slot)
        for start in range(first, last, job.block):
            end = min(start + job.block, last)
            place = block_place(job, start, slot)
            block = part(kernel, place, place + end - start)
            build_block(job, phase.index, phase.space, start, end, block, like)
            used = weigh_rows(job, phase.index, phase.space, start, end, like)
            for top in range(0, end - start, 8):
                bottom = min(top + 8, end - start)
                add_columns(
                    part(block, top, bottom), part(used, start + top, start + bottom), partial
                )
            flush(total, partial)
            if phase.flag:
                encode_rows(job, phase.space, start, end, block, like)
        slot, tried = next_slot(job, pointer, tried), tried + 1


def iterate(pointer):
    """Phase: one pass over the stored K, row step with the current factors, then column totals.

    Passes run down and up in turn, so that each begins with the rows still in the cache.
    """
    like, phase = kind_of(pointer), open_phase(pointer)
    job = open_job(phase.job_at)
    kernel = kernel_of(job, phase.space, like)
    factor = over_queries(job, phase.space, FACTOR, like)
    weight = over_columns(job, phase.space, WEIGHT, like)
    slot, tried = next_slot(job, pointer, 0), 1
    while slot >= 0:
        total = of_slot(job, phase.space, slot, SUM, like)
        partial = of_slot(job, phase.space, slot, PARTIAL, like)
        total[:] = like(0)
        partial[:] = like(0)
        first, last = rows_of_slot(job, slot)
        blocks = (last - first + job.block - 1) // job.block
        for number in range(blocks):
            start = first + job.block * (blocks - 1 - number if phase.t % 2 else number)
            end = min(start + job.block, last)
            for top in range(start, end, 8):
                bottom = min(top + 8, end)
                rows = part(kernel, top, bottom)
                dot_rows(rows, weight, part(factor, top, bottom))
                invert(part(factor, top, bottom))
                used = weigh_rows(job, phase.index, phase.space, top, bottom, like)
                add_columns(rows, part(used, top, bottom), partial)
            flush(total, partial)
        slot, tried = next_slot(job, pointer, tried), tried + 1


@jit
def invert(sums):
    """1 / sum for rows that have any, zero for rows that see nothing."""
    one, zero = sums.dtype.type(1), sums.dtype.type(0)
    for i in range(len(sums)):
        sums[i] = one / sums[i] if sums[i] > zero else zero


def finish(pointer):
    """Phase: the last row step and the product with the values, block by block."""
    like, phase = kind_of(pointer), open_phase(pointer)
    job = open_job(phase.job_at)
    m, e, one, zero = job.m, job.e, like(1), like(0)
    kernel = kernel_of(job, phase.space, like)
    factor = over_queries(job, phase.space, FACTOR, like)
    weight = over_columns(job, phase.space, WEIGHT, like)
    output = of_head(job.output_at, phase.index, job.n, e, like)
    row = vector(job.row_at + phase.index * job.n * size_of(like), job.n, like)
    weighted = behind_vectors(job, phase.space, like)
    slot, tried = next_slot(job, pointer, 0), 1
    while slot >= 0:
        total = of_slot(job, phase.space, slot, SUM, like)
        partial = of_slot(job, phase.space, slot, PARTIAL, like)
        total[:] = zero
        partial[:] = zero
        if job.look and job.iters == 0:
            look(job, phase.index, slot, like)
        first, last = rows_of_slot(job, slot)
        for start in range(first, last, job.block):
            end = min(start + job.block, last)
            place = block_place(job, start, slot)
            block = part(kernel, place, place + end - start)
            if phase.flag:
                dot_rows(block, weight, part(factor, start, end))
                invert(part(factor, start, end))
            else:
                build_block(job, phase.index, phase.space, start, end, block, like)
            if job.exact_error:
                used = weigh_rows(job, phase.index, phase.space, start, end, like)
                for top in range(0, end - start, 8):
                    bottom = min(top + 8, end - start)
                    add_columns(
                        part(block, top, bottom), part(used, start + top, start + bottom), partial
                    )
                flush(total, partial)
            if e:
                matmul(
                    job.gemm, PLAIN, PLAIN, e, end - start, m, one, weighted, e,
                    start_of(block), job.stride, zero, row_at(output, start), e,
                )  # fmt: skip
            for i in range(start, end):
                for c in range(e):
                    output[i, c] *= factor[i]
                seen = factor[i] > zero
                row[i] = row_potential(job, phase.space, i, like) if seen else like(-np.inf)
        slot, tried = next_slot(job, pointer, tried), tried + 1


@jit
def row_potential(job, space, i, like):
    """`f_i = -LSE_j(S_ij + g_j)`, zero for a row that sees nothing."""
    factor = over_queries(job, space, FACTOR, like)[i]
    if factor > 0:
        return logarithm(factor) - over_queries(job, space, SHIFT, like)[i]
    return like(0)
