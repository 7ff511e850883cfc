# mypy: ignore-errors
"""Gradients of the vectors, one pass of tiles for each of the two steps of an iteration.

    C = exp(S + f - LSE_i(S + f)),   df = -C dh
    R = softmax_row(S + g),          dg <- (1 - omega) dg - R^T df

`elastic/gradient.py` is the torch version of the same passes; docs/gradient.md derives them.
"""

import triton
import triton.language as tl

from bistoch.functional.elastic.triton.scores import load_real, mask_of, own_tokens, score_tile
from bistoch.functional.kernels.jit import kernel


@triton.jit
def weighted_sum(
    x, y, x_at, x_real, y_real, sharpness, mask, mask_x, mask_y, added, first_taken, then_taken,
    weights, X, Y, NEGATED: tl.constexpr,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, MASK: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """`sum over y of exp(S + added_x - first_y - then_y) * weight_y`; each difference is exact."""
    result = tl.zeros([x_at.shape[0]], sharpness.dtype)
    for first in range(0, Y, BLOCK_Y):
        y_at = first + tl.arange(0, BLOCK_Y)
        inside = y_at < Y
        logs = score_tile(
            x, y, x_at, y_at, x_real, load_real(y_real, y_at, Y), X, Y, sharpness, mask, mask_x,
            mask_y, FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION,
        )  # fmt: skip
        taken = tl.load(first_taken + y_at, mask=inside, other=0.0)
        logs += added[:, None]
        logs -= tl.where(NEGATED, -taken, taken)[None, :]
        logs -= tl.load(then_taken + y_at, mask=inside, other=0.0)[None, :]
        weight = tl.load(weights + y_at, mask=inside, other=0.0)
        result += tl.sum(tl.exp(logs) * weight[None, :], 1)
    return result


@kernel
def row_grad_kernel(
    query, key, mask, mask_index, query_real, key_real, sharpness, row, peaks, log_totals,
    column_grad, lam, omega, iterations, row_grad, n, m, t, mask_each, mask_row, mask_column,
    row_each, peaks_each, log_totals_each, vector_each, omega_each, grad_each,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, MASK: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """`df = -C dh` with `dh = omega lam dg`, for a block of queries."""
    blocks = tl.cdiv(n, BLOCK_X)
    head, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    wide = head.to(tl.int64)
    at = block * BLOCK_X + tl.arange(0, BLOCK_X)
    inside = at < n
    sharp = tl.load(sharpness + head)
    if t >= tl.load(iterations + head):
        tl.store(row_grad + wide * grad_each + at, tl.zeros([BLOCK_X], sharp.dtype), mask=inside)
        return
    query, key = query + wide * n * FEATURES, key + wide * m * FEATURES
    if query_real is not None:
        query_real += wide * n
    if key_real is not None:
        key_real += wide * m
    mask = mask_of(mask, mask_index, mask_each, head)
    found = weighted_sum(
        own_tokens(query, at, n, FEATURES, WIDTH, CHUNK), key, at, load_real(query_real, at, n),
        key_real,
        sharp, mask, mask_row, mask_column,
        tl.load(row + wide * row_each + at, mask=inside, other=0.0), peaks + wide * peaks_each,
        log_totals + wide * log_totals_each, column_grad + wide * vector_each, n, m, False,
        FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION, BLOCK_Y,
    )  # fmt: skip
    step = tl.load(omega + wide * omega_each) * tl.load(lam + head)
    tl.store(row_grad + wide * grad_each + at, -step * found, mask=inside)


@kernel
def column_grad_kernel(
    query, key, mask, mask_index, query_real, key_real, sharpness, row, rest, column, column_grad,
    row_grad, omega, iterations, earlier_grad, n, m, t, mask_each, mask_row, mask_column, row_each,
    vector_each, omega_each, grad_each, column_each,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, MASK: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """`dg <- (1 - omega) dg - R^T df`, for a block of keys."""
    blocks = tl.cdiv(m, BLOCK_X)
    head, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    wide = head.to(tl.int64)
    at = block * BLOCK_X + tl.arange(0, BLOCK_X)
    inside = at < m
    later = tl.load(column_grad + wide * vector_each + at, mask=inside, other=0.0)
    if t >= tl.load(iterations + head):
        tl.store(earlier_grad + wide * vector_each + at, later, mask=inside)
        return
    query, key = query + wide * n * FEATURES, key + wide * m * FEATURES
    if query_real is not None:
        query_real += wide * n
    if key_real is not None:
        key_real += wide * m
    mask = mask_of(mask, mask_index, mask_each, head)
    found = weighted_sum(
        own_tokens(key, at, m, FEATURES, WIDTH, CHUNK), query, at, load_real(key_real, at, m),
        query_real,
        tl.load(sharpness + head), mask, mask_column, mask_row,
        tl.load(column + wide * column_each + at, mask=inside, other=0.0), row + wide * row_each,
        rest + wide * row_each, row_grad + wide * grad_each, m, n, True,
        FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION, BLOCK_Y,
    )  # fmt: skip
    later = (1.0 - tl.load(omega + wide * omega_each)) * later - found
    tl.store(earlier_grad + wide * vector_each + at, later, mask=inside)
