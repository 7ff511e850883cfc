"""Checked tokens of delta attention, real ones first, and which rows see what."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from bistoch.functional import inputs
from bistoch.functional._masks import forbid_low
from bistoch.functional._nonfinite import Pairs, _is_at_hand, clean, largest_score
from bistoch.functional.pose import working_dtype

CORRECTIONS = ("delta", "mass", "recompute", "none")


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

    def near(
        self, first: int, last: int, device: torch.device
    ) -> tuple[Int[Tensor, "m"], Bool[Tensor, "r m"]]:
        """The keys that neighbouring sparse rows see, and which of them sees which."""
        start = max(0, first - self.window + 1)
        sink = torch.arange(min(self.sink, start), device=device)
        keys = torch.cat([sink, torch.arange(start, last, device=device)])
        rows = torch.arange(first, last, device=device)[:, None]
        return keys, self.sees(rows, keys)

    def correct(
        self, sparse: Float[Tensor, "*b n e"], dense: Float[Tensor, "*b g e"]
    ) -> Float[Tensor, "*b n e"]:
        """Correct all rows by what every stride-th dense row changes, or only those rows."""
        n, stride = sparse.shape[-2], self.stride
        if self.correction == "recompute":
            is_dense = torch.arange(n, device=sparse.device) % stride == 0
            dense = dense.repeat_interleave(stride, -2)[..., :n, :]
            return torch.where(is_dense[:, None], dense, sparse)
        change = (dense - sparse[..., ::stride, :]).repeat_interleave(stride, -2)
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

    def may_overflow(self) -> bool:
        """Whether there is a row that is broken, or a score too large that no row uses."""
        return self.broken is not None and _is_at_hand([self.query, self.key])

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


def pose_tokens(
    operator, batch, query, key, value, rule, mask, query_mask, key_mask, sharpness=None
) -> tuple[Tokens, Any]:
    """The tokens, and the values in working precision, both sorted.

    Where no sharpness is given, rows are no softmax, and look at their scores by themselves.
    """
    reason = "query t and key t belong to the same moment"
    inputs.check_square(operator, query, key, reason)
    n, device = query.shape[-2], query.device
    inputs.check_count(operator, "window", rule.window, least=1)
    inputs.check_count(operator, "sink", rule.sink)
    inputs.check_count(operator, "stride", rule.stride, least=1)
    inputs.check_count(operator, "tail", rule.tail)
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
    pairs = Pairs(None if bias is None else bias[..., None, :], None, real, real)
    query, key, value, bias, broken = clean(query, key, value, pairs, None, "later")
    bias = None if bias is None else bias[..., 0, :]
    if real is not None:
        real = real.expand(*batch, n)
        order = (~real).int().argsort(dim=-1, stable=True)
        bias = None if bias is None else bias.take_along_dim(order, -1)
    tokens = Tokens(query, key, bias, real, order, broken, batch)
    tokens = tokens._replace(query=tokens.sort(tokens.query), key=tokens.sort(tokens.key))
    if sharpness is not None:
        tokens = _with_overflow(tokens, rule, sharpness)
    return tokens, None if value is None else tokens.sort(value)


def _with_overflow(tokens: Tokens, rule: Rule, sharpness: float) -> Tokens:
    """Tokens that know the rows whose scores are too large, and the rows that these correct."""
    query, key = tokens.query.detach(), tokens.key.detach()
    limit, factor = largest_score(query.dtype), max(abs(sharpness), 1.0)
    if _is_at_hand([query, key]):
        # no score is larger than the product of the lengths of all queries and of all keys
        lengths = [torch.linalg.vector_norm(x).item() for x in (query, key)]
        if lengths[0] * lengths[1] * factor <= limit:
            return tokens
    if not key.numel():
        return tokens
    largest = key.abs().cummax(-2).values
    # a dense row, and a row that estimates what one sees, meets all keys up to its own
    dense = over = ~((query.abs() * largest).sum(-1) * factor <= limit)
    if rule.correction != "mass":
        seen = _sliding_max(key.abs(), rule.window)
        if rule.sink:
            seen = seen.maximum(largest[..., : rule.sink, :].amax(-2, keepdim=True))
        # the sink has later keys than the first rows
        seen = seen.minimum(largest)
        over = ~((query.abs() * seen).sum(-1) * factor <= limit)
    n, stride = key.shape[-2], rule.stride
    if rule.correction in ("delta", "mass"):
        over = over | dense[..., ::stride].repeat_interleave(stride, -1)[..., :n]
    elif rule.correction == "recompute":
        over = torch.where(torch.arange(n, device=key.device) % stride == 0, dense, over)
    if rule.tail:
        over = torch.where(tokens.after(tokens.first_of(rule.tail))[0], dense, over)
    over = tokens.unsort(over[..., None])[..., 0]
    return tokens._replace(broken=over if tokens.broken is None else tokens.broken | over)


def _sliding_max(x: Float[Tensor, "*b n d"], window: int) -> Float[Tensor, "*b n d"]:
    """The largest of the last `window` rows, in time linear in n: from two ends of blocks.

    >>> _sliding_max(torch.tensor([3.0, 1.0, 2.0, 0.0, 5.0])[:, None], 2).squeeze()
    tensor([3., 3., 2., 2., 5.])
    """
    n = x.shape[-2]
    window = min(window, n)
    # nothing is below zero, which is what stands before the first row and behind the last
    blocks = pad(x, (0, 0, window - 1, -(n + window - 1) % window)).unflatten(-2, (-1, window))
    forth = blocks.cummax(-2).values.flatten(-3, -2)
    back = blocks.flip(-2).cummax(-2).values.flip(-2).flatten(-3, -2)
    return back[..., :n, :].maximum(forth[..., window - 1 : window - 1 + n, :])
