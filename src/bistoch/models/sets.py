"""A Set Transformer: point clouds in any order, through learned inducing points."""

import copy
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from bistoch.functional import inputs
from bistoch.models.build import check_sizes
from bistoch.nn import Attention


@dataclass(frozen=True)
class SetConfig:
    """The sizes of a `SetTransformer`.

    Args:
        classes: number of classes.
        coordinates: numbers per point.
        depth, dim, heads: blocks, features of a point, heads of a block.
        inducing: inducing points of a block.
        seeds: learned queries of the pooling.
        pooling: the operator of the pooling. It is not the operator of the blocks, see `PMA`.
        dropout: probability of dropping a feature before and after the pooling.
    """

    classes: int
    coordinates: int = 3
    depth: int = 2
    dim: int = 128
    heads: int = 4
    inducing: int = 16
    seeds: int = 1
    pooling: str = "softmax"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        names = ("classes", "coordinates", "depth", "inducing", "seeds")
        check_sizes("SetTransformer", self, *names)


class SetTransformer(nn.Module):
    """A classifier of point clouds that does not depend on the order of the points.

    Args:
        config: its sizes.
        operator: text or module for `bistoch.nn.Attention` in the blocks. It must accept other
            numbers of keys than of queries.

    >>> import torch
    >>> model = SetTransformer(SetConfig(classes=10, dim=16, inducing=4), "elastic(lam=0.5)").eval()
    >>> points = torch.randn(2, 11, 3)
    >>> bool(torch.allclose(model(points), model(points.flip(1)), atol=1e-5))
    True

    Reference: Lee et al., Set Transformer, ICML 2019.
    """

    def __init__(self, config: SetConfig, operator: str | nn.Module = "softmax") -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Linear(config.coordinates, config.dim)
        self.blocks = nn.ModuleList(
            ISAB(config.dim, config.heads, config.inducing, operator) for _ in range(config.depth)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.pool = PMA(config.dim, config.heads, config.seeds, config.pooling)
        self.classify = nn.Linear(config.seeds * config.dim, config.classes)

    def forward(
        self, points: Float[Tensor, "b n coordinates"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b classes"]:
        """The scores of the classes; `mask` is True where a point is real."""
        check_points("SetTransformer", points, self.config.coordinates)
        x = self.embed(points)
        for block in self.blocks:
            x = block(x, mask)
        x = self.pool(self.dropout(x), mask)
        return self.classify(self.dropout(x).flatten(-2))


class MAB(nn.Module):
    """Multi-head attention block with residual connections and post-norms.

    h = norm(x + attention(x, y)),   norm(h + relu(linear(h)))
    """

    def __init__(self, dim: int, heads: int, operator: str | nn.Module):
        super().__init__()
        self.attention = Attention(dim, heads, copy.deepcopy(operator))
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Linear(dim, dim)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        y: Float[Tensor, "b m d"],
        query_mask: Bool[Tensor, "b n"] | None = None,
        key_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        """The tokens x after they attended to y."""
        attended = self.attention(x, y, query_mask=query_mask, key_mask=key_mask)
        x = self.attention_norm(x + attended)
        return self.mlp_norm(x + self.mlp(x).relu())


class ISAB(nn.Module):
    """Induced set attention: inducing points attend to all points, all points attend to these.

    The cost is linear in the number of points. A single inducing point under a balanced operator is
    refused, for the reason given at `PMA`.

    >>> import torch
    >>> ISAB(16, heads=2, inducing=5, operator="sinkhorn")(torch.randn(3, 11, 16)).shape
    torch.Size([3, 11, 16])
    """

    def __init__(self, dim: int, heads: int, inducing: int, operator: str | nn.Module):
        super().__init__()
        self.inducing = nn.Parameter(torch.empty(inducing, dim))
        nn.init.xavier_uniform_(self.inducing)
        self.collect = MAB(dim, heads, operator)
        self.spread = MAB(dim, heads, operator)
        _refuse_single_query("ISAB", "inducing", inducing, self.collect.attention.operator)

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n d"]:
        """The points after the block; `mask` is True where a point is real."""
        inducing = self.inducing.expand(len(x), *self.inducing.shape)
        found = self.collect(inducing, x, *_masks(inducing, mask))
        return self.spread(x, found, query_mask=mask)


class PMA(nn.Module):
    """Pooling by attention: learned seeds attend to all points.

    **One seed and balance.** A plan with one row that sums to one and m equal columns is 1/m
    everywhere, whatever the scores: a single balanced query is mean pooling, and its seed, queries
    and keys learn nothing. Elastic balance of a single query is softmax((1 - lam) scores), another
    temperature. So pooling has its own operator, by default softmax, and one seed with an operator
    that controls columns is refused. With two or more seeds, balance makes them share the points.

    Args:
        dim, heads: features of a point, heads.
        seeds: how many vectors to return.
        operator: as for `bistoch.nn.Attention`.

    >>> import torch
    >>> PMA(16, heads=2, seeds=3, operator="sinkhorn")(torch.randn(2, 11, 16)).shape
    torch.Size([2, 3, 16])
    >>> PMA(16, heads=2, seeds=1, operator="sinkhorn")
    Traceback (most recent call last):
    ...
    ValueError: PMA: seeds=1 leaves the balanced operator 'sinkhorn' no choice: ...
    """

    def __init__(self, dim: int, heads: int, seeds: int, operator: str | nn.Module = "softmax"):
        super().__init__()
        self.seeds = nn.Parameter(torch.empty(seeds, dim))
        nn.init.xavier_uniform_(self.seeds)
        self.collect = MAB(dim, heads, operator)
        _refuse_single_query("PMA", "seeds", seeds, self.collect.attention.operator)

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b seeds d"]:
        """The pooled vectors; `mask` is True where a point is real."""
        seeds = self.seeds.expand(len(x), *self.seeds.shape)
        return self.collect(seeds, x, *_masks(seeds, mask))


def _masks(
    learned: Float[Tensor, "b n d"], mask: Bool[Tensor, "b m"] | None
) -> tuple[Bool[Tensor, "b n"] | None, Bool[Tensor, "b m"] | None]:
    """The masks of learned queries, all of which are real, and of points."""
    return None if mask is None else mask.new_ones(learned.shape[:2]), mask


def check_points(model: str, points: Tensor, coordinates: int) -> None:
    """Check a batch of point clouds."""
    inputs.check_floating(model, "points", points, axes="(batch, points, coordinates)", rank=3)
    if points.ndim != 3 or points.shape[-1] != coordinates:
        raise ValueError(
            f"{model}: points must be (batch, points, {coordinates}), but their shape is "
            f"{tuple(points.shape)}; build the model for coordinates={points.shape[-1]}, or write "
            "points[None] for a single cloud"
        )


def _refuse_single_query(layer: str, name: str, count: int, operator: nn.Module) -> None:
    row = getattr(operator, "row", None)
    if count == 1 and row is not None and row.columns != "free":
        raise ValueError(
            f"{layer}: {name}=1 leaves the balanced operator {row.name!r} no choice: a single row "
            "with equal columns is the mean over points; use "
            f"{name}=2 or more, or softmax for this layer"
        )
