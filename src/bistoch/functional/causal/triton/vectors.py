# mypy: ignore-errors
"""Back through the blocks of a span in one launch: gradients of the account, head by head.

With `c_j = sum_i P_ij` the column sums of a block, r the log of what keys have received and
g = lam (log H - r) their bias,

    dc_j = dr_j exp(-g_j - r_j)                    r_j after the block; dr_j *= exp(r before - r)
    D_i  = <dO_i, O_i> + sum_j P_ij dc_j           what the softmax of a row takes off
    dg_j = sum_i P_ij (dP_ij - D_i),  dP = dO V^T  which goes to dr of the block before, by -lam

These depend on each other block by block. Gradients of tokens do not: `tokens.py` makes them from
dc and D for all blocks at once.
"""

import triton.language as tl

from bistoch.functional.causal.triton.account import bias_of, level_of, load_account, pair_tile
from bistoch.functional.elastic.triton.scores import mask_of, multiply, own_tokens
from bistoch.functional.kernels.jit import kernel


@kernel
def vectors_kernel(
    query, key, value, output_grad, mask, mask_index, lengths, sharpness, lam, prior, accounts,
    levels, shift, factor, delta, dots, sums_grad, bias_grad, received_grad, moved_grad, lam_grad,
    n, block, low, high, mask_each, mask_row, mask_column, accounts_each, levels_each, sums_each,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, VALUES: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, VALUE_CHUNK: tl.constexpr, MASK: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr, TIE: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Fill dc, and D from `delta = <dO, O>`, of the blocks from `high` down to `low`."""
    head = tl.program_id(0)
    wide = head.to(tl.int64)
    query, key, value = (
        query + wide * n * FEATURES, key + wide * n * FEATURES, value + wide * n * VALUES,
    )  # fmt: skip
    output_grad, delta, dots = output_grad + wide * n * VALUES, delta + wide * n, dots + wide * n
    shift, factor, levels = shift + wide * n, factor + wide * n, levels + wide * levels_each
    accounts, sums_grad = accounts + wide * accounts_each, sums_grad + wide * sums_each
    bias_grad, received_grad = bias_grad + wide * n, received_grad + wide * n
    moved_grad += wide * n
    mask = mask_of(mask, mask_index, mask_each, head)
    length = n
    if lengths is not None:
        length = tl.load(lengths + head).to(tl.int32)
    sharp, elastic, owed = tl.load(sharpness + head), tl.load(lam + head), tl.load(prior)
    lams = tl.zeros([VECTOR], sharp.dtype)
    blocks = tl.minimum(high, tl.cdiv(length, block))
    for back in range(0, blocks - low):
        number = blocks - 1 - back
        first = number * block
        last = tl.minimum(first + block, length)
        before, level = accounts + (number - low).to(tl.int64) * 2 * n, tl.load(levels + number)
        own = sums_grad + (number - low).to(tl.int64) * n
        if last < length:
            after = before + 2 * n
            stop, next_level = tl.minimum(last + block, length), tl.load(levels + number + 1)
            opened = tl.zeros([VECTOR], sharp.dtype)
            for left in range(0, stop, VECTOR):
                at = left + tl.arange(0, VECTOR)
                inside = at < stop
                received, wanted = load_account(after, at, last, n, next_level, owed)
                grad = tl.load(bias_grad + at, mask=inside, other=0.0)
                moved = tl.load(received_grad + at, mask=inside, other=0.0) - elastic * grad
                lams += grad * (tl.log(wanted) - received)
                opened += tl.where(at >= last, moved, 0.0)
                tl.store(moved_grad + at, moved, mask=inside)
            # keys were opened with the log of the prior minus the level
            free, together = level_of(after, last, block, n, VECTOR)
            # the slope at the kink is zero, see `problem.tie`
            handed = tl.where(free < -TIE, tl.sum(opened, 0), 0.0)
            tl.debug_barrier()
            for left in range(0, last, VECTOR):
                at = left + tl.arange(0, VECTOR)
                inside = at < last
                old, old_wanted = load_account(before, at, first, n, level, owed)
                received, _ = load_account(after, at, last, n, next_level, owed)
                moved = tl.load(moved_grad + at, mask=inside, other=0.0)
                share = tl.where(at >= first, tl.exp(received - together), 0.0)
                moved += handed * share
                bias = bias_of(old, old_wanted, elastic)
                tl.store(own + at, moved * tl.exp(-bias - received), mask=inside)
                tl.store(received_grad + at, moved * tl.exp(old - received), mask=inside)
            tl.debug_barrier()
            for top in range(first, last, BLOCK_X):
                at = top + tl.arange(0, BLOCK_X)
                inside = at < last
                tile = own_tokens(query, at, n, FEATURES, WIDTH, CHUNK)
                found = tl.zeros([BLOCK_X], sharp.dtype)
                lowered = tl.load(shift + at, mask=inside, other=0.0)
                for left in range(0, tl.minimum(top + BLOCK_X, last), BLOCK_Y):
                    key_at = left + tl.arange(0, BLOCK_Y)
                    logs = pair_tile(
                        tile, key, at, key_at, inside, key_at < last, n, n, 0, sharp, mask,
                        mask_row, mask_column, True, FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION,
                    )  # fmt: skip
                    received, wanted = load_account(before, key_at, first, n, level, owed)
                    logs += bias_of(received, wanted, elastic)[None, :]
                    logs -= lowered[:, None]
                    weight = tl.load(own + key_at, mask=key_at < last, other=0.0)
                    found += tl.sum(tl.exp(logs) * weight[None, :], 1)
                found *= tl.load(factor + at, mask=inside, other=0.0)
                found += tl.load(delta + at, mask=inside, other=0.0)
                tl.store(dots + at, found, mask=inside)
        else:
            for left in range(0, last, VECTOR):
                at = left + tl.arange(0, VECTOR)
                tl.store(own + at, tl.zeros([VECTOR], sharp.dtype), mask=at < last)
            for top in range(first, last, VECTOR):
                at = top + tl.arange(0, VECTOR)
                found = tl.load(delta + at, mask=at < last, other=0.0)
                tl.store(dots + at, found, mask=at < last)
        tl.debug_barrier()
        if number > 0:
            for left in range(0, last, BLOCK_X):
                at = left + tl.arange(0, BLOCK_X)
                inside = at < last
                tile = own_tokens(key, at, n, FEATURES, WIDTH, CHUNK)
                values = own_tokens(value, at, n, VALUES, VALUE_WIDTH, VALUE_CHUNK)
                received, wanted = load_account(before, at, first, n, level, owed)
                bias = bias_of(received, wanted, elastic)
                found = tl.zeros([BLOCK_X], sharp.dtype)
                for top in range(first, last, BLOCK_Y):
                    row_at = top + tl.arange(0, BLOCK_Y)
                    some = row_at < last
                    logs = pair_tile(
                        tile, query, at, row_at, inside, some, n, n, 0, sharp, mask, mask_column,
                        mask_row, False, FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION,
                    )  # fmt: skip
                    logs += bias[:, None]
                    logs -= tl.load(shift + row_at, mask=some, other=0.0)[None, :]
                    plan = tl.exp(logs) * tl.load(factor + row_at, mask=some, other=0.0)[None, :]
                    slope = tl.zeros([BLOCK_X, BLOCK_Y], sharp.dtype)
                    if VALUES > 0:
                        slope = multiply(
                            values, output_grad, at, row_at, n, n, sharp.dtype, VALUES,
                            VALUE_WIDTH, VALUE_CHUNK, sharp.dtype, PRECISION,
                        )  # fmt: skip
                    slope -= tl.load(dots + row_at, mask=some, other=0.0)[None, :]
                    found += tl.sum(plan * slope, 1)
                tl.store(bias_grad + at, found, mask=inside)
            tl.debug_barrier()
    lams = tl.sum(lams, 0) + tl.load(lam_grad + head)
    tl.debug_barrier()
    tl.store(lam_grad + head, lams)
