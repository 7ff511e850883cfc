"""The specification: rows in chunks, each made by the inner operator, in torch's own products."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bistoch.functional._recompute import checkpointed
from bistoch.functional.backends import Backend
from bistoch.functional.delta.mass import attend_with_mass
from bistoch.functional.delta.tokens import Rule, Tokens

# rows that are computed together, at least: enough work for one call, little enough for a mask
CHUNK = 128


def attend_in_chunks(
    tokens: Tokens,
    value: Float[Tensor, "*#b n e"],
    rule: Rule,
    attend: Callable[..., Tensor],
    sharpness: float | None = None,
) -> Float[Tensor, "*#b n e"]:
    """Sparse rows, corrected by dense ones; the inner operator knows its sharpness."""
    n, stride = value.shape[-2], rule.stride
    if rule.correction == "mass" and sharpness is not None:
        output = attend_with_mass(tokens, value, rule, sharpness)
    else:
        output = _sparse_rows(attend, tokens, value, rule)
    if rule.correction in ("delta", "recompute"):
        every = torch.arange(0, n, stride, device=value.device)
        dense = _dense_rows(attend, tokens, value, tokens.query[..., ::stride, :], every, stride)
        output = rule.correct(output, dense)
    if rule.tail:
        output = _with_dense_tail(attend, tokens, value, output, rule.tail)
    return output


BACKEND = Backend("reference", "", attend_in_chunks)


def _sparse_rows(
    attend: Callable[..., Tensor], tokens: Tokens, value: Float[Tensor, "*#b n e"], rule: Rule
) -> Float[Tensor, "*#b n e"]:
    """Rows in chunks, each with the keys of its sink and of its windows only."""
    n = value.shape[-2]
    step = max(rule.window, CHUNK)
    numbers = math.prod(tokens.batch) * step * (rule.sink + rule.window + step)

    def chunk(query: Tensor, key: Tensor, value: Tensor, first: int, last: int) -> Tensor:
        keys, seen = rule.near(first, last, key.device)
        mask = tokens.bias_of(seen, keys)
        key, value = key.index_select(-2, keys), value.index_select(-2, keys)
        return attend(query[..., first:last, :], key, value, mask=mask)

    chunks = [
        checkpointed(numbers, chunk, tokens.query, tokens.key, value, first, min(first + step, n))
        for first in range(0, n, step)
    ]
    return torch.cat(chunks, -2)


def _dense_rows(
    attend: Callable[..., Tensor], tokens: Tokens, value: Float[Tensor, "*#b n e"],
    query: Float[Tensor, "*#b r d"], index: Int[Tensor, "*#b r"], stride: int,
) -> Float[Tensor, "*#b r e"]:  # fmt: skip
    """Rows at given places, at most `stride` apart, in chunks, each with the keys up to its end."""
    n, rows = value.shape[-2], query.shape[-2]
    numbers = math.prod(tokens.batch) * min(rows, CHUNK) * n

    def chunk(query: Tensor, key: Tensor, value: Tensor, first: int, last: int) -> Tensor:
        reach = slice(0, min(last * stride, n))
        keys = torch.arange(n, device=key.device)[reach]
        mask = tokens.bias_of(keys <= index[..., first:last, None], reach)
        query, key, value = query[..., first:last, :], key[..., reach, :], value[..., reach, :]
        return attend(query, key, value, mask=mask)

    chunks = [
        checkpointed(numbers, chunk, query, tokens.key, value, first, min(first + CHUNK, rows))
        for first in range(0, rows, CHUNK)
    ]
    return torch.cat(chunks, -2)


def _with_dense_tail(
    attend: Callable[..., Tensor], tokens: Tokens, value: Float[Tensor, "*#b n e"],
    output: Float[Tensor, "*#b n e"], tail: int,
) -> Float[Tensor, "*#b n e"]:  # fmt: skip
    """Put dense rows in the place of the last ones of every sequence, wherever it ends."""
    first = tokens.first_of(tail)
    index = first[..., None] + torch.arange(tail, device=first.device)
    query = torch.take_along_dim(tokens.expand(tokens.query), index[..., None], -2)
    dense = _dense_rows(attend, tokens, value, query, index, value.shape[-2])
    is_tail, place = tokens.after(first)
    dense = torch.take_along_dim(dense, place.clamp(0, tail - 1)[..., None], -2)
    return torch.where(is_tail[..., None], dense, output)
