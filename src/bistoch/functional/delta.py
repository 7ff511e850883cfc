"""Delta attention: sparse causal attention, put right by a few dense rows and what they change."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional._export import export_whole
from bistoch.functional._masks import forbid_low
from bistoch.functional._nonfinite import Pairs, clean, show
from bistoch.functional._operator import check_options, parse_operator
from bistoch.functional._recompute import checkpointed
from bistoch.functional.backends import assume_constant_result
from bistoch.functional.inputs import Mask
from bistoch.functional.pose import working_dtype

# rows that are computed together, at least: enough work for one call, little enough for a mask
CHUNK = 128


@export_whole
def delta_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    window: int = 256,
    sink: int = 16,
    stride: int = 16,
    correction: str = "delta",
    tail: int = 0,
    inner: str = "softmax",
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b n e"]:
    """Attend causally to a window and the first keys, corrected by every `stride`-th dense row.

        result_i = P*_i v + (P_g v - P*_g v),   g = the last multiple of `stride` up to i

    P is causal attention, P* the same over the last `window` and the first `sink` keys only. Causal
    by itself, without a mask. Nothing of size n x n exists, forward or backward.

    Args:
        query, key, value: tokens, as many queries as keys; the leading axes broadcast.
        window: how many of the latest keys, its own among them, a row sees.
        sink: how many of the first keys a row sees.
        stride: one row of so many is dense; 1 makes all rows dense.
        correction: "delta", what a dense row changes is added to all rows up to the next one;
            "recompute", a dense row takes the place of its sparse one and changes no other; "none",
            the sparse rows alone.
        tail: how many of the last rows are dense besides, for decoding that continues from there.
        inner: the operator that makes the rows, a text such as "softmax(eps=0.5)". It must be one
            whose rows can be computed one by one.
        mask: a boolean mask or a bias that is the same for all queries, (..., 1, n).
        query_mask, key_mask: True where the token is real. Query t and key t are one token here: a
            mask on either hides both, and window, sink, stride and tail count real tokens only.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 2, 8, 100, 4).unbind()
    >>> bistoch.delta_attention(q, k, v, window=16, sink=4, stride=8).shape
    torch.Size([2, 8, 100, 4])

    Reference: Willette, Lee, Hwang, Delta Attention, 2025.
    """
    operator = "delta_attention"
    batch = inputs.check_tokens(operator, query, key, value)
    rule = Rule(window, sink, stride, correction, tail)
    tokens, value = _pose(operator, batch, query, key, value, rule, mask, query_mask, key_mask)
    attend = _inner(operator, inner, "attention")
    n, e = query.shape[-2], value.shape[-1]
    if n == 0:
        return query @ key.mT @ value.to(query.dtype)
    value = tokens.sort(value)
    output = _sparse_rows(attend, tokens, value, rule)
    if correction != "none":
        every = torch.arange(0, n, stride, device=query.device)
        dense = _dense_rows(attend, tokens, value, tokens.query[..., ::stride, :], every, stride)
        output = rule.correct(output, dense)
    if tail:
        output = _with_dense_tail(attend, tokens, value, output, min(tail, n))
    output = show(tokens.unsort(output), tokens.broken)
    return output.expand(*batch, n, e).to(query.dtype)


@export_whole
def delta_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    window: int = 256,
    sink: int = 16,
    stride: int = 16,
    correction: str = "delta",
    tail: int = 0,
    inner: str = "softmax",
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b n m"]:
    """The plan of `delta_attention` as a dense matrix, for study, from two dense plans.

    Rows sum to one, no row sees a later key, and some entries are negative: a key that a dense row
    had in its window loses what the correction takes from it, also where it has left the window.
    Arguments are those of `delta_attention`.

    >>> import torch, bistoch
    >>> q, k = torch.randn(2, 30, 4).unbind()
    >>> plan = bistoch.delta_plan(q, k, window=4, sink=2, stride=5)
    >>> bool(torch.allclose(plan.sum(-1), torch.ones(30))), bool((plan < 0).any())
    (True, True)
    """
    operator = "delta_plan"
    batch = inputs.check_tokens(operator, query, key)
    rule = Rule(window, sink, stride, correction, tail)
    tokens, _ = _pose(operator, batch, query, key, None, rule, mask, query_mask, key_mask)
    make = _inner(operator, inner, "plan")
    n = query.shape[-2]
    rows, keys = torch.arange(n, device=query.device)[:, None], torch.arange(n, device=query.device)
    causal = tokens.bias_of(keys <= rows, slice(None))
    sparse = tokens.bias_of(rule.sees(rows, keys), slice(None))
    dense = make(tokens.query, tokens.key, mask=causal)
    plan = make(tokens.query, tokens.key, mask=sparse)
    if correction != "none":
        plan = rule.correct(plan, dense[..., ::stride, :])
    if tail:
        plan = torch.where(tokens.after(tokens.first_of(tail))[0][..., None], dense, plan)
    plan = show(tokens.unsort(tokens.unsort(plan).mT).mT, tokens.broken)
    return plan.expand(*batch, n, n).to(query.dtype)


class Rule(NamedTuple):
    """Which rows see what, and which of them are dense."""

    window: int
    sink: int
    stride: int
    correction: str
    tail: int

    def sees(self, rows: Int[Tensor, "r 1"], keys: Int[Tensor, "m"]) -> Bool[Tensor, "r m"]:
        """The pairs of the sparse rows."""
        return (keys <= rows) & ((keys > rows - self.window) | (keys < self.sink))

    def correct(
        self, sparse: Float[Tensor, "*b n e"], dense: Float[Tensor, "*b g e"]
    ) -> Float[Tensor, "*b n e"]:
        """Correct all rows by what every stride-th dense row changes, or only those rows."""
        n = sparse.shape[-2]
        change = (dense - sparse[..., :: self.stride, :]).repeat_interleave(self.stride, -2)
        if self.correction == "recompute":
            is_dense = torch.arange(n, device=sparse.device) % self.stride == 0
            return sparse + change[..., :n, :] * is_dense[:, None]
        return sparse + change[..., :n, :]


class Tokens(NamedTuple):
    """Checked tokens in working precision, all real ones first, in their order.

    Then no row of a real token can see one that is not: rows are causal.
    """

    query: Float[Tensor, "*#b n d"]
    key: Float[Tensor, "*#b n d"]
    bias: Float[Tensor, "*b n"] | None
    real: Bool[Tensor, "*b n"] | None
    order: Int[Tensor, "*b n"] | None
    # rows that are to be NaN, in the order of the tokens
    broken: Bool[Tensor, "*#b n"] | None
    batch: torch.Size

    def expand(self, x: Tensor) -> Tensor:
        """All leading axes, in full."""
        return x.expand(*self.batch, *x.shape[-2:])

    def sort(self, x: Float[Tensor, "*#b n f"]) -> Float[Tensor, "*#b n f"]:
        """Move real tokens to the front."""
        if self.order is None:
            return x
        return torch.take_along_dim(self.expand(x), self.order[..., None], -2)

    def unsort(self, x: Float[Tensor, "*#b n f"]) -> Float[Tensor, "*#b n f"]:
        """Move tokens back to where they came from, and zero those that are not real."""
        if self.order is None or self.real is None:
            return x
        back = torch.take_along_dim(self.expand(x), self.order.argsort(-1)[..., None], -2)
        return back.masked_fill(~self.real[..., None], 0)

    def bias_of(self, allowed: Bool[Tensor, "*#b r m"], keys: slice | Tensor) -> Tensor:
        """The mask of some pairs, with the bias of the keys if there is one."""
        if self.bias is None:
            return allowed
        return torch.where(allowed, self.bias[..., None, keys], -torch.inf)

    def first_of(self, tail: int) -> Int[Tensor, "*#b"]:
        """Where the tail of every sequence begins."""
        n = self.query.shape[-2]
        if self.real is None:
            length = torch.full((1,) * len(self.batch), n, device=self.query.device)
        else:
            length = self.real.sum(-1)
        return (length - tail).clamp_min(0)

    def after(self, first: Int[Tensor, "*#b"]) -> tuple[Bool[Tensor, "*#b n"], Tensor]:
        """Whether a row is not before the first, and how far behind it."""
        place = torch.arange(self.query.shape[-2], device=first.device) - first[..., None]
        return place >= 0, place


def _sparse_rows(
    attend: Callable[..., Tensor], tokens: Tokens, value: Float[Tensor, "*#b n e"], rule: Rule
) -> Float[Tensor, "*#b n e"]:
    """Rows in chunks, each with the keys of its sink and of its windows only."""
    n, device = value.shape[-2], value.device
    step = max(rule.window, CHUNK)
    numbers = math.prod(tokens.batch) * step * (rule.sink + rule.window + step)

    def chunk(query: Tensor, key: Tensor, value: Tensor, first: int, last: int) -> Tensor:
        start = max(0, first - rule.window + 1)
        sink = torch.arange(min(rule.sink, start), device=device)
        keys = torch.cat([sink, torch.arange(start, last, device=device)])
        rows = torch.arange(first, last, device=device)[:, None]
        mask = tokens.bias_of(rule.sees(rows, keys), keys)
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


def _pose(
    operator, batch, query, key, value, rule, mask, query_mask, key_mask
) -> tuple[Tokens, Any]:
    """The tokens, and the values in working precision."""
    reason = "query t and key t belong to the same moment"
    inputs.check_square(operator, query, key, reason)
    n, device = query.shape[-2], query.device
    inputs.check_count(operator, "window", rule.window, least=1)
    inputs.check_count(operator, "sink", rule.sink)
    inputs.check_count(operator, "stride", rule.stride, least=1)
    inputs.check_count(operator, "tail", rule.tail)
    inputs.check_choice(operator, "correction", rule.correction, ("delta", "recompute", "none"))
    dtype = working_dtype(query.dtype)
    real = bias = order = None
    for name, padding in (("query_mask", query_mask), ("key_mask", key_mask)):
        if padding is not None:
            inputs.check_padding(operator, name, padding, (*batch, n), device)
            real = padding if real is None else real & padding
    if mask is not None:
        reason = "the operator is causal by itself and knows no other pairs"
        inputs.check_shared_mask(operator, mask, reason)
        inputs.check_mask(operator, mask, (*batch, n, n), device)
        shared = mask[..., 0, :] if mask.ndim > 1 else mask
        if shared.dtype != torch.bool:
            shared = forbid_low(shared, dtype)
        # a NaN is no minus infinity
        seen = shared if shared.dtype == torch.bool else shared != -torch.inf
        real = seen if real is None else real & seen
        if shared.dtype != torch.bool:
            bias = shared.masked_fill(~seen, 0).expand(*batch, n)
    query, key, value = (None if x is None else x.to(dtype) for x in (query, key, value))
    # whether scores are too large is seen by the inner operator, which knows their scale
    pairs = Pairs(None if bias is None else bias[..., None, :], None, real, real)
    query, key, value, bias, broken = clean(query, key, value, pairs, None, "later")
    bias = None if bias is None else bias[..., 0, :]
    if real is not None:
        real = real.expand(*batch, n)
        order = (~real).int().argsort(dim=-1, stable=True)
        bias = None if bias is None else bias.take_along_dim(order, -1)
    tokens = Tokens(query, key, bias, real, order, broken, batch)
    tokens = tokens._replace(query=tokens.sort(tokens.query), key=tokens.sort(tokens.key))
    return tokens, value


def _inner(operator: str, text: str, part: str) -> Callable[..., Tensor]:
    """The attention or the plan of the inner operator, with its options."""
    # the table holds this operator too, so it is not there yet when this file is read
    from bistoch.functional import OPERATORS

    name, options = _read(operator, text)
    function = getattr(OPERATORS[name], part)
    return lambda *tokens, mask: function(*tokens, mask=mask, **dict(options))


# the same text always means the same operator: a compiler need not look inside
@assume_constant_result
def _read(operator: str, text: str) -> tuple[str, tuple[tuple[str, Any], ...]]:
    inputs.check_text(operator, "inner", text, "softmax(eps=0.5)")
    return _read_text(operator, text)


@lru_cache(maxsize=64)
def _read_text(operator: str, text: str) -> tuple[str, tuple[tuple[str, Any], ...]]:
    from bistoch.functional import OPERATORS

    try:
        row, options = parse_operator(text, OPERATORS)
        check_options(row.name, options, row.options())
        # a call with one token says whether the options are legal
        row.attention(*torch.zeros(3, 1, 1).unbind(), **options)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{operator}: inner={text!r} cannot be used: {error}") from None
    inputs.check_inner(operator, row)
    return row.name, tuple(options.items())
