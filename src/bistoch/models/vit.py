"""A vision Transformer on square patches or stripes, with the operator of your choice."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bistoch.functional import inputs
from bistoch.models.build import check_sizes
from bistoch.nn import Block


@dataclass(frozen=True)
class ViTConfig:
    """The sizes of a `ViT`.

    Args:
        image: height and width of an image.
        classes: number of classes.
        channels: numbers per pixel, 1 for grey.
        patch: height and width of a patch. One as wide as the image is a stripe.
        depth, dim, heads: blocks, features of a token, heads of a block.
        mlp: hidden features of the MLP of a block in units of `dim`; 0 for attention only.
        pool: "cls" classifies a class token, "mean" the mean of all tokens. The class token comes
            first, so operators that are always causal need "mean".
        dropout: probability of dropping an output of attention or MLP.
    """

    image: tuple[int, int]
    classes: int
    channels: int = 1
    patch: tuple[int, int] = (4, 4)
    depth: int = 4
    dim: int = 128
    heads: int = 4
    mlp: int = 2
    pool: Literal["cls", "mean"] = "cls"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_sizes("ViT", self, "classes", "channels", "depth")
        inputs.check_choice("ViT", "pool", self.pool, ("cls", "mean"))
        if not _fits(self.image, self.patch):
            raise ValueError(
                "ViT: image and patch must be (height, width), and patches must fill the image, "
                f"but image is {self.image} and patch is {self.patch}"
                f"{_nearest_patch(self.image, self.patch)}"
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.image[0] // self.patch[0], self.image[1] // self.patch[1]


class ViT(nn.Module):
    """A classifier of images: patches are tokens.

    **Mean pooling and balance.** A doubly stochastic plan keeps the mean: mean(P v) = mean(v). If
    only a linear map follows, mean pooling returns the same for every such plan: with `pool="mean"`
    and `mlp=0` the last attention has no effect, and its queries and keys receive no gradient. With
    an MLP behind it, only the nonlinear part remains. Use the class token, the default, to compare
    balanced operators.

    Args:
        config: its sizes.
        operator: text or module for `bistoch.nn.Attention`; every block has its own.

    >>> import torch
    >>> config = ViTConfig(image=(28, 28), classes=10, patch=(4, 28), depth=2, heads=1)
    >>> model = ViT(config, "elastic(lam=0.5)")
    >>> model(torch.rand(3, 28, 28)).shape
    torch.Size([3, 10])

    Reference: Dosovitskiy et al., An image is worth 16x16 words, ICLR 2021.
    """

    def __init__(self, config: ViTConfig, operator: str | nn.Module = "softmax") -> None:
        super().__init__()
        self.config = config
        height, width = config.patch
        self.embed = nn.Linear(height * width * config.channels, config.dim)
        has_class = config.pool == "cls"
        tokens = config.grid[0] * config.grid[1] + has_class
        # the class token is its position: one more vector would only be added to it
        self.positions = nn.Parameter(0.02 * torch.randn(tokens, config.dim))
        self.has_class = has_class
        blocks = [
            Block(config.dim, config.heads, operator, mlp=config.mlp, dropout=config.dropout)
            for _ in range(config.depth)
        ]
        if has_class:
            _refuse_causal(blocks[0].attention.operator)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(config.dim)
        self.classify = nn.Linear(config.dim, config.classes)

    def forward(self, images: Float[Tensor, "b ..."]) -> Float[Tensor, "b classes"]:
        """The scores of the classes.

        Args:
            images: (batch, height, width, channels); the last axis may be missing if it is one.
        """
        x = self.embed(self.patches(images))
        if self.has_class:
            x = nn.functional.pad(x, (0, 0, 1, 0))
        x = x + self.positions
        for block in self.blocks:
            x = block(x)
        # pooled before the norm, which is then the same for both
        x = x[:, 0] if self.has_class else x.mean(-2)
        return self.classify(self.norm(x))

    def patches(self, images: Float[Tensor, "b ..."]) -> Float[Tensor, "b patches pixels"]:
        """The patches of images, row by row, each as one vector."""
        return cut_patches("ViT", self.config, images)


def cut_patches(
    model: str, config: ViTConfig, images: Float[Tensor, "b ..."]
) -> Float[Tensor, "b patches pixels"]:
    """The patches of images, row by row, each as one vector.

    >>> config = ViTConfig(image=(4, 4), classes=3, patch=(2, 2))
    >>> cut_patches("ViT", config, torch.arange(16.0).view(1, 4, 4))[0, 1]
    tensor([2., 3., 6., 7.])
    """
    inputs.check_floating(model, "images", images, axes="(batch, height, width)", rank=3)
    if images.ndim == 3:
        images = images[..., None]
    wanted = (*config.image, config.channels)
    if images.ndim != 4 or images.shape[1:] != wanted:
        raise ValueError(
            f"{model}: images must be (batch, height, width, channels) = (batch, "
            f"{', '.join(map(str, wanted))}), but their shape is {tuple(images.shape)}; build "
            "the model for that image and channels, or resize the images"
        )
    (rows, columns), (height, width) = config.grid, config.patch
    x = images.unflatten(2, (columns, width)).unflatten(1, (rows, height))
    return x.transpose(2, 3).flatten(3).flatten(1, 2).flatten(2)


def _refuse_causal(operator: nn.Module) -> None:
    row = getattr(operator, "row", None)
    if row is not None and row.always_causal:
        raise ValueError(
            f"ViT: pool='cls' classifies the first token, which sees no other under the causal "
            f"operator {row.name!r}; use pool='mean', or an operator that is not causal"
        )


def _are_sizes(*sizes: object) -> bool:
    return all(
        isinstance(size, tuple) and len(size) == 2 and all(isinstance(n, int) for n in size)
        for size in sizes
    )


def _nearest_patch(image: tuple[int, int], patch: tuple[int, int]) -> str:
    """The nearest patch that fits, as a hint.

    >>> _nearest_patch((30, 31), (4, 4))
    '; use for example patch=(3, 1)'
    """
    if not _are_sizes(image, patch) or min(image) < 1:
        return "; a stripe of four rows is for example patch=(4, 28)"
    near = tuple(
        min((n for n in range(1, large + 1) if large % n == 0), key=lambda n: abs(n - small))
        for large, small in zip(image, patch, strict=True)
    )
    return f"; use for example patch={near}"


def _fits(image: tuple[int, int], patch: tuple[int, int]) -> bool:
    return _are_sizes(image, patch) and all(
        0 < small <= large and large % small == 0 for large, small in zip(image, patch, strict=True)
    )
