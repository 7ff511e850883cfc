"""Numba kernels of the forward: how a head is led through its iterations, vectors only."""

import numpy as np

from bistoch.functional.elastic.cpu.forward import (
    row_potential,
)
from bistoch.functional.elastic.cpu.head import (
    ABSORBED,
    COLUMN,
    FACTOR,
    NO_MASK,
    PEAK,
    RESIDUAL,
    SHIFT,
    STEP,
    TOTAL,
    WEIGHT,
    behind_vectors,
    clear_padding,
    copy,
    forbid,
    gather_totals,
    of_head,
    open_job,
    over_keys,
    over_queries,
    row_mass,
    run_phase,
    spare_rows,
    whole,
    write_scores,
)
from bistoch.functional.elastic.cpu.quantised import (
    anchor_factors,
    anchor_totals,
    lost_a_column,
    lost_a_row,
    set_changes,
)
from bistoch.functional.kernels.array import matrix, part, vector
from bistoch.functional.kernels.runtime import (
    address_of,
    exponential,
    jit,
    kind_of,
    larger,
    logarithm,
    no_inline,
    rounded_sum,
    size_of,
    take_next,
)

# log of a column factor beyond which it is absorbed into the kernel matrix
SAFE = 30.0
# a column total below this may have lost terms to underflow
TINY = 1e-30
# how far apart residuals may be for the next iteration to use the codes of K
LARGEST_CHANGE = 2.0
# one over the largest step (pace.LONGEST, which a test compares)
SHORTEST = 0.01


def solve(pointer):
    """Take heads until none is left, and iterate each to its end."""
    like, job = kind_of(pointer), open_job(address_of(pointer))
    worker = take_next(job.next_worker_at)
    space = job.workspace_at + worker * job.workspace_stride * size_of(like)
    index = take_next(job.next_head_at)
    while index < job.batch:
        coding = job.coded_rows > 0
        while not solve_head(job, index, space, worker, coding, like):
            # what the codes of K have led to is not exact enough
            coding = False
        index = take_next(job.next_head_at)


@jit
def solve_head(job, index, space, worker, coding, like):
    """Iterate one head and write everything that it returns; False if it must be done exactly."""
    reals = vector(job.reals_at, 3, np.float64)
    tol, still = reals[0], reals[1]
    keep = job.stored_rows == job.n
    first_columns(job, index, over_keys(job, space, COLUMN, like), like)
    over_keys(job, space, RESIDUAL, like)[:] = like(0)
    clear_padding(job, space, like)
    fresh, steps, rest, before = False, job.iters, like(0), like(np.inf)
    given = job.omega_at != 0
    omega, least = vector(job.omega_at, job.batch, like)[index] if given else like(1), before
    coasting, stopped, middle, drift = False, False, like(0), like(0)
    coded, used = False, False
    for t in range(job.iters):
        if coasting:
            drift += omega * middle
            coast(job, space, omega * middle, like)
        elif not stopped:
            coded = coding and t > 0 and iterate_coded(job, index, space, worker, t, before, like)
            if coding and used and not coded:
                # potentials that codes have moved are not continued by exact passes
                return False
            used = used or coded
            coding = coding and (coded or t == 0)
            if not coded:
                if not fresh:
                    absorb(job, space, like)
                phase = job.iterate_body if fresh else job.build_body
                run_phase(job, phase, index, space, worker, int(coding), t)
                if whole(job.unsafe_at)[index]:
                    # what the scores are made of is to be looked at again before it is used
                    return True
                if coding:
                    set_anchor(job, space, like)
                take_totals(job, index, space, False, like)
        # a backward through many heads at once finds the last state in steps not taken
        if job.row_history_at:
            record(job, index, space, t, like)
        if stopped:
            continue
        apart, middle = spread(job, index, space, like)
        if not coasting and apart <= tol:
            rest, steps, fresh, stopped = apart, t, keep, True
            continue
        if not given:
            omega = choose_step(job, index, space, omega, apart / least, still / 4, like)
            least = least if least < apart else apart
        # columns move whether or not K is kept: without it, the next pass builds it around them
        furthest = move_columns(job, index, space, t, omega, like)
        fresh = keep and furthest < SAFE
        if not coasting:
            # the plans to come would repeat this one: their steps, which never grow, add up to less
            # than the first bound, and at the observed rate to less than rounding
            rest, left = apart, job.iters - 1 - t
            # where a pass makes all rows again, a few more roundings are allowed
            enough = still if keep else 4 * still
            few, fewer = left * rest <= 32 * still, left * rest * (rest / before) <= enough
            coasting = given and few and fewer
            before = rest
    if not fresh:
        absorb(job, space, like)
    elif drift != 0:
        # the column factors hold it too, and the last row step reads them
        coast(job, space, -drift, like)
    weigh_values(job, index, space, like)
    run_phase(job, job.finish_body, index, space, worker, int(fresh), 0)
    whole(job.iterations_at)[index] = steps
    if job.exact_error:
        take_totals(job, index, space, False, like)
        rest, _ = spread(job, index, space, like)
        if coding and not (coasting and rest <= 4 * still):
            return False
    vector(job.error_at, job.batch, like)[index] = rest
    close_columns(job, index, space, like)
    return True


@jit
def set_anchor(job, space, like):
    """Keep what the exact pass has found, for passes over the codes that it has made."""
    no_inline()
    copy(gather_totals(job, space, like), anchor_totals(job, space, like))
    copy(over_queries(job, space, FACTOR, like), anchor_factors(job, space, like))


@jit
def iterate_coded(job, index, space, worker, t, before, like):
    """An iteration by the codes of K; False if they are of no use, and nothing else has changed.

    That is so where potentials move far, or where iterations will not converge by the last.
    """
    no_inline()
    if not before < LARGEST_CHANGE:
        return False
    set_changes(job, space, like)
    run_phase(job, job.iterate_codes_body, index, space, worker, 0, t)
    take_totals(job, index, space, True, like)
    apart, _ = spread(job, index, space, like)
    if lost_a_row(job, space, like) or lost_a_column(job, space, like):
        return False
    still, rate = vector(job.reals_at, 3, np.float64)[1], apart / before
    for _ in range(t + 1, job.iters):
        apart *= rate
    return apart <= 4 * still


@jit
def first_columns(job, index, column, like):
    """The column potentials before the first iteration."""
    no_inline()
    if job.start_at:
        copy(vector(job.start_at + index * job.m * size_of(like), job.m, like), column)
    else:
        column[:] = like(0)


@jit
def absorb(job, space, like):
    """Let K carry the column potentials from here on."""
    no_inline()
    copy(over_keys(job, space, COLUMN, like), over_keys(job, space, ABSORBED, like))
    over_keys(job, space, WEIGHT, like)[:] = like(1)


@jit
def weigh_values(job, index, space, like):
    """The values with the column factors, which turn a product with K into the plan's."""
    no_inline()
    m, e = job.m, job.e
    weight, value = over_keys(job, space, WEIGHT, like), of_head(job.value_at, index, m, e, like)
    weighted = matrix(behind_vectors(job, space, like), m, e, like)
    for j in range(m):
        for c in range(e):
            weighted[j, c] = weight[j] * value[j, c]


@jit
def take_totals(job, index, space, coded, like):
    """From totals to `LSE_i(S + f) = peak + log(total)` and the full column step h.

    A column that no query may see ends with log total minus infinity and step zero.
    """
    no_inline()
    total = gather_totals(job, space, like)
    if coded:
        anchor = anchor_totals(job, space, like)
        for j in range(job.m):
            total[j] += anchor[j]
    peak, step = over_keys(job, space, PEAK, like), over_keys(job, space, STEP, like)
    absorbed = over_keys(job, space, ABSORBED, like)
    log_mass = vector(job.log_mass_at + index * job.m * size_of(like), job.m, like)
    missing = like(-np.inf)
    for j in range(job.m):
        peak[j] = -absorbed[j]
        missing = larger(missing, -total[j])
    if missing > -TINY and not coded:
        rescue_totals(job, index, space, total, peak, like)
    one, zero = like(1), like(0)
    for j in range(job.m):
        alive = total[j] > zero
        log_total = logarithm(total[j] if alive else one)
        total[j] = log_total if alive else like(-np.inf)
        peak[j] = peak[j] if alive else zero
        step[j] = log_mass[j] - (peak[j] + log_total) if alive else zero


@jit
def rescue_totals(job, index, space, total, peak, like):
    """Column totals in the log domain, for columns whose terms underflow: peak and sum apart."""
    no_inline()
    n, m = job.n, job.m
    factor = over_queries(job, space, FACTOR, like)
    scratch = spare_rows(job, space, like)
    peak[:] = like(-np.inf)
    total[:] = like(0)
    for sweep in range(2):
        for first in range(0, n, len(scratch)):
            last = min(first + len(scratch), n)
            write_scores(job, index, first, last, part(scratch, 0, last - first), like)
            for i in range(first, last):
                if factor[i] > 0:
                    row, f = scratch[i - first], row_potential(job, space, i, like)
                    if job.log_row_mass_at:
                        f += logarithm(row_mass(job, index, i, like))
                    if sweep == 0:
                        for j in range(m):
                            peak[j] = larger(peak[j], rounded_sum(row[j], f))
                    else:
                        for j in range(m):
                            if peak[j] > -np.inf:
                                # f - peak first would round otherwise than the peak did, by far
                                # more than one for scores of 1e9
                                total[j] += exponential(rounded_sum(row[j], f) - peak[j])


@jit
def spread(job, index, space, like):
    """How far the residuals `lam h - g` of live columns lie apart, and their middle."""
    no_inline()
    lam = vector(job.lam_at, job.batch, like)[index]
    total, step = over_keys(job, space, TOTAL, like), over_keys(job, space, STEP, like)
    column = over_keys(job, space, COLUMN, like)
    highest, lowest = like(-np.inf), like(-np.inf)
    for j in range(job.m):
        if total[j] > -np.inf:
            residual = lam * step[j] - column[j]
            highest = larger(highest, residual)
            lowest = larger(lowest, -residual)
    if highest == -np.inf:
        return like(0), like(0)
    return highest + lowest, (highest - lowest) * like(0.5)


@jit
def choose_step(job, index, space, omega, grown, rounding, like):
    """The step that would have served best before; closer to plain if the error has grown since.

    The rounding is that of one; a change of no more than that of the row potentials says nothing.
    """
    no_inline()
    lam = vector(job.lam_at, job.batch, like)[index]
    total, step = over_keys(job, space, TOTAL, like), over_keys(job, space, STEP, like)
    column, residual = over_keys(job, space, COLUMN, like), over_keys(job, space, RESIDUAL, like)
    one, zero = like(1), like(0)
    mean, live = zero, zero
    for j in range(job.m):
        if total[j] > -np.inf:
            mean += lam * step[j] - column[j]
            live += one
    mean /= larger(live, one)
    gained, size = zero, zero
    for j in range(job.m):
        now = lam * step[j] - column[j] - mean if total[j] > -np.inf else zero
        change = residual[j] - now
        gained += residual[j] * change
        size += change * change
        residual[j] = now
    factor, shift = over_queries(job, space, FACTOR, like), over_queries(job, space, SHIFT, like)
    level = one
    for i in range(job.n):
        level = larger(level, one + abs(shift[i]) if factor[i] > zero else one)
    noise = like(rounding) * level
    if not (gained > zero and size > live * noise * noise):
        return one
    longest = one / larger(one - lam, like(SHORTEST))
    extra = -larger(-larger(omega * gained / size, one), -longest) - one
    return one - larger(-larger(like(2) - grown, zero), -one) * extra


@jit
def coast(job, space, shift, like):
    """An iteration after columns that all moved by the same: only the constant moves on."""
    no_inline()
    shifts = over_queries(job, space, SHIFT, like)
    peak, step = over_keys(job, space, PEAK, like), over_keys(job, space, STEP, like)
    for i in range(job.n):
        shifts[i] += shift
    for j in range(job.m):
        peak[j] -= shift
        step[j] += shift


@jit
def move_columns(job, index, space, t, omega, like):
    """Take the column step; return how far the potentials now are from what K has absorbed."""
    no_inline()
    lam = vector(job.lam_at, job.batch, like)[index]
    if job.omega_history_at:
        vector(job.omega_history_at, job.batch * job.iters, like)[index * job.iters + t] = omega
    total, step = over_keys(job, space, TOTAL, like), over_keys(job, space, STEP, like)
    column, weight = over_keys(job, space, COLUMN, like), over_keys(job, space, WEIGHT, like)
    absorbed = over_keys(job, space, ABSORBED, like)
    furthest = like(0)
    for j in range(job.m):
        alive = total[j] > -np.inf
        column[j] += omega * (lam * step[j] - column[j]) if alive else like(0)
        gap = column[j] - absorbed[j]
        furthest = larger(furthest, abs(gap))
        weight[j] = exponential(gap)
    return furthest


@jit
def record(job, index, space, t, like):
    """Keep what the backward of iteration t needs."""
    no_inline()
    n, m, size = job.n, job.m, size_of(like)
    place = index * job.iters + t
    rows = vector(job.row_history_at + place * n * size, n, like)
    peaks = vector(job.peak_history_at + place * m * size, m, like)
    logs = vector(job.log_total_history_at + place * m * size, m, like)
    total, peak = over_keys(job, space, TOTAL, like), over_keys(job, space, PEAK, like)
    for i in range(n):
        rows[i] = row_potential(job, space, i, like)
    for j in range(m):
        peaks[j] = peak[j]
        logs[j] = total[j] if total[j] > -np.inf else like(0)


@jit
def close_columns(job, index, space, like):
    """Write the column potentials, minus infinity for keys that no query may see."""
    no_inline()
    n, m = job.n, job.m
    column = vector(job.column_at + index * m * size_of(like), m, like)
    copy(over_keys(job, space, COLUMN, like), column)
    if job.mask_kind == NO_MASK and not job.query_mask_at and not job.key_mask_at:
        return
    scratch = spare_rows(job, space, like)
    highest = over_keys(job, space, PEAK, like)
    highest[:] = like(-np.inf)
    for first in range(0, n, len(scratch)):
        last = min(first + len(scratch), n)
        block = part(scratch, 0, last - first)
        block[:] = like(0)
        forbid(job, index, first, last, block, like)
        for i in range(last - first):
            for j in range(m):
                highest[j] = larger(highest[j], block[i, j])
    for j in range(m):
        column[j] = column[j] if highest[j] > -np.inf else highest[j]
