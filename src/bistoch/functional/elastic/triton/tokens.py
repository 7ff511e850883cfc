# mypy: ignore-errors
"""Gradients of values, tokens and biases: the last passes of the backward.

    dS = P * (dP - delta_i) - sum over t of (C^t diag(dh^t) + diag(df^t) R^t),   dP = dO V^T

Every C and R is `diag exp(S) diag`, so their sum is `P * (A B^T)` with A `(n, 2T)` and B `(m, 2T)`:
one matrix product instead of 2T exponentials. What the iterations add nearly cancels, so it is a
product of float32 numbers beside half precision tokens too. Where factors would leave the range of
floats, which `exact` says for each head, the exponentials are taken one by one.
"""

import triton
import triton.language as tl

from bistoch.functional.elastic.triton.scores import (
    column_shift,
    load_real,
    load_tokens,
    mask_of,
    multiply,
    own_tokens,
    score_tile,
)
from bistoch.functional.kernels.jit import kernel, rounded


@triton.jit
def along(vector, ROWS: tl.constexpr):
    """A vector over the owned side if `ROWS`, else over the other, as it meets a tile."""
    return vector[:, None] if ROWS else vector[None, :]


@kernel
def value_grad_kernel(
    query, key, value, output_grad, mask, mask_index, query_real, key_real, sharpness, row, rest,
    column, delta, above, value_grad, column_grad, n, m, mask_each, mask_row, mask_column, row_each,
    column_each, vector_each,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, VALUES: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, VALUE_CHUNK: tl.constexpr, MASK: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """`dV = P^T dO` and `dg = colsum(P * (dP - delta))` of a block of keys."""
    blocks = tl.cdiv(m, BLOCK_X)
    head, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    wide = head.to(tl.int64)
    query, key = query + wide * n * FEATURES, key + wide * m * FEATURES
    value, output_grad = value + wide * m * VALUES, output_grad + wide * n * VALUES
    if query_real is not None:
        query_real += wide * n
    if key_real is not None:
        key_real += wide * m
    mask = mask_of(mask, mask_index, mask_each, head)
    at = block * BLOCK_X + tl.arange(0, BLOCK_X)
    inside, there = at < m, load_real(key_real, at, m)
    tile = own_tokens(key, at, m, FEATURES, WIDTH, CHUNK)
    values = own_tokens(value, at, m, VALUES, VALUE_WIDTH, VALUE_CHUNK)
    own = tl.load(column + wide * column_each + at, mask=inside, other=0.0)
    sharp = tl.load(sharpness + head)
    found, sums = tl.zeros([BLOCK_X, VALUE_WIDTH], sharp.dtype), tl.zeros([BLOCK_X], sharp.dtype)
    for first in range(0, n, BLOCK_Y):
        query_at = first + tl.arange(0, BLOCK_Y)
        some = query_at < n
        logs = score_tile(
            tile, query, at, query_at, there, load_real(query_real, query_at, n), m, n, sharp, mask,
            mask_column, mask_row, FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION,
        )  # fmt: skip
        logs += own[:, None]
        logs += tl.load(row + wide * row_each + query_at, mask=some, other=0.0)[None, :]
        logs -= tl.load(rest + wide * row_each + query_at, mask=some, other=0.0)[None, :]
        plan = tl.exp(logs)
        plan_grad = tl.zeros([BLOCK_X, BLOCK_Y], sharp.dtype)
        if VALUES > 0:
            plan_grad = multiply(
                values, output_grad, at, query_at, m, n, sharp.dtype, VALUES, VALUE_WIDTH,
                VALUE_CHUNK, sharp.dtype, PRECISION,
            )  # fmt: skip
            arriving = load_tokens(output_grad, query_at, n, VALUES, VALUE_WIDTH)
            found = tl.dot(
                rounded(plan, PRECISION), arriving, found, input_precision=PRECISION,
                out_dtype=sharp.dtype,
            )  # fmt: skip
        mean = tl.load(delta + wide * n + query_at, mask=some, other=0.0)
        sums += tl.sum(plan * (plan_grad - mean[None, :]), 1)
    if above is not None:
        sums += tl.load(above + wide * m + at, mask=inside, other=0.0)
    tl.store(column_grad + wide * vector_each + at, sums, mask=inside)
    if VALUES > 0:
        features = tl.arange(0, VALUE_WIDTH)
        place = value_grad + wide * m * VALUES + at[:, None] * VALUES + features[None, :]
        tl.store(place, found, mask=inside[:, None] & (features < VALUES)[None, :])


@triton.jit
def score_grad_tile(
    x, y, x_side, y_side, x_at, y_at, x_real, y_real, sharpness, mask, mask_x, mask_y,
    row, rest, columns, delta, x_factor, y_factor, peaks, log_totals, step_grad, row_grad,
    X, Y, n, m, T, ran, row_at, column_at, ROWS: tl.constexpr, FACTORED: tl.constexpr,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, VALUES: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, VALUE_CHUNK: tl.constexpr, MASK: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr, FACTOR_PRECISION: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """A tile of dS; all pointers are those of one head, rows are x if `ROWS`, else y."""
    scores = score_tile(
        x, y, x_at, y_at, x_real, y_real, X, Y, sharpness, mask, mask_x, mask_y,
        FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION,
    )  # fmt: skip
    in_row, in_column = row_at < n, column_at < m
    # vectors of all iterations, and their factors, may be more than 32 bits count
    rows, keys = n.to(tl.int64), m.to(tl.int64)
    last = tl.load(columns + T * keys + column_at, mask=in_column, other=0.0)
    logs = scores + along(last, not ROWS)
    logs += along(tl.load(row + 2 * T * rows + row_at, mask=in_row, other=0.0), ROWS)
    logs -= along(tl.load(rest + 2 * T * rows + row_at, mask=in_row, other=0.0), ROWS)
    plan = tl.exp(logs)
    grad = tl.zeros(plan.shape, sharpness.dtype)
    if VALUES > 0:
        grad = multiply(
            x_side, y_side, x_at, y_at, X, Y, sharpness.dtype, VALUES, VALUE_WIDTH, VALUE_CHUNK,
            sharpness.dtype, PRECISION,
        )  # fmt: skip
    grad -= along(tl.load(delta + row_at, mask=in_row, other=0.0), ROWS)
    if FACTORED:
        ranks = tl.arange(0, RANK)
        product = tl.zeros(plan.shape, sharpness.dtype)
        for first in range(0, 2 * T, RANK):
            some = first + ranks < 2 * T
            left = tl.load(
                x_factor + x_at[:, None].to(tl.int64) * (2 * T) + first + ranks[None, :],
                mask=(x_at < X)[:, None] & some[None, :], other=0.0,
            )  # fmt: skip
            right = tl.load(
                y_factor + y_at[:, None].to(tl.int64) * (2 * T) + first + ranks[None, :],
                mask=(y_at < Y)[:, None] & some[None, :], other=0.0,
            )  # fmt: skip
            product = tl.dot(
                left, tl.trans(right), product, input_precision=FACTOR_PRECISION,
                out_dtype=sharpness.dtype,
            )  # fmt: skip
        return plan * (grad - product)
    grad = plan * grad
    for t in range(ran):
        potential = tl.load(row + 2 * t * rows + row_at, mask=in_row, other=0.0)
        peak = tl.load(peaks + t * keys + column_at, mask=in_column, other=0.0)
        own = tl.load(columns + t * keys + column_at, mask=in_column, other=0.0)
        shift = column_shift(peak, own)
        logs = (scores + along(shift, not ROWS)) + along(potential, ROWS)
        logs -= along(peak + shift, not ROWS)
        logs -= along(
            tl.load(log_totals + t * keys + column_at, mask=in_column, other=0.0), not ROWS
        )
        step = tl.load(step_grad + t * keys + column_at, mask=in_column, other=0.0)
        grad -= tl.exp(logs) * along(step, not ROWS)
        # as softmax_row(S + g): first the column, then the row potential, which cancels most of it
        logs = scores + along(own, not ROWS)
        logs += along(potential, ROWS)
        logs -= along(tl.load(rest + 2 * t * rows + row_at, mask=in_row, other=0.0), ROWS)
        slope = tl.load(row_grad + t * rows + row_at, mask=in_row, other=0.0)
        grad -= tl.exp(logs) * along(slope, ROWS)
    return grad


@kernel
def token_grad_kernel(
    query, key, value, output_grad, mask, mask_index, query_real, key_real, sharpness,
    rows, columns, delta, row_factor, column_factor, peaks, log_totals, step_grad, row_grad,
    iterations, exact, grad, n, m, T, mask_each, mask_row, mask_column, kept_each,
    ROWS: tl.constexpr, FACTORED: tl.constexpr,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, VALUES: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, VALUE_CHUNK: tl.constexpr, MASK: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr, FACTOR_PRECISION: tl.constexpr, RANK: tl.constexpr,
    BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """`dS K` of a block of queries if `ROWS`, else `dS^T Q` of keys, without sharpness."""
    X = n if ROWS else m
    Y = m if ROWS else n
    blocks = tl.cdiv(X, BLOCK_X)
    head, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    if tl.load(exact + head) != (0 if FACTORED else 1):
        return
    wide = head.to(tl.int64)
    query, key = query + wide * n * FEATURES, key + wide * m * FEATURES
    value, output_grad = value + wide * m * VALUES, output_grad + wide * n * VALUES
    rows, columns = rows + wide * (T + 1) * 2 * n, columns + wide * kept_each
    if query_real is not None:
        query_real += wide * n
    if key_real is not None:
        key_real += wide * m
    mask = mask_of(mask, mask_index, mask_each, head)
    row_factor, column_factor = row_factor + wide * 2 * T * n, column_factor + wide * 2 * T * m
    at = block * BLOCK_X + tl.arange(0, BLOCK_X)
    sharp, ran = tl.load(sharpness + head), tl.load(iterations + head)
    tile = own_tokens(query if ROWS else key, at, X, FEATURES, WIDTH, CHUNK)
    side = own_tokens(output_grad if ROWS else value, at, X, VALUES, VALUE_WIDTH, VALUE_CHUNK)
    there = load_real(query_real if ROWS else key_real, at, X)
    found = tl.zeros([BLOCK_X, WIDTH], sharp.dtype)
    for first in range(0, Y, BLOCK_Y):
        y_at = first + tl.arange(0, BLOCK_Y)
        slope = score_grad_tile(
            tile, key if ROWS else query, side, value if ROWS else output_grad, at, y_at,
            there, load_real(key_real if ROWS else query_real, y_at, Y), sharp, mask,
            mask_row if ROWS else mask_column, mask_column if ROWS else mask_row,
            rows, rows + n, columns, delta + wide * n,
            row_factor if ROWS else column_factor, column_factor if ROWS else row_factor,
            peaks + wide * kept_each, log_totals + wide * T * m, step_grad + wide * T * m,
            row_grad + wide * T * n, X, Y, n, m, T, ran, at if ROWS else y_at, y_at if ROWS else at,
            ROWS, FACTORED, FEATURES, WIDTH, CHUNK, VALUES, VALUE_WIDTH, VALUE_CHUNK, MASK, DOT,
            PRECISION, FACTOR_PRECISION, RANK,
        )  # fmt: skip
        others = load_tokens(key if ROWS else query, y_at, Y, FEATURES, WIDTH)
        found = tl.dot(
            rounded(slope, PRECISION), others.to(sharp.dtype), found, input_precision=PRECISION,
            out_dtype=sharp.dtype,
        )  # fmt: skip
    features = tl.arange(0, WIDTH)
    place = grad + wide * X * FEATURES + at[:, None] * FEATURES + features[None, :]
    tl.store(place, found, mask=(at < X)[:, None] & (features < FEATURES)[None, :])


@kernel
def bias_grad_kernel(
    query, key, value, output_grad, mask, query_real, key_real, sharpness,
    rows, columns, delta, row_factor, column_factor, peaks, log_totals, step_grad, row_grad,
    iterations, exact, heads, first_heads, grad, n, m, T, mask_each, mask_row, mask_column,
    kept_each,
    grad_rows, grad_columns,
    FACTORED: tl.constexpr,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, VALUES: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, VALUE_CHUNK: tl.constexpr, MASK: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr, FACTOR_PRECISION: tl.constexpr, RANK: tl.constexpr,
    BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """The gradient of one tile of a mask, over the heads, rows and columns that share its numbers.

    A program owns its entries of the gradient, so nothing is added twice or in another order. What
    `FACTORED` leaves out for heads that are exact, the second launch adds.
    """
    shared_rows, shared_columns = grad_rows == 1, grad_columns == 1
    down = tl.where(shared_rows, 1, tl.cdiv(n, BLOCK_X))
    across = tl.where(shared_columns, 1, tl.cdiv(m, BLOCK_Y))
    which, tile = tl.program_id(0) // (down * across), tl.program_id(0) % (down * across)
    first_row, first_column = tile // across * BLOCK_X, tile % across * BLOCK_Y
    mask += which.to(tl.int64) * mask_each
    grad += which.to(tl.int64) * grad_rows * grad_columns
    kind = grad.dtype.element_ty
    found = tl.zeros([BLOCK_X, BLOCK_Y], kind)
    for place in range(tl.load(first_heads + which), tl.load(first_heads + which + 1)):
        head = tl.load(heads + place)
        if tl.load(exact + head) == (0 if FACTORED else 1):
            wide = head.to(tl.int64)
            sharp, ran = tl.load(sharpness + head), tl.load(iterations + head)
            last_row = tl.where(shared_rows, n, first_row + 1)
            last_column = tl.where(shared_columns, m, first_column + 1)
            for row_place in range(first_row, last_row, BLOCK_X):
                row_at = row_place + tl.arange(0, BLOCK_X)
                x = own_tokens(query + wide * n * FEATURES, row_at, n, FEATURES, WIDTH, CHUNK)
                side = own_tokens(
                    output_grad + wide * n * VALUES, row_at, n, VALUES, VALUE_WIDTH, VALUE_CHUNK
                )  # fmt: skip
                x_real = row_at < n
                if query_real is not None:
                    x_real = load_real(query_real + wide * n, row_at, n)
                for column_place in range(first_column, last_column, BLOCK_Y):
                    column_at = column_place + tl.arange(0, BLOCK_Y)
                    y_real = column_at < m
                    if key_real is not None:
                        y_real = load_real(key_real + wide * m, column_at, m)
                    found += score_grad_tile(
                        x, key + wide * m * FEATURES, side, value + wide * m * VALUES, row_at,
                        column_at, x_real, y_real, sharp, mask, mask_row, mask_column,
                        rows + wide * (T + 1) * 2 * n, rows + wide * (T + 1) * 2 * n + n,
                        columns + wide * kept_each, delta + wide * n,
                        row_factor + wide * 2 * T * n, column_factor + wide * 2 * T * m,
                        peaks + wide * kept_each, log_totals + wide * T * m,
                        step_grad + wide * T * m,
                        row_grad + wide * T * n, n, m, n, m, T, ran, row_at, column_at, True,
                        FACTORED, FEATURES, WIDTH, CHUNK, VALUES, VALUE_WIDTH, VALUE_CHUNK, MASK,
                        DOT, PRECISION, FACTOR_PRECISION, RANK,
                    )  # fmt: skip
    # tiles of entries that are shared meet in their first row or column
    row_at, column_at = first_row + tl.arange(0, BLOCK_X), first_column + tl.arange(0, BLOCK_Y)
    if shared_rows:
        found = tl.where((row_at == 0)[:, None], tl.sum(found, 0)[None, :], 0.0)
    if shared_columns:
        found = tl.where((column_at == 0)[None, :], tl.sum(found, 1)[:, None], 0.0)
    inside = (row_at < grad_rows)[:, None] & (column_at < grad_columns)[None, :]
    place = grad + row_at[:, None].to(tl.int64) * grad_columns + column_at[None, :]
    if not FACTORED:
        found += tl.load(place, mask=inside, other=0.0)
    tl.store(place, found, mask=inside)
