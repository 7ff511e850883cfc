"""What `convert` puts into an attention layer: an operator, and the heads that use it."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bistoch.functional import CausalState, softmax_attention, softmax_plan
from bistoch.functional.causal.growing import GrowingState
from bistoch.integrations.huggingface.caches import find_cache_layer
from bistoch.nn import OperatorModule
from bistoch.nn.over_ranks import attend_over_ranks
from bistoch.nn.swap.masks import Masks, forget_causal, once_per_forward


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
        # the operator in words, once it is part of a model
        self.text = ""
        # whether the keys are other tokens than the queries; the name of the layer may tell
        self.crosses = False
        # the cache of the call that is under way, for an operator that decodes
        self._cache: Any = None

    @property
    def decodes(self) -> bool:
        """Whether the operator can go on from a state, row by row."""
        return hasattr(self.operator, "step")

    def watch(self, layer: nn.Module) -> None:
        """Learn of the cache of every call of a layer, which no attention function is told."""
        if self.decodes:
            self._watching = layer.register_forward_pre_hook(self._note_cache, with_kwargs=True)

    def leave(self) -> None:
        """Watch no longer."""
        if self.decodes:
            self._watching.remove()

    def take_cache(self) -> Any:
        """The layer of the cache that was passed to this call, once; None without one."""
        cache, self._cache = self._cache, None
        return cache

    @property
    def continues(self) -> bool:
        """Whether rows may follow a whole sequence, without a state, from its keys alone."""
        return hasattr(self.operator, "next_rows")

    @property
    def is_causal_alone(self) -> bool:
        """Whether all heads are causal without a mask that says so."""
        return self.heads is None and self.operator.row.always_causal

    @property
    def causal(self) -> bool:
        """Whether a causal mask hides the future from every row."""
        return self.operator.causal

    @property
    def rows_are_independent(self) -> bool:
        """Whether no row depends on another."""
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
        if self.operator.mesh is not None:
            masks = self._for_ranks(masks, query)
        if self.heads is None:
            return self.operator(query, key, value, **self._own(masks))
        ours, rest = self.heads, self._rest()
        own = self._own(_of(masks, ours))
        swapped = self.operator(*_heads(ours, query, key, value), **own)
        q, k, v = _heads(rest, query, key, value)
        others = self._softmax(q, k, v, _of(masks, rest))
        return self._merge(swapped, others)

    def step(
        self,
        query: Float[Tensor, "b h n d"],
        key: Float[Tensor, "b h m d"],
        value: Float[Tensor, "b h m e"],
        masks: Masks,
        state: CausalState | None,
    ) -> tuple[Float[Tensor, "b h n e"], CausalState]:
        """Attend with the next rows, and the state of the swapped heads after them."""
        operator: Any = self.operator
        if self.heads is None:
            return operator.step(query, key, value, state, **self._own(masks))
        ours, rest = self.heads, self._rest()
        own = self._own(_of(masks, ours))
        swapped, state = operator.step(*_heads(ours, query, key, value), state, **own)
        # the rest of a cache of fixed size is hidden by the mask of the model
        q, k, v = _heads(rest, query, key, value)
        others = softmax_attention(q, k, v, **_for_softmax(_of(masks, rest)))
        return self._merge(swapped, others), state

    def step_in_place(
        self,
        query: Float[Tensor, "b h n d"],
        key: Float[Tensor, "b kv m d"],
        value: Float[Tensor, "b kv m e"],
        masks: Masks,
        state: CausalState | GrowingState | None,
        scale: float | None,
    ) -> tuple[Float[Tensor, "b h n e"], GrowingState] | None:
        """As `step`, changing the state; None if the operator has no kernels for this."""
        operator: Any = self.operator
        if self.heads is not None or not hasattr(operator, "step_in_place"):
            return None
        masks = self._own(masks)
        if masks["mask"] is not None:
            return None
        return operator.step_in_place(
            query, key, value, state, scale=scale, key_mask=masks["key_mask"]
        )

    def next_rows(
        self,
        query: Float[Tensor, "b h n d"],
        key: Float[Tensor, "b h m d"],
        value: Float[Tensor, "b h m e"],
        masks: Masks,
    ) -> Float[Tensor, "b h n e"]:
        """Attend with rows that follow those of a whole sequence."""
        operator: Any = self.operator
        allowed = _pairs(masks, query.shape[-2], key.shape[-2], query.device)
        if self.heads is None:
            return operator.next_rows(query, key, value, mask=allowed)
        ours = operator.next_rows(*_heads(self.heads, query, key, value), mask=allowed)
        others = softmax_attention(*_heads(self._rest(), query, key, value), mask=allowed)
        return self._merge(ours, others)

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
            return self.operator.plan(query, key, **self._own(masks))
        ours, rest = self.heads, self._rest()
        swapped = self.operator.plan(*_heads(ours, query, key), **self._own(_of(masks, ours)))
        others = softmax_plan(*_heads(rest, query, key), **_for_softmax(_of(masks, rest)))
        return self._merge(swapped, others)

    def step_plan(
        self,
        query: Float[Tensor, "b h n d"],
        key: Float[Tensor, "b h m d"],
        masks: Masks,
        state: CausalState | None,
    ) -> Float[Tensor, "b h n m"]:
        """The plans with which `step` weighs the values."""
        unit = torch.eye(key.shape[-2], dtype=key.dtype, device=key.device)
        return self.step(query, key, unit.expand(*key.shape[:-1], -1), masks, state)[0]

    def extra_repr(self) -> str:
        """The chosen heads."""
        return "" if self.heads is None else f"heads={self.heads} of {self.count}"

    def _note_cache(self, layer: nn.Module, arguments: tuple, options: dict[str, Any]) -> None:
        self._cache = find_cache_layer(layer, arguments, options)

    def _own(self, masks: Masks) -> Masks:
        """What the operator is told; one that is causal by itself needs no mask that says so."""
        if not self.operator.row.always_causal:
            return masks
        return once_per_forward(
            masks["mask"], id(self), "without causal", lambda: forget_causal(masks)
        )

    def _for_ranks(self, masks: Masks, query: Tensor) -> Masks:
        """Masks of the tokens of this rank; the same kind on all ranks, with padding or without."""
        masks = self._own(masks)
        if masks["mask"] is not None:
            raise NotImplementedError(
                f"{self.operator!r}: over ranks a model may hide padding, and the future where its "
                "layers are causal_elastic, but no other pairs of tokens; run it in one process"
            )
        real = masks["key_mask"]
        shape = (query.shape[0], 1, query.shape[-2])
        real = query.new_ones(shape, dtype=torch.bool) if real is None else real.expand(shape)
        return Masks(mask=None, query_mask=real, key_mask=real)

    def _softmax(self, query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> Tensor:
        """Heads that were not swapped."""
        mesh, masks = self.operator.mesh, _for_softmax(masks)
        if mesh is None:
            return softmax_attention(query, key, value, **masks)
        # causal balance without elasticity is causal softmax
        causal = self.operator.row.always_causal
        name, options = ("causal_elastic", {"lam": 0.0}) if causal else ("softmax", {})
        return attend_over_ranks(name, mesh, query, key, value, options, masks)

    def _rest(self) -> list[int]:
        chosen = set(self.heads or ())
        return [head for head in range(self.count) if head not in chosen]

    def _merge(self, swapped: Tensor, others: Tensor) -> Tensor:
        order = [*(self.heads or ()), *self._rest()]
        places = sorted(range(self.count), key=order.__getitem__)
        return torch.cat([swapped, others], -3)[..., places, :, :]


def _pairs(masks: Masks, n: int, m: int, device: torch.device) -> Tensor | None:
    """The pairs of new rows and cached keys that are allowed; None if it is all of them."""
    mask, real = masks["mask"], masks["key_mask"]
    if mask is None and n > 1:
        places = torch.arange(m, device=device)
        mask = (places <= places[m - n :, None])[None, None]
    if real is None:
        return mask
    if mask is None:
        return real[..., None, :]
    if mask.dtype != torch.bool:
        return mask.masked_fill(~real[..., None, :], -torch.inf)
    return mask & real[..., None, :]


def _heads(heads: list[int], *tokens: Tensor) -> Any:
    return [x[..., heads, :, :] for x in tokens]


def _of(masks: Masks, heads: list[int]) -> Masks:
    """The masks of some heads; an axis of size one is shared by all."""
    mask, *padding = masks["mask"], masks["query_mask"], masks["key_mask"]
    if mask is not None and mask.ndim > 2 and mask.shape[-3] > 1:
        mask = mask[..., heads, :, :]
    query_mask, key_mask = (
        x[..., heads, :] if x is not None and x.ndim > 1 and x.shape[-2] > 1 else x for x in padding
    )
    return Masks(mask=mask, query_mask=query_mask, key_mask=key_mask)


def _for_softmax(masks: Masks) -> Masks:
    """Heads that stay as they were: what a padded query sees is its own affair."""
    return Masks(mask=masks["mask"], query_mask=None, key_mask=masks["key_mask"])
