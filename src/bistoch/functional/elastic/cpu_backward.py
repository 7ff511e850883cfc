"""Numba kernels of the backward: the plan P stored once, one read of it per iteration.

Every matrix of the exact gradient (docs/gradient.md) is a rescaled plan,
`C = P * (a c^T)` and `R = P * (a r^T)`, with `a = 1 / (P r)`, `r = exp(g^t - g)` and c from the
column totals of iteration t. So an iteration is one pass over P for the vectors, and the sum over
iterations is `P * (left right^T)`: one product of rank twice the iterations, block by block.
"""

import numpy as np
from numba import carray

from bistoch.functional.elastic.cpu_head import (
    ABSORBED,
    COLUMN,
    COLUMN_GRAD,
    FACTOR,
    GRAD,
    PARTIAL,
    SHIFT,
    STEP,
    SUM,
    WEIGHT,
    add_columns,
    behind_vectors,
    build_block,
    dot_rows,
    flush,
    gather_totals,
    kernel_of,
    low_rank,
    matrix,
    next_slot,
    of_head,
    of_slot,
    open_job,
    open_phase,
    over_keys,
    over_queries,
    rows_of_slot,
    run_phase,
    slot_at,
    vector,
    whole,
)
from bistoch.functional.elastic.cpu_runtime import (
    PLAIN,
    TRANSPOSED,
    exponential,
    jit,
    larger,
    matmul,
    size_of,
    take_next,
)

# logs of rescaling factors beyond which a plan in float32 may have lost what they would bring back
SAFE = 30.0


@jit
def scores_grad_of(job, space, like):
    """The second stored matrix: Z, and in the end the gradient of the scores."""
    return matrix(behind_vectors(job, space, like), job.n, job.m, like)


@jit
def grads_of_slot(job, space, slot, like):
    """Of one member of the team: a block of scratch, gradients of values and of keys, and a sum."""
    m, size = job.m, size_of(like)
    scratch = slot_at(job, space, slot, like) + 2 * m * size
    value_grad = scratch + job.block * m * size
    key_grad = value_grad + m * job.e * size
    return (
        matrix(scratch, job.block, m, like),
        matrix(value_grad, m, job.e, like),
        matrix(key_grad, m, job.d, like),
        vector(key_grad + m * job.d * size, 1, like),
    )


@jit
def prepare(pointer, like):
    """Phase: P, Z = P * (dP - row means), which is what the last row step sends on, and dV."""
    phase = open_phase(pointer)
    job = open_job(phase.job_at)
    n, m, e, one, zero = job.n, job.m, job.e, like(1), like(0)
    kernel, second = kernel_of(job, phase.space, like), scores_grad_of(job, phase.space, like)
    factor = over_queries(job, phase.space, FACTOR, like)
    output_grad = of_head(job.output_grad_at, phase.index, n, e, like)
    row_grad = vector(job.row_grad_at + phase.index * n * size_of(like), n, like)
    slot, tried = next_slot(job, pointer, 0), 1
    while slot >= 0:
        total = of_slot(job, phase.space, slot, SUM, like)
        partial = of_slot(job, phase.space, slot, PARTIAL, like)
        _, value_grad, _, _ = grads_of_slot(job, phase.space, slot, like)
        total[:] = zero
        partial[:] = zero
        value_grad[:] = zero
        first, last = rows_of_slot(job, slot)
        for start in range(first, last, job.block):
            end = min(start + job.block, last)
            plan, grad = kernel[start:end], second[start:end]
            build_block(job, phase.index, phase.space, start, end, plan, like)
            if e:
                matmul(
                    job.gemm, TRANSPOSED, PLAIN, m, end - start, e, one,
                    job.value_at + phase.index * m * e * size_of(like), e,
                    output_grad[start:].ctypes.data, e, zero, grad.ctypes.data, m,
                )  # fmt: skip
            else:
                grad[:] = zero
            for i in range(start, end):
                centre_row(plan[i - start], grad[i - start], factor[i], row_grad[i], partial)
            flush(total, partial)
            if e:
                matmul(
                    job.gemm, PLAIN, TRANSPOSED, e, m, end - start, one,
                    output_grad[start:].ctypes.data, e, plan.ctypes.data, m, one,
                    value_grad.ctypes.data, e,
                )  # fmt: skip
        slot, tried = next_slot(job, pointer, tried), tried + 1


@jit
def centre_row(plan, grad, factor, extra, totals):
    """Make a row of K a row of P, turn dP into Z, and add Z to the column totals."""
    mean = plan.dtype.type(0)
    for j in range(len(plan)):
        p = plan[j] * factor
        plan[j] = p
        mean += p * grad[j]
    mean += extra
    for j in range(len(plan)):
        z = plan[j] * (grad[j] - mean)
        grad[j] = z
        totals[j] += z


@jit
def step(pointer, like):
    """Phase: back through one iteration, `df = -C dh` for rows and `P^T (a df)` for columns."""
    phase = open_phase(pointer)
    job = open_job(phase.job_at)
    one, zero, t = like(1), like(0), phase.t
    kernel = kernel_of(job, phase.space, like)
    left, _ = low_rank(job, phase.space, like)
    scale = over_queries(job, phase.space, SHIFT, like)
    received = over_queries(job, phase.space, GRAD, like)
    ratio, weight = (
        over_keys(job, phase.space, STEP, like),
        over_keys(job, phase.space, WEIGHT, like),
    )
    slot, tried = next_slot(job, pointer, 0), 1
    while slot >= 0:
        total = of_slot(job, phase.space, slot, SUM, like)
        partial = of_slot(job, phase.space, slot, PARTIAL, like)
        total[:] = zero
        partial[:] = zero
        first, last = rows_of_slot(job, slot)
        blocks = (last - first + job.block - 1) // job.block
        for number in range(blocks):
            start = first + job.block * (blocks - 1 - number if t % 2 else number)
            end = min(start + job.block, last)
            for top in range(start, end, 8):
                bottom = min(top + 8, end)
                rows = kernel[top:bottom]
                dot_rows(rows, ratio, scale[top:bottom])
                dot_rows(rows, weight, received[top:bottom])
                for i in range(top, bottom):
                    a = one / scale[i] if scale[i] > zero else zero
                    received[i] *= -a * a
                    left[i, 2 * t] = a
                    left[i, 2 * t + 1] = received[i]
                add_columns(rows, received[top:bottom], partial)
            flush(total, partial)
        slot, tried = next_slot(job, pointer, tried), tried + 1


@jit
def scatter(pointer, like):
    """Phase: the gradient of the scores, sent to what the scores were made of."""
    phase = open_phase(pointer)
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
    rank, width, skipped = 2 * (phase.flag - phase.t), 2 * job.iters, 2 * phase.t * size
    slot, tried = next_slot(job, pointer, 0), 1
    while slot >= 0:
        scratch, _, key_grad, sums = grads_of_slot(job, phase.space, slot, like)
        key_grad[:] = zero
        along = zero
        first, last = rows_of_slot(job, slot)
        for start in range(first, last, job.block):
            end = min(start + job.block, last)
            rows = end - start
            grad, plan = second[start:end], kernel[start:end]
            if rank:
                matmul(
                    job.gemm, TRANSPOSED, PLAIN, m, rows, rank, one, right.ctypes.data + skipped,
                    width, left[start:].ctypes.data + skipped, width, zero, scratch.ctypes.data, m,
                )  # fmt: skip
                for i in range(rows):
                    for j in range(m):
                        grad[i, j] -= plan[i, j] * scratch[i, j]
            if d:
                matmul(
                    job.gemm, PLAIN, PLAIN, d, rows, m, one, key_at, d, grad.ctypes.data, m, zero,
                    query_grad[start:].ctypes.data, d,
                )  # fmt: skip
                matmul(
                    job.gemm, PLAIN, TRANSPOSED, d, m, rows, sharpness, query[start:].ctypes.data,
                    d, grad.ctypes.data, m, one, key_grad.ctypes.data, d,
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


@jit
def differentiate(pointer, like):
    """Take heads until none is left, and go back through the iterations of each."""
    job = open_job(carray(pointer, (1,)).ctypes.data)
    worker = take_next(job.next_worker)
    space = job.workspace_at + worker * job.workspace_stride * size_of(like)
    index = take_next(job.next_head)
    while index < job.batch:
        differentiate_head(job, index, space, worker, like)
        index = take_next(job.next_head)


@jit
def differentiate_head(job, index, space, worker, like):
    """The gradients of one head; left to others, and said so, if a factor is out of range."""
    m, size = job.m, size_of(like)
    column, column_grad = (
        over_keys(job, space, COLUMN, like),
        over_keys(job, space, COLUMN_GRAD, like),
    )
    column[:] = vector(job.column_at + index * m * size, m, like)
    over_keys(job, space, ABSORBED, like)[:] = column
    steps = whole(job.iterations_at)[index]
    replay_columns(job, index, space, steps, like)
    run_phase(job, job.prepare_body, index, space, worker, 0, 0)
    total = gather_totals(job, space, like)
    arriving = vector(job.column_grad_at + index * m * size, m, like)
    scale = like(0)
    for j in range(m):
        extra = arriving[j] if column[j] > -np.inf else like(0)
        column_grad[j] = total[j] + extra
        scale = larger(scale, abs(column_grad[j]))
    sum_of_grads = known_sum(job, index, space, like)
    keeps = share_kept(job, index, like)
    still = vector(job.reals_at, 2, np.float64)[1]
    first = steps
    for t in range(steps - 1, -1, -1):
        if not begin_step(job, index, space, t, sum_of_grads, like):
            whole(job.unsafe_at)[index] = 1
            return
        run_phase(job, job.step_body, index, space, worker, 0, t)
        sum_of_grads *= keeps
        first = t
        # what is left to send back is below rounding
        if end_step(job, index, space, like) <= still / 32 * scale:
            break
    run_phase(job, job.scatter_body, index, space, worker, steps, first)
    collect(job, index, space, like)


@jit
def known_sum(job, index, space, like):
    """The exact sum of the column gradients: rows of Z sum to what arrives at f, negated."""
    n, m, size = job.n, job.m, size_of(like)
    arriving = vector(job.column_grad_at + index * m * size, m, like)
    row_grad = vector(job.row_grad_at + index * n * size, n, like)
    column, factor = over_keys(job, space, COLUMN, like), over_queries(job, space, FACTOR, like)
    total = like(0)
    for j in range(m):
        total += arriving[j] if column[j] > -np.inf else like(0)
    for i in range(n):
        total -= row_grad[i] if factor[i] > 0 else like(0)
    return total


@jit
def share_kept(job, index, like):
    """What one iteration back leaves of that sum."""
    lam = vector(job.lam_at, job.batch, like)[index]
    omega = vector(job.omega_at, job.batch, like)[index]
    return like(1) - omega * (like(1) - lam)


@jit
def collect(job, index, space, like):
    """Add up what the slots have gathered for the head as a whole."""
    value_grad = of_head(job.value_grad_at, index, job.m, job.e, like)
    key_grad = of_head(job.key_grad_at, index, job.m, job.d, like)
    sharpness_grad = vector(job.sharpness_grad_at, job.batch, like)
    for slot in range(job.slots):
        _, values, keys, sums = grads_of_slot(job, space, slot, like)
        for j in range(job.m):
            for c in range(job.e):
                value_grad[j, c] += values[j, c]
            for c in range(job.d):
                key_grad[j, c] += keys[j, c]
        sharpness_grad[index] += sums[0]


@jit
def replay_columns(job, index, space, steps, like):
    """The column potential before every iteration, kept in right[:, 2t+1] for now."""
    lam = vector(job.lam_at, job.batch, like)[index]
    omega = vector(job.omega_at, job.batch, like)[index]
    _, right = low_rank(job, space, like)
    full, column = over_keys(job, space, STEP, like), over_keys(job, space, COLUMN_GRAD, like)
    column[:] = like(0)
    for t in range(steps):
        read_step(job, index, space, t, like)
        for j in range(job.m):
            g = column[j]
            right[j, 2 * t + 1] = g
            column[j] = g + omega * (lam * full[j] - g)


@jit
def read_step(job, index, space, t, like):
    """The full column step h of iteration t, zero for a key that no query may see."""
    m, size = job.m, size_of(like)
    place = (index * job.iters + t) * m * size
    peak = vector(job.peak_history_at + place, m, like)
    log_total = vector(job.log_total_history_at + place, m, like)
    log_mass = vector(job.log_mass_at + index * m * size, m, like)
    column, full = over_keys(job, space, COLUMN, like), over_keys(job, space, STEP, like)
    for j in range(m):
        seen = column[j] > -np.inf
        full[j] = log_mass[j] - (peak[j] + log_total[j]) if seen else like(0)


@jit
def begin_step(job, index, space, t, sum_of_grads, like):
    """Gradients of the options at iteration t, and factors of its pass; False if out of range.

    Large steps meet gradients that nearly cancel: their mean meets the sum that is known exactly.
    """
    m, size = job.m, size_of(like)
    lam = vector(job.lam_at, job.batch, like)[index]
    omega = vector(job.omega_at, job.batch, like)[index]
    place = (index * job.iters + t) * m * size
    peak = vector(job.peak_history_at + place, m, like)
    log_total = vector(job.log_total_history_at + place, m, like)
    log_mass_grad = vector(job.log_mass_grad_at + index * m * size, m, like)
    _, right = low_rank(job, space, like)
    column, full = over_keys(job, space, COLUMN, like), over_keys(job, space, STEP, like)
    weight, column_grad = (
        over_keys(job, space, WEIGHT, like),
        over_keys(job, space, COLUMN_GRAD, like),
    )
    lam_grad, omega_grad, furthest = like(0), like(0), like(0)
    read_step(job, index, space, t, like)
    middle, middle_g = like(0), like(0)
    for j in range(m):
        middle += full[j] / m
        middle_g += right[j, 2 * t + 1] / m
    middle, middle_g = like(middle), like(middle_g)
    for j in range(m):
        g, grad = right[j, 2 * t + 1], column_grad[j]
        lam_grad += grad * (full[j] - middle)
        omega_grad += grad * (lam * (full[j] - middle) - (g - middle_g))
        step_grad = omega * lam * grad
        log_mass_grad[j] += step_grad
        seen = column[j] > -np.inf
        final = column[j] if seen else like(0)
        log_c = (-peak[j] - final) - log_total[j] if seen else like(0)
        log_r = g - final if seen else like(0)
        furthest = larger(furthest, larger(abs(log_c), abs(log_r)))
        weight[j] = exponential(log_c) * step_grad
        # the pass divides by P r, so that the rows of R sum to one exactly
        full[j] = exponential(log_r)
        right[j, 2 * t] = weight[j]
        right[j, 2 * t + 1] = full[j]
    lam_grads, omega_grads = (
        vector(job.lam_grad_at, job.batch, like),
        vector(job.omega_grad_at, job.batch, like),
    )
    lam_grads[index] += omega * (lam_grad + sum_of_grads * middle)
    omega_grads[index] += omega_grad + sum_of_grads * (lam * middle - middle_g)
    return furthest < SAFE


@jit
def end_step(job, index, space, like):
    """`dg = (1 - omega) dg - R^T df`; return its largest entry."""
    omega = vector(job.omega_at, job.batch, like)[index]
    total, ratio = gather_totals(job, space, like), over_keys(job, space, STEP, like)
    column_grad = over_keys(job, space, COLUMN_GRAD, like)
    largest, one = like(0), like(1)
    for j in range(job.m):
        grad = (one - omega) * column_grad[j] - ratio[j] * total[j]
        column_grad[j] = grad
        largest = larger(largest, abs(grad))
    return largest
