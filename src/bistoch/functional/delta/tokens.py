"""Checked tokens of delta attention, real ones first, and which rows see what."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

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


def pose_tokens(
    operator, batch, query, key, value, rule, mask, query_mask, key_mask, sharpness=None
) -> tuple[Tokens, Any]:
    """The tokens, and the values in working precision, both sorted.

    Where no sharpness is given, whether scores are too large is left to the inner operator.
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
    largest = key.abs().cummax(-2).values if key.numel() else key
    over = ~((query.abs() * largest).sum(-1) * factor <= limit)
    if rule.correction in ("delta", "mass"):
        dense = over[..., :: rule.stride].repeat_interleave(rule.stride, -1)
        over = over | dense[..., : over.shape[-1]]
    over = tokens.unsort(over[..., None])[..., 0]
    return tokens._replace(broken=over if tokens.broken is None else tokens.broken | over)
