# mypy: ignore-errors
"""The account of the keys on a device: what all kernels know of the update of a bias.

An account is two vectors over keys, what they received and what they are owed, one behind the other
in memory. Keys of the block that is worked on are not in it: they begin at the level of new keys.
`problem.close_block` is the torch version of the same rule.
"""

import triton
import triton.language as tl

from bistoch.functional.elastic.triton.scores import LOWEST, score_tile


@triton.jit
def load_account(account, at, first, n, level, prior):
    """What keys had received and were owed before the block that begins at `first`."""
    known = at < first
    received = tl.load(account + at, mask=known, other=0.0)
    wanted = tl.load(account + n + at, mask=known, other=1.0)
    return tl.where(known, received, tl.log(prior) - level), tl.where(known, wanted, prior)


@triton.jit
def bias_of(received, wanted, lam):
    """`lam` times the log of wanted over received."""
    return lam * (tl.log(wanted) - received)


@triton.jit
def level_of(account, first, block, n, VECTOR: tl.constexpr):
    """The log of wanted over received of the block before `first`, as one key; that of received.

    Both are meaningless in front of the first block, and finite.
    """
    kind: tl.constexpr = account.dtype.element_ty
    peaks, totals = tl.full([VECTOR], LOWEST, kind), tl.zeros([VECTOR], kind)
    fair = tl.zeros([VECTOR], kind)
    for start in range(tl.maximum(first - block, 0), first, VECTOR):
        at = start + tl.arange(0, VECTOR)
        received = tl.load(account + at, mask=at < first, other=LOWEST)
        higher = tl.maximum(peaks, received)
        here = tl.where(at < first, tl.exp(received - higher), 0.0)
        totals = totals * tl.exp(peaks - higher) + here
        peaks = higher
        fair += tl.load(account + n + at, mask=at < first, other=0.0)
    peak = tl.max(peaks, 0)
    total = tl.sum(totals * tl.exp(peaks - peak), 0)
    together = peak + tl.log(tl.where(total > 0, total, 1.0))
    owed = tl.sum(fair, 0)
    return tl.log(tl.where(owed > 0, owed, 1.0)) - together, together


@triton.jit
def receive(received, sums, bias, LEAST: tl.constexpr):
    """Add what rows gave, the bias taken out again; what is lost to underflow is lost in before."""
    mass = tl.log(tl.maximum(sums, LEAST)) - bias
    high, low = tl.maximum(received, mass), tl.minimum(received, mass)
    return tl.where(sums > LEAST, high + tl.log(1.0 + tl.exp(low - high)), received)


@triton.jit
def pair_tile(
    x, y, x_at, y_at, x_real, y_real, X, Y, earlier, sharpness, mask, mask_x, mask_y,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
    MASK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As `score_tile`, minus infinity also where a key is later than its row.

    Rows are x if `ROWS`, else y; the first of them is the token number `earlier`.
    """
    scores = score_tile(
        x, y, x_at, y_at, x_real, y_real, X, Y, sharpness, mask, mask_x, mask_y,
        FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION,
    )  # fmt: skip
    if ROWS:
        later = y_at[None, :] > x_at[:, None] + earlier
    else:
        later = x_at[:, None] > y_at[None, :] + earlier
    return tl.where(later, float("-inf"), scores)
