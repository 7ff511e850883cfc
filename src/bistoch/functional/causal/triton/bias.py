# mypy: ignore-errors
"""The gradient of a float mask, which heads, rows or keys may share."""

import triton.language as tl

from bistoch.functional.causal.triton.account import bias_of, load_account
from bistoch.functional.causal.triton.tokens import slope_tile
from bistoch.functional.elastic.triton.scores import own_tokens
from bistoch.functional.kernels.jit import kernel


@kernel
def bias_grad_kernel(
    query, key, value, output_grad, mask, lengths, sharpness, lam, prior, accounts, levels, shift,
    factor, dots, sums_grad, heads, first_heads, grad,
    n, block, low, high, mask_each, mask_row, mask_column, accounts_each, levels_each, sums_each,
    grad_rows, grad_columns,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, VALUES: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, VALUE_CHUNK: tl.constexpr, MASK: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """Add dS of the blocks from `low` to `high` to one tile of a mask, over all that share it.

    A program owns its entries of the gradient, so nothing is added twice or in another order.
    """
    shared_rows, shared_columns = grad_rows == 1, grad_columns == 1
    parts = tl.cdiv(block, BLOCK_X)
    down = tl.where(shared_rows, 1, (high - low) * parts)
    across = tl.where(shared_columns, 1, tl.cdiv(n, BLOCK_Y))
    which, tile = tl.program_id(0) // (down * across), tl.program_id(0) % (down * across)
    # the part of a block that this tile is, or the first of all
    own_part, first_key = tile // across, tile % across * BLOCK_Y
    mask += which.to(tl.int64) * mask_each
    grad += which.to(tl.int64) * grad_rows * grad_columns
    kind = grad.dtype.element_ty
    found = tl.zeros([BLOCK_X, BLOCK_Y], kind)
    owed = tl.load(prior)
    for place in range(tl.load(first_heads + which), tl.load(first_heads + which + 1)):
        head = tl.load(heads + place)
        wide = head.to(tl.int64)
        length = n
        if lengths is not None:
            length = tl.load(lengths + head).to(tl.int32)
        sharp, elastic = tl.load(sharpness + head), tl.load(lam + head)
        last_part = tl.where(shared_rows, (high - low) * parts, own_part + 1)
        for part in range(own_part, last_part):
            number = low + part // parts
            first = number * block
            last, top = tl.minimum(first + block, length), first + part % parts * BLOCK_X
            if top < last:
                row_at = top + tl.arange(0, BLOCK_X)
                x = own_tokens(query + wide * n * FEATURES, row_at, n, FEATURES, WIDTH, CHUNK)
                side = own_tokens(
                    output_grad + wide * n * VALUES, row_at, n, VALUES, VALUE_WIDTH, VALUE_CHUNK
                )  # fmt: skip
                level = tl.load(levels + wide * levels_each + number)
                account = accounts + wide * accounts_each + (number - low).to(tl.int64) * 2 * n
                stop = tl.minimum(top + BLOCK_X, last)
                last_key = tl.where(shared_columns, stop, tl.minimum(first_key + 1, stop))
                for left in range(first_key, last_key, BLOCK_Y):
                    key_at = left + tl.arange(0, BLOCK_Y)
                    received, wanted = load_account(account, key_at, first, n, level, owed)
                    _, slope = slope_tile(
                        x, key + wide * n * FEATURES, side, value + wide * n * VALUES, row_at,
                        key_at, row_at < last, key_at < last, row_at, key_at,
                        bias_of(received, wanted, elastic),
                        sums_grad + wide * sums_each + (number - low).to(tl.int64) * n,
                        shift + wide * n, factor + wide * n, dots + wide * n, last, n, sharp, mask,
                        mask_row, mask_column, True, FEATURES, WIDTH, CHUNK, VALUES, VALUE_WIDTH,
                        VALUE_CHUNK, MASK, DOT, PRECISION,
                    )  # fmt: skip
                    found += slope
    top = (low + own_part // parts) * block + own_part % parts * BLOCK_X
    row_at, key_at = top + tl.arange(0, BLOCK_X), first_key + tl.arange(0, BLOCK_Y)
    # another block begins behind this one; tiles that are shared meet in their first row or column
    behind = tl.minimum(top - own_part % parts * BLOCK_X + block, n)
    row_at = tl.where(shared_rows, tl.arange(0, BLOCK_X), row_at)
    behind = tl.where(shared_rows, 1, behind)
    if shared_rows:
        found = tl.where((row_at == 0)[:, None], tl.sum(found, 0)[None, :], 0.0)
    if shared_columns:
        found = tl.where((key_at == 0)[None, :], tl.sum(found, 1)[:, None], 0.0)
    inside = (row_at < behind)[:, None] & (key_at < grad_columns)[None, :]
    place = grad + row_at[:, None].to(tl.int64) * grad_columns + key_at[None, :]
    tl.store(place, found + tl.load(place, mask=inside, other=0.0), mask=inside)
