"""Keys that are passed round a ring of ranks, and sums over rows that travel home with them.

At step s rank r has the block of rank r - s. While it computes with it, the block is on its way to
the next rank already, and the one after it comes in. Sums over the rows of all ranks go round with
their block: every rank adds its own part, and after p steps they are back where the block belongs.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bistoch.distributed.collectives import RankGroup

Block = tuple[Tensor, ...]


class Ring:
    """Ranks in a ring, and how many keys each of them has."""

    def __init__(self, ranks: RankGroup, sizes: Sequence[int]):
        self.ranks, self.sizes = ranks, tuple(sizes)

    def columns(self, owner: int) -> slice:
        """Where the keys of a rank are among those of all."""
        first = sum(self.sizes[:owner])
        return slice(first, first + self.sizes[owner])

    def blocks(self, own: Block) -> Iterator[tuple[int, Block]]:
        """The blocks of all ranks, each with the rank that it belongs to, this one's first.

        A block is tensors of shape (B, keys, ...), all of one dtype.
        """
        ranks, block = self.ranks, own
        packed = _pack(own) if ranks.size > 1 else None
        for step in range(ranks.size):
            owner, message = (ranks.rank - step) % ranks.size, None
            if packed is not None and step + 1 < ranks.size:
                # what came is sent on as it is
                message = _Exchange(self, packed, own, owner - 1, tag=0)
            yield owner, block
            if message is not None:
                packed = message.received()
                block = _unpack(packed, self._shapes(own, owner - 1))

    def _shapes(self, like: Block, owner: int) -> list[torch.Size]:
        """The shapes of a block of another rank."""
        keys = self.sizes[owner % self.ranks.size]
        return [torch.Size((x.shape[0], keys, *x.shape[2:])) for x in like]

    def summed(
        self,
        own: Block,
        part_of: Callable[[int, Block], Block],
        add: Callable[[Block, Block], Block],
    ) -> Block:
        """What all ranks make of the block of this one, added up in the order of the ring.

        Args:
            own: the block of this rank.
            part_of: from a rank and its block to what the rows of this rank make of it, tensors of
                shape (B, keys, ...).
            add: adds two of these.
        """
        message = None
        for owner, block in self.blocks(own):
            mine = part_of(owner, block)
            if message is not None:
                mine = add(_unpack(message.received(), [x.shape for x in mine]), mine)
            if self.ranks.size == 1:
                return mine
            shapes = self._shapes(mine, owner - 1)
            message = _Exchange(self, _pack(mine), mine, owner - 1, tag=1)
            del mine
        # a ring has at least one rank, and so a message if it has come here
        return _unpack(message.received(), shapes) if message is not None else own


class _Exchange:
    """A block on its way to the next rank, and another that comes from the one before."""

    def __init__(self, ring: Ring, sent: Tensor, like: Block, owner: int, tag: int):
        self.ranks = ring.ranks
        # kept until it has left
        self.sent: Tensor | None = sent
        size = sum(shape.numel() for shape in ring._shapes(like, owner))
        self.incoming = sent.new_empty(size)
        operations: list[Any] = []
        for collective, packed, step in ((dist.isend, sent, 1), (dist.irecv, self.incoming, -1)):
            # ranks know each other's sizes: what is empty is not sent
            if packed.numel():
                peer, group = self.ranks.neighbour(step), self.ranks.group
                operations.append(dist.P2POp(collective, packed, peer, group, tag))
        self.works = self.ranks.run(dist.batch_isend_irecv, operations) if operations else []

    def received(self) -> Tensor:
        for work in self.works:
            self.ranks.run(work.wait)
        self.sent = None
        return self.incoming


def _pack(block: Block) -> Tensor:
    """A block as one message."""
    return block[0].reshape(-1) if len(block) == 1 else torch.cat([x.reshape(-1) for x in block])


def _unpack(packed: Tensor, shapes: Sequence[torch.Size]) -> Block:
    parts = packed.split([shape.numel() for shape in shapes])
    return tuple(x.reshape(shape) for x, shape in zip(parts, shapes, strict=True))
