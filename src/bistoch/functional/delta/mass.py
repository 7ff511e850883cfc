"""The correction that knows what share of the softmax mass a row lacks, and what it would see.

A row of a group keeps what it sees, and mixes in what the dense row of the group sees elsewhere, by
the share that this has in a softmax over all keys. The share follows the query: the gradient of the
log of a sum of exponentials is the mean key under it.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bistoch.functional._recompute import checkpointed
from bistoch.functional.delta.tokens import Rule, Tokens

# rows that are computed together, at least
CHUNK = 128


def attend_with_mass(
    tokens: Tokens, value: Float[Tensor, "*#b n e"], rule: Rule, sharpness: float
) -> Float[Tensor, "*#b n e"]:
    """Sparse rows with what they lack, estimated from every stride-th row."""
    n, stride, query = value.shape[-2], rule.stride, tokens.query
    sparse, log_kept = _sparse_rows(tokens, value, rule, sharpness)
    firsts = torch.arange(0, n, stride, device=query.device)
    missed, mean_key, log_missed = _far_rows(tokens, value, rule, sharpness, firsts)
    log_share = log_missing(query, mean_key, log_missed, stride, sharpness)
    share = torch.sigmoid(log_share - log_kept)[..., None]
    return sparse + share * (_spread(missed, stride, n) - sparse)


def plan_with_mass(tokens: Tokens, rule: Rule, sharpness: float) -> Float[Tensor, "*#b n n"]:
    """The same as a matrix: no entry is negative, rows sum to one."""
    n, stride = tokens.query.shape[-2], rule.stride
    rows, keys = (torch.arange(n, device=tokens.query.device) for _ in range(2))
    kept = rule.sees(rows[:, None], keys)
    far = (keys <= rows[:, None]) & ~kept
    plan, log_kept = _soften(tokens, tokens.query, tokens.key, kept, slice(None), sharpness)
    some = tokens.query[..., ::stride, :]
    missed, log_missed = _soften(tokens, some, tokens.key, far[::stride], slice(None), sharpness)
    log_share = log_missing(tokens.query, missed @ tokens.key, log_missed, stride, sharpness)
    share = torch.sigmoid(log_share - log_kept)[..., None]
    return plan + share * (_spread(missed, stride, n) - plan)


def log_missing(
    query: Float[Tensor, "*#b n d"],
    mean_key: Float[Tensor, "*#b g d"],
    log_missed: Float[Tensor, "*#b g"],
    stride: int,
    sharpness: float,
) -> Float[Tensor, "*#b n"]:
    """The log of the mass that every row leaves out, to first order in its query."""
    n = query.shape[-2]
    moved = query - _spread(query[..., ::stride, :], stride, n)
    along = (moved * _spread(mean_key, stride, n)).sum(-1) * sharpness
    return _spread(log_missed[..., None], stride, n)[..., 0] + along


def _spread(groups: Float[Tensor, "*#b g f"], stride: int, n: int) -> Float[Tensor, "*#b n f"]:
    """What belongs to a group, for each of its rows."""
    return groups.repeat_interleave(stride, -2)[..., :n, :]


def _soften(
    tokens: Tokens, query: Tensor, key: Tensor, allowed: Bool[Tensor, "r m"],
    keys: slice | Tensor, sharpness: float,
) -> tuple[Float[Tensor, "*#b r m"], Float[Tensor, "*#b r"]]:  # fmt: skip
    """Softmax rows over allowed keys, and the log of their sums; zeros where nothing is allowed."""
    scores = (query * sharpness) @ key.mT
    if tokens.bias is not None:
        scores = scores + tokens.bias[..., None, keys]
    empty = ~allowed.any(-1)
    # a row of minus infinities has no gradient: it sees all, and is taken out after
    scores = scores.masked_fill(~(allowed | empty[:, None]), -torch.inf)
    log_sum = scores.logsumexp(-1)
    plan = (scores - log_sum[..., None]).exp()
    return plan.masked_fill(empty[:, None], 0), log_sum.masked_fill(empty, -torch.inf)


def _sparse_rows(tokens: Tokens, value: Tensor, rule: Rule, sharpness: float):
    """Rows over sink and window, and the log of their mass, in chunks."""
    n = value.shape[-2]
    step = max(rule.window, CHUNK)
    numbers = math.prod(tokens.batch) * step * (rule.sink + rule.window + step)

    def chunk(query: Tensor, key: Tensor, value: Tensor, first: int, last: int):
        keys, seen = rule.near(first, last, key.device)
        plan, log_sum = _soften(
            tokens, query[..., first:last, :], key.index_select(-2, keys), seen, keys, sharpness
        )
        return plan @ value.index_select(-2, keys), log_sum

    chunks = [
        checkpointed(numbers, chunk, tokens.query, tokens.key, value, first, min(first + step, n))
        for first in range(0, n, step)
    ]
    rows, sums = zip(*chunks, strict=True)
    return torch.cat(rows, -2), torch.cat(sums, -1)


def _far_rows(
    tokens: Tokens, value: Tensor, rule: Rule, sharpness: float, index: Int[Tensor, "g"]
) -> tuple[Tensor, Tensor, Tensor]:
    """What rows see beyond sink and window: mean value, mean key, and the log of its mass."""
    n, rows = value.shape[-2], index.shape[0]
    numbers = math.prod(tokens.batch) * min(rows, CHUNK) * n

    def chunk(query: Tensor, key: Tensor, value: Tensor, first: int, last: int):
        own = index[first:last, None]
        reach = slice(0, min(last * rule.stride, n))
        keys = torch.arange(n, device=key.device)[reach]
        far = (keys <= own) & ~rule.sees(own, keys)
        plan, log_sum = _soften(
            tokens, query[..., first:last, :], key[..., reach, :], far, reach, sharpness
        )
        return plan @ value[..., reach, :], plan @ key[..., reach, :], log_sum

    some = tokens.query[..., :: rule.stride, :]
    chunks = [
        checkpointed(numbers, chunk, some, tokens.key, value, first, min(first + CHUNK, rows))
        for first in range(0, rows, CHUNK)
    ]
    values, keys, sums = zip(*chunks, strict=True)
    return torch.cat(values, -2), torch.cat(keys, -2), torch.cat(sums, -1)
