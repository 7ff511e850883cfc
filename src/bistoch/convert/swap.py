"""What `convert` puts into a layer: an operator called as scaled_dot_product_attention is."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from bistoch.functional import inputs, softmax_plan
from bistoch.nn import OperatorModule
from bistoch.nn.swap.choose import refuse_causal
from bistoch.nn.swap.masks import Masks, forget_causal, looks_causal, read_masks
from bistoch.nn.swap.tokens import scale_tokens, share_keys


class Swap(nn.Module):
    """An operator for some heads of a layer, or all; the others stay with torch's own softmax.

    Args:
        operator: made for as many heads as are chosen.
        text: the text that makes it.
        heads: the chosen heads; None for all.
        count: how many heads the layer has, None if it is not known and all are chosen.
        crosses: whether keys are other tokens than queries, even where there are as many.
        where: what to call the layer in a sentence.

    >>> import bistoch
    >>> q, k, v = torch.randn(3, 2, 4, 5, 8).unbind()
    >>> some = Swap(bistoch.nn.Sinkhorn(iters=200), "sinkhorn(iters=200)", [1, 3], 4)
    >>> sums = some.plan(q, k).sum(-2)
    >>> [(column - 1).abs().max().item() < 1e-3 for column in sums.unbind(1)]
    [False, True, False, True]
    >>> ours, theirs = some(q, k, v), functional.scaled_dot_product_attention(q, k, v)
    >>> torch.allclose(ours[:, 0], theirs[:, 0]), torch.allclose(ours[:, 1], theirs[:, 1])
    (True, False)
    """

    # what `analysis.capture` records as one: the heads it leaves to softmax have plans too
    attends_as_one = True

    def __init__(
        self,
        operator: OperatorModule,
        text: str,
        heads: Sequence[int] | None = None,
        count: int | None = None,
        crosses: bool = False,
        where: str = "a layer",
    ) -> None:
        super().__init__()
        self.operator, self.text = operator, text
        self.heads = None if heads is None else list(heads)
        self.count, self.crosses, self.where = count, crosses, where

    def forward(
        self,
        query: Float[Tensor, "*b n d"],
        key: Float[Tensor, "*b m d"],
        value: Float[Tensor, "*b m e"],
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        query_mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "*b n e"]:
        """Attend; the arguments are those of `scaled_dot_product_attention`.

        Dropout of the chosen heads acts on the result, not on the plan, whose sums it would undo.
        `query_mask` says which queries are real; without it, a key that is hidden from all queries
        is padding, and so is its query where queries and keys are the same tokens.
        """
        query, key, value, dtype = _alike(query, key, value)
        key, value = self._share(query, enable_gqa, key, value)
        if self.heads is None:
            masks = self._masks(query, key, attn_mask, is_causal, query_mask)
            return self._attend(query, key, value, masks, scale, dropout_p).to(dtype)
        ours, rest = self._split(query, key, value)
        q, k, v = ours
        masks = self._masks(q, k, _of(attn_mask, self.heads), is_causal, query_mask)
        swapped = self._attend(q, k, v, masks, scale, dropout_p)
        q, k, v = rest
        others = functional.scaled_dot_product_attention(
            q, k, v, _of(attn_mask, self._rest()), dropout_p, is_causal, scale=scale
        )
        return self._merge(swapped.to(dtype), others.to(dtype))

    def plan(
        self,
        query: Float[Tensor, "*b n d"],
        key: Float[Tensor, "*b m d"],
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        query_mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "*b n m"]:
        """The plans with which `forward` weighs the values, before dropout."""
        query, key, _, _ = _alike(query, key, key)
        (key,) = self._share(query, enable_gqa, key)
        if self.heads is None:
            masks = self._masks(query, key, attn_mask, is_causal, query_mask)
            query, key, _ = scale_tokens(query, key, key, scale)
            return self.operator.plan(query, key, **masks)
        ours, rest = self._split(query, key)
        q, k = ours
        masks = self._masks(q, k, _of(attn_mask, self.heads), is_causal, query_mask)
        q, k, _ = scale_tokens(q, k, k, scale)
        swapped = self.operator.plan(q, k, **masks)
        q, k = rest
        seen = _causal(q, k) if is_causal else _of(attn_mask, self._rest())
        others = softmax_plan(q, k, mask=seen, scale=scale)
        return self._merge(swapped.to(others.dtype), others)

    def extra_repr(self) -> str:
        """The chosen heads."""
        return "" if self.heads is None else f"heads={self.heads} of {self.count}"

    # what a call brings, as the operators take it

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        masks: Masks,
        scale: float | None,
        dropout: float,
    ) -> Tensor:
        query, key, value = scale_tokens(query, key, value, scale)
        result = self.operator(query, key, value, **masks)
        # the caller says when it trains, by the probability
        return functional.dropout(result, dropout) if dropout > 0 else result

    def _masks(
        self,
        query: Tensor,
        key: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        query_mask: Tensor | None,
    ) -> Masks:
        """The masks of a call; refuses balance where the future must stay hidden."""
        if is_causal and mask is not None:
            raise ValueError(
                f"scaled_dot_product_attention in {self.where}: is_causal=True and attn_mask "
                "exclude each other, as in torch; put both into one attn_mask"
            )
        row, n, m = self.operator.row, query.shape[-2], key.shape[-2]
        if is_causal and not row.causal:
            raise refuse_causal("convert", row.name, self.where)
        if is_causal and not row.always_causal:
            mask = _causal(query, key)
        if self.operator.rows_are_independent:
            # what a padded query does is its own affair, and a mask means what it means to torch
            return Masks(mask=mask, query_mask=None, key_mask=None)
        if mask is not None:
            mask = mask[(None,) * (max(query.ndim, 3) - mask.ndim)]
        same = query_mask is None and n == m and not self.crosses
        masks = read_masks(
            mask, None, queries=n, keys=m, causal=False, hide_queries=same, device=query.device
        )
        if query_mask is not None:
            masks["query_mask"] = query_mask
        elif not same and masks["key_mask"] is not None:
            # of the queries of another sequence nothing is known, but that they were given
            masks["query_mask"] = masks["key_mask"].new_ones(n)
        if n == 1 < m and row.columns != "free" and not row.causal:
            _warn_single_query(row.name, self.where)
        causal = is_causal or looks_causal(masks)
        if causal and not row.causal:
            raise refuse_causal("convert", row.name, self.where)
        if row.always_causal and n != m:
            raise NotImplementedError(
                f"convert: {row.name} in {self.where} needs all rows at once, but there are {n} "
                f"queries and {m} keys; run whole sequences without a cache of keys, and leave "
                "cross-attention out with layers="
            )
        return forget_causal(masks) if row.always_causal else masks

    def _share(self, query: Tensor, enable_gqa: bool, *keys: Tensor) -> tuple[Tensor, ...]:
        made_for = getattr(self.operator, "heads", None)
        per_head = self.heads is not None or isinstance(made_for, int)
        found = query.shape[-3] if query.ndim > 2 else 1
        if per_head and found != self.count:
            raise ValueError(
                f"convert: {self.where} has {self.count} heads, but its attention was called with "
                f"queries {tuple(query.shape)}, whose axis -3 has {found}; choices of heads and a "
                "lam for each of them need tokens (..., heads, length, features)"
            )
        return share_keys(found, *keys) if enable_gqa else keys

    # heads that stay as they were

    def _rest(self) -> list[int]:
        chosen = set(self.heads or ())
        return [head for head in range(self.count or 0) if head not in chosen]

    def _split(self, *tokens: Tensor) -> Any:
        return [[x[..., heads, :, :] for x in tokens] for heads in (self.heads, self._rest())]

    def _merge(self, swapped: Tensor, others: Tensor) -> Tensor:
        order = [*(self.heads or ()), *self._rest()]
        places = sorted(range(len(order)), key=order.__getitem__)
        return torch.cat([swapped, others], -3)[..., places, :, :]


def _warn_single_query(name: str, where: str) -> None:
    if not torch.compiler.is_compiling():
        inputs.warn_caller(
            f"convert: {where} has one query, and {name} draws its row towards the mean over all "
            "keys; leave pooling layers out with layers=",
            UserWarning,
        )


def _alike(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, torch.dtype]:
    """Tokens in one dtype, and the dtype of the result; autocast allows and makes others."""
    dtype, device = query.dtype, query.device.type
    if not torch.is_autocast_enabled(device) or torch.float64 in (dtype, key.dtype, value.dtype):
        return query, key, value, dtype
    widest = torch.promote_types(torch.promote_types(dtype, key.dtype), value.dtype)
    query, key, value = (x.to(widest) for x in (query, key, value))
    return query, key, value, torch.get_autocast_dtype(device)


def _of(mask: Tensor | None, heads: list[int] | None) -> Tensor | None:
    """The mask of some heads; an axis of size one is shared by all."""
    if mask is None or heads is None or mask.ndim < 3 or mask.shape[-3] == 1:
        return mask
    return mask[..., heads, :, :]


def _causal(query: Tensor, key: Tensor) -> Bool[Tensor, "n m"]:
    shape = (query.shape[-2], key.shape[-2])
    return torch.ones(shape, dtype=torch.bool, device=query.device).tril()
