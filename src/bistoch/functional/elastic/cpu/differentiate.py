"""Numba kernels of the backward: how a head is led back through its iterations, vectors only."""

import numpy as np

from bistoch.functional.elastic.cpu.backward import (
    grads_of_slot,
)
from bistoch.functional.elastic.cpu.head import (
    ABSORBED,
    COLUMN,
    COLUMN_GRAD,
    FACTOR,
    STEP,
    WEIGHT,
    clear_padding,
    copy,
    gather_totals,
    low_rank,
    of_head,
    open_job,
    over_keys,
    over_queries,
    run_phase,
    whole,
)
from bistoch.functional.elastic.cpu.solve import first_columns
from bistoch.functional.kernels.array import vector
from bistoch.functional.kernels.nonfinite import OUT_OF_RANGE
from bistoch.functional.kernels.runtime import (
    address_of,
    exponential,
    jit,
    kind_of,
    larger,
    no_inline,
    size_of,
    take_next,
)

# logs of rescaling factors beyond which a plan in float32 may have lost what they would bring back
SAFE = 30.0


def differentiate(pointer):
    """Take heads until none is left, and go back through the iterations of each."""
    like, job = kind_of(pointer), open_job(address_of(pointer))
    worker = take_next(job.next_worker_at)
    space = job.workspace_at + worker * job.workspace_stride * size_of(like)
    index = take_next(job.next_head_at)
    while index < job.batch:
        differentiate_head(job, index, space, worker, like)
        index = take_next(job.next_head_at)


@jit
def differentiate_head(job, index, space, worker, like):
    """The gradients of one head; left to others, and said so, if a factor is out of range."""
    m, size = job.m, size_of(like)
    column, column_grad = (
        over_keys(job, space, COLUMN, like),
        over_keys(job, space, COLUMN_GRAD, like),
    )
    copy(vector(job.column_at + index * m * size, m, like), column)
    copy(column, over_keys(job, space, ABSORBED, like))
    clear_padding(job, space, like)
    steps = whole(job.iterations_at)[index]
    replay_columns(job, index, space, steps, like)
    run_phase(job, job.prepare_body, index, space, worker, 0, 0)
    if whole(job.unsafe_at)[index]:
        return
    total = gather_totals(job, space, like)
    copy(total, column_grad)
    if job.column_grad_at:
        arriving = vector(job.column_grad_at + index * m * size, m, like)
        for j in range(m):
            column_grad[j] += arriving[j] if column[j] > -np.inf else like(0)
    scale = like(0)
    for j in range(m):
        scale = larger(scale, abs(column_grad[j]))
    clear_options(job, index, like)
    sum_of_grads = known_sum(job, index, space, like)
    still = vector(job.reals_at, 3, np.float64)[1]
    first = steps
    for t in range(steps - 1, -1, -1):
        if not begin_step(job, index, space, t, sum_of_grads, like):
            whole(job.unsafe_at)[index] = OUT_OF_RANGE
            return
        run_phase(job, job.step_body, index, space, worker, 0, t)
        sum_of_grads *= share_kept(job, index, t, like)
        first = t
        # what is left to send back is below rounding; long steps could make it grow again
        if end_step(job, index, space, t, like) <= still / 32 * scale and job.omega_at:
            break
    if job.start_grad_at:
        copy(column_grad, vector(job.start_grad_at + index * m * size, m, like))
    run_phase(job, job.scatter_body, index, space, worker, steps, first)
    collect(job, index, space, like)


@jit
def known_sum(job, index, space, like):
    """The exact sum of the column gradients: rows of Z sum to what arrives at f, negated."""
    no_inline()
    n, m, size = job.n, job.m, size_of(like)
    column, factor = over_keys(job, space, COLUMN, like), over_queries(job, space, FACTOR, like)
    total = like(0)
    if job.column_grad_at:
        arriving = vector(job.column_grad_at + index * m * size, m, like)
        for j in range(m):
            total += arriving[j] if column[j] > -np.inf else like(0)
    if job.row_grad_at:
        row_grad = vector(job.row_grad_at + index * n * size, n, like)
        for i in range(n):
            total -= row_grad[i] if factor[i] > 0 else like(0)
    return total


@jit
def clear_options(job, index, like):
    """Let the gradients of the options, to which every iteration adds, begin with zero."""
    no_inline()
    vector(job.lam_grad_at, job.batch, like)[index] = like(0)
    vector(job.omega_grad_at, job.batch, like)[index] = like(0)
    log_mass_grad = of_head(job.log_mass_grad_at, index, 1, job.m, like)
    log_mass_grad[:] = like(0)
    if job.log_row_mass_grad_at:
        row_mass_grad = of_head(job.log_row_mass_grad_at, index, 1, job.n, like)
        row_mass_grad[:] = like(0)


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
    no_inline()
    value_grad = of_head(job.value_grad_at, index, job.m, job.e, like)
    key_grad = of_head(job.key_grad_at, index, job.m, job.d, like)
    along = like(0)
    for slot in range(job.slots):
        _, values, keys, sums = grads_of_slot(job, index, space, slot, like)
        along += sums[0]
        if job.slots > 1:
            add_slot(values, value_grad, slot)
            add_slot(keys, key_grad, slot)
    vector(job.sharpness_grad_at, job.batch, like)[index] = along


@jit
def add_slot(part, whole, slot):
    """Add the part of a slot; that of the first is where the sum begins."""
    no_inline()
    for j in range(part.shape[0]):
        for c in range(part.shape[1]):
            whole[j, c] = part[j, c] + (whole[j, c] if slot else whole.dtype.type(0))


@jit
def replay_columns(job, index, space, steps, like):
    """The column potential before every iteration, kept in right[2t+1] for now."""
    no_inline()
    lam = vector(job.lam_at, job.batch, like)[index]
    _, right = low_rank(job, space, like)
    full, column = over_keys(job, space, STEP, like), over_keys(job, space, COLUMN_GRAD, like)
    first_columns(job, index, column, like)
    for t in range(steps):
        read_step(job, index, space, t, like)
        before = right[2 * t + 1]
        omega = step_taken(job, index, t, like)
        for j in range(job.m):
            g = column[j]
            before[j] = g
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
    no_inline()
    m, size = job.m, size_of(like)
    lam, omega = vector(job.lam_at, job.batch, like)[index], step_taken(job, index, t, like)
    place = (index * job.iters + t) * m * size
    peak = vector(job.peak_history_at + place, m, like)
    log_total = vector(job.log_total_history_at + place, m, like)
    log_mass_grad = vector(job.log_mass_grad_at + index * m * size, m, like)
    _, right = low_rank(job, space, like)
    weights, ratios = right[2 * t], right[2 * t + 1]
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
        middle_g += ratios[j] / m
    middle, middle_g = like(middle), like(middle_g)
    for j in range(m):
        g, grad = ratios[j], column_grad[j]
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
        weights[j] = weight[j]
        ratios[j] = full[j]
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
    no_inline()
    omega = step_taken(job, index, t, like)
    total, ratio = gather_totals(job, space, like), over_keys(job, space, STEP, like)
    column_grad = over_keys(job, space, COLUMN_GRAD, like)
    largest, one = like(0), like(1)
    for j in range(job.m):
        grad = (one - omega) * column_grad[j] - ratio[j] * total[j]
        column_grad[j] = grad
        largest = larger(largest, abs(grad))
    return largest
