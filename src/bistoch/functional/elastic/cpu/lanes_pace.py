"""Numba kernels for many small matrices: the step of every lane, chosen anew (pace.py)."""

import numpy as np

from bistoch.functional.elastic.cpu.head import copy
from bistoch.functional.elastic.cpu.lanes_job import (
    CHANGED,
    DEAD,
    GAINED,
    HIGH,
    LAM,
    LANES,
    LEAST,
    LEVEL,
    LIVE,
    NOW,
    OLD,
    OMEGA,
    RESIDUAL,
    REST,
    add_product,
    fill,
    flat,
    number,
    numbers,
    over_keys,
)
from bistoch.functional.elastic.cpu.solve import SHORTEST
from bistoch.functional.kernels.array import start_of
from bistoch.functional.kernels.runtime import jit, larger, size_of


@jit
def forget_steps(job, space, like):
    """Nothing is known yet: the first step will be plain."""
    fill(flat(over_keys(job, space, OLD, like)), like(0))
    fill(flat(numbers(job, space, LEAST, like)), like(np.inf))
    fill(flat(numbers(job, space, OMEGA, like)), like(1))


@jit
def choose_steps(job, space, rounding, like):
    """The step that would have served each lane best before; closer to plain if its error grew.

    The rounding is that of one; a change of no more than that of the row potentials says nothing.
    """
    wide, one, zero = LANES * size_of(like), like(1), like(0)
    old, change = over_keys(job, space, OLD, like), over_keys(job, space, HIGH, like)
    gained, changed = numbers(job, space, GAINED, like), numbers(job, space, CHANGED, like)
    centre(job, space, like)
    subtract(flat(old), flat(over_keys(job, space, NOW, like)), flat(change))
    fill(flat(gained), zero)
    fill(flat(changed), zero)
    for j in range(job.m):
        at_old, at_change = start_of(old) + j * wide, start_of(change) + j * wide
        add_product(start_of(gained), at_old, at_change, like)
        add_product(start_of(changed), at_change, at_change, like)
    copy(flat(over_keys(job, space, NOW, like)), flat(old))
    rest, least = number(job, space, REST, like), number(job, space, LEAST, like)
    omega, lam = number(job, space, OMEGA, like), over_keys(job, space, LAM, like)[0]
    level, live = number(job, space, LEVEL, like), number(job, space, LIVE, like)
    for lane in range(LANES):
        longest = one / larger(one - lam[lane], like(SHORTEST))
        noise = like(rounding) * (one + level[lane])
        known = gained[0, lane] > zero and changed[0, lane] > live[lane] * noise * noise
        best = omega[lane] * gained[0, lane] / (changed[0, lane] if known else one)
        extra = min(larger(best, one), longest) - one
        grown = rest[lane] / (least[lane] if least[lane] > zero else one)
        trust = min(larger(like(2) - grown, zero), one)
        omega[lane] = one + trust * extra if known else one
        least[lane] = min(least[lane], rest[lane])


@jit
def centre(job, space, like):
    """The residuals without what the live columns of a lane share; those of dead ones are zero."""
    residual, dead = over_keys(job, space, RESIDUAL, like), over_keys(job, space, DEAD, like)
    mean, live = number(job, space, GAINED, like), number(job, space, LIVE, like)
    now = over_keys(job, space, NOW, like)
    fill(mean, like(0))
    fill(live, like(0))
    for j in range(job.m):
        for lane in range(LANES):
            mean[lane] += residual[j, lane]
        for lane in range(LANES):
            live[lane] += like(1) - dead[j, lane]
    for lane in range(LANES):
        mean[lane] /= larger(live[lane], like(1))
    for j in range(job.m):
        for lane in range(LANES):
            now[j, lane] = (residual[j, lane] - mean[lane]) * (like(1) - dead[j, lane])


@jit
def subtract(old, now, change):
    """How far the residuals moved."""
    for r in range(len(change)):
        change[r] = old[r] - now[r]
