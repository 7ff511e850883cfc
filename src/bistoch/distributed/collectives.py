"""Sums, maxima and gathers over the ranks of a process group: checked, exact and differentiable.

The loss is the sum of the losses of all ranks. So what arrives at a rank in the backward is a part
of a gradient, and a result that several ranks share sums these parts over them.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

if dist.is_available():
    # its functions have the group that exists when they are first read as a default, and keep it
    # for ever: read later, by an optimizer for instance, they hold threads of gloo that a group
    # which was destroyed should have ended, and a thread that ends with the interpreter may abort
    from torch.distributed.nn import functional as _functional  # noqa: F401


class RankError(RuntimeError):
    """Ranks that do not fit each other, or one that does not answer."""


class RankGroup(NamedTuple):
    """The processes that hold one input together, and the place of this one among them."""

    # who asks, for messages
    operator: str
    group: Any
    rank: int
    size: int
    # whether each has only the columns of its own keys
    has_own_columns: bool = False

    def sum(self, x: Tensor) -> Tensor:
        """The sum over ranks, equal on all of them; its gradient is summed over them too."""
        result: Tensor = _Sum.apply(x, self)
        return result

    def max(self, x: Tensor) -> Tensor:
        """The largest over ranks, without a gradient."""
        return self.reduced(x, dist.ReduceOp.MAX)

    def logsumexp(self, x: Tensor) -> Tensor:
        """`log sum_r exp(x_r)` over ranks; minus infinity, with a zero gradient, if all are.

        The largest is exchanged first, so that no exponential overflows and one of them is one.
        """
        peak = self.max(x)
        peak = peak.masked_fill(peak == -torch.inf, 0)
        total = self.sum((x - peak).exp())
        is_empty = total == 0
        return torch.where(is_empty, -torch.inf, total.masked_fill(is_empty, 1).log() + peak)

    def sum_columns(self, x: Tensor) -> Tensor:
        """What was summed over columns here, over the columns of all ranks."""
        return self.sum(x) if self.has_own_columns else x

    def gather(self, x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
        """The shards of all ranks one after the other; rank r has `sizes[r]` along `dim`.

        In the backward the gradients of all ranks are summed, and each gets that of its own shard.
        """
        result: Tensor = _Gather.apply(x, self, dim % x.ndim, tuple(sizes))
        return result

    def replicated(self, x: Tensor) -> Tensor:
        """What is equal on all ranks: its gradient becomes the whole one, summed over ranks."""
        result: Tensor = _Replicated.apply(x, self)
        return result

    def share(self, x: Tensor) -> Tensor:
        """As it is, with a gradient that is divided by the number of ranks.

        It undoes `replicated` for parameters whose gradients are summed by somebody else, such as
        DistributedDataParallel, which averages the parts that ranks have.
        """
        result: Tensor = _Share.apply(x, self.size)
        return result

    def neighbour(self, step: int) -> int:
        """The rank, among all processes, that is so many places further in the ring."""
        return dist.get_global_rank(self.group, (self.rank + step) % self.size)

    def reduced(self, x: Tensor, op: Any) -> Tensor:
        """A new tensor, reduced over ranks, outside of autograd."""
        result = x.detach().clone(memory_format=torch.contiguous_format)
        if self.size > 1:
            self.run(dist.all_reduce, result, op=op, group=self.group)
        return result

    def run(self, collective: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a collective; say in a sentence of ours if a rank does not answer."""
        try:
            return collective(*arguments, **options)
        except RuntimeError as error:
            # the first line says what; the rest is a trace of the transport
            reason = str(error).splitlines()[0]
            raise RankError(
                f"{self.operator}: rank {self.rank} of {self.size} lost contact with the others; "
                "look for the error of the rank that ended first or did not make this call, or "
                f"raise the timeout of init_process_group if all are alive ({reason})"
            ) from error

    def agree(
        self,
        facts: dict[str, Any],
        numbers: Sequence[int] = (),
        error: Exception | None = None,
        device: torch.device | str = "cpu",
    ) -> list[list[int]]:
        """Make sure that facts are equal on all ranks; return the numbers of each rank.

        If they differ, or if a rank has found an error of its own, every rank raises. This is the
        first exchange of a call, and is made by all ranks whatever they have found.

        Args:
            facts: what must be equal, by the names that a user knows.
            numbers: what may differ, such as the sizes of shards; equally many on all ranks.
            error: what is wrong on this rank.
            device: where the collectives of the group work.
        """
        words = {name: str(fact) for name, fact in facts.items()}
        code = blake2b(repr(sorted(words.items())).encode(), digest_size=7).digest()
        own = [int(error is None), int.from_bytes(code, "big"), *numbers]
        if self.size == 1:
            if error is not None:
                raise error
            return [own[2:]]
        sent = torch.tensor(own, dtype=torch.int64, device=device)
        received = [torch.empty_like(sent) for _ in range(self.size)]
        self.run(dist.all_gather, received, sent, group=self.group)
        table = torch.stack(received).tolist()
        if all(row[0] for row in table) and all(row[1] == own[1] for row in table):
            return [row[2:] for row in table]
        message = None if error is None else f"{type(error).__name__}: {error}"
        told: list[Any] = [None] * self.size
        self.run(dist.all_gather_object, told, (message, words), group=self.group)
        if error is not None:
            raise error
        raise self._disagreement(told)

    def _disagreement(self, told: list[tuple[str | None, dict[str, str]]]) -> Exception:
        for rank, (message, _) in enumerate(told):
            if message is not None:
                return RankError(f"{self.operator}: rank {rank} could not go on: {message}")
        names = dict.fromkeys(name for _, words in told for name in words)
        for name in names:
            found = [words.get(name, "nothing") for _, words in told]
            if len(set(found)) > 1:
                listed = ", ".join(f"{fact} on rank {rank}" for rank, fact in enumerate(found))
                return ValueError(
                    f"{self.operator}: expected the same {name} on all ranks, got {listed}"
                )
        return RankError(f"{self.operator}: ranks do not agree")


def rank_group(operator: str, group: Any = None, mesh: DeviceMesh | None = None) -> RankGroup:
    """The ranks of a process group, or of a device mesh with one axis; by default of all."""
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError(
            f"{operator}: expected a process group; call torch.distributed.init_process_group "
            "first, in processes that torchrun has started"
        )
    if group is not None and mesh is not None:
        raise ValueError(f"{operator}: expected group or mesh, got both")
    if mesh is not None:
        if mesh.ndim != 1:
            raise ValueError(
                f"{operator}: expected a mesh with one axis, got {mesh.ndim}; name the axis over "
                "which the sequence is sharded, as mesh['sequence']"
            )
        group = mesh.get_group()
    group = dist.group.WORLD if group is None else group
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(f"{operator}: this process is not in the group that was passed")
    return RankGroup(operator, group, rank, dist.get_world_size(group))


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, ranks):
        ctx.ranks = ranks
        return ranks.reduced(x, dist.ReduceOp.SUM)

    @staticmethod
    def backward(ctx, grad):
        # by itself, so that second derivatives are right too
        return _Sum.apply(grad, ctx.ranks), None


class _Replicated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, ranks):
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return _Sum.apply(grad, ctx.ranks), None


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, size):
        ctx.size = size
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad / ctx.size, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, ranks, dim, sizes):
        ctx.ranks, ctx.dim, ctx.sizes = ranks, dim, sizes
        if x.shape[dim] != sizes[ranks.rank]:
            raise ValueError(
                f"{ranks.operator}: expected {sizes[ranks.rank]} entries in this shard, "
                f"got {x.shape[dim]}"
            )
        if ranks.size == 1:
            return x.clone()
        # collectives want shards of equal size: the shorter ones are padded, and cut afterwards
        padded = _padded(x.movedim(dim, 0), max(sizes))
        shards = [torch.empty_like(padded) for _ in sizes]
        ranks.run(dist.all_gather, shards, padded, group=ranks.group)
        kept = [shard[:size] for shard, size in zip(shards, sizes, strict=True)]
        return torch.cat(kept).movedim(0, dim)

    @staticmethod
    def backward(ctx, grad):
        return _Scatter.apply(grad, ctx.ranks, ctx.dim, ctx.sizes), None, None, None


class _Scatter(torch.autograd.Function):
    """The sum over ranks of whole tensors, of which each rank keeps its shard."""

    @staticmethod
    def forward(ctx, x, ranks, dim, sizes):
        ctx.ranks, ctx.dim, ctx.sizes = ranks, dim, sizes
        if ranks.size == 1:
            return x.clone()
        parts = [_padded(part, max(sizes)) for part in x.movedim(dim, 0).split(list(sizes))]
        own = torch.empty_like(parts[0])
        ranks.run(dist.reduce_scatter, own, parts, group=ranks.group)
        return own[: sizes[ranks.rank]].movedim(0, dim)

    @staticmethod
    def backward(ctx, grad):
        return _Gather.apply(grad, ctx.ranks, ctx.dim, ctx.sizes), None, None, None


def _padded(x: Tensor, length: int) -> Tensor:
    """Contiguous, with zeros up to a length of the first axis."""
    if x.shape[0] == length:
        return x.contiguous()
    return torch.cat((x, x.new_zeros(length - x.shape[0], *x.shape[1:])))
