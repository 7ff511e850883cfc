"""Numba kernels of the backward: the plan P stored once, one read of it per iteration.

Every matrix of the exact gradient (docs/gradient.md) is a rescaled plan,
`C = P * (a c^T)` and `R = P * (a r^T)`, with `a = 1 / (P r)`, `r = exp(g^t - g)` and c from the
column totals of iteration t. So an iteration is one pass over P for the vectors, and the sum over
iterations is `P * (left right^T)`: one product of rank twice the iterations, block by block.
Without room for P, every pass makes its blocks again, and memory stays linear in n + m.
"""

from bistoch.functional.elastic.cpu.head import (
    FACTOR,
    GRAD,
    PARTIAL,
    SHIFT,
    STEP,
    SUM,
    WEIGHT,
    behind_vectors,
    block_place,
    build_block,
    kernel_of,
    look,
    low_rank,
    next_slot,
    of_head,
    of_slot,
    open_job,
    open_phase,
    over_columns,
    over_queries,
    row_mass,
    rows_of_slot,
    slot_at,
    whole,
)
from bistoch.functional.elastic.cpu.rows import add_columns, dot_rows_twice, flush
from bistoch.functional.kernels.array import matrix, part, row_at, start_of, vector
from bistoch.functional.kernels.runtime import (
    PLAIN,
    TRANSPOSED,
    jit,
    kind_of,
    matmul,
    no_inline,
    size_of,
)
from bistoch.functional.kernels.vector import (
    add_vectors,
    lanes_of,
    load,
    multiply_add,
    multiply_vectors,
    spread,
    store,
    total,
)


@jit
def scores_grad_of(job, space, like):
    """The second stored matrix: Z, and in the end the gradient of the scores."""
    return matrix(behind_vectors(job, space, like), job.stored_rows, job.stride, like)


@jit
def grads_of_slot(job, index, space, slot, like):
    """Of one member of the team: a block of scratch, gradients of values and of keys, and a sum.

    Who works alone writes the gradients of the head where they belong.
    """
    m, size = job.m, size_of(like)
    scratch = slot_at(job, space, slot, like) + 2 * job.stride * size
    value_grad = scratch + job.block * job.stride * size
    key_grad = value_grad + m * job.e * size
    sums = key_grad + m * job.d * size
    if job.slots == 1:
        value_grad = job.value_grad_at + index * m * job.e * size
        key_grad = job.key_grad_at + index * m * job.d * size
    return (
        matrix(scratch, job.block, job.stride, like),
        matrix(value_grad, m, job.e, like),
        matrix(key_grad, m, job.d, like),
        vector(sums, 1, like),
    )


def prepare(pointer):
    """Phase: P, Z = P * (dP - row means), which is what the last row step sends on, and dV."""
    like, phase = kind_of(pointer), open_phase(pointer)
    job = open_job(phase.job_at)
    m, e, one, zero = job.m, job.e, like(1), like(0)
    kernel, second = kernel_of(job, phase.space, like), scores_grad_of(job, phase.space, like)
    output_grad = of_head(job.output_grad_at, phase.index, job.n, e, like)
    slot, tried = next_slot(job, pointer, 0), 1
    while slot >= 0:
        totals = of_slot(job, phase.space, slot, SUM, like)
        partial = of_slot(job, phase.space, slot, PARTIAL, like)
        _, value_grad, _, _ = grads_of_slot(job, phase.index, phase.space, slot, like)
        totals[:] = zero
        partial[:] = zero
        if job.look:
            look(job, phase.index, slot, like)
        first, last = rows_of_slot(job, slot)
        for start in range(first, last, job.block):
            end = min(start + job.block, last)
            place = block_place(job, start, slot)
            plan = part(kernel, place, place + end - start)
            grad = part(second, place, place + end - start)
            prepare_block(job, phase.index, phase.space, start, end, plan, grad, partial, like)
            flush(totals, partial)
            if e:
                matmul(
                    job.gemm, PLAIN, TRANSPOSED, e, m, end - start, one,
                    row_at(output_grad, start), e, start_of(plan), job.stride,
                    one if start > first else zero, start_of(value_grad), e,
                )  # fmt: skip
        slot, tried = next_slot(job, pointer, tried), tried + 1


@jit
def prepare_block(job, index, space, start, end, plan, grad, totals, like):
    """A block of P and of Z, and the sums of its columns added to the totals."""
    no_inline()
    n, m, e, one, zero = job.n, job.m, job.e, like(1), like(0)
    factor = over_queries(job, space, FACTOR, like)
    arriving = job.row_grad_at + index * n * size_of(like)
    row_grad = vector(arriving, n if job.row_grad_at else 0, like)
    build_block(job, index, space, start, end, plan, like)
    if e:
        output_grad = of_head(job.output_grad_at, index, n, e, like)
        matmul(
            job.gemm, TRANSPOSED, PLAIN, m, end - start, e, one,
            job.value_at + index * m * e * size_of(like), e,
            row_at(output_grad, start), e, zero, start_of(grad), job.stride,
        )  # fmt: skip
    else:
        grad[:] = zero
    for i in range(start, end):
        row = i - start
        extra = row_grad[i] if job.row_grad_at else zero
        grad[row, m:] = zero
        centre_row(plan[row], grad[row], factor[i], extra, totals)


@jit
def rebuild_plan(job, index, space, start, end, plan, like):
    """A block of P alone."""
    no_inline()
    factor = over_queries(job, space, FACTOR, like)
    wide, length = lanes_of(like) * size_of(like), job.stride * size_of(like)
    build_block(job, index, space, start, end, plan, like)
    for i in range(start, end):
        at, scale = row_at(plan, i - start), spread(factor[i])
        for j in range(0, length, wide):
            store(at + j, multiply_vectors(load(at + j, like), scale))


@jit
def centre_row(plan, grad, factor, extra, totals):
    """Make a row of K a row of P, turn dP into Z, and add Z to the column totals."""
    like = totals.dtype.type
    wide, length = lanes_of(like) * size_of(like), len(plan) * size_of(like)
    plan_at, grad_at, to = start_of(plan), start_of(grad), start_of(totals)
    scale, products = spread(factor), spread(like(0))
    for j in range(0, length, wide):
        p = multiply_vectors(load(plan_at + j, like), scale)
        store(plan_at + j, p)
        products = multiply_add(p, load(grad_at + j, like), products)
    mean = spread(-(total(products) + extra))
    for j in range(0, length, wide):
        here = add_vectors(load(grad_at + j, like), mean)
        z = multiply_vectors(load(plan_at + j, like), here)
        store(grad_at + j, z)
        store(to + j, add_vectors(load(to + j, like), z))


@jit
def subtract_product(a, b, result):
    """`result -= a * b` for matrices in whole vectors."""
    like = result.dtype.type
    wide, length = lanes_of(like) * size_of(like), result.size * size_of(like)
    a_at, b_at, at = start_of(a), start_of(b), start_of(result)
    minus = spread(like(-1))
    for j in range(0, length, wide):
        product = multiply_vectors(load(a_at + j, like), load(b_at + j, like))
        store(at + j, multiply_add(product, minus, load(at + j, like)))


def step(pointer):
    """Phase: back through one iteration, `df = -C dh` for rows and `P^T (a df)` for columns."""
    like, phase = kind_of(pointer), open_phase(pointer)
    job = open_job(phase.job_at)
    one, zero, t = like(1), like(0), phase.t
    kernel = kernel_of(job, phase.space, like)
    left, _ = low_rank(job, phase.space, like)
    row_mass_grad = vector(
        job.log_row_mass_grad_at + phase.index * job.n * size_of(like), job.n, like
    )
    scale = over_queries(job, phase.space, SHIFT, like)
    received = over_queries(job, phase.space, GRAD, like)
    ratio, weight = (
        over_columns(job, phase.space, STEP, like),
        over_columns(job, phase.space, WEIGHT, like),
    )
    slot, tried = next_slot(job, pointer, 0), 1
    while slot >= 0:
        totals = of_slot(job, phase.space, slot, SUM, like)
        partial = of_slot(job, phase.space, slot, PARTIAL, like)
        totals[:] = zero
        partial[:] = zero
        first, last = rows_of_slot(job, slot)
        blocks = (last - first + job.block - 1) // job.block
        for number in range(blocks):
            start = first + job.block * (blocks - 1 - number if t % 2 else number)
            end = min(start + job.block, last)
            place = block_place(job, start, slot)
            plan = part(kernel, place, place + end - start)
            if job.stored_rows != job.n:
                rebuild_plan(job, phase.index, phase.space, start, end, plan, like)
            for top in range(start, end, 8):
                bottom = min(top + 8, end)
                rows = part(plan, top - start, bottom - start)
                dot_rows_twice(
                    rows, ratio, weight, part(scale, top, bottom), part(received, top, bottom)
                )
                for i in range(top, bottom):
                    a = one / scale[i] if scale[i] > zero else zero
                    if job.log_row_mass_at:
                        # the factor of C; that of R stays as it is
                        counted = a * row_mass(job, phase.index, i, like)
                        row_mass_grad[i] -= counted * received[i]
                        received[i] *= -a * counted
                        left[2 * t, i] = counted
                    else:
                        received[i] *= -a * a
                        left[2 * t, i] = a
                    left[2 * t + 1, i] = received[i]
                add_columns(rows, part(received, top, bottom), partial)
            flush(totals, partial)
        slot, tried = next_slot(job, pointer, tried), tried + 1


def scatter(pointer):
    """Phase: the gradient of the scores, sent to what the scores were made of."""
    like, phase = kind_of(pointer), open_phase(pointer)
    job = open_job(phase.job_at)
    n, m, d, size = job.n, job.m, job.d, size_of(like)
    one, zero = like(1), like(0)
    kernel, second = kernel_of(job, phase.space, like), scores_grad_of(job, phase.space, like)
    left, right = low_rank(job, phase.space, like)
    query = of_head(job.query_at, phase.index, n, d, like)
    query_grad = of_head(job.query_grad_at, phase.index, n, d, like)
    key_at = job.key_at + phase.index * m * d * size
    sharpness = vector(job.sharpness_at, job.batch, like)[phase.index]
    # iterations [t, flag) took part
    rank, skipped = 2 * (phase.flag - phase.t), 2 * phase.t
    slot, tried = next_slot(job, pointer, 0), 1
    while slot >= 0:
        scratch, _, key_grad, sums = grads_of_slot(job, phase.index, phase.space, slot, like)
        unused = of_slot(job, phase.space, slot, PARTIAL, like)
        along = zero
        first, last = rows_of_slot(job, slot)
        for start in range(first, last, job.block):
            end = min(start + job.block, last)
            rows = end - start
            place = block_place(job, start, slot)
            plan, grad = part(kernel, place, place + rows), part(second, place, place + rows)
            if job.stored_rows != job.n:
                prepare_block(job, phase.index, phase.space, start, end, plan, grad, unused, like)
            if rank:
                matmul(
                    job.gemm, PLAIN, TRANSPOSED, m, rows, rank, one, row_at(right, skipped),
                    m, row_at(left, skipped) + start * size, n, zero, start_of(scratch),
                    job.stride,
                )  # fmt: skip
                subtract_product(plan, part(scratch, 0, rows), grad)
            if d:
                matmul(
                    job.gemm, PLAIN, PLAIN, d, rows, m, one, key_at, d, start_of(grad),
                    job.stride, zero, row_at(query_grad, start), d,
                )  # fmt: skip
                matmul(
                    job.gemm, PLAIN, TRANSPOSED, d, m, rows, sharpness, row_at(query, start),
                    d, start_of(grad), job.stride, one if start > first else zero,
                    start_of(key_grad), d,
                )  # fmt: skip
                for i in range(start, end):
                    for c in range(d):
                        along += query[i, c] * query_grad[i, c]
                        query_grad[i, c] *= sharpness
            if job.mask_grad_at:
                owner = slot if job.slots > 1 else phase.owner
                add_mask_grad(job, phase.index, owner, start, grad, like)
        sums[0] = along
        slot, tried = next_slot(job, pointer, tried), tried + 1


@jit
def add_mask_grad(job, index, owner, start, grad, like):
    """Add a block of score gradients to the bias that this head used, in the owner's own copy."""
    which = whole(job.mask_index_at)[index]
    place = owner * job.mask_grad_size + which * job.mask_stride
    bias = vector(job.mask_grad_at + place * size_of(like), job.mask_stride, like)
    for i in range(len(grad)):
        line = (start + i) * job.mask_row_stride
        for j in range(job.m):
            bias[line + j * job.mask_column_stride] += grad[i, j]
