# mypy: ignore-errors
"""Row and column step in one kernel, for heads whose columns all fit one tile: the fused form.

A program keeps all keys of a head on chip and walks over some of the queries. Once the row step of
a tile is done, `R = softmax_row(S + g)` is still there, and since `exp(S + f) = R exp(-g)` its
column sums are those of the column step: one product and one exponential per pair and iteration,
where the long form takes two. Each program leaves a peak and a total for every column; whoever
needs the next potential adds them up in the order of the programs, so there are no atomics.

The steps are those of `steps.py`, the gradients those of `vectors.py`.
"""

import triton
import triton.language as tl

from bistoch.functional.elastic.triton.scores import (
    LOWEST,
    NONE,
    column_shift,
    load_real,
    mask_of,
    own_tokens,
    score_tile,
)
from bistoch.functional.kernels.jit import kernel

# column sums of plans below it may have lost terms to underflow, and are taken again in logarithms:
# what is lost of a sum above it is below the rounding of float32
FLOOR = tl.constexpr(2.0**-90)
LOG_FLOOR = tl.constexpr(-62.383246250395075)


@triton.jit
def share(total, parts, part):
    """First and one past the last of `total` things, the share of one of `parts`."""
    each = tl.cdiv(total, parts)
    return part * each, tl.minimum(total, part * each + each)


@triton.jit
def joined_step(
    peaks, totals, column, log_mass, elastic, at, inside, m, parts,
):  # fmt: skip
    """Peak, log total and residual `lam h - g` of columns, from what the programs have left.

    Returns also the potential before the step, and which columns anybody may see.
    """
    before = tl.load(column + at, mask=inside, other=0.0)
    peak = tl.full([at.shape[0]], LOWEST, before.dtype)
    total = tl.zeros([at.shape[0]], before.dtype)
    for part in range(parts):
        level = tl.load(peaks + part * m + at, mask=inside, other=LOWEST)
        some = tl.load(totals + part * m + at, mask=inside, other=0.0)
        higher = tl.maximum(peak, level)
        total = total * tl.exp(peak - higher) + some * tl.exp(level - higher)
        peak = higher
    alive = total > 0
    log_total = tl.log(tl.where(alive, total, 1.0))
    target = tl.load(log_mass + at, mask=inside, other=0.0)
    step = tl.where(alive, target - (peak + log_total), 0.0)
    residual = tl.where(alive, elastic * step - before, 0.0)
    return peak, log_total, residual, before, alive


@kernel
def strip_kernel(
    query, key, mask, mask_index, query_real, key_real, sharpness, column, log_row_mass, running,
    row, rest, peaks, totals, earlier_peaks, earlier_totals, log_mass, lam, omega, kept_peaks,
    kept_totals, moved, n, m, parts, mask_each, mask_row, mask_column, row_each, column_each,
    moved_each, kept_peaks_each, kept_totals_each,
    JOIN: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
    MASK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_X: tl.constexpr,
    BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """The row step of a share of the queries, and what they add to the column step.

    With `JOIN` it first takes the column step before it, whose partial sums are the `earlier` ones;
    all programs of a head find the same potential, and the first of them keeps it.
    """
    head, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    if running is not None:
        if tl.load(running + head) == 0:
            return
    wide = head.to(tl.int64)
    query, key = query + wide * n * FEATURES, key + wide * m * FEATURES
    if query_real is not None:
        query_real += wide * n
    if key_real is not None:
        key_real += wide * m
    mask = mask_of(mask, mask_index, mask_each, head)
    row, rest = row + wide * row_each, rest + wide * row_each
    at = tl.arange(0, BLOCK_Y)
    inside = at < m
    column += wide * column_each
    if JOIN:
        joined_peak, joined_total, residual, before, reached = joined_step(
            earlier_peaks + wide * parts * m, earlier_totals + wide * parts * m, column,
            log_mass + wide * m, tl.load(lam + head), at, inside, m, parts,
        )  # fmt: skip
        own = tl.where(reached, before + tl.load(omega + head) * residual, float("-inf"))
        if part == 0:
            tl.store(moved + wide * moved_each + at, own, mask=inside)
            if kept_peaks is not None:
                tl.store(kept_peaks + wide * kept_peaks_each + at, joined_peak, mask=inside)
                tl.store(kept_totals + wide * kept_totals_each + at, joined_total, mask=inside)
    else:
        own = tl.load(column + at, mask=inside, other=0.0)
    there = load_real(key_real, at, m)
    tile = own_tokens(key, at, m, FEATURES, WIDTH, CHUNK)
    sharp = tl.load(sharpness + head)
    sums, highest = tl.zeros([BLOCK_Y], sharp.dtype), tl.full([BLOCK_Y], LOWEST, sharp.dtype)
    first, last = share(tl.cdiv(n, BLOCK_X), parts, part)
    for block in range(first, last):
        row_at = block * BLOCK_X + tl.arange(0, BLOCK_X)
        logs = score_tile(
            tile, query, at, row_at, there, load_real(query_real, row_at, n), m, n, sharp, mask,
            mask_column, mask_row, FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION,
        )  # fmt: skip
        logs += own[:, None]
        if MASK != NONE or query_real is not None:
            # else every column that is there is seen
            highest = tl.maximum(highest, tl.max(logs, 1))
        peak = tl.maximum(tl.max(logs, 0), LOWEST)
        weights = tl.exp(logs - peak[None, :])
        total = tl.sum(weights, 0)
        alive = total > 0
        total = tl.where(alive, total, 1.0)
        log_total = tl.log(total)
        found = tl.where(alive, -(peak + log_total), 0.0)
        if log_row_mass is not None:
            found += tl.load(log_row_mass + wide * n + row_at, mask=row_at < n, other=0.0)
        lost = tl.where(alive, (found + peak) + log_total, 0.0)
        tl.store(row + row_at, found, mask=row_at < n)
        tl.store(rest + row_at, lost, mask=row_at < n)
        # with f as it was rounded, and with the mass of the row
        sums += tl.sum(weights * (tl.exp(lost) / total)[None, :], 1)

    seen = there & (first < last)
    if MASK != NONE or query_real is not None:
        seen = seen & (highest > LOWEST)
    level = tl.where(sums > 0, -own, LOWEST)
    if tl.max(tl.where(seen & (sums < FLOOR), 1, 0), 0) > 0:
        # the row potentials are those that this program has just stored
        tl.debug_barrier()
        level, sums = tl.full([BLOCK_Y], LOWEST, sharp.dtype), tl.zeros([BLOCK_Y], sharp.dtype)
        for block in range(first, last):
            row_at = block * BLOCK_X + tl.arange(0, BLOCK_X)
            logs = score_tile(
                tile, query, at, row_at, there, load_real(query_real, row_at, n), m, n, sharp, mask,
                mask_column, mask_row, FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION,
            )  # fmt: skip
            logs += tl.load(row + row_at, mask=row_at < n, other=0.0)[None, :]
            higher = tl.maximum(level, tl.max(logs, 1))
            sums = sums * tl.exp(level - higher) + tl.sum(tl.exp(logs - higher[:, None]), 1)
            level = higher
    place = (wide * parts + part) * m + at
    tl.store(peaks + place, level, mask=inside)
    tl.store(totals + place, sums, mask=inside)


@kernel
def join_kernel(
    peaks, totals, column, log_mass, lam, omega, running, kept_peaks, kept_totals, moved, m, parts,
    column_each, moved_each, kept_peaks_each, kept_totals_each,
    MOVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The column step of a head from its partial sums: new potentials, or with no `MOVE` residuals.

    The same as `column_step_kernel` gives.
    """
    head = tl.program_id(0)
    if running is not None:
        if tl.load(running + head) == 0:
            return
    wide = head.to(tl.int64)
    for start in range(0, m, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < m
        peak, log_total, residual, before, alive = joined_step(
            peaks + wide * parts * m, totals + wide * parts * m, column + wide * column_each,
            log_mass + wide * m, tl.load(lam + head), at, inside, m, parts,
        )  # fmt: skip
        if kept_peaks is not None:
            tl.store(kept_peaks + wide * kept_peaks_each + at, peak, mask=inside)
            tl.store(kept_totals + wide * kept_totals_each + at, log_total, mask=inside)
        if MOVE:
            found = tl.where(alive, before + tl.load(omega + head) * residual, float("-inf"))
        else:
            found = tl.where(alive, residual, float("nan"))
        tl.store(moved + wide * moved_each + at, found, mask=inside)


@triton.jit
def joined_grad(sums, column_grad, omega, at, inside, m, parts, ran):
    """`dg <- (1 - omega) dg - R^T df` from what the programs have left of the product."""
    found = tl.load(column_grad + at, mask=inside, other=0.0)
    if ran:
        total = tl.zeros([at.shape[0]], found.dtype)
        for part in range(parts):
            total += tl.load(sums + part * m + at, mask=inside, other=0.0)
        found = (1.0 - tl.load(omega)) * found - total
    return found


@kernel
def strip_grad_kernel(
    query, key, mask, mask_index, query_real, key_real, sharpness, row, rest, column, peaks,
    log_totals, column_grad, later_grad, lam, omega, later_omega, iterations, row_grad, sums,
    later_sums, n, m, t, parts, mask_each, mask_row, mask_column, row_each, column_each, peaks_each,
    log_totals_each, vector_each, omega_each, grad_each,
    JOIN: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
    MASK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_X: tl.constexpr,
    BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """`df = -C dh` of a share of the queries, and what they add to `R^T df`.

    With `JOIN` the gradient of the column potentials is made of that of the iteration after it.
    """
    head, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    wide, ran = head.to(tl.int64), tl.load(iterations + head)
    at = tl.arange(0, BLOCK_Y)
    inside = at < m
    if JOIN:
        arriving = joined_grad(
            later_sums + wide * parts * m, later_grad + wide * vector_each,
            later_omega + wide * omega_each, at, inside, m, parts, t + 1 < ran,
        )  # fmt: skip
        if part == 0:
            tl.store(column_grad + wide * vector_each + at, arriving, mask=inside)
    else:
        arriving = tl.load(column_grad + wide * vector_each + at, mask=inside, other=0.0)
    sharp = tl.load(sharpness + head)
    row_grad += wide * grad_each
    first, last = share(tl.cdiv(n, BLOCK_X), parts, part)
    if t >= ran:
        for block in range(first, last):
            row_at = block * BLOCK_X + tl.arange(0, BLOCK_X)
            tl.store(row_grad + row_at, tl.zeros([BLOCK_X], sharp.dtype), mask=row_at < n)
        return
    query, key = query + wide * n * FEATURES, key + wide * m * FEATURES
    if query_real is not None:
        query_real += wide * n
    if key_real is not None:
        key_real += wide * m
    mask = mask_of(mask, mask_index, mask_each, head)
    row, rest = row + wide * row_each, rest + wide * row_each
    own = tl.load(column + wide * column_each + at, mask=inside, other=float("-inf"))
    peak = tl.load(peaks + wide * peaks_each + at, mask=inside, other=LOWEST)
    log_total = tl.load(log_totals + wide * log_totals_each + at, mask=inside, other=0.0)
    # C = R exp(rest - log total), if totals are column sums of R: then their peak is -g
    seen = (own > float("-inf")) & (peak > LOWEST)
    direct = seen & (peak == -own) & (log_total >= LOG_FLOOR)
    low = tl.max(tl.where(seen & (direct == 0), 1, 0), 0) > 0
    weights = tl.where(direct, arriving * tl.exp(-tl.where(direct, log_total, 0.0)), 0.0)
    shift = column_shift(peak, own)
    step = tl.load(omega + wide * omega_each) * tl.load(lam + head)
    there = load_real(key_real, at, m)
    tile = own_tokens(key, at, m, FEATURES, WIDTH, CHUNK)
    found = tl.zeros([BLOCK_Y], sharp.dtype)
    for block in range(first, last):
        row_at = block * BLOCK_X + tl.arange(0, BLOCK_X)
        some = row_at < n
        scores = score_tile(
            tile, query, at, row_at, there, load_real(query_real, row_at, n), m, n, sharp, mask,
            mask_column, mask_row, FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION,
        )  # fmt: skip
        potential = tl.load(row + row_at, mask=some, other=0.0)
        lost = tl.load(rest + row_at, mask=some, other=0.0)
        logs = scores + own[:, None]
        logs += potential[None, :]
        logs -= lost[None, :]
        plan = tl.exp(logs)
        if low:
            # sums that underflowed: C in logarithms, as in `row_grad_kernel`
            logs = (scores + shift[:, None]) + potential[None, :]
            logs -= (peak + shift)[:, None]
            logs -= log_total[:, None]
            slope = tl.sum(tl.exp(logs) * arriving[:, None], 0)
        else:
            slope = tl.exp(lost) * tl.sum(plan * weights[:, None], 0)
        slope = -step * slope
        tl.store(row_grad + row_at, slope, mask=some)
        found += tl.sum(plan * slope[None, :], 1)
    tl.store(sums + (wide * parts + part) * m + at, found, mask=inside)


@kernel
def join_grad_kernel(
    sums, column_grad, omega, iterations, earlier_grad, m, parts, t, vector_each, omega_each,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of the first column potentials, once all iterations have been gone back."""
    head = tl.program_id(0)
    wide, ran = head.to(tl.int64), tl.load(iterations + head)
    for start in range(0, m, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < m
        found = joined_grad(
            sums + wide * parts * m, column_grad + wide * vector_each, omega + wide * omega_each,
            at, inside, m, parts, t < ran,
        )  # fmt: skip
        tl.store(earlier_grad + wide * vector_each + at, found, mask=inside)
