# mypy: ignore-errors
"""A whole sequence in one launch: every program owns a head and goes through it block by block.

    f_i  = -LSE_j (S_ij + g_j),   P_ij = exp(S_ij + f_i + g_j)          rows of a block, and O = P V
    k_j += sum_i exp(S_ij + f_i),   H_j += sum_i (1 / keys that i sees)  keys, when it ends

Rows are a walk over keys as in flash attention, the update of the account is a walk over rows with
the factors that these got. Tiles of scores are made again for it; nothing n x n is in memory. The
torch version is `causal/streaming.py`, the specification `causal/reference.py`.
"""

import triton
import triton.language as tl

from bistoch.functional.causal.triton.account import (
    bias_of,
    level_of,
    load_account,
    pair_tile,
    receive,
)
from bistoch.functional.elastic.triton.scores import (
    LOWEST,
    NONE,
    load_tokens,
    mask_of,
    own_tokens,
)
from bistoch.functional.kernels.jit import kernel, rounded


@triton.jit
def give_tile(
    tile, query, key_at, there, bias, shift, factor, share, first, last, n, sharpness, mask,
    mask_row, mask_column, FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
    MASK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """What the rows from `first` to `last` give to a tile of keys, and what would be fair."""
    sums = tl.zeros([key_at.shape[0]], sharpness.dtype)
    fair = tl.zeros([key_at.shape[0]], sharpness.dtype)
    for top in range(first, last, BLOCK_Y):
        row_at = top + tl.arange(0, BLOCK_Y)
        inside = row_at < last
        logs = pair_tile(
            tile, query, key_at, row_at, there, inside, n, n, 0, sharpness, mask, mask_column,
            mask_row, False, FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION,
        )  # fmt: skip
        if MASK == NONE:
            part = 1.0 / (row_at + 1).to(sharpness.dtype)
        else:
            part = tl.load(share + row_at, mask=inside, other=0.0)
        fair += tl.sum(tl.where(logs > float("-inf"), part[None, :], 0.0), 1)
        logs += bias[:, None]
        logs -= tl.load(shift + row_at, mask=inside, other=0.0)[None, :]
        rows = tl.load(factor + row_at, mask=inside, other=0.0)
        sums += tl.sum(tl.exp(logs) * rows[None, :], 1)
    return sums, fair


@kernel
def attend_kernel(
    query, key, value, mask, mask_index, lengths, sharpness, lam, prior, accounts, history, levels,
    output, shift, factor, share, n, block, every, mask_each, mask_row, mask_column, history_each,
    levels_each,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, VALUES: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, MASK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    LEAST: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """The rows of a head; rows are `exp(S + g - shift) * factor`, and see 1 / `share` keys.

    Before every block whose number is a multiple of `every` its account goes into the history.
    """
    head = tl.program_id(0)
    wide = head.to(tl.int64)
    query, key, value = (
        query + wide * n * FEATURES, key + wide * n * FEATURES, value + wide * n * VALUES,
    )  # fmt: skip
    accounts, output = accounts + wide * 4 * n, output + wide * n * VALUES
    shift, factor, share = shift + wide * n, factor + wide * n, share + wide * n
    mask = mask_of(mask, mask_index, mask_each, head)
    length = n
    if lengths is not None:
        length = tl.load(lengths + head).to(tl.int32)
    sharp, elastic, owed = tl.load(sharpness + head), tl.load(lam + head), tl.load(prior)
    features = tl.arange(0, VALUE_WIDTH)
    for number in range(0, tl.cdiv(length, block)):
        first = number * block
        last = tl.minimum(first + block, length)
        # one is read while the other is written: no thread waits for another within a loop
        account, after = accounts + number % 2 * 2 * n, accounts + (number + 1) % 2 * 2 * n
        level, _ = level_of(account, first, block, n, VECTOR)
        # keys that are to come may be held back, but not favoured before a row has looked at them
        level = tl.where(number > 0, tl.minimum(level, 0.0), 0.0)
        tl.store(levels + wide * levels_each + number, level)
        for top in range(first, last, BLOCK_X):
            at = top + tl.arange(0, BLOCK_X)
            inside = at < last
            tile = own_tokens(query, at, n, FEATURES, WIDTH, CHUNK)
            peak, total = tl.full([BLOCK_X], LOWEST, sharp.dtype), tl.zeros([BLOCK_X], sharp.dtype)
            seen = tl.zeros([BLOCK_X], sharp.dtype)
            result = tl.zeros([BLOCK_X, VALUE_WIDTH], sharp.dtype)
            given = tl.zeros([BLOCK_X], sharp.dtype)
            for left in range(0, tl.minimum(top + BLOCK_X, last), BLOCK_Y):
                key_at = left + tl.arange(0, BLOCK_Y)
                logs = pair_tile(
                    tile, key, at, key_at, inside, key_at < last, n, n, 0, sharp, mask, mask_row,
                    mask_column, True, FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION,
                )  # fmt: skip
                if MASK != NONE:
                    seen += tl.sum(tl.where(logs > float("-inf"), 1.0, 0.0).to(sharp.dtype), 1)
                received, wanted = load_account(account, key_at, first, n, level, owed)
                logs += bias_of(received, wanted, elastic)[None, :]
                higher = tl.maximum(peak, tl.max(logs, 1))
                shrink, weights = tl.exp(peak - higher), tl.exp(logs - higher[:, None])
                total = total * shrink + tl.sum(weights, 1)
                peak = higher
                if VALUES > 0:
                    values = load_tokens(value, key_at, n, VALUES, VALUE_WIDTH)
                    weights = rounded(weights, PRECISION)
                    given = given * shrink + tl.sum(weights, 1)
                    result = tl.dot(
                        weights, values.to(sharp.dtype), result * shrink[:, None],
                        input_precision=PRECISION, out_dtype=sharp.dtype,
                    )  # fmt: skip
            alive = total > 0
            rest = tl.where(alive, 1.0 / tl.where(alive, total, 1.0), 0.0)
            tl.store(shift + at, tl.where(alive, peak, 0.0), mask=inside)
            tl.store(factor + at, rest, mask=inside)
            if MASK != NONE:
                tl.store(share + at, 1.0 / tl.maximum(seen, 1.0), mask=inside)
            if VALUES > 0:
                place = output + at[:, None] * VALUES + features[None, :]
                some = inside[:, None] & (features < VALUES)[None, :]
                # a mean of values also if weights were rounded
                rest = tl.where(alive, 1.0 / tl.where(alive, given, 1.0), 0.0)
                tl.store(place, result * rest[:, None], mask=some)
        if last < length:
            # what rows wrote is read by other threads of the program
            tl.debug_barrier()
            for left in range(0, last, BLOCK_X):
                at = left + tl.arange(0, BLOCK_X)
                inside = at < last
                received, wanted = load_account(account, at, first, n, level, owed)
                bias = bias_of(received, wanted, elastic)
                sums, fair = give_tile(
                    own_tokens(key, at, n, FEATURES, WIDTH, CHUNK), query, at, inside, bias, shift,
                    factor, share, first, last, n, sharp, mask, mask_row, mask_column, FEATURES,
                    WIDTH, CHUNK, MASK, DOT, PRECISION, BLOCK_Y,
                )  # fmt: skip
                received, wanted = receive(received, sums, bias, LEAST), wanted + fair
                tl.store(after + at, received, mask=inside)
                tl.store(after + n + at, wanted, mask=inside)
                if history is not None:
                    if (number + 1) % every == 0:
                        slot = history + wide * history_each + (number + 1) // every * 2 * n
                        tl.store(slot + at, received, mask=inside)
                        tl.store(slot + n + at, wanted, mask=inside)
            tl.debug_barrier()
    # padding gives nothing and gets zeros
    for top in range(length, n, BLOCK_X):
        at = top + tl.arange(0, BLOCK_X)
        zero = tl.zeros([BLOCK_X], sharp.dtype)
        tl.store(shift + at, zero, mask=at < n)
        tl.store(factor + at, zero, mask=at < n)
        if VALUES > 0:
            place = output + at[:, None] * VALUES + features[None, :]
            some = (at < n)[:, None] & (features < VALUES)[None, :]
            tl.store(place, tl.zeros([BLOCK_X, VALUE_WIDTH], sharp.dtype), mask=some)
