"""Numba kernels for many small matrices: their plans.

A matrix whose factors leave the safe range is said to be unsafe, and left to others.
"""

import numpy as np

from bistoch.functional.elastic.cpu.head import copy
from bistoch.functional.elastic.cpu.lanes_job import (
    BEFORE,
    COLUMN,
    DEAD,
    FACTOR,
    FAR,
    HIGH,
    KERNEL,
    LAM,
    LANES,
    LEVEL,
    LOG_MASS,
    LOWEST,
    MASS,
    OMEGA,
    PLAN,
    REALS,
    RESIDUAL,
    REST,
    SHUT,
    STEPS,
    STILL,
    TAKEN,
    TOL,
    UNSAFE,
    add_product,
    column_factors,
    column_products,
    fill,
    flat,
    gather,
    inverse_totals,
    largest_of,
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
from bistoch.functional.elastic.cpu.lanes_pace import choose_steps, forget_steps
from bistoch.functional.kernels.array import start_of, vector
from bistoch.functional.kernels.job import own_space
from bistoch.functional.kernels.runtime import (
    exponential,
    jit,
    kind_of,
    larger,
    logarithm,
    size_of,
)

# log of a column factor beyond which float32 products may leave their range
SAFE = 30.0
# a column total below this may have lost terms to underflow
TINY = 1e-30


def make_plans(pointer):
    """Take groups until none is left; write their plans and column errors."""
    like, job = kind_of(pointer), open_job(pointer)
    space = own_space(job, like)
    reals = vector(job.reals_at, REALS, np.float64)
    tol, still = reals[TOL], reals[STILL]
    first = next_group(job)
    while first < job.batch:
        load(job, first, space, like)
        done = iterate(job, space, tol, still, like)
        finish(job, space, done, like)
        plans = vector(job.plan_at, job.batch * job.n * job.m, like)
        gather(pairs(job, space, PLAN, like), first, job.batch, plans)
        if tol >= 0:
            last_error(job, space, like)
        errors = vector(job.error_at, job.batch, like)
        gather(numbers(job, space, REST, like), first, job.batch, errors)
        report_unsafe(job, first, space, like)
        first = next_group(job)


@jit
def load(job, first, space, like):
    """The scores of a group as `K = exp(S - rowmax)`, and its options."""
    n, m, batch = job.n, job.m, job.batch
    kernel, shut = pairs(job, space, KERNEL, like), over_keys(job, space, SHUT, like)
    spread_out(vector(job.scores_at, batch * n * m, like), first, batch, kernel)
    log_mass = over_keys(job, space, LOG_MASS, like)
    spread_out(vector(job.log_mass_at, batch * m, like), first, batch, log_mass)
    if job.omega_at:
        omega = numbers(job, space, OMEGA, like)
        spread_out(vector(job.omega_at, batch, like), first, batch, omega)
    else:
        forget_steps(job, space, like)
    lam = over_keys(job, space, LAM, like)
    spread_out(vector(job.lam_at, batch, like), first, batch, lam[:1])
    for j in range(1, m):
        copy(lam[0], lam[j])
    if job.log_row_mass_at:
        mass = over_queries(job, space, MASS, like)
        spread_out(vector(job.log_row_mass_at, batch * n, like), first, batch, mass)
        exponentiate(flat(mass))
    if job.start_at:
        start = over_keys(job, space, COLUMN, like)
        spread_out(vector(job.start_at, batch * m, like), first, batch, start)
    else:
        fill(flat(over_keys(job, space, COLUMN, like)), like(0))
    top, level = numbers(job, space, FAR, like), number(job, space, LEVEL, like)
    fill(level, like(0))
    fill(flat(shut), like(-np.inf))
    for i in range(n):
        row = kernel[i * m : (i + 1) * m]
        open_allowed(flat(row), flat(shut))
        largest_of(row, top, like(-np.inf), like)
        for lane in range(LANES):
            highest = abs(top[0, lane])
            level[lane] = larger(level[lane], highest if highest < np.inf else like(0))
        for j in range(m):
            for lane in range(LANES):
                highest = top[0, lane]
                # a row without any key stays at minus infinity
                row[j, lane] -= highest if highest > -np.inf else like(0)
        exponentiate(flat(row))
    dead, column = over_keys(job, space, DEAD, like), over_keys(job, space, COLUMN, like)
    find_dead(flat(shut), flat(dead), flat(log_mass), flat(column))


@jit
def open_allowed(scores, shut):
    """Zero for a key that some query may see, else minus infinity."""
    zero = shut.dtype.type(0)
    for r in range(len(shut)):
        shut[r] = zero if scores[r] > -np.inf else shut[r]


@jit
def find_dead(shut, dead, log_mass, column):
    """One for a key that no query may see: from zero, with a total and a mass of one, it rests."""
    one, zero = dead.dtype.type(1), dead.dtype.type(0)
    for r in range(len(shut)):
        dead[r] = one if shut[r] < zero else zero
        log_mass[r] = zero if shut[r] < zero else log_mass[r]
        column[r] = zero if shut[r] < zero else column[r]


@jit
def exponentiate(scores):
    """Scores to factors."""
    for r in range(len(scores)):
        scores[r] = exponential(scores[r])


@jit
def row_step(job, block, weight, factor, like):
    """`u = 1 / (K w)`, zero for a row that sees nothing."""
    row_products(job, block, weight, factor, like)
    sums = flat(factor)
    for r in range(len(sums)):
        sums[r] = like(1) / sums[r] if sums[r] > like(0) else like(0)


# a loop that writes one array is vectorised whatever it reads; one that writes many is not


@jit
def enliven(total, dead):
    """Dead columns get a total."""
    for r in range(len(total)):
        total[r] += dead[r]


@jit
def column_step(total, log_mass, lam, column, residual):
    """`lam h - g`."""
    for r in range(len(residual)):
        residual[r] = lam[r] * (log_mass[r] - logarithm(total[r])) - column[r]


@jit
def invert(total, like):
    """One over each."""
    for r in range(len(total)):
        total[r] = like(1) / total[r]


@jit
def add_signed(residual, shut, sign, result):
    """The residuals of live columns, minus infinity for others."""
    for r in range(len(result)):
        result[r] = sign * residual[r] + shut[r]


@jit
def measure(job, space, slot, like):
    """From column totals to their inverse and to `lam h - g`; a lost total makes a lane unsafe."""
    inverse = inverse_totals(job, space, slot, like)
    enliven(flat(inverse), flat(over_keys(job, space, DEAD, like)))
    column_step(
        flat(inverse),
        flat(over_keys(job, space, LOG_MASS, like)),
        flat(over_keys(job, space, LAM, like)),
        flat(over_keys(job, space, COLUMN, like)),
        flat(over_keys(job, space, RESIDUAL, like)),
    )
    invert(flat(inverse), like)
    distrust(job, space, inverse, 1 / TINY, like)


@jit
def distrust(job, space, rows, limit, like):
    """Lanes with a number beyond the limit, or with none, are unsafe."""
    far, unsafe = numbers(job, space, FAR, like), numbers(job, space, UNSAFE, like)
    largest_of(rows, far, like(0), like)
    for lane in range(LANES):
        unsafe[0, lane] = unsafe[0, lane] if far[0, lane] <= like(limit) else like(1)


@jit
def measure_rest(job, space, like):
    """How far `lam h - g` lies apart over the live columns of every lane."""
    residual, shut = over_keys(job, space, RESIDUAL, like), over_keys(job, space, SHUT, like)
    high = over_keys(job, space, HIGH, like)
    rest, lowest = numbers(job, space, REST, like), numbers(job, space, LOWEST, like)
    add_signed(flat(residual), flat(shut), like(1), flat(high))
    largest_of(high, rest, like(-np.inf), like)
    add_signed(flat(residual), flat(shut), like(-1), flat(high))
    largest_of(high, lowest, like(-np.inf), like)
    for lane in range(LANES):
        rest[0, lane] = larger(rest[0, lane] + lowest[0, lane], like(0))


@jit
def decide(job, space, t, tol, still, like):
    """Which lanes take this step, and how many of them can still change their plan."""
    rest, before = number(job, space, REST, like), number(job, space, BEFORE, like)
    steps, taken = number(job, space, STEPS, like), number(job, space, TAKEN, like)
    omega, unsafe = number(job, space, OMEGA, like), number(job, space, UNSAFE, like)
    left, busy = like(job.iters - 1 - t), 0
    for lane in range(LANES):
        # a lane that stopped on its tolerance never starts again
        runs = tol < 0 or (steps[lane] == like(t) and rest[lane] > tol)
        steps[lane] = like(t + 1) if runs and tol >= 0 else steps[lane]
        taken[lane] = omega[lane] if runs else like(0)
        # plain steps never grow; at the observed rate those to come add up to less than rounding
        rate = rest[lane] / before[lane]
        rate = rate if tol >= 0 else np.sqrt(np.sqrt(rate))
        bound = left * rest[lane]
        moves = not job.omega_at or bound > 32 * still or bound * rate > still
        busy += 1 if runs and moves and unsafe[lane] == like(0) else 0
        before[lane] = rest[lane]
    return busy


@jit
def move_columns(job, space, after, like):
    """Take the column step; lanes that left the safe range are unsafe."""
    wide = LANES * size_of(like)
    column, residual = over_keys(job, space, COLUMN, like), over_keys(job, space, RESIDUAL, like)
    taken = numbers(job, space, TAKEN, like)
    for j in range(job.m):
        at_column, at_residual = start_of(column) + j * wide, start_of(residual) + j * wide
        add_product(at_column, start_of(taken), at_residual, like)
    size = over_keys(job, space, HIGH, like)
    weigh(flat(column), flat(after), flat(size))
    distrust(job, space, size, SAFE, like)


@jit
def weigh(column, weight, size):
    """Column potentials to factors; what is out of range is none, and said so by its size."""
    zero, safe = column.dtype.type(0), column.dtype.type(SAFE)
    for r in range(len(column)):
        size[r] = abs(column[r])
        weight[r] = exponential(column[r] if size[r] <= safe else zero)


@jit
def iterate(job, space, tol, still, like):
    """All iterations of a group; return how many were computed before the plans stood still."""
    kernel = pairs(job, space, KERNEL, like)
    fill(number(job, space, BEFORE, like), like(np.inf))
    fill(number(job, space, UNSAFE, like), like(0))
    if job.start_at:
        size = over_keys(job, space, HIGH, like)
        column, factors = over_keys(job, space, COLUMN, like), column_factors(job, space, 0, like)
        weigh(flat(column), flat(factors), flat(size))
        distrust(job, space, size, SAFE, like)
    else:
        fill(flat(column_factors(job, space, 0, like)), like(1))
    steps = number(job, space, STEPS, like)
    fill(steps, like(0) if tol >= 0 else like(job.iters))
    copy(number(job, space, OMEGA, like), number(job, space, TAKEN, like))
    for t in range(job.iters):
        slot, next_slot = (t, t + 1) if job.backward else (0, 0)
        factor = row_factors(job, space, slot, like)
        row_step(job, kernel, column_factors(job, space, slot, like), factor, like)
        used = weigh_rows(job, space, factor, like)
        column_products(job, kernel, used, inverse_totals(job, space, slot, like), like)
        measure(job, space, slot, like)
        # without a tolerance it is enough to look now and then
        busy = 1
        if tol >= 0 or t % 4 == 3:
            measure_rest(job, space, like)
            if not job.omega_at:
                choose_steps(job, space, still / 4, like)
            busy = decide(job, space, t, tol, still, like)
        copy(number(job, space, TAKEN, like), steps_taken(job, space, slot, like))
        move_columns(job, space, column_factors(job, space, next_slot, like), like)
        if busy == 0:
            # the plans to come would repeat this one
            for lane in range(LANES):
                steps[lane] = like(job.iters) if steps[lane] == like(t + 1) else steps[lane]
            return t + 1
    return job.iters


@jit
def finish(job, space, done, like):
    """The last row step: the plan of every lane."""
    kernel, plan = pairs(job, space, KERNEL, like), pairs(job, space, PLAN, like)
    weight = column_factors(job, space, done if job.backward else 0, like)
    factor = over_queries(job, space, FACTOR, like)
    row_step(job, kernel, weight, factor, like)
    for i in range(job.n):
        for j in range(job.m):
            for lane in range(LANES):
                p = kernel[i * job.m + j, lane] * weight[j, lane]
                plan[i * job.m + j, lane] = p * factor[i, lane]


@jit
def last_error(job, space, like):
    """How far `lam h - g` of live columns lie apart in the end."""
    factor, kernel = over_queries(job, space, FACTOR, like), pairs(job, space, KERNEL, like)
    used = weigh_rows(job, space, factor, like)
    column_products(job, kernel, used, inverse_totals(job, space, 0, like), like)
    measure(job, space, 0, like)
    measure_rest(job, space, like)
