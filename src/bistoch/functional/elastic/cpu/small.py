"""Numba kernel of the forward for small heads: one function, which compiles quickly.

It takes the same steps as `solve` with its phases, on a head that fits the caches and belongs to
one thread. What is rare is not in it: steps that are chosen, and a head whose factors leave the
safe range, or whose column totals underflow; it is marked, and left to `solve`.
"""

import numpy as np

from bistoch.functional.elastic.cpu.forward import invert, row_potential
from bistoch.functional.elastic.cpu.head import (
    ABSORBED,
    COLUMN,
    FACTOR,
    PARTIAL,
    PEAK,
    SHIFT,
    STEP,
    TOTAL,
    WEIGHT,
    behind_vectors,
    clear_padding,
    kernel_of,
    look,
    of_head,
    of_slot,
    open_job,
    over_columns,
    over_keys,
    over_queries,
    weigh_rows,
    whole,
    write_scores,
)
from bistoch.functional.elastic.cpu.rows import add_rows, dot_rows, exponentiate
from bistoch.functional.elastic.cpu.solve import (
    SAFE,
    TINY,
    absorb,
    coast,
    first_columns,
    move_columns,
    record,
    spread,
    weigh_values,
)
from bistoch.functional.kernels.array import start_of, vector
from bistoch.functional.kernels.nonfinite import OUT_OF_RANGE
from bistoch.functional.kernels.runtime import (
    PLAIN,
    address_of,
    jit,
    kind_of,
    larger,
    logarithm,
    matmul,
    no_inline,
    size_of,
    take_next,
)


def solve_small(pointer):
    """Take heads until none is left, and iterate each to its end."""
    like, job = kind_of(pointer), open_job(address_of(pointer))
    space = job.workspace_at
    space += take_next(job.next_worker_at) * job.workspace_stride * size_of(like)
    marks = whole(job.unsafe_at)
    index = take_next(job.next_head_at)
    while index < job.batch:
        if job.look:
            look(job, index, 0, like)
        if marks[index] == 0:
            build(job, index, space, like)
        # a bias is looked at when it is added
        if marks[index] == 0 and not iterate(job, index, space, like):
            marks[index] = OUT_OF_RANGE
        index = take_next(job.next_head_at)


@jit
def build(job, index, space, like):
    """K with the column potentials of the start absorbed, and which columns any query may see."""
    no_inline()
    n, m, zero = job.n, job.m, like(0)
    kernel, highest = kernel_of(job, space, like), of_slot(job, space, 0, PARTIAL, like)
    factor, shift = over_queries(job, space, FACTOR, like), over_queries(job, space, SHIFT, like)
    clear_padding(job, space, like)
    first_columns(job, index, over_keys(job, space, COLUMN, like), like)
    absorb(job, space, like)
    write_scores(job, index, 0, n, kernel, like)
    for j in range(m):
        highest[j] = like(-np.inf)
    for i in range(n):
        row = vector(start_of(kernel) + i * job.stride * size_of(like), m, like)
        for j in range(m):
            highest[j] = larger(highest[j], row[j])
        shift[i], factor[i] = exponentiate(row, over_keys(job, space, ABSORBED, like))
        for j in range(m, job.stride):
            kernel[i, j] = zero
    invert(factor)


@jit
def iterate(job, index, space, like):
    """All iterations and the result; whether the head stayed in the safe range."""
    reals = vector(job.reals_at, 3, np.float64)
    tol, still = reals[0], reals[1]
    steps, rest, before = job.iters, like(0), like(np.inf)
    omega = vector(job.omega_at, job.batch, like)[index]
    coasting, stopped, middle, drift = False, False, like(0), like(0)
    for t in range(job.iters):
        if coasting:
            drift += omega * middle
            coast(job, space, omega * middle, like)
        elif not stopped:
            if t:
                row_step(job, space, like)
            if not take_totals(job, index, space, like):
                return False
        if job.row_history_at:
            record(job, index, space, t, like)
        if stopped:
            continue
        apart, middle = spread(job, index, space, like)
        if not coasting and apart <= tol:
            rest, steps, stopped = apart, t, True
            continue
        if move_columns(job, index, space, t, omega, like) >= SAFE:
            return False
        if not coasting:
            # as in `solve`: the plans to come would repeat this one
            rest, left = apart, job.iters - 1 - t
            few, fewer = left * rest <= 32 * still, left * rest * (rest / before) <= still
            coasting = few and fewer
            before = rest
    if drift != 0:
        # the column factors hold it too, and the last row step reads them
        coast(job, space, -drift, like)
    if job.iters:
        row_step(job, space, like)
    if job.exact_error:
        if not take_totals(job, index, space, like):
            return False
        rest, _ = spread(job, index, space, like)
    whole(job.iterations_at)[index] = steps
    vector(job.error_at, job.batch, like)[index] = rest
    finish(job, index, space, like)
    return True


@jit
def row_step(job, space, like):
    """Row factors from column factors: `u = 1 / (K w)`."""
    no_inline()
    factor = over_queries(job, space, FACTOR, like)
    dot_rows(kernel_of(job, space, like), over_columns(job, space, WEIGHT, like), factor)
    invert(factor)


@jit
def take_totals(job, index, space, like):
    """Column totals and the full column step h; whether no total has lost terms to underflow."""
    no_inline()
    m, zero, one, never = job.m, like(0), like(1), like(-np.inf)
    total, peak = over_columns(job, space, TOTAL, like), over_keys(job, space, PEAK, like)
    step, absorbed = over_keys(job, space, STEP, like), over_keys(job, space, ABSORBED, like)
    highest = of_slot(job, space, 0, PARTIAL, like)
    log_mass = vector(job.log_mass_at + index * m * size_of(like), m, like)
    for j in range(job.stride):
        total[j] = zero
    add_rows(kernel_of(job, space, like), weigh_rows(job, index, space, 0, job.n, like), total)
    missing = never
    for j in range(m):
        alive = highest[j] > never
        missing = larger(missing, -total[j] if alive else never)
        log_total = logarithm(total[j] if alive else one)
        total[j] = log_total if alive else never
        peak[j] = -absorbed[j] if alive else zero
        step[j] = log_mass[j] + absorbed[j] - log_total if alive else zero
    return missing <= -TINY


@jit
def finish(job, index, space, like):
    """The product with the values, and the potentials."""
    no_inline()
    n, m, e, one, zero = job.n, job.m, job.e, like(1), like(0)
    factor = over_queries(job, space, FACTOR, like)
    output = of_head(job.output_at, index, n, e, like)
    row = of_head(job.row_at, index, 1, n, like)
    column = of_head(job.column_at, index, 1, m, like)
    if e:
        weigh_values(job, index, space, like)
        matmul(
            job.gemm, PLAIN, PLAIN, e, n, m, one, behind_vectors(job, space, like), e,
            start_of(kernel_of(job, space, like)), job.stride, zero, start_of(output), e,
        )  # fmt: skip
    for i in range(n):
        for c in range(e):
            output[i, c] *= factor[i]
        row[0, i] = row_potential(job, space, i, like) if factor[i] > zero else like(-np.inf)
    own, highest = over_keys(job, space, COLUMN, like), of_slot(job, space, 0, PARTIAL, like)
    for j in range(m):
        column[0, j] = own[j] if highest[j] > like(-np.inf) else highest[j]
