"""Causal balance over ranks: the state of the past goes from rank to rank, as in decoding.

Rank r holds a stretch of the sequence. Its rows need the state that all earlier rows have left, so
ranks work one after the other on a head; while rank 1 is at the first heads, rank 0 is at the next.
In the backward the gradient of the state goes the other way.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from bistoch.distributed.agree import (
    agree,
    check_backend,
    check_pairs,
    mask_numbers,
    share_mask,
    tokens_fact,
)
from bistoch.distributed.collectives import RankGroup, rank_group
from bistoch.distributed.elastic import replicated
from bistoch.functional import inputs
from bistoch.functional.causal.decode import CausalState, causal_elastic_step
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import BalanceOptions, ScoreOptions, working_dtype
from bistoch.functional.precision import full_precision

# parts of the leading axis for each rank: more keep the ranks busier, and are smaller
PARTS_PER_RANK = 2


@full_precision
def causal_elastic_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b n d"],
    value: Float[Tensor, "*#b n e"],
    *,
    lam: Option = 1.0,
    eps: Option = 1.0,
    block: int = 64,
    prior: float = 0.01,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
    group: Any = None,
    mesh: DeviceMesh | None = None,
) -> Float[Tensor, "*b n e"]:
    """`bistoch.causal_elastic_attention` of a sequence in stretches, one on each rank, in order.

    Every rank passes its tokens, and the rows of a mask with the columns of all. The result is that
    of one process with everything, and so is every gradient of the sum of the losses of all ranks.
    Keys and values of all ranks are gathered once; the state, three numbers per key and head, goes
    from rank to rank. Leading axes are cut into parts, so that ranks work at the same time.

    Args:
        backend: "auto" (streaming), "reference" or "streaming".
        group, mesh: as for `elastic_attention` of this module.

    Others are those of `bistoch.causal_elastic_attention`. Reference: docs/distributed.md.
    """
    ranks = rank_group("causal_elastic_attention", group, mesh)
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    batch, table = _agree(ranks, query, key, value, lam, block, prior, pairs, backend)
    sizes = [row[1] for row in table]
    first, last = sum(sizes[: ranks.rank]), sum(sizes[: ranks.rank + 1])
    mask = share_mask(ranks, mask, table, sum(sizes))
    real = _real(ranks, (*batch, query.shape[-2]), sizes, query_mask, key_mask)
    call = _Call(
        query,
        ranks.gather(key, -2, sizes)[..., :last, :],
        ranks.gather(value, -2, sizes)[..., :last, :],
        mask if mask is None or not mask.ndim or mask.shape[-1] == 1 else mask[..., :last],
        None if real is None else real[..., :last],
        replicated(ranks, lam),
        replicated(ranks, eps),
    )
    options = {
        "block": block, "prior": prior, "scale": scale,
        "backend": check_backend(ranks.operator, backend),
    }  # fmt: skip
    return _run(ranks, call, batch, first, options)


class _Call(NamedTuple):
    """The tensors of a call, with all keys up to the last row of this rank."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    real: Tensor | None
    lam: Any
    eps: Any

    def part(self, axis: int, some: slice) -> "_Call":
        """Some of a leading axis, which is counted from the last one."""
        # how many axes of its own each field has behind the leading ones
        own = _Call(2, 2, 2, 2, 1, 0, 0)  # type: ignore[arg-type]
        parts = [_narrow(x, axes + axis, some) for x, axes in zip(self, own, strict=True)]
        return _Call(*parts)


def _narrow(x: Any, axis: int, some: slice) -> Any:
    """Some entries of the axis that is so many from the last, unless it is shared by all."""
    if not isinstance(x, Tensor) or x.ndim < axis or x.shape[-axis] == 1:
        return x
    return x.narrow(-axis, some.start, some.stop - some.start)


def _run(
    ranks: RankGroup, call: _Call, batch: torch.Size, first: int, options: dict[str, Any]
) -> Tensor:
    """The rows of this rank, part after part of the longest leading axis."""
    axis = 1 + max(range(len(batch)), key=lambda a: batch[-1 - a]) if batch else 0
    length = batch[-axis] if axis else 1
    count = max(1, min(length, PARTS_PER_RANK * ranks.size))
    bounds = [round(part * length / count) for part in range(count + 1)]
    tensors = [x for x in call if isinstance(x, Tensor)]
    wants_grad = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    results: list[Tensor] = []
    pending: list[_Sent] = []
    for start, stop in pairwise(bounds):
        part = call if axis == 0 else call.part(axis, slice(start, stop))
        own = torch.Size(
            stop - start if len(batch) - place == axis else size for place, size in enumerate(batch)
        )
        state = _received(ranks, own, first, call.key, wants_grad)
        result, state = _step(part, state, own, options)
        if ranks.rank + 1 < ranks.size:
            result = _Send.apply(result, _packed(state), ranks, pending)
        results.append(result)
    for sent in pending:
        for work in sent.works:
            ranks.run(work.wait)
    return torch.cat(results, -2 - axis) if axis else results[0]


def _step(
    part: _Call, state: CausalState, batch: torch.Size, options: dict[str, Any]
) -> tuple[Tensor, CausalState]:
    if part.query.shape[-2] == 0:
        none = part.query.new_zeros(*batch, 0, part.value.shape[-1])
        # the backward of every input has to take part in the collectives of the other ranks
        inputs_of_all = [x for x in part if isinstance(x, Tensor) and x.is_floating_point()]
        return none + 0 * sum(x.sum() for x in inputs_of_all), state
    return causal_elastic_step(
        part.query, part.key, part.value, state, lam=part.lam, eps=part.eps, mask=part.mask,
        key_mask=part.real, **options,
    )  # fmt: skip


def _received(
    ranks: RankGroup, batch: torch.Size, length: int, like: Tensor, wants_grad: bool
) -> CausalState:
    """The state after the rows of the rank before; on the first rank, that of no rows."""
    dtype = working_dtype(like.dtype)
    shape = (*batch, 3 * length + 2)
    if ranks.rank == 0:
        packed = torch.zeros(shape, dtype=dtype, device=like.device)
    else:
        # torch asks for the gradient of a result only if an input has one
        anchor = torch.zeros(0, dtype=dtype, device=like.device, requires_grad=wants_grad)
        packed = _Receive.apply(anchor, shape, ranks)
    bias, received, wanted, rest = packed.split([length, length, length, 2], -1)
    return CausalState(bias, received, wanted, rest[..., 0], rest[..., 1].detach().long())


def _packed(state: CausalState) -> Tensor:
    """A state as one tensor: one message."""
    numbers = torch.stack([state.level, state.position.to(state.level.dtype)], -1)
    return torch.cat([*state[:3], numbers], -1)


class _Receive(torch.autograd.Function):
    """The state from the rank before, to which its gradient goes back."""

    @staticmethod
    def forward(ctx, anchor, shape, ranks):
        ctx.ranks = ranks
        packed = anchor.new_empty(shape)
        ranks.run(dist.recv, packed, src=ranks.neighbour(-1), group=ranks.group)
        return packed

    @staticmethod
    def backward(ctx, grad):
        ranks = ctx.ranks
        ranks.run(dist.send, grad.contiguous(), dst=ranks.neighbour(-1), group=ranks.group)
        return None, None, None


class _Send(torch.autograd.Function):
    """The result as it is; the state is sent to the next rank, from which its gradient comes."""

    @staticmethod
    def forward(ctx, result, packed, ranks, pending):
        ctx.ranks, ctx.like, ctx.shape = ranks, packed.new_empty(0), packed.shape
        # kept until it has left
        pending.append(_Sent(packed.contiguous(), ranks))
        return result.view_as(result)

    @staticmethod
    def backward(ctx, grad):
        ranks = ctx.ranks
        state_grad = ctx.like.new_empty(ctx.shape)
        ranks.run(dist.recv, state_grad, src=ranks.neighbour(1), group=ranks.group)
        return grad, state_grad, None, None


class _Sent:
    """A message on its way."""

    def __init__(self, packed: Tensor, ranks: RankGroup):
        self.packed = packed
        operation = dist.P2POp(dist.isend, packed, ranks.neighbour(1), ranks.group)
        self.works = ranks.run(dist.batch_isend_irecv, [operation])


def _real(
    ranks: RankGroup, shape: tuple[int, ...], sizes: list[int], *masks: Tensor | None
) -> Tensor | None:
    """Which tokens of all ranks are real: query t and key t are one token."""
    told = [mask.expand(shape) for mask in masks if mask is not None]
    if not told:
        return None
    return ranks.gather(told[0] if len(told) == 1 else told[0] & told[1], -1, sizes)


def _agree(
    ranks: RankGroup, query: Tensor, key: Tensor, value: Tensor, lam: Option, block: int,
    prior: float, pairs: ScoreOptions, backend: str,
) -> tuple[torch.Size, list[list[int]]]:  # fmt: skip
    operator = ranks.operator

    def check() -> dict[str, Any]:
        batch = inputs.check_tokens(operator, query, key, value)
        inputs.check_square(operator, query, key, "query t and key t belong to the same moment")
        inputs.check_count(operator, "block", block, least=1)
        inputs.check_prior(operator, prior)
        facts: dict[str, Any] = {"block": block, "prior": prior}
        for name, tokens in (("query", query), ("key", key), ("value", value)):
            facts[name] = tokens_fact(tokens)
        facts["backend"] = check_backend(operator, backend)
        options, n = BalanceOptions(lam, None, 0, None), query.shape[-2]
        return facts | check_pairs(operator, batch, query, n, n, pairs, options)

    def numbers() -> tuple[int, ...]:
        return query.shape[-2], key.shape[-2], *mask_numbers(pairs.mask)

    device = query.device if isinstance(query, Tensor) else torch.device("cpu")
    table = agree(ranks, check, numbers, device)
    return inputs.check_tokens(operator, query, key, value), table
