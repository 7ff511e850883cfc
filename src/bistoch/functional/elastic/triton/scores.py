# mypy: ignore-errors
"""Tiles of scores, made again wherever they are needed: device functions that all kernels share.

A program owns a block of tokens of one side, called x, and walks over those of the other side,
called y, tile by tile. For row steps x are queries and y are keys; for column steps the other way
round, with the two strides of the mask exchanged. Nothing of size n x m is ever in memory.
"""

import triton
import triton.language as tl

# kinds of a mask
NONE = tl.constexpr(0)
BOOLEAN = tl.constexpr(1)
BIAS = tl.constexpr(2)

# the peak of a sum without terms: finite, so that no inf - inf can arise
LOWEST = tl.constexpr(-3.0e38)


@triton.jit
def load_tokens(tokens, at, length, FEATURES: tl.constexpr, WIDTH: tl.constexpr):
    """Rows `at` of a `(length, FEATURES)` matrix, zero beyond its ends."""
    features = tl.arange(0, WIDTH)
    inside = (at < length)[:, None] & (features < FEATURES)[None, :]
    return tl.load(tokens + at[:, None] * FEATURES + features[None, :], mask=inside, other=0.0)


@triton.jit
def own_tokens(
    tokens, at, length, FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """The tokens that a program owns, if registers hold them all the time; else where they are."""
    if WIDTH <= CHUNK:
        return load_tokens(tokens, at, length, FEATURES, WIDTH)
    else:
        return tokens


@triton.jit
def multiply(
    x, y, x_at, y_at, X, Y, WORK: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr,
    CHUNK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`x y^T` of a block of `own_tokens` and rows of another matrix, features in chunks."""
    result = tl.zeros([x_at.shape[0], y_at.shape[0]], WORK)
    if WIDTH <= CHUNK:
        tile = load_tokens(y, y_at, Y, FEATURES, WIDTH)
        result = tl.dot(
            x.to(DOT), tl.trans(tile).to(DOT), result, input_precision=PRECISION, out_dtype=WORK
        )  # fmt: skip
    else:
        # addresses of all chunks, made in front of the loop, would not fit in registers
        for first in tl.range(0, FEATURES, CHUNK, disable_licm=True):
            features = first + tl.arange(0, CHUNK)
            some = (features < FEATURES)[None, :]
            left = tl.load(
                x + x_at[:, None] * FEATURES + features[None, :],
                mask=(x_at < X)[:, None] & some, other=0.0,
            )  # fmt: skip
            right = tl.load(
                y + y_at[:, None] * FEATURES + features[None, :],
                mask=(y_at < Y)[:, None] & some, other=0.0,
            )  # fmt: skip
            result = tl.dot(
                left.to(DOT), tl.trans(right).to(DOT), result, input_precision=PRECISION,
                out_dtype=WORK,
            )  # fmt: skip
    return result


@triton.jit
def load_real(real, at, length):
    """Which of the tokens `at` are there, and not padding."""
    inside = at < length
    if real is not None:
        inside = inside & (tl.load(real + at, mask=inside, other=0) != 0)
    return inside


@triton.jit
def column_shift(peak, column):
    """What to add to scores before the row potential, and to the peak of a column total.

    The fused form makes totals of `(S + g) + f`, with the peak -g; the others of `S + f`. Sums must
    be made again in the order in which they were rounded, or columns of C would not sum to one.
    """
    return tl.where((peak == -column) & (column > float("-inf")), column, 0.0)


@triton.jit
def mask_of(mask, mask_index, mask_each, head):
    """Where the mask of a head begins: many heads may share one, picked by an index."""
    which = head
    if mask_index is not None:
        which = tl.load(mask_index + head)
    return mask + which.to(tl.int64) * mask_each


@triton.jit
def score_tile(
    x, y, x_at, y_at, x_real, y_real, X, Y, sharpness, mask, mask_x, mask_y,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, MASK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`S = sharpness * x y^T + mask` of two blocks of tokens, minus infinity where forbidden.

    Tokens that came in half precision are multiplied as such, which is exact: `DOT` is their type.
    """
    allowed = x_real[:, None] & y_real[None, :]
    scores = tl.zeros([x_at.shape[0], y_at.shape[0]], sharpness.dtype)
    if FEATURES > 0:
        scores = multiply(
            x, y, x_at, y_at, X, Y, sharpness.dtype, FEATURES, WIDTH, CHUNK, DOT, PRECISION
        )  # fmt: skip
        scores = scores * sharpness
    if MASK != NONE:
        at = mask + x_at[:, None].to(tl.int64) * mask_x + y_at[None, :].to(tl.int64) * mask_y
        if MASK == BIAS:
            scores += tl.load(at, mask=allowed, other=0.0)
        else:
            allowed = allowed & (tl.load(at, mask=allowed, other=0) != 0)
    return tl.where(allowed, scores, float("-inf"))
