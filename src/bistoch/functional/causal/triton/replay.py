# mypy: ignore-errors
"""Accounts that the forward did not keep, made again for the blocks of one span.

With the factors of all rows known, keys no longer depend on each other: every program owns a block
of keys and walks over the rows of the span.
"""

import triton.language as tl

from bistoch.functional.causal.triton.account import bias_of, load_account, receive
from bistoch.functional.causal.triton.attend import give_tile
from bistoch.functional.elastic.triton.scores import mask_of, own_tokens
from bistoch.functional.kernels.jit import kernel


@kernel
def replay_kernel(
    query, key, mask, mask_index, lengths, sharpness, lam, prior, start, accounts, levels, shift,
    factor, share, n, block, low, high, mask_each, mask_row, mask_column, start_each,
    accounts_each, levels_each,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, MASK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr, LEAST: tl.constexpr, BLOCK_X: tl.constexpr,
    BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """The accounts before the blocks from `low` to `high`, this included, from the first one."""
    count = tl.cdiv(tl.minimum(high * block, n), BLOCK_X)
    head, left = tl.program_id(0) // count, tl.program_id(0) % count * BLOCK_X
    wide = head.to(tl.int64)
    query, key = query + wide * n * FEATURES, key + wide * n * FEATURES
    shift, factor, share = shift + wide * n, factor + wide * n, share + wide * n
    start, accounts = start + wide * start_each, accounts + wide * accounts_each
    mask = mask_of(mask, mask_index, mask_each, head)
    length = n
    if lengths is not None:
        length = tl.load(lengths + head).to(tl.int32)
    sharp, elastic, owed = tl.load(sharpness + head), tl.load(lam + head), tl.load(prior)
    at = left + tl.arange(0, BLOCK_X)
    tile = own_tokens(key, at, n, FEATURES, WIDTH, CHUNK)
    received, wanted = load_account(start, at, low * block, n, 0.0, owed)
    known = at < low * block
    tl.store(accounts + at, received, mask=known)
    tl.store(accounts + n + at, wanted, mask=known)
    for number in range(tl.maximum(low, left // block), tl.minimum(high, tl.cdiv(length, block))):
        first = number * block
        last = tl.minimum(first + block, length)
        inside, new = at < last, (at >= first) & (at < last)
        level = tl.load(levels + wide * levels_each + number)
        received = tl.where(new, tl.log(owed) - level, received)
        wanted = tl.where(new, owed, wanted)
        bias = bias_of(received, wanted, elastic)
        sums, fair = give_tile(
            tile, query, at, inside, bias, shift, factor, share, first, last, n, sharp, mask,
            mask_row, mask_column, FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION, BLOCK_Y,
        )  # fmt: skip
        received, wanted = receive(received, sums, bias, LEAST), wanted + fair
        slot = accounts + (number + 1 - low).to(tl.int64) * 2 * n
        tl.store(slot + at, received, mask=inside)
        tl.store(slot + n + at, wanted, mask=inside)
