"""Numba kernels of the backward: how a head is led back through its iterations, vectors only."""

import numpy as np
from numba import carray

from bistoch.functional.elastic.cpu_backward import (
    grads_of_slot,
)
from bistoch.functional.elastic.cpu_head import (
    ABSORBED,
    COLUMN,
    COLUMN_GRAD,
    FACTOR,
    STEP,
    WEIGHT,
    clear_padding,
    gather_totals,
    low_rank,
    of_head,
    open_job,
    over_keys,
    over_queries,
    run_phase,
    vector,
    whole,
)
from bistoch.functional.elastic.cpu_runtime import (
    exponential,
    jit,
    larger,
    size_of,
    take_next,
)

# logs of rescaling factors beyond which a plan in float32 may have lost what they would bring back
SAFE = 30.0


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
    clear_padding(job, space, like)
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
    still = vector(job.reals_at, 2, np.float64)[1]
    first = steps
    for t in range(steps - 1, -1, -1):
        if not begin_step(job, index, space, t, sum_of_grads, like):
            whole(job.unsafe_at)[index] = 1
            return
        run_phase(job, job.step_body, index, space, worker, 0, t)
        sum_of_grads *= share_kept(job, index, t, like)
        first = t
        # what is left to send back is below rounding; long steps could make it grow again
        if end_step(job, index, space, t, like) <= still / 32 * scale and job.omega_at:
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
def step_taken(job, index, t, like):
    """The step omega of an iteration."""
    return vector(job.omega_history_at, job.batch * job.iters, like)[index * job.iters + t]


@jit
def share_kept(job, index, t, like):
    """What one iteration back leaves of that sum."""
    lam = vector(job.lam_at, job.batch, like)[index]
    return like(1) - step_taken(job, index, t, like) * (like(1) - lam)


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
    _, right = low_rank(job, space, like)
    full, column = over_keys(job, space, STEP, like), over_keys(job, space, COLUMN_GRAD, like)
    column[:] = like(0)
    for t in range(steps):
        read_step(job, index, space, t, like)
        omega = step_taken(job, index, t, like)
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
    lam, omega = vector(job.lam_at, job.batch, like)[index], step_taken(job, index, t, like)
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
def end_step(job, index, space, t, like):
    """`dg = (1 - omega) dg - R^T df`; return its largest entry."""
    omega = step_taken(job, index, t, like)
    total, ratio = gather_totals(job, space, like), over_keys(job, space, STEP, like)
    column_grad = over_keys(job, space, COLUMN_GRAD, like)
    largest, one = like(0), like(1)
    for j in range(job.m):
        grad = (one - omega) * column_grad[j] - ratio[j] * total[j]
        column_grad[j] = grad
        largest = larger(largest, abs(grad))
    return largest
