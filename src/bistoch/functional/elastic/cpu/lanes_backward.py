"""Numba kernels for many small matrices: their gradients.

Nothing is kept from the forward: a group repeats its iterations in the cache, and goes back.
"""

import numpy as np

from bistoch.functional.elastic.cpu.head import copy
from bistoch.functional.elastic.cpu.lanes_forward import finish, iterate, load
from bistoch.functional.elastic.cpu.lanes_job import (
    COLUMN_GRAD,
    DEAD,
    FACTOR,
    GRAD,
    HIGH,
    KERNEL,
    LAM,
    LANES,
    LOG_MASS,
    MASS,
    MASS_GRAD,
    PLAN,
    REALS,
    RECEIVED,
    RESCALE,
    REST,
    ROW_GRAD,
    SCALED,
    SIZE,
    STEPS,
    STILL,
    TAKEN,
    TOL,
    add_outer,
    column_factors,
    column_products,
    fill,
    flat,
    gather,
    inverse_totals,
    largest_of,
    multiply,
    next_group,
    number,
    numbers,
    open_job,
    over_keys,
    over_queries,
    pairs,
    report_unsafe,
    row_factors,
    row_products,
    spread_out,
    steps_taken,
    weigh_rows,
)
from bistoch.functional.kernels.array import matrix, vector
from bistoch.functional.kernels.job import own_space
from bistoch.functional.kernels.runtime import jit, kind_of, larger


def differentiate_plans(pointer):
    """Take groups until none is left; repeat their iterations and go back through them."""
    like, job = kind_of(pointer), open_job(pointer)
    space = own_space(job, like)
    reals = vector(job.reals_at, REALS, np.float64)
    tol, still = reals[TOL], reals[STILL]
    first = next_group(job)
    while first < job.batch:
        load(job, first, space, like)
        done = iterate(job, space, tol, still, like)
        report_unsafe(job, first, space, like)
        finish(job, space, done, like)
        begin(job, first, space, like)
        # chosen steps were all computed, and long ones could make gradients grow again
        for t in range((job.iters if job.omega_at else done) - 1, -1, -1):
            # iterations that were not computed repeat the last that was
            slot = min(t, done - 1)
            if job.lam_grad_at:
                add_option_grads(job, first, space, t, slot, like)
            if back_step(job, space, t, slot, still, like) == 0 and job.omega_at:
                break
        grad = pairs(job, space, GRAD, like)
        take_away(
            flat(grad),
            flat(pairs(job, space, KERNEL, like)),
            flat(pairs(job, space, RESCALE, like)),
        )
        gather(grad, first, job.batch, vector(job.scores_grad_at, job.batch * job.n * job.m, like))
        write_grads(job, first, space, like)
        first = next_group(job)


@jit
def write_grads(job, first, space, like):
    """The gradients of row masses and of the column potentials before the first iteration."""
    if job.log_row_mass_grad_at:
        mass_grads = vector(job.log_row_mass_grad_at, job.batch * job.n, like)
        gather(over_queries(job, space, MASS_GRAD, like), first, job.batch, mass_grads)
    if job.start_grad_at:
        starts = vector(job.start_grad_at, job.batch * job.m, like)
        gather(over_keys(job, space, COLUMN_GRAD, like), first, job.batch, starts)


@jit
def begin(job, first, space, like):
    """`Z = P * (dP - row means)`, which is what the last row step sends on, and its totals."""
    n, m = job.n, job.m
    plan, grad = pairs(job, space, PLAN, like), pairs(job, space, GRAD, like)
    spread_out(vector(job.plan_grad_at, job.batch * n * m, like), first, job.batch, grad)
    column_grad = over_keys(job, space, COLUMN_GRAD, like)
    mean = over_queries(job, space, FACTOR, like)
    fill(flat(mean), like(0))
    fill(flat(column_grad), like(0))
    fill(flat(pairs(job, space, RESCALE, like)), like(0))
    fill(flat(over_queries(job, space, MASS_GRAD, like)), like(0))
    for i in range(n):
        for j in range(m):
            for lane in range(LANES):
                mean[i, lane] += plan[i * m + j, lane] * grad[i * m + j, lane]
        for j in range(m):
            for lane in range(LANES):
                z = plan[i * m + j, lane] * (grad[i * m + j, lane] - mean[i, lane])
                grad[i * m + j, lane] = z
                column_grad[j, lane] += z
    largest_grad(job, space, numbers(job, space, SIZE, like), like)


@jit
def largest_grad(job, space, result, like):
    """The largest column gradient of every lane."""
    size = over_keys(job, space, HIGH, like)
    magnitudes(flat(over_keys(job, space, COLUMN_GRAD, like)), flat(size))
    largest_of(size, result, like(0), like)


@jit
def magnitudes(numbers, result):
    """Absolute values."""
    for r in range(len(numbers)):
        result[r] = abs(numbers[r])


@jit
def take_away(grad, kernel, rescale):
    """`dS = Z - K * rescale`, and the like."""
    for r in range(len(grad)):
        grad[r] -= kernel[r] * rescale[r]


@jit
def back_step(job, space, t, slot, still, like):
    """Back through one iteration of every lane; return how many still have something to send."""
    kernel, rescale = pairs(job, space, KERNEL, like), pairs(job, space, RESCALE, like)
    factor, weight = row_factors(job, space, slot, like), column_factors(job, space, slot, like)
    inverse = inverse_totals(job, space, slot, like)
    column_grad = over_keys(job, space, COLUMN_GRAD, like)
    scaled, received = over_keys(job, space, SCALED, like), over_keys(job, space, RECEIVED, like)
    row_grad, taken = over_queries(job, space, ROW_GRAD, like), over_keys(job, space, HIGH, like)
    taken_by_lanes(job, space, t, slot, taken, like)
    lam = flat(over_keys(job, space, LAM, like))
    pass_on(flat(taken), lam, flat(column_grad), flat(inverse), flat(scaled))
    row_products(job, kernel, scaled, row_grad, like)
    used = weigh_rows(job, space, factor, like)
    if job.log_row_mass_grad_at:
        mass_grad = over_queries(job, space, MASS_GRAD, like)
        take_away(flat(mass_grad), flat(used), flat(row_grad))
    turn(flat(row_grad), flat(factor))
    if job.log_row_mass_at:
        multiply(flat(row_grad), flat(over_queries(job, space, MASS, like)), flat(row_grad))
    column_products(job, kernel, row_grad, received, like)
    add_outer(job, rescale, used, scaled, like)
    add_outer(job, rescale, row_grad, weight, like)
    receive(flat(taken), flat(weight), flat(received), flat(column_grad))
    largest, size = numbers(job, space, REST, like), numbers(job, space, SIZE, like)
    largest_grad(job, space, largest, like)
    busy = 0
    for lane in range(LANES):
        busy += 1 if largest[0, lane] > still / 32 * size[0, lane] else 0
    return busy


@jit
def taken_by_lanes(job, space, t, slot, taken, like):
    """The step of every lane at iteration t, zero for lanes that had stopped, at every key."""
    step, omega = number(job, space, TAKEN, like), steps_taken(job, space, slot, like)
    steps = number(job, space, STEPS, like)
    for lane in range(LANES):
        step[lane] = omega[lane] if steps[lane] > like(t) else like(0)
    for j in range(job.m):
        copy(step, taken[j])


@jit
def pass_on(taken, lam, column_grad, inverse, scaled):
    """What the column step sends to the totals, over the totals."""
    for r in range(len(scaled)):
        scaled[r] = taken[r] * lam[r] * column_grad[r] * inverse[r]


@jit
def turn(row_grad, factor):
    """What the row step sends on, times its factor."""
    for r in range(len(row_grad)):
        row_grad[r] *= -factor[r] * factor[r]


@jit
def receive(taken, weight, received, column_grad):
    """`dg = (1 - omega) dg - R^T df`."""
    one = taken.dtype.type(1)
    for r in range(len(taken)):
        column_grad[r] = (one - taken[r]) * column_grad[r] - weight[r] * received[r]


@jit
def add_option_grads(job, first, space, t, slot, like):
    """Gradients of lam, omega and the column masses at one iteration.

    The column gradients of a plan sum to zero, so the steps may be taken from their mean.
    """
    m = job.m
    inverse, weight = (
        inverse_totals(job, space, slot, like),
        column_factors(job, space, slot, like),
    )
    column_grad = over_keys(job, space, COLUMN_GRAD, like)
    dead = over_keys(job, space, DEAD, like)
    log_mass, lams = over_keys(job, space, LOG_MASS, like), over_keys(job, space, LAM, like)
    lam_grad = vector(job.lam_grad_at, job.batch, like)
    omega_grad = vector(job.omega_grad_at, job.batch, like)
    mass_grad = matrix(job.log_mass_grad_at, job.batch, m, like)
    for lane in range(min(LANES, job.batch - first)):
        if number(job, space, STEPS, like)[lane] <= like(t):
            continue
        lam, omega = lams[0, lane], steps_taken(job, space, slot, like)[lane]
        steps_mean, moves_mean, live = like(0), like(0), like(0)
        for j in range(m):
            if dead[j, lane] == like(0):
                step = log_mass[j, lane] + np.log(inverse[j, lane])
                steps_mean += step
                moves_mean += lam * step - np.log(weight[j, lane])
                live += like(1)
        live = larger(live, like(1))
        for j in range(m):
            if dead[j, lane] == like(0):
                grad = column_grad[j, lane]
                step = log_mass[j, lane] + np.log(inverse[j, lane])
                move = lam * step - np.log(weight[j, lane])
                lam_grad[first + lane] += omega * grad * (step - steps_mean / live)
                omega_grad[first + lane] += grad * (move - moves_mean / live)
                mass_grad[first + lane, j] += omega * lam * grad
