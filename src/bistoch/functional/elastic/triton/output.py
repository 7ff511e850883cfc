# mypy: ignore-errors
"""The last row step and the plan applied to the values, in one pass: `O = softmax_row(S + g) V`."""

import triton.language as tl

from bistoch.functional.elastic.triton.scores import (
    LOWEST,
    load_real,
    load_tokens,
    mask_of,
    own_tokens,
    score_tile,
)
from bistoch.functional.kernels.jit import kernel, rounded


@kernel
def output_kernel(
    query, key, value, mask, mask_index, query_real, key_real, sharpness, column, log_row_mass,
    output, row, weighed, rest, n, m, mask_each, mask_row, mask_column, row_each,
    column_each,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, VALUES: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, MASK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """Output and row potential of a block of queries; zeros and minus infinity if they see no key.

    `weighed` and `rest` are as in `row_step_kernel`.
    """
    blocks = tl.cdiv(n, BLOCK_X)
    head, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
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
    sharp = tl.load(sharpness + head)
    peak, total = tl.full([BLOCK_X], LOWEST, sharp.dtype), tl.zeros([BLOCK_X], sharp.dtype)
    result, given = tl.zeros([BLOCK_X, VALUE_WIDTH], sharp.dtype), tl.zeros([BLOCK_X], sharp.dtype)
    for first in range(0, m, BLOCK_Y):
        key_at = first + tl.arange(0, BLOCK_Y)
        logs = score_tile(
            tile, key, at, key_at, there, load_real(key_real, key_at, m), n, m, sharp, mask,
            mask_row, mask_column, FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION,
        )  # fmt: skip
        logs += tl.load(column + wide * column_each + key_at, mask=key_at < m, other=0.0)[None, :]
        higher = tl.maximum(peak, tl.max(logs, 1))
        shrink, weights = tl.exp(peak - higher), tl.exp(logs - higher[:, None])
        total = total * shrink + tl.sum(weights, 1)
        peak = higher
        if VALUES > 0:
            values = load_tokens(value + wide * m * VALUES, key_at, m, VALUES, VALUE_WIDTH)
            weights = rounded(weights, PRECISION)
            given = given * shrink + tl.sum(weights, 1)
            result = tl.dot(
                weights, values, result * shrink[:, None], input_precision=PRECISION,
                out_dtype=sharp.dtype,
            )  # fmt: skip
    alive = total > 0
    total = tl.where(alive, total, 1.0)
    log_total = tl.log(total)
    found = -(peak + log_total)
    inside = at < n
    tl.store(row + wide * n + at, tl.where(alive, found, float("-inf")), mask=inside)
    found = tl.where(alive, found, 0.0)
    if log_row_mass is not None:
        found += tl.load(log_row_mass + wide * n + at, mask=inside, other=0.0)
    lost = tl.where(alive, (found + peak) + log_total, 0.0)
    tl.store(weighed + wide * row_each + at, found, mask=inside)
    tl.store(rest + wide * row_each + at, lost, mask=inside)
    if VALUES > 0:
        features = tl.arange(0, VALUE_WIDTH)
        place = output + wide * n * VALUES + at[:, None] * VALUES + features[None, :]
        # a mean of values also if weights were rounded
        result = result / tl.where(alive, given, 1.0)[:, None]
        tl.store(place, result, mask=inside[:, None] & (features < VALUES)[None, :])
