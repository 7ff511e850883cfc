# mypy: ignore-errors
"""What a tolerance asks for, on the device: errors, who goes on, and how large the next step is.

One program per problem; the host never waits for a number. The step is that of `elastic/pace.py`:

    y = r^(t-1) - r^t,   omega^t = omega^(t-1) <r^(t-1), y> / <y, y>,   r without its mean
"""

import triton
import triton.language as tl

from bistoch.functional.elastic.pace import LONGEST as _LONGEST
from bistoch.functional.elastic.pace import ROUNDINGS as _ROUNDINGS
from bistoch.functional.kernels.jit import kernel

LONGEST = tl.constexpr(_LONGEST)
ROUNDINGS = tl.constexpr(_ROUNDINGS)


@triton.jit
def spread_of(residual, m, BLOCK: tl.constexpr):
    """How far the live entries of a residual lie apart, their mean and how many there are."""
    kind = residual.dtype.element_ty
    highest = tl.full([BLOCK], float("-inf"), kind)
    lowest = tl.full([BLOCK], float("inf"), kind)
    sums, count = tl.zeros([BLOCK], kind), tl.zeros([BLOCK], kind)
    for first in range(0, m, BLOCK):
        at = first + tl.arange(0, BLOCK)
        some = tl.load(residual + at, mask=at < m, other=float("nan"))
        live = some == some
        highest = tl.maximum(highest, tl.where(live, some, float("-inf")))
        lowest = tl.minimum(lowest, tl.where(live, some, float("inf")))
        sums += tl.where(live, some, 0.0)
        count += tl.where(live, 1.0, 0.0)
    live_count = tl.sum(count, 0)
    apart = tl.maximum(tl.max(highest, 0) - tl.min(lowest, 0), 0.0)
    mean = tl.sum(sums, 0) / tl.maximum(live_count, 1.0)
    return tl.where(live_count > 0, apart, 0.0), mean, live_count


@kernel
def error_kernel(residual, error, m, BLOCK: tl.constexpr):
    """The column error of every problem after its last row step."""
    head = tl.program_id(0)
    apart, _, _ = spread_of(residual + head.to(tl.int64) * m, m, BLOCK)
    tl.store(error + head, apart)


@kernel
def decide_kernel(
    residual, before, row, column, lam, omega, smallest, running, iterations, omegas, tol,
    columns, n, m, row_each, omegas_each, columns_each, rounding,
    CHOOSE: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Stop a problem whose error is small enough, or choose its step and move its columns."""
    head = tl.program_id(0)
    wide = head.to(tl.int64)
    if tl.load(running + head) == 0:
        return
    residual, column = residual + wide * m, column + wide * m
    error, mean, count = spread_of(residual, m, BLOCK)
    if error <= tl.load(tol):
        tl.store(running + head, 0)
        return
    step = tl.load(omega + head)
    if CHOOSE:
        before += wide * m
        least = error
        if not FIRST:
            level = tl.zeros([BLOCK], error.dtype)
            for first in range(0, n, BLOCK):
                at = first + tl.arange(0, BLOCK)
                some = tl.load(row + wide * row_each + at, mask=at < n, other=0.0)
                level = tl.maximum(level, tl.abs(some))
            gained, size = tl.zeros([BLOCK], error.dtype), tl.zeros([BLOCK], error.dtype)
            for first in range(0, m, BLOCK):
                at = first + tl.arange(0, BLOCK)
                now = tl.load(residual + at, mask=at < m, other=float("nan"))
                old = tl.load(before + at, mask=at < m, other=0.0)
                change = tl.where(now == now, old - (now - mean), 0.0)
                gained += old * change
                size += change * change
            gain, length = tl.sum(gained, 0), tl.sum(size, 0)
            # a change that is no more than the rounding of the row potentials says nothing
            noise = ROUNDINGS * rounding * (1.0 + tl.max(level, 0))
            known = (gain > 0) & (length > count * noise * noise)
            best = step * tl.where(known, gain, 1.0) / tl.where(known, length, 1.0)
            longest = 1.0 / tl.maximum(1.0 - tl.load(lam + head), 1.0 / LONGEST)
            extra = tl.where(known, tl.minimum(tl.maximum(best, 1.0), longest) - 1.0, 0.0)
            least = tl.load(smallest + head)
            trust = 2.0 - error / tl.where(least > 0, least, 1.0)
            trust = tl.minimum(tl.maximum(trust, 0.0), 1.0)
            step = 1.0 + trust * extra
        tl.store(smallest + head, tl.minimum(least, error))
        tl.store(omega + head, step)
    for first in range(0, m, BLOCK):
        at = first + tl.arange(0, BLOCK)
        now = tl.load(residual + at, mask=at < m, other=float("nan"))
        live = now == now
        old = tl.load(column + at, mask=at < m, other=0.0)
        moved = old + step * tl.where(live, now, 0.0)
        tl.store(column + at, moved, mask=at < m)
        if columns is not None:
            tl.store(columns + wide * columns_each + at, moved, mask=at < m)
        if CHOOSE:
            tl.store(before + at, tl.where(live, now - mean, 0.0), mask=at < m)
    if omegas is not None:
        tl.store(omegas + wide * omegas_each, step)
    tl.store(iterations + head, tl.load(iterations + head) + 1)
