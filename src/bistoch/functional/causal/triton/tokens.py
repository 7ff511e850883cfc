# mypy: ignore-errors
"""Gradients of tokens, values and biases of the blocks of a span, from dc and D of `vectors.py`.

    dS = P (dP + dc_j - D_i),   dQ = dS K,   dK = dS^T Q,   dV = P^T dO

Every program owns what it writes, and adds to what earlier spans left there: no atomics, so results
are the same in every run.
"""

import triton
import triton.language as tl

from bistoch.functional.causal.triton.account import bias_of, load_account, pair_tile
from bistoch.functional.elastic.triton.scores import load_tokens, mask_of, multiply, own_tokens
from bistoch.functional.elastic.triton.tokens import along
from bistoch.functional.kernels.jit import kernel, rounded


@triton.jit
def slope_tile(
    x, y, x_side, y_side, x_at, y_at, x_real, y_real, row_at, key_at, bias, dc, shift, factor, dots,
    last, n, sharpness, mask, mask_x, mask_y,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
    VALUES: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_CHUNK: tl.constexpr, MASK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of P and of dS; rows are x if `ROWS`, else y, and are all of one block."""
    logs = pair_tile(
        x, y, x_at, y_at, x_real, y_real, n, n, 0, sharpness, mask, mask_x, mask_y,
        ROWS, FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION,
    )  # fmt: skip
    inside = row_at < last
    logs += along(bias, not ROWS)
    logs -= along(tl.load(shift + row_at, mask=inside, other=0.0), ROWS)
    plan = tl.exp(logs) * along(tl.load(factor + row_at, mask=inside, other=0.0), ROWS)
    slope = tl.zeros(plan.shape, sharpness.dtype)
    if VALUES > 0:
        slope = multiply(
            x_side, y_side, x_at, y_at, n, n, sharpness.dtype, VALUES, VALUE_WIDTH, VALUE_CHUNK,
            sharpness.dtype, PRECISION,
        )  # fmt: skip
    slope += along(tl.load(dc + key_at, mask=key_at < last, other=0.0), not ROWS)
    slope -= along(tl.load(dots + row_at, mask=inside, other=0.0), ROWS)
    return plan, plan * slope


@kernel
def query_grad_kernel(
    query, key, value, output_grad, mask, mask_index, lengths, sharpness, lam, prior, accounts,
    levels, shift, factor, dots, sums_grad, grad,
    n, block, low, high, mask_each, mask_row, mask_column, accounts_each, levels_each, sums_each,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, VALUES: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, VALUE_CHUNK: tl.constexpr, MASK: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """`dS K` of a part of a block of rows, without sharpness; padding is left as it is."""
    parts = tl.cdiv(block, BLOCK_X)
    count = (high - low) * parts
    head, place = tl.program_id(0) // count, tl.program_id(0) % count
    number = low + place // parts
    wide = head.to(tl.int64)
    length = n
    if lengths is not None:
        length = tl.load(lengths + head).to(tl.int32)
    first = number * block
    last, top = tl.minimum(first + block, length), first + place % parts * BLOCK_X
    if top >= last:
        return
    query, key, value = (
        query + wide * n * FEATURES, key + wide * n * FEATURES, value + wide * n * VALUES,
    )  # fmt: skip
    output_grad = output_grad + wide * n * VALUES
    shift, factor, dots = shift + wide * n, factor + wide * n, dots + wide * n
    account = accounts + wide * accounts_each + (number - low).to(tl.int64) * 2 * n
    dc = sums_grad + wide * sums_each + (number - low).to(tl.int64) * n
    mask = mask_of(mask, mask_index, mask_each, head)
    sharp, elastic, owed = tl.load(sharpness + head), tl.load(lam + head), tl.load(prior)
    level = tl.load(levels + wide * levels_each + number)
    at = top + tl.arange(0, BLOCK_X)
    inside = at < last
    tile = own_tokens(query, at, n, FEATURES, WIDTH, CHUNK)
    side = own_tokens(output_grad, at, n, VALUES, VALUE_WIDTH, VALUE_CHUNK)
    found = tl.zeros([BLOCK_X, WIDTH], sharp.dtype)
    for left in range(0, tl.minimum(top + BLOCK_X, last), BLOCK_Y):
        key_at = left + tl.arange(0, BLOCK_Y)
        received, wanted = load_account(account, key_at, first, n, level, owed)
        _, slope = slope_tile(
            tile, key, side, value, at, key_at, inside, key_at < last, at, key_at,
            bias_of(received, wanted, elastic), dc, shift, factor, dots, last, n, sharp, mask,
            mask_row, mask_column, True, FEATURES, WIDTH, CHUNK, VALUES, VALUE_WIDTH, VALUE_CHUNK,
            MASK, DOT, PRECISION,
        )  # fmt: skip
        others = load_tokens(key, key_at, n, FEATURES, WIDTH).to(sharp.dtype)
        found = tl.dot(
            rounded(slope, PRECISION), others, found, input_precision=PRECISION,
            out_dtype=sharp.dtype,
        )  # fmt: skip
    features = tl.arange(0, WIDTH)
    place_at = grad + wide * n * FEATURES + at[:, None] * FEATURES + features[None, :]
    tl.store(place_at, found, mask=inside[:, None] & (features < FEATURES)[None, :])


@kernel
def key_grad_kernel(
    query, key, value, output_grad, mask, mask_index, lengths, sharpness, lam, prior, accounts,
    levels, shift, factor, dots, sums_grad, grad, value_grad,
    n, block, low, high, mask_each, mask_row, mask_column, accounts_each, levels_each, sums_each,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, VALUES: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, VALUE_CHUNK: tl.constexpr, MASK: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """Add `dS^T Q`, without sharpness, and `P^T dO` of a block of keys."""
    count = tl.cdiv(tl.minimum(high * block, n), BLOCK_X)
    head, left = tl.program_id(0) // count, tl.program_id(0) % count * BLOCK_X
    wide = head.to(tl.int64)
    length = n
    if lengths is not None:
        length = tl.load(lengths + head).to(tl.int32)
    query, key, value = (
        query + wide * n * FEATURES, key + wide * n * FEATURES, value + wide * n * VALUES,
    )  # fmt: skip
    output_grad = output_grad + wide * n * VALUES
    shift, factor, dots = shift + wide * n, factor + wide * n, dots + wide * n
    mask = mask_of(mask, mask_index, mask_each, head)
    sharp, elastic, owed = tl.load(sharpness + head), tl.load(lam + head), tl.load(prior)
    at = left + tl.arange(0, BLOCK_X)
    tile = own_tokens(key, at, n, FEATURES, WIDTH, CHUNK)
    side = own_tokens(value, at, n, VALUES, VALUE_WIDTH, VALUE_CHUNK)
    features, value_features = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    found = tl.zeros([BLOCK_X, WIDTH], sharp.dtype)
    values = tl.zeros([BLOCK_X, VALUE_WIDTH], sharp.dtype)
    for number in range(tl.maximum(low, left // block), tl.minimum(high, tl.cdiv(length, block))):
        first = number * block
        last = tl.minimum(first + block, length)
        level = tl.load(levels + wide * levels_each + number)
        account = accounts + wide * accounts_each + (number - low).to(tl.int64) * 2 * n
        dc = sums_grad + wide * sums_each + (number - low).to(tl.int64) * n
        received, wanted = load_account(account, at, first, n, level, owed)
        bias = bias_of(received, wanted, elastic)
        for top in range(first, last, BLOCK_Y):
            row_at = top + tl.arange(0, BLOCK_Y)
            plan, slope = slope_tile(
                tile, query, side, output_grad, at, row_at, at < last, row_at < last, row_at, at,
                bias, dc, shift, factor, dots, last, n, sharp, mask, mask_column, mask_row,
                False, FEATURES, WIDTH, CHUNK, VALUES, VALUE_WIDTH, VALUE_CHUNK, MASK, DOT,
                PRECISION,
            )  # fmt: skip
            if FEATURES > 0:
                others = load_tokens(query, row_at, n, FEATURES, WIDTH).to(sharp.dtype)
                found = tl.dot(
                    rounded(slope, PRECISION), others, found, input_precision=PRECISION,
                    out_dtype=sharp.dtype,
                )  # fmt: skip
            if VALUES > 0:
                arriving = load_tokens(output_grad, row_at, n, VALUES, VALUE_WIDTH)
                values = tl.dot(
                    rounded(plan, PRECISION), arriving.to(sharp.dtype), values,
                    input_precision=PRECISION, out_dtype=sharp.dtype,
                )  # fmt: skip
    if FEATURES > 0:
        place = grad + wide * n * FEATURES + at[:, None] * FEATURES + features[None, :]
        inside = (at < n)[:, None] & (features < FEATURES)[None, :]
        tl.store(place, found + tl.load(place, mask=inside, other=0.0), mask=inside)
    if VALUES > 0:
        place = value_grad + wide * n * VALUES + at[:, None] * VALUES + value_features[None, :]
        inside = (at < n)[:, None] & (value_features < VALUES)[None, :]
        tl.store(place, values + tl.load(place, mask=inside, other=0.0), mask=inside)
