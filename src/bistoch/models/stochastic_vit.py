"""A vision Transformer whose tokens are normal distributions, from the patches to the classes."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import elu, softplus

from bistoch.functional import Gaussian, inputs
from bistoch.models.vit import ViTConfig, cut_patches
from bistoch.nn import GaussianAttention
from bistoch.nn.block import feed_forward


@dataclass(frozen=True)
class StochasticViTConfig(ViTConfig):
    """The sizes of a `StochasticViT`: those of a `ViT`, and the plan of its attention.

    Args:
        lam: elasticity of all layers: 0 is the published softmax, 1 doubly stochastic.
        iters: iterations of balance.
        image, classes, channels, patch, depth, dim, heads, mlp, pool, dropout: as for `ViTConfig`.
    """

    lam: float = 0.0
    iters: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        inputs.check_lam("StochasticViT", self.lam, ())
        inputs.check_count("StochasticViT", "iters", self.iters)


class StochasticViT(nn.Module):
    """A classifier of images whose tokens have a mean and a variance in every feature.

    Two streams run side by side, each with its own embedding, positions, projections, residual
    connections, layer norms and MLPs; they meet in the attention, whose plan comes from Wasserstein
    distances between tokens. Variances are elu(x) + 1 of their stream, so they are positive.

    The scores of the classes are a linear map of the last mean. The same map, squared, carries the
    last variance to a variance of every score, and a score counts less the larger that is:

        score / sqrt(1 + pi / 8 * variance of the score)

    It approximates the mean of the probabilities over the last token's distribution (MacKay 1992).

    Args:
        config: its sizes.

    >>> config = StochasticViTConfig(image=(8, 8), classes=3, dim=16, depth=2, lam=0.5)
    >>> model, images = StochasticViT(config), torch.rand(5, 8, 8)
    >>> model(images).shape, bool((model.features(images).variance > 0).all())
    (torch.Size([5, 3]), True)

    Reference: Erick, Rezaei, Mueller, Kainz, Stochastic vision transformers with Wasserstein
    distance-aware attention, 2023.
    """

    def __init__(self, config: StochasticViTConfig) -> None:
        super().__init__()
        self.config = config
        self.mean, self.variance = _Stream(config), _Stream(config)
        self.blocks = nn.ModuleList(GaussianBlock(config) for _ in range(config.depth))
        self.classify = nn.Linear(config.dim, config.classes)

    def forward(self, images: Float[Tensor, "b ..."]) -> Float[Tensor, "b classes"]:
        """The scores of the classes; images are those of `ViT`."""
        return self.scores(self.features(images))

    def features(self, images: Float[Tensor, "b ..."]) -> Gaussian:
        """The distribution of the class token, or of the mean of all tokens, (batch, dim)."""
        patches = cut_patches("StochasticViT", self.config, images)
        tokens = Gaussian(self.mean.begin(patches), self.variance.begin(patches))
        for block in self.blocks:
            tokens = block(tokens)
        mean, variance = self.mean.end(tokens.mean), self.variance.end(tokens.variance)
        return Gaussian(mean, elu(variance) + 1)

    def scores(self, features: Gaussian) -> Float[Tensor, "b classes"]:
        """The scores of the classes from the last distribution."""
        spread = features.variance @ self.classify.weight.square().mT
        return self.classify(features.mean) / (1 + math.pi / 8 * spread).sqrt()


class _Stream(nn.Module):
    """What one stream has before the first and after the last block."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        height, width = config.patch
        self.embed = nn.Linear(height * width * config.channels, config.dim)
        self.has_class = config.pool == "cls"
        tokens = config.grid[0] * config.grid[1] + self.has_class
        self.positions = nn.Parameter(0.02 * torch.randn(tokens, config.dim))
        self.norm = nn.LayerNorm(config.dim)

    def begin(self, patches: Float[Tensor, "b n pixels"]) -> Float[Tensor, "b tokens dim"]:
        x = self.embed(patches)
        return (nn.functional.pad(x, (0, 0, 1, 0)) if self.has_class else x) + self.positions

    def end(self, x: Float[Tensor, "b tokens dim"]) -> Float[Tensor, "b dim"]:
        return self.norm(x[:, 0] if self.has_class else x.mean(-2))


class GaussianBlock(nn.Module):
    """Attention between Gaussian tokens and an MLP, each with pre-norms and residuals per stream.

        mean, variance += attention(norm(mean), norm'(variance))
        mean += mlp(norm(mean)),   variance += mlp'(norm'(variance))

    The stream of variances holds real numbers: attention makes them positive where it uses them.

    Args:
        config: its sizes.

    >>> block = GaussianBlock(StochasticViTConfig(image=(8, 8), classes=3, dim=16))
    >>> block(Gaussian(torch.randn(2, 5, 16), torch.randn(2, 5, 16))).variance.shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, config: StochasticViTConfig):
        super().__init__()
        dim, dropout = config.dim, config.dropout
        self.attention = GaussianAttention(dim, config.heads, lam=config.lam, iters=config.iters)
        self.dropout = nn.Dropout(dropout)
        self.attention_norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), feed_forward(dim, config.mlp * dim, dropout))
            for _ in range(2 if config.mlp else 0)
        )

    def forward(self, tokens: Gaussian) -> Gaussian:
        """Both streams after the block."""
        normed = (norm(x) for norm, x in zip(self.attention_norms, tokens, strict=True))
        attended = self.attention(Gaussian(*normed))
        streams = [x + self.dropout(new) for x, new in zip(tokens, attended, strict=True)]
        if self.mlps:
            streams = [x + mlp(x) for x, mlp in zip(streams, self.mlps, strict=True)]
        return Gaussian(*streams)


class ClassDistance(nn.Module):
    """The distance regulariser: features lie near the learned distribution of their class.

        -log sigmoid(-D(target))  [ - mean over other classes c of log sigmoid(D(c)) ]

    D is the squared Wasserstein distance over sqrt(dim). The published loss has the first term
    alone, which all features in one place would minimise; the second, for `negatives=True`, keeps
    them away from other classes.

    Args:
        classes, dim: how many distributions, of how many features.
        negatives: whether other classes push.
        start: standard deviation of the class means before training. At 1 the classes begin so far
            apart that negatives have next to no effect; near 0 they begin in one place.

    >>> regulariser = ClassDistance(3, 16, negatives=True)
    >>> features = Gaussian(torch.randn(5, 16), torch.ones(5, 16))
    >>> distance = regulariser(features)
    >>> distance.shape, regulariser.losses(distance, torch.tensor([0, 1, 2, 0, 1])).shape
    (torch.Size([5, 3]), torch.Size([5]))
    """

    def __init__(self, classes: int, dim: int, *, negatives: bool = False, start: float = 1.0):
        super().__init__()
        inputs.check_count("ClassDistance", "classes", classes, least=1 + negatives)
        inputs.check_count("ClassDistance", "dim", dim, least=1)
        inputs.check_flag("ClassDistance", "negatives", negatives)
        self.negatives = negatives
        inputs.check_finite("ClassDistance", "start", start, example=1.0)
        self.mean = nn.Parameter(start * torch.randn(classes, dim))
        self.variance = nn.Parameter(torch.zeros(classes, dim))

    def forward(self, features: Gaussian) -> Float[Tensor, "b classes"]:
        """The squared distance of every sample to every class, over sqrt(dim)."""
        deviation, of_class = features.variance.sqrt(), (elu(self.variance) + 1).sqrt()
        far = (features.mean[..., None, :] - self.mean).square().sum(-1)
        far = far + (deviation[..., None, :] - of_class).square().sum(-1)
        return far / math.sqrt(self.mean.shape[-1])

    def losses(
        self, distance: Float[Tensor, "b classes"], target: Int[Tensor, "b"]
    ) -> Float[Tensor, "b"]:
        """One loss per sample, from the distances to all classes."""
        pull = softplus(distance.gather(-1, target[..., None])).squeeze(-1)
        if not self.negatives:
            return pull
        push = softplus(-distance).scatter(-1, target[..., None], 0)
        return pull + push.sum(-1) / (distance.shape[-1] - 1)
