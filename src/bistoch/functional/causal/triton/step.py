# mypy: ignore-errors
"""A step of decoding: a few rows with all cached keys, in three launches of any length of cache.

Keys are split over programs, each with its own peak, total and result for the rows; the second
launch puts these together and brings the account of the keys up to date, the third sets the bias of
sequences whose block ends. No program waits for another, and nothing is added in another order.
The torch version is `streaming.run` for one piece.
"""

import triton
import triton.language as tl

from bistoch.functional.causal.triton.account import pair_tile, receive
from bistoch.functional.elastic.triton.scores import (
    LOWEST,
    load_real,
    load_tokens,
    mask_of,
    own_tokens,
)
from bistoch.functional.kernels.jit import kernel, rounded


@kernel
def step_rows_kernel(
    query, key, value, mask, mask_index, real, sharpness, bias, peaks, totals, counts, results,
    n, m, first, last, part, splits, mask_each, mask_row, mask_column,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, VALUES: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, MASK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """Peak, total, count and result of rows from `first` to `last` over one part of the keys."""
    rows = last - first
    split = tl.program_id(0) % splits
    tiles = tl.cdiv(rows, BLOCK_X)
    tile_number, head = tl.program_id(0) // splits % tiles, tl.program_id(0) // splits // tiles
    wide = head.to(tl.int64)
    query, key = query + wide * n * FEATURES, key + wide * m * FEATURES
    value, bias = value + wide * m * VALUES, bias + wide * m
    if real is not None:
        real += wide * m
    mask = mask_of(mask, mask_index, mask_each, head)
    sharp, earlier = tl.load(sharpness + head), m - n
    place = tile_number * BLOCK_X + tl.arange(0, BLOCK_X)
    at, inside = first + place, place < rows
    there = inside
    if real is not None:
        there = inside & load_real(real, earlier + at, m)
    tile = own_tokens(query, at, n, FEATURES, WIDTH, CHUNK)
    peak, total = tl.full([BLOCK_X], LOWEST, sharp.dtype), tl.zeros([BLOCK_X], sharp.dtype)
    seen = tl.zeros([BLOCK_X], sharp.dtype)
    result = tl.zeros([BLOCK_X, VALUE_WIDTH], sharp.dtype)
    given = tl.zeros([BLOCK_X], sharp.dtype)
    stop = earlier + last
    for left in range(split * part, tl.minimum((split + 1) * part, stop), BLOCK_Y):
        key_at = left + tl.arange(0, BLOCK_Y)
        logs = pair_tile(
            tile, key, at, key_at, there, load_real(real, key_at, stop), n, m, earlier, sharp,
            mask, mask_row, mask_column, True, FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION,
        )  # fmt: skip
        seen += tl.sum(tl.where(logs > float("-inf"), 1.0, 0.0).to(sharp.dtype), 1)
        logs += tl.load(bias + key_at, mask=key_at < stop, other=0.0)[None, :]
        higher = tl.maximum(peak, tl.max(logs, 1))
        shrink, weights = tl.exp(peak - higher), tl.exp(logs - higher[:, None])
        total = total * shrink + tl.sum(weights, 1)
        peak = higher
        if VALUES > 0:
            values = load_tokens(value, key_at, stop, VALUES, VALUE_WIDTH)
            weights = rounded(weights, PRECISION)
            given = given * shrink + tl.sum(weights, 1)
            result = tl.dot(
                weights, values.to(sharp.dtype), result * shrink[:, None],
                input_precision=PRECISION, out_dtype=sharp.dtype,
            )  # fmt: skip
    own = (wide * splits + split) * rows + place
    tl.store(peaks + own, peak, mask=inside)
    tl.store(totals + own, total, mask=inside)
    tl.store(counts + own, seen, mask=inside)
    if VALUES > 0:
        features = tl.arange(0, VALUE_WIDTH)
        some = inside[:, None] & (features < VALUES)[None, :]
        # a mean of values also if weights were rounded, times the total that the next launch takes
        result *= (total / tl.where(given > 0, given, 1.0))[:, None]
        tl.store(results + own[:, None] * VALUES + features[None, :], result, mask=some)


@triton.jit
def put_together(peaks, totals, counts, place, inside, rows, splits, SPLITS: tl.constexpr):
    """Peak, total and count of some rows over all parts of the keys."""
    parts = tl.arange(0, SPLITS)
    at = parts[:, None] * rows + place[None, :]
    known = (parts < splits)[:, None] & inside[None, :]
    each = tl.load(peaks + at, mask=known, other=LOWEST)
    peak = tl.max(each, 0)
    total = tl.sum(tl.load(totals + at, mask=known, other=0.0) * tl.exp(each - peak[None, :]), 0)
    return peak, total, tl.sum(tl.load(counts + at, mask=known, other=0.0), 0)


@kernel
def step_keys_kernel(
    query, key, mask, mask_index, real, sharpness, bias, received, wanted, peaks, totals, counts,
    results, found_rows, new_bias, new_received, new_wanted,
    n, m, first, last, splits, output_each, mask_each, mask_row, mask_column,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, VALUES: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, MASK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    LEAST: tl.constexpr, SPLITS: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """The account of a tile of keys after the rows; programs behind these write the rows."""
    rows, tiles = last - first, tl.cdiv(m, BLOCK_Y)
    each = tiles + tl.cdiv(rows, BLOCK_X)
    head, number = tl.program_id(0) // each, tl.program_id(0) % each
    wide = head.to(tl.int64)
    behind = wide * splits * rows
    peaks, totals, counts = peaks + behind, totals + behind, counts + behind
    if number >= tiles:
        place = (number - tiles) * BLOCK_X + tl.arange(0, BLOCK_X)
        inside, features = place < rows, tl.arange(0, VALUE_WIDTH)
        peak, total, _ = put_together(peaks, totals, counts, place, inside, rows, splits, SPLITS)
        some = inside[:, None] & (features < VALUES)[None, :]
        found = tl.zeros([BLOCK_X, VALUE_WIDTH], total.dtype)
        for split in range(0, splits):
            own = split * rows + place
            weight = tl.exp(tl.load(peaks + own, mask=inside, other=LOWEST) - peak)
            part = results + (behind + own)[:, None] * VALUES + features[None, :]
            found += weight[:, None] * tl.load(part, mask=some, other=0.0)
        alive = total > 0
        found *= tl.where(alive, 1.0 / tl.where(alive, total, 1.0), 0.0)[:, None]
        own = found_rows + wide * output_each + place[:, None] * VALUES + features[None, :]
        tl.store(own, found, mask=some)
        return
    earlier = m - n
    stop = earlier + last
    at = number * BLOCK_Y + tl.arange(0, BLOCK_Y)
    inside = at < m
    query, key = query + wide * n * FEATURES, key + wide * m * FEATURES
    own = wide * m + at
    lowered = tl.load(bias + own, mask=inside, other=0.0)
    before = tl.load(received + own, mask=inside, other=0.0)
    owed = tl.load(wanted + own, mask=inside, other=0.0)
    sharp = tl.load(sharpness + head)
    if real is not None:
        real += wide * m
    mask = mask_of(mask, mask_index, mask_each, head)
    there = load_real(real, at, stop)
    tile = own_tokens(key, at, m, FEATURES, WIDTH, CHUNK)
    sums, fair = tl.zeros([BLOCK_Y], sharp.dtype), tl.zeros([BLOCK_Y], sharp.dtype)
    for top in range(0, tl.where(number * BLOCK_Y < stop, rows, 0), BLOCK_X):
        place = top + tl.arange(0, BLOCK_X)
        some = place < rows
        peak, total, seen = put_together(peaks, totals, counts, place, some, rows, splits, SPLITS)
        if real is not None:
            some = some & load_real(real, earlier + first + place, m)
        logs = pair_tile(
            tile, query, at, first + place, there, some, m, n, earlier, sharp, mask, mask_column,
            mask_row, False, FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION,
        )  # fmt: skip
        part = 1.0 / tl.maximum(seen, 1.0)
        fair += tl.sum(tl.where(logs > float("-inf"), part[None, :], 0.0), 1)
        alive = total > 0
        factor = tl.where(alive, 1.0 / tl.where(alive, total, 1.0), 0.0)
        logs += lowered[:, None]
        logs -= tl.where(alive, peak, 0.0)[None, :]
        sums += tl.sum(tl.exp(logs) * factor[None, :], 1)
    tl.store(new_bias + own, lowered, mask=inside)
    tl.store(new_received + own, receive(before, sums, lowered, LEAST), mask=inside)
    tl.store(new_wanted + own, owed + fair, mask=inside)


@kernel
def step_close_kernel(
    real, lam, ends, bias, received, wanted, level, m, stop, block, VECTOR: tl.constexpr
):  # fmt: skip
    """The level of new keys and the bias of all, of a sequence whose block ends with key `stop`.

    The keys of a block are its last real ones; if there is none, any key will do.
    """
    head = tl.program_id(0)
    if tl.load(ends + head) == 0:
        return
    wide = head.to(tl.int64)
    bias, received, wanted = bias + wide * m, received + wide * m, wanted + wide * m
    kind: tl.constexpr = bias.dtype.element_ty
    start, count, before = tl.maximum(stop - block, 0), 0, 0
    if real is not None:
        real += wide * m
        start = 0
        found = tl.zeros([VECTOR], tl.int32)
        for left in range(0, stop, VECTOR):
            found += load_real(real, left + tl.arange(0, VECTOR), stop).to(tl.int32)
        count = tl.sum(found, 0)
    peaks, totals = tl.full([VECTOR], LOWEST, kind), tl.zeros([VECTOR], kind)
    fair = tl.zeros([VECTOR], kind)
    for left in range(start, stop, VECTOR):
        at = left + tl.arange(0, VECTOR)
        own = at < stop
        if real is not None:
            there = load_real(real, at, stop)
            place = before + tl.cumsum(there.to(tl.int32), 0)
            before += tl.sum(there.to(tl.int32), 0)
            # behind all, where there is no token; in front of the block, where there are others
            place = tl.where(there, place, tl.where(count > 0, count - block, 1))
            own = own & (place > count - block)
        gained = tl.load(received + at, mask=own, other=LOWEST)
        higher = tl.maximum(peaks, gained)
        totals = totals * tl.exp(peaks - higher) + tl.where(own, tl.exp(gained - higher), 0.0)
        peaks = higher
        fair += tl.load(wanted + at, mask=own, other=0.0)
    peak = tl.max(peaks, 0)
    together = peak + tl.log(tl.sum(totals * tl.exp(peaks - peak), 0))
    new_level = tl.minimum(tl.log(tl.sum(fair, 0)) - together, 0.0)
    elastic = tl.load(lam + head)
    tl.store(level + head, new_level)
    tl.debug_barrier()
    for left in range(0, m, VECTOR):
        at = left + tl.arange(0, VECTOR)
        owed = tl.log(tl.load(wanted + at, mask=at < m, other=1.0))
        gained = tl.load(received + at, mask=at < stop, other=0.0)
        # keys that are to come begin at the level
        gained = tl.where(at < stop, gained, owed - new_level)
        tl.store(received + at, gained, mask=(at >= stop) & (at < m))
        tl.store(bias + at, elastic * (owed - gained), mask=at < m)
