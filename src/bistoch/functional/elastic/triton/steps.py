# mypy: ignore-errors
"""Row and column steps of the long form: log-sum-exp over tiles that are made again.

    f_i = -LSE_j(S_ij + g_j),   h_j = log b_j - LSE_i(S_ij + f_i),   g <- g + omega (lam h - g)

Each program owns a block of rows, or of columns, and adds up all of its terms itself: there are no
partial sums in memory and no atomics, so results are the same in every run. The torch version of
the same steps is `elastic/streaming.py`, their specification `elastic/reference.py`.
"""

import triton
import triton.language as tl

from bistoch.functional.elastic.triton.scores import (
    LOWEST,
    load_real,
    mask_of,
    own_tokens,
    score_tile,
)
from bistoch.functional.kernels.jit import kernel


@triton.jit
def log_sum_exp(
    x, y, x_at, x_real, y_real, sharpness, mask, mask_x, mask_y, potential, X, Y,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, MASK: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """`exp(peak) * total = sum over y of exp(S + potential)` for every x of a block."""
    peak = tl.full([x_at.shape[0]], LOWEST, sharpness.dtype)
    total = tl.zeros([x_at.shape[0]], sharpness.dtype)
    for first in range(0, Y, BLOCK_Y):
        y_at = first + tl.arange(0, BLOCK_Y)
        there = load_real(y_real, y_at, Y)
        logs = score_tile(
            x, y, x_at, y_at, x_real, there, X, Y, sharpness, mask, mask_x, mask_y,
            FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION,
        )  # fmt: skip
        logs += tl.load(potential + y_at, mask=y_at < Y, other=0.0)[None, :]
        higher = tl.maximum(peak, tl.max(logs, 1))
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(logs - higher[:, None]), 1)
        peak = higher
    return peak, total


@kernel
def row_step_kernel(
    query, key, mask, mask_index, query_real, key_real, sharpness, column, log_row_mass, running,
    row, rest, n, m, mask_each, mask_row, mask_column, row_each, column_each,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, MASK: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """The row potential f of a block of queries, with the log of the row mass, as h will count it.

    `rest` is what f lost to rounding, `f + peak + log total`, which the backward takes off again.
    """
    blocks = tl.cdiv(n, BLOCK_X)
    head, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
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
    at = block * BLOCK_X + tl.arange(0, BLOCK_X)
    there = load_real(query_real, at, n)
    tile = own_tokens(query, at, n, FEATURES, WIDTH, CHUNK)
    peak, total = log_sum_exp(
        tile, key, at, there, key_real, tl.load(sharpness + head), mask, mask_row, mask_column,
        column + wide * column_each, n, m, FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION, BLOCK_Y,
    )  # fmt: skip
    alive = total > 0
    log_total = tl.log(tl.where(alive, total, 1.0))
    found = tl.where(alive, -(peak + log_total), 0.0)
    if log_row_mass is not None:
        found += tl.load(log_row_mass + wide * n + at, mask=at < n, other=0.0)
    # f and the peak are close: their sum is exact
    lost = tl.where(alive, (found + peak) + log_total, 0.0)
    tl.store(row + wide * row_each + at, found, mask=at < n)
    tl.store(rest + wide * row_each + at, lost, mask=at < n)


@kernel
def column_step_kernel(
    query, key, mask, mask_index, query_real, key_real, sharpness, row, column, log_mass, lam,
    omega, running, peaks, log_totals, moved, n, m, mask_each, mask_row, mask_column, row_each,
    column_each, moved_each, peaks_each, log_totals_each,
    MOVE: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
    MASK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_X: tl.constexpr,
    BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """Column totals of a block of keys, and their new potential, or the residual `lam h - g`.

    A column that nobody may see has the lowest peak, and the potential minus infinity.
    """
    blocks = tl.cdiv(m, BLOCK_X)
    head, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
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
    at = block * BLOCK_X + tl.arange(0, BLOCK_X)
    inside = at < m
    there = load_real(key_real, at, m)
    tile = own_tokens(key, at, m, FEATURES, WIDTH, CHUNK)
    peak, total = log_sum_exp(
        tile, query, at, there, query_real, tl.load(sharpness + head), mask, mask_column, mask_row,
        row + wide * row_each, m, n, FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION, BLOCK_Y,
    )  # fmt: skip
    alive = total > 0
    log_total = tl.log(tl.where(alive, total, 1.0))
    if peaks is not None:
        tl.store(peaks + wide * peaks_each + at, peak, mask=inside)
        tl.store(log_totals + wide * log_totals_each + at, log_total, mask=inside)
    before = tl.load(column + wide * column_each + at, mask=inside, other=0.0)
    target = tl.load(log_mass + wide * m + at, mask=inside, other=0.0)
    step = tl.where(alive, target - (peak + log_total), 0.0)
    residual = tl.where(alive, tl.load(lam + head) * step - before, 0.0)
    if MOVE:
        # no pair of such a column is allowed, so its potential may be what it will be called
        column = tl.where(alive, before + tl.load(omega + head) * residual, float("-inf"))
        tl.store(moved + wide * moved_each + at, column, mask=inside)
    else:
        # whoever looks at errors skips what is NaN: a column without a query
        residual = tl.where(alive, residual, float("nan"))
        tl.store(moved + wide * moved_each + at, residual, mask=inside)
