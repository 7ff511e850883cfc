"""What `convert` puts into an attention layer: an operator, and the heads that use it."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bistoch.functional import softmax_attention, softmax_plan
from bistoch.integrations.huggingface.masks import Masks
from bistoch.nn import OperatorModule


class Swapped(nn.Module):
    """An operator for some heads of a layer; the others stay with softmax.

    Args:
        operator: made for as many heads as are chosen.
        heads: the chosen heads; None for all.
        count: how many heads the layer has.
        config: the configuration of the layer before the swap, given back by `restore`.

    >>> import bistoch
    >>> q, k, v = torch.randn(3, 2, 4, 5, 8).unbind()
    >>> some = Swapped(bistoch.nn.Sinkhorn(iters=200), [1, 3], 4, config=None)
    >>> sums = some.plan(q, k).sum(-2)
    >>> [(column - 1).abs().max().item() < 1e-3 for column in sums.unbind(1)]
    [False, True, False, True]
    """

    # what `analysis.capture` records as one: the heads it leaves to softmax have plans too
    attends_as_one = True

    def __init__(
        self, operator: OperatorModule, heads: Sequence[int] | None, count: int, config: Any
    ) -> None:
        super().__init__()
        self.operator = operator
        self.heads = None if heads is None else list(heads)
        self.count = count
        self.config = config

    @property
    def rows_are_independent(self) -> bool:
        """Whether no row feels another."""
        return self.operator.rows_are_independent

    def forward(
        self,
        query: Float[Tensor, "b h n d"],
        key: Float[Tensor, "b h m d"],
        value: Float[Tensor, "b h m e"],
        mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
    ) -> Float[Tensor, "b h n e"]:
        """Attend, every head in its own way."""
        masks = Masks(mask=mask, query_mask=query_mask, key_mask=key_mask)
        if self.heads is None:
            return self.operator(query, key, value, **masks)
        ours, rest = self.heads, self._rest()
        swapped = self.operator(query[:, ours], key[:, ours], value[:, ours], **_of(masks, ours))
        others = softmax_attention(
            query[:, rest], key[:, rest], value[:, rest], **_for_softmax(_of(masks, rest))
        )
        return self._merge(swapped, others)

    def plan(
        self,
        query: Float[Tensor, "b h n d"],
        key: Float[Tensor, "b h m d"],
        mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
    ) -> Float[Tensor, "b h n m"]:
        """The plans with which `forward` weighs the values."""
        masks = Masks(mask=mask, query_mask=query_mask, key_mask=key_mask)
        if self.heads is None:
            return self.operator.plan(query, key, **masks)
        ours, rest = self.heads, self._rest()
        swapped = self.operator.plan(query[:, ours], key[:, ours], **_of(masks, ours))
        others = softmax_plan(query[:, rest], key[:, rest], **_for_softmax(_of(masks, rest)))
        return self._merge(swapped, others)

    def extra_repr(self) -> str:
        """The chosen heads."""
        return "" if self.heads is None else f"heads={self.heads} of {self.count}"

    def _rest(self) -> list[int]:
        chosen = set(self.heads or ())
        return [head for head in range(self.count) if head not in chosen]

    def _merge(self, swapped: Tensor, others: Tensor) -> Tensor:
        order = [*(self.heads or ()), *self._rest()]
        places = sorted(range(self.count), key=order.__getitem__)
        return torch.cat([swapped, others], 1)[:, places]


def _of(masks: Masks, heads: list[int]) -> Masks:
    """The masks of some heads; an axis of size one is shared by all."""
    chosen = {
        name: mask[:, heads] if isinstance(mask, Tensor) and mask.shape[1] > 1 else mask
        for name, mask in masks.items()
    }
    return Masks(**chosen)  # type: ignore[typeddict-item]


def _for_softmax(masks: Masks) -> Masks:
    """Heads that stay as they were: what a padded query sees is its own affair."""
    return Masks(mask=masks["mask"], query_mask=None, key_mask=masks["key_mask"])
