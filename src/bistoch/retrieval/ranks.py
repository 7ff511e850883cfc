"""Queries or documents of a fit that ranks hold together, and what they tell each other."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from bistoch.distributed import RankGroup

Sharded = Literal["queries", "documents"]


class Split(NamedTuple):
    """Who holds what; without ranks, everything is here.

    Args:
        sharded: what every rank has a part of; all ranks have all of the other.
        ranks: who takes part.
        sizes: how many vectors of the sharded kind each rank has.
    """

    sharded: Sharded = "queries"
    ranks: "RankGroup | None" = None
    sizes: tuple[int, ...] = ()

    def total(self, kind: Sharded, own: Tensor) -> int:
        """The vectors of a kind that all ranks have together."""
        return len(own) if self.ranks is None or self.sharded != kind else sum(self.sizes)

    def first(self, kind: Sharded) -> int:
        """The place of the first own vector among those of all ranks."""
        if self.ranks is None or self.sharded != kind:
            return 0
        return sum(self.sizes[: self.ranks.rank])

    def own_documents(self) -> slice:
        """The places of the own documents."""
        if self.ranks is None or self.sharded == "queries":
            return slice(None)
        first = self.first("documents")
        return slice(first, first + self.sizes[self.ranks.rank])

    def widest(self, documents: int) -> int:
        """The largest number of documents that a rank has."""
        is_whole = self.ranks is None or self.sharded == "queries"
        return documents if is_whole else max(self.sizes)

    def row_sum(self, x: Tensor) -> Tensor:
        """Sums over all documents, from those over the own ones."""
        if self.ranks is None or self.sharded == "queries":
            return x
        return self.ranks.sum(x)

    def row_max(self, x: Tensor) -> Tensor:
        """Maxima over all documents, from those over the own ones."""
        if self.ranks is None or self.sharded == "queries":
            return x
        return self.ranks.max(x)

    def max(self, x: Tensor) -> Tensor:
        """The largest over ranks."""
        return x if self.ranks is None else self.ranks.max(x)

    def all_columns(self, sums: Tensor) -> Tensor:
        """The column sums of all queries over all documents, from the own part of the plan."""
        if self.ranks is None:
            return sums
        if self.sharded == "queries":
            return self.ranks.sum(sums)
        return self.ranks.gather(sums, 0, self.sizes)

    def gather(
        self, kind: Sharded, x: Tensor, dim: int = 0, sizes: list[int] | None = None
    ) -> Tensor:
        """What belongs to all vectors of a kind, or to `sizes` of them, from the own part."""
        if self.ranks is None or self.sharded != kind:
            return x
        return self.ranks.gather(x, dim, self.sizes if sizes is None else sizes)

    def share(self, places: Tensor) -> tuple[Tensor, list[int]]:
        """Of some places among the queries of all ranks the own ones; how many each rank has."""
        if self.ranks is None or self.sharded == "documents":
            return places, [len(places)]
        ends = torch.tensor(self.sizes).cumsum(0)
        owner = torch.searchsorted(ends, places, right=True)
        counts = owner.bincount(minlength=len(self.sizes)).tolist()
        return places[owner == self.ranks.rank] - self.first("queries"), counts

    def every(self, kind: Sharded, step: int) -> slice:
        """Those of the own vectors that are every `step`-th of all."""
        return slice(-self.first(kind) % step, None, step)


ALONE = Split()


def join(
    sharded: Sharded,
    facts: dict[str, Any],
    counts: dict[str, int],
    error: Exception | None,
    group: Any,
    mesh: "DeviceMesh | None",
    device: torch.device,
) -> Split:
    """Compare what the ranks were given; they raise together if one cannot go on.

    Args:
        sharded: "queries" or "documents".
        facts: what must be equal, by the names that a user knows.
        counts: the vectors of this rank, by kind.
        error: what is wrong on this rank.
        group, mesh: the ranks; without both, this process is alone.
        device: where the vectors are.
    """
    if group is None and mesh is None:
        if error is not None:
            raise error
        return ALONE
    from bistoch.distributed import rank_group

    ranks = rank_group("HubCorrection.fit", group, mesh)
    same = "documents" if sharded == "queries" else "queries"
    facts = {**facts, "sharded": sharded, f"number of {same}": counts.get(same)}
    table = ranks.agree(facts, [counts.get(sharded, 0)], error, device)
    return Split(sharded, ranks, tuple(count for (count,) in table))
