"""A small Point Cloud Transformer: offset attention among all points."""

import copy
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from bistoch.functional import inputs
from bistoch.models.build import check_sizes
from bistoch.models.pooling import max_of_real, mean_of_real
from bistoch.models.sets import check_points
from bistoch.nn import Attention


@dataclass(frozen=True)
class PointConfig:
    """The sizes of a `PointTransformer`.

    Args:
        classes: number of classes.
        coordinates: numbers per point.
        depth, dim, heads: blocks, features of a point, heads of a block.
        summary: pooled features, made from the outputs of all blocks.
        dropout: probability of dropping a hidden feature of the classifier.
    """

    classes: int
    coordinates: int = 3
    depth: int = 4
    dim: int = 128
    heads: int = 4
    summary: int = 512
    dropout: float = 0.5

    def __post_init__(self) -> None:
        check_sizes("PointTransformer", self, "classes", "coordinates", "depth")
        # the hidden layer of the classifier is half as wide
        inputs.check_count("PointTransformer", "summary", self.summary, least=2)


class PointTransformer(nn.Module):
    """A classifier of point clouds: offset attention among all points, then max- and mean-pool.

    The published model without its neighbour search, and with layer norms in place of batch norms,
    so that a cloud does not depend on the rest of the batch.

    Args:
        config: its sizes.
        operator: text or module for `bistoch.nn.Attention`; every block has its own.

    >>> import torch
    >>> model = PointTransformer(PointConfig(classes=10, dim=16, depth=2), "sinkhorn")
    >>> model(torch.randn(2, 11, 3)).shape
    torch.Size([2, 10])

    Reference: Guo et al., PCT: Point Cloud Transformer, 2021.
    """

    def __init__(self, config: PointConfig, operator: str | nn.Module = "softmax") -> None:
        super().__init__()
        self.config = config
        dim, summary = config.dim, config.summary
        self.embed = nn.Sequential(
            nn.Linear(config.coordinates, dim), nn.LayerNorm(dim), nn.ReLU(),
            nn.Linear(dim, dim), nn.LayerNorm(dim), nn.ReLU(),
        )  # fmt: skip
        self.blocks = nn.ModuleList(
            OffsetBlock(dim, config.heads, operator) for _ in range(config.depth)
        )
        self.summarise = nn.Sequential(
            nn.Linear(config.depth * dim, summary), nn.LayerNorm(summary), nn.LeakyReLU(0.2)
        )
        self.classify = nn.Sequential(
            nn.Linear(2 * summary, summary // 2), nn.ReLU(), nn.Dropout(config.dropout),
            nn.Linear(summary // 2, config.classes),
        )  # fmt: skip

    def forward(
        self, points: Float[Tensor, "b n coordinates"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b classes"]:
        """The scores of the classes; `mask` is True where a point is real."""
        check_points("PointTransformer", points, self.config.coordinates)
        x = self.embed(points)
        states = []
        for block in self.blocks:
            x = block(x, mask)
            states.append(x)
        x = self.summarise(torch.cat(states, -1))
        return self.classify(torch.cat([max_of_real(x, mask), mean_of_real(x, mask)], -1))


class OffsetBlock(nn.Module):
    """Offset attention: a function of the difference of a point to what it attends to.

        x + relu(norm(linear(x - attention(x))))

    Up to the projections, x - P x is the Laplacian of the plan P. Its rows sum to zero for every
    operator, and its columns too for a doubly stochastic one.

    >>> import torch
    >>> OffsetBlock(8, heads=2, operator="softmax")(torch.randn(2, 11, 8)).shape
    torch.Size([2, 11, 8])
    """

    def __init__(self, dim: int, heads: int, operator: str | nn.Module):
        super().__init__()
        self.attention = Attention(dim, heads, copy.deepcopy(operator))
        self.change = nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim), nn.ReLU())

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n d"]:
        """The points after the block."""
        return x + self.change(x - self.attention(x, query_mask=mask))
