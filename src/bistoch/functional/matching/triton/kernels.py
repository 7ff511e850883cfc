# mypy: ignore-errors
"""Passes over a score matrix that is in memory: each reads it once, and makes no other of its size.

    f_i = -log(e^z_i + sum_j e^(S_ij + g_j)),     df = -A dg,     A = exp(S + f + g)

A program owns a block of rows and walks over the columns, or the other way round with the strides
exchanged. `matching/iterations.py` is the torch version.
"""

import triton
import triton.language as tl

from bistoch.functional.elastic.triton.scores import LOWEST
from bistoch.functional.kernels.jit import kernel


@triton.jit
def load_scores(scores, x_at, y_at, X, Y, along_x, along_y):
    """A tile of scores, minus infinity beyond the ends."""
    place = x_at[:, None].to(tl.int64) * along_x + y_at[None, :].to(tl.int64) * along_y
    inside = (x_at < X)[:, None] & (y_at < Y)[None, :]
    return tl.load(scores + place, mask=inside, other=float("-inf"))


@kernel
def slack_step_kernel(
    scores, potential, slack, found, X, Y, each, along_x, along_y,
    BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """`-log(e^slack + sum over y of e^(S + potential))`; zero where nothing is allowed."""
    blocks = tl.cdiv(X, BLOCK_X)
    which, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    wide = which.to(tl.int64)
    at = block * BLOCK_X + tl.arange(0, BLOCK_X)
    # staying single is the first term
    single = tl.load(slack + wide * X + at, mask=at < X, other=float("-inf"))
    peak = tl.maximum(single, LOWEST)
    total = tl.exp(single - peak)
    for first in range(0, Y, BLOCK_Y):
        y_at = first + tl.arange(0, BLOCK_Y)
        logs = load_scores(scores + wide * each, at, y_at, X, Y, along_x, along_y)
        logs += tl.load(potential + wide * Y + y_at, mask=y_at < Y, other=0.0)[None, :]
        higher = tl.maximum(peak, tl.max(logs, 1))
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(logs - higher[:, None]), 1)
        peak = higher
    # a NaN is not zero, and shows
    alive = total != 0
    result = tl.where(alive, -(peak + tl.log(tl.where(alive, total, 1.0))), 0.0)
    tl.store(found + wide * X + at, result, mask=at < X)


@kernel
def slack_product_kernel(
    scores, row, column, weights, found, X, Y, each, along_x, along_y,
    ROWS: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """`-sum over y of exp(S + f + g) * weight`, for rows if `ROWS`, else for columns."""
    blocks = tl.cdiv(X, BLOCK_X)
    which, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    wide = which.to(tl.int64)
    at = block * BLOCK_X + tl.arange(0, BLOCK_X)
    own = tl.load((row if ROWS else column) + wide * X + at, mask=at < X, other=0.0)
    result = tl.zeros([BLOCK_X], own.dtype)
    for first in range(0, Y, BLOCK_Y):
        y_at = first + tl.arange(0, BLOCK_Y)
        logs = load_scores(scores + wide * each, at, y_at, X, Y, along_x, along_y)
        other = tl.load((column if ROWS else row) + wide * Y + y_at, mask=y_at < Y, other=0.0)
        # first the row potential, as the matrix is made elsewhere
        if ROWS:
            logs = (logs + own[:, None]) + other[None, :]
        else:
            logs = (logs + other[None, :]) + own[:, None]
        weight = tl.load(weights + wide * Y + y_at, mask=y_at < Y, other=0.0)
        result += tl.sum(tl.exp(logs) * weight[None, :], 1)
    tl.store(found + wide * X + at, -result, mask=at < X)


@kernel
def slack_grad_kernel(
    scores, rows, columns, row_grads, column_grads, grad, n, m, T, each, along_row, along_column,
    BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """`dS = -sum over t of A^t diag(dg^t) + diag(df^t) B^t`, all iterations of a tile at once.

    A has the column potential after the iteration, B that before it.
    """
    down, across = tl.cdiv(n, BLOCK_X), tl.cdiv(m, BLOCK_Y)
    which, tile = tl.program_id(0) // (down * across), tl.program_id(0) % (down * across)
    wide = which.to(tl.int64)
    row_at = tile // across * BLOCK_X + tl.arange(0, BLOCK_X)
    column_at = tile % across * BLOCK_Y + tl.arange(0, BLOCK_Y)
    in_row, in_column = row_at < n, column_at < m
    tile_scores = load_scores(
        scores + wide * each, row_at, column_at, n, m, along_row, along_column
    )  # fmt: skip
    rows, row_grads = rows + wide * T * n, row_grads + wide * T * n
    columns, column_grads = columns + wide * (T + 1) * m, column_grads + wide * T * m
    result = tl.zeros([BLOCK_X, BLOCK_Y], tile_scores.dtype)
    before = tl.load(columns + column_at, mask=in_column, other=0.0)
    # vectors of all iterations may be more than 32 bits count
    X, Y = n.to(tl.int64), m.to(tl.int64)
    for t in range(T):
        row = tl.load(rows + t * X + row_at, mask=in_row, other=0.0)
        after = tl.load(columns + (t + 1) * Y + column_at, mask=in_column, other=0.0)
        row_grad = tl.load(row_grads + t * X + row_at, mask=in_row, other=0.0)
        column_grad = tl.load(column_grads + t * Y + column_at, mask=in_column, other=0.0)
        logs = tile_scores + row[:, None]
        result -= tl.exp(logs + after[None, :]) * column_grad[None, :]
        result -= tl.exp(logs + before[None, :]) * row_grad[:, None]
        before = after
    place = wide * n * m + row_at[:, None].to(tl.int64) * m + column_at[None, :]
    tl.store(grad + place, result, mask=in_row[:, None] & in_column[None, :])
