"""Low-rank attention as a module that owns the pivots of its heads."""

from typing import Any

import torch
from torch import Tensor, nn

from bistoch.functional import OPERATORS, inputs
from bistoch.functional.inputs import Option
from bistoch.functional.lowrank import RANK, fixed_pivots
from bistoch.nn.operators import OperatorModule


class LowRank(OperatorModule):
    """Attention through pivots that every head learns for itself.

    Pivots start as the fixed ones of `bistoch.lowrank_attention`, the same for every head: a new
    module gives what that function gives without pivots.

    Args:
        rank: how many pivots a head has.
        lam, eps, iters, scale, backend: as for `bistoch.lowrank_attention`.
        learn_mass: whether to learn also what share of the queries each pivot should receive, as a
            parameter `log_mass` that starts at zero: equal shares.
        heads: how many heads there are; tokens are then (..., heads, n, d). By default all leading
            axes share one set of pivots. A layer sets its own number.
        size: features of a query, d. A layer sets its own.

    >>> import torch, bistoch
    >>> operator = LowRank(rank=4, heads=8, size=16)
    >>> operator, operator.pivots.shape
    (lowrank(rank=4, heads=8, size=16), torch.Size([8, 4, 16]))
    >>> layer = bistoch.nn.Attention(64, heads=8, operator="lowrank(rank=4)")
    >>> layer(torch.randn(2, 100, 64)).shape, layer.operator.pivots.shape
    (torch.Size([2, 100, 64]), torch.Size([8, 4, 8]))
    """

    pivots: nn.Parameter
    pivot_mass: Tensor | None

    def __init__(
        self,
        rank: int = RANK,
        lam: Option = 1.0,
        eps: Option = 1.0,
        iters: int = 10,
        scale: float | None = None,
        backend: str = "auto",
        learn_mass: bool = False,
        heads: int | None = None,
        size: int | None = None,
    ) -> None:
        inputs.check_count("LowRank", "rank", rank, least=1)
        if heads is not None:
            inputs.check_count("LowRank", "heads", heads, least=1)
        if size is None:
            raise ValueError(
                "LowRank: size, the number of features of a query, must be given to make the "
                "pivots; write for example LowRank(rank=8, heads=4, size=16)"
            )
        inputs.check_count("LowRank", "size", size, least=1)
        inputs.check_flag("LowRank", "learn_mass", learn_mass)
        own = () if heads is None else (heads,)
        pivots = nn.Parameter(fixed_pivots(rank, size).expand(*own, rank, size).clone())
        super().__init__(
            OPERATORS["lowrank"],
            pivots=pivots, lam=lam, eps=eps, iters=iters, scale=scale, backend=backend,
        )  # fmt: skip
        self.log_mass = nn.Parameter(torch.zeros(*own, rank)) if learn_mass else None
        self.rank, self.heads, self.size = rank, heads, size

    def options(self) -> dict[str, Any]:
        """The options of the next call, by name."""
        mass = None if self.log_mass is None else self.log_mass.softmax(-1)
        return super().options() | {"pivot_mass": mass}

    def _written(self) -> dict[str, Any]:
        written = super()._written()
        # learned tensors are shown by the words that make them
        del written["pivots"]
        made = {"rank": self.rank} if self.rank != RANK else {}
        made |= {"learn_mass": True} if self.log_mass is not None else {}
        sizes = {"heads": self.heads, "size": self.size}
        return made | written | {name: value for name, value in sizes.items() if value is not None}
