"""Monarch attention: a plan of two thin stochastic factors, in n sqrt(n) instead of n squared.

Tokens are cut into blocks of `block`. Query p of block l weighs key i of block k with

    P[(l, p), (k, i)] = between[p, k, l] * within[k, p, i]

`between` chooses a block (sums to one over k) and `within` a key inside it (sums to one over i), so
rows of P sum to one whatever the factors are. All queries at place p share what is within a block.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.nn.functional import pad as pad_axes

from bistoch.functional import inputs
from bistoch.functional._export import export_whole
from bistoch.functional._nonfinite import clean_scores, show
from bistoch.functional._recompute import checkpointed
from bistoch.functional.elastic.reference import logsumexp
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import BalanceOptions, ScoreOptions, flatten, pose, pose_scores
from bistoch.functional.problem import Balance, Scores, row_softmax


@export_whole
def monarch_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    eps: Option = 1.0,
    iters: int = 2,
    block: int | None = None,
    pad: str = "post",
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n e"]:
    """Attend with the best Monarch matrix that `iters` alternating updates find.

        maximise <S, P> + H(P)  over  P[(l, p), (k, i)] = between[p, k, l] within[k, p, i]

    Nothing of size n x m exists, forward or backward: time and memory grow as m (block + n/block).

    Args:
        query, key, value, eps, scale: as for `elastic_attention`.
        iters: alternating updates of both factors; most is gained by the first two.
        block: tokens per block, by default ceil(sqrt(min(n, m))). 1 is softmax, and so is one block
            of all tokens.
        pad: where blocks are filled up if `block` does not divide the length: "post", after the
            last token, or "pre", before the first, so that the first block is the short one.
        mask: a boolean mask or a bias that is the same for all queries, (..., 1, m).
        query_mask, key_mask: True where the token is real.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 2, 8, 100, 4).unbind()
    >>> bistoch.monarch_attention(q, k, v, block=10).shape
    torch.Size([2, 8, 100, 4])

    Reference: Yaras, Xu, Abillama, Lee, Balzano, MonarchAttention, 2025.
    """
    operator = "monarch_attention"
    batch = inputs.check_tokens(operator, query, key, value)
    inputs.check_count(operator, "iters", iters, least=1)
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    return attend(operator, batch, query, key, value, pairs, None, iters, block, pad)


@export_whole
def monarch_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    eps: Option = 1.0,
    iters: int = 2,
    block: int | None = None,
    pad: str = "post",
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n m"]:
    """The plan of `monarch_attention` as a dense matrix, for study.

    Arguments are those of `monarch_attention`.

    >>> import torch, bistoch
    >>> q, k = torch.randn(2, 9, 4).unbind()
    >>> bool(torch.allclose(bistoch.monarch_plan(q, k, iters=1).sum(-1), torch.ones(9)))
    True
    >>> softmax = bistoch.softmax_plan(q, k)
    >>> bool(torch.allclose(bistoch.monarch_plan(q, k, block=1), softmax, atol=1e-5))
    True
    """
    operator = "monarch_plan"
    batch = inputs.check_tokens(operator, query, key)
    inputs.check_count(operator, "iters", iters, least=1)
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    return dense(operator, batch, query, key, pairs, None, iters, block, pad)


class Blocks(NamedTuple):
    """A checked problem, cut: queries by place p and block l, keys by block k and place i."""

    query: Float[Tensor, "B p l d"]
    real: Bool[Tensor, "B p l"]
    key: Float[Tensor, "B k i d"]
    # what is added to all scores of a key: minus infinity if it is not real
    bias: Float[Tensor, "B k i"]
    # of columns that are balanced
    log_mass: Float[Tensor, "B k i"] | None
    balance: Balance | None

    def pairs(self) -> int:
        """How many numbers the two factors have together."""
        size, places, theirs, _ = self.query.shape
        return size * places * self.key.shape[1] * (theirs + self.key.shape[2])


class Tangent(NamedTuple):
    """Scores in Monarch form: S[(l, p), (k, i)] = base[k, p, i] + tilt[p, k, l].

    The softmax of such scores, with any bias of the keys, is a Monarch matrix.
    """

    base: Float[Tensor, "B k p i"]
    tilt: Float[Tensor, "B p k l"]


class Factors(NamedTuple):
    """The two factors; sums over queries are taken of the logarithms, which cannot underflow."""

    within: Float[Tensor, "B k p i"]
    log_within: Float[Tensor, "B k p i"]
    log_between: Float[Tensor, "B p k l"]


def attend(
    operator: str, batch: torch.Size, query: Tensor, key: Tensor, value: Tensor,
    pairs: ScoreOptions, balance: BalanceOptions | None, updates: int, block: int | None, pad: str,
) -> Tensor:  # fmt: skip
    """Check, cut, solve, and apply the two factors to the values one after the other."""
    posed, steps, block = _pose(operator, batch, query, key, pairs, balance, block, pad)
    n, m = query.shape[-2], key.shape[-2]
    if n == 0 or m == 0:
        return query @ key.mT @ value
    posed, value, broken = clean_scores(
        posed, flatten(value, batch), "problem", options=() if steps is None else steps.tensors()
    )

    def finish(base: Tensor, tilt: Tensor, column: Tensor, value: Tensor) -> Tensor:
        found = factor(blocks, Tangent(base, tilt), column)
        answers = (found.within @ value).transpose(1, 2)
        return (found.log_between.exp().mT @ answers).transpose(1, 2)

    blocks = cut(posed, steps, block, pad)
    scores, column = solve(blocks, updates, pad)
    output = checkpointed(blocks.pairs(), finish, *scores, column, _blocked(value, block, pad))
    output = show(_joined(output, n, pad), broken)
    return output.reshape(*batch, n, value.shape[-1]).to(query.dtype)


def dense(
    operator: str, batch: torch.Size, query: Tensor, key: Tensor,
    pairs: ScoreOptions, balance: BalanceOptions | None, updates: int, block: int | None, pad: str,
) -> Tensor:  # fmt: skip
    """The product of the two factors as a matrix."""
    posed, steps, block = _pose(operator, batch, query, key, pairs, balance, block, pad)
    n, m = query.shape[-2], key.shape[-2]
    if n == 0 or m == 0:
        return query @ key.mT
    posed, _, broken = clean_scores(
        posed, None, "problem", options=() if steps is None else steps.tensors()
    )
    blocks = cut(posed, steps, block, pad)
    found = factor(blocks, *solve(blocks, updates, pad))
    plan = torch.einsum("zpkl,zkpi->zkilp", found.log_between.exp(), found.within)
    # join the axes of the keys, then those of the queries
    plan = _joined(plan.flatten(3, 4), m, pad).mT
    plan = show(_joined(plan.unflatten(1, (-1, block)), n, pad), broken)
    return plan.reshape(*batch, n, m).to(query.dtype)


def solve(blocks: Blocks, updates: int, pad: str) -> tuple[Tangent, Tensor]:
    """Find scores in Monarch form and the column potentials that balance them.

    Column steps run along with the updates as long as there are any; those that are left balance
    scores that no longer move, which is Sinkhorn's problem and converges as surely.
    """
    steps = 0 if blocks.balance is None else blocks.balance.iters

    def advance(mean: Tensor, column: Tensor, steps: bool) -> tuple[Tensor, Tensor]:
        found = factor(blocks, touch(blocks, mean, column), column)
        mean = row_softmax(found.log_between) @ blocks.query
        return mean, column_step(blocks, found, column) if steps else column

    def balance(base: Tensor, tilt: Tensor, column: Tensor) -> Tensor:
        return column_step(blocks, factor(blocks, Tangent(base, tilt), column), column)

    mean, column = first_mean(blocks, pad), torch.zeros_like(blocks.bias)
    for t in range(updates - 1):
        mean, column = checkpointed(blocks.pairs(), advance, mean, column, t < steps)
    scores = Tangent(*checkpointed(blocks.pairs(), lambda *x: touch(blocks, *x), mean, column))
    for _ in range(updates - 1, steps):
        column = checkpointed(blocks.pairs(), balance, *scores, column)
    return scores, column


def first_mean(blocks: Blocks, pad: str) -> Float[Tensor, "B p k d"]:
    """What the queries at place p ask of block k before anything is known.

    The question of the query in the block of the same number; where there is none, because of
    padding or of fewer queries than keys, the mean of all queries at that place.
    """
    theirs, ours = blocks.query.shape[2], blocks.key.shape[1]
    weights = blocks.real[..., None].to(blocks.query.dtype)
    count = weights.sum(2, keepdim=True)
    mean = (blocks.query * weights).sum(2, keepdim=True) / count.clamp_min(1)
    own = torch.arange(ours, device=mean.device) - (ours - theirs if pad == "pre" else 0)
    index = own.clamp(0, theirs - 1)
    exists = ((own >= 0) & (own < theirs)) & blocks.real[:, :, index]
    return torch.where(exists[..., None], blocks.query[:, :, index], mean)


def touch(
    blocks: Blocks, mean: Float[Tensor, "B p k d"], column: Float[Tensor, "B k i"]
) -> Tangent:
    """The scores at the mean query, and for every query the tangent there.

    A softmax weighs block k by LSE_i(S), a convex function of the query. Here it is weighed by the
    tangent of that function at the mean query, which all queries at the same place share.
    """
    base = mean.transpose(1, 2) @ blocks.key.mT + blocks.bias[:, :, None, :]
    slope = (row_softmax(base + column[:, :, None, :]) @ blocks.key).transpose(1, 2)
    tilt = slope @ blocks.query.mT - (slope * mean).sum(-1, keepdim=True)
    return Tangent(base, tilt)


def factor(blocks: Blocks, scores: Tangent, column: Float[Tensor, "B k i"]) -> Factors:
    """The softmax of scores in Monarch form and a bias per key."""
    base = scores.base + column[:, :, None, :]
    # minus infinity, with a gradient of zero, for a block without a real key
    total = logsumexp(base, -1)
    log_within = base - total.masked_fill(total == -torch.inf, 0)[..., None]
    choice = scores.tilt + total.transpose(1, 2)[..., None]
    dead = (choice == -torch.inf).all(-2, keepdim=True)
    log_between = choice.masked_fill(dead, 0).log_softmax(-2)
    dead = dead | ~blocks.real[:, :, None, :]
    return Factors(row_softmax(base), log_within, log_between.masked_fill(dead, -torch.inf))


def column_step(
    blocks: Blocks, found: Factors, column: Float[Tensor, "B k i"]
) -> Float[Tensor, "B k i"]:
    """The elastic, relaxed step towards the column mass, from column sums in Monarch form.

    c[k, i] = sum over p of (sum over l of between[p, k, l]) within[k, p, i]
    """
    if blocks.balance is None or blocks.log_mass is None:
        return column
    asked = logsumexp(found.log_between, -1).transpose(1, 2)
    received = logsumexp(found.log_within + asked[..., None], -2)
    live = received > -torch.inf
    exact = column + blocks.log_mass - received.masked_fill(~live, 0)
    lam, omega = (x[:, None, None] for x in (blocks.balance.lam, blocks.balance.first_omega()))
    return torch.where(live, (1 - omega) * column + omega * lam * exact, 0)


def cut(scores: Scores, balance: Balance | None, block: int, pad: str) -> Blocks:
    """Fill a problem up to whole blocks of tokens, and cut it."""
    (size, n, _), m = scores.query.shape, scores.key.shape[1]
    real = scores.query.new_ones(size, n, dtype=torch.bool)
    bias = scores.query.new_zeros(size, m)
    if scores.query_mask is not None:
        real = scores.query_mask
    if scores.key_mask is not None:
        bias = bias.masked_fill(~scores.key_mask, -torch.inf)
    if scores.mask is not None:
        shared = scores.mask[scores.mask_index, 0]
        is_bool = shared.dtype == torch.bool
        bias = bias.masked_fill(~shared, -torch.inf) if is_bool else bias + shared
    query = _blocked(scores.query * scores.sharpness[:, None, None], block, pad)
    log_mass = None
    if balance is not None:
        log_mass = _blocked(balance.log_mass[..., None], block, pad).squeeze(-1)
    return Blocks(
        query=query.transpose(1, 2),
        real=_blocked(real[..., None], block, pad).squeeze(-1).transpose(1, 2),
        key=_blocked(scores.key, block, pad),
        bias=_blocked(bias[..., None], block, pad, -torch.inf).squeeze(-1),
        log_mass=log_mass,
        balance=balance,
    )


def _pose(
    operator, batch, query, key, pairs, balance, block, pad
) -> tuple[Scores, Balance | None, int]:
    """Check everything; the default block makes the work within and between blocks equal."""
    n, m = query.shape[-2], key.shape[-2]
    if block is None:
        block = math.isqrt(max(min(n, m) - 1, 0)) + 1
    inputs.check_count(operator, "block", block, least=1)
    # all tokens in one block are not filled up
    block = min(block, max(n, m, 1))
    inputs.check_choice(operator, "pad", pad, ("post", "pre"))
    if pairs.mask is not None:
        reason = "a Monarch matrix can hide a key from all queries, but not from some"
        inputs.check_shared_mask(operator, pairs.mask, reason)
    if balance is not None:
        scores, steps = pose(operator, batch, query, key, pairs, balance)
        if balance.moves_columns():
            return scores, steps, block
    else:
        scores = pose_scores(operator, batch, query, key, pairs)
    # what queries at the same place share also holds what padded ones ask
    inputs.warn_half_padding(operator, n, m, pairs.mask, pairs.query_mask, pairs.key_mask)
    return scores, None, block


def _blocked(
    tokens: Tensor, block: int, pad: str, filling: float = 0.0
) -> Shaped[Tensor, "B blocks places f"]:
    missing = -tokens.shape[1] % block
    ends = (0, 0, missing, 0) if pad == "pre" else (0, 0, 0, missing)
    return pad_axes(tokens, ends, value=filling).unflatten(1, (-1, block))


def _joined(blocks: Tensor, length: int, pad: str) -> Float[Tensor, "B length f"]:
    tokens = blocks.flatten(1, 2)
    return tokens[:, tokens.shape[1] - length :] if pad == "pre" else tokens[:, :length]
