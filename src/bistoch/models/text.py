"""A classifier of sentences, whose result does not depend on how they are padded or batched."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from bistoch.functional import _inputs
from bistoch.models.ids import PADDING, check_ids
from bistoch.models.pooling import max_of_real, mean_of_real
from bistoch.nn import Block
from bistoch.nn.heads import check_division


@dataclass(frozen=True)
class TextConfig:
    """The sizes of a `TextEncoder`.

    Args:
        vocabulary: how many tokens are known, padding (number 0) counted.
        classes: how many classes there are.
        depth, dim, heads: blocks, features of a token, heads of a block.
        mlp: hidden features of a block's network in units of `dim`.
        norm: "before" or "after", where the norms of a block stand.
        pool: "max" or "mean" over the real tokens. Behind a balanced operator the mean keeps little
            of the last attention, see `ViT`.
        dropout: probability of dropping an entry of what attention or the network returns.
    """

    vocabulary: int
    classes: int
    depth: int = 2
    dim: int = 128
    heads: int = 4
    mlp: int = 2
    norm: Literal["before", "after"] = "before"
    pool: Literal["max", "mean"] = "max"
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("vocabulary", "classes", "depth"):
            _inputs.check_count("TextEncoder", name, getattr(self, name), least=1)
        check_division("TextEncoder", "dim", self.dim, "heads", self.heads)
        _inputs.check_choice("TextEncoder", "pool", self.pool, ("max", "mean"))


class TextEncoder(nn.Module):
    """A classifier of sentences: words and their places, blocks, and a pool over real tokens.

    Padding neither sends nor receives mass, and places are counted over real tokens. So a sentence
    has the same scores alone, in any batch, and behind any number of paddings. (monarch needs a
    fixed `block` for it and quantum fixed `tokens`: their sizes follow the padded length else.)

    Args:
        config: its sizes.
        operator: text or module for `bistoch.nn.Attention`; every block has its own.

    >>> import torch
    >>> model = TextEncoder(TextConfig(vocabulary=50, classes=2, dim=16), "sinkhorn").eval()
    >>> short, padded = torch.tensor([[5, 3, 9]]), torch.tensor([[5, 3, 9, 0, 0]])
    >>> bool(torch.allclose(model(short), model(padded), atol=1e-6))
    True
    """

    def __init__(self, config: TextConfig, operator: str | nn.Module = "softmax") -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary, config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            Block(
                config.dim, config.heads, operator,
                mlp=config.mlp, norm=config.norm, dropout=config.dropout,
            )
            for _ in range(config.depth)
        )  # fmt: skip
        self.norm = nn.LayerNorm(config.dim)
        self.classify = nn.Linear(config.dim, config.classes)

    def forward(
        self, tokens: Int[Tensor, "b n"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b classes"]:
        """The scores of the classes.

        Args:
            tokens: numbers of words, filled up with zeros.
            mask: True where a token is real; by default where its number is not 0.
        """
        check_ids("TextEncoder", tokens, self.config.vocabulary)
        mask = tokens != PADDING if mask is None else mask
        x = self.embed(tokens)
        x = self.dropout(x + sinusoids(mask.cumsum(-1) - 1, self.config.dim).to(x.dtype))
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x)
        x = max_of_real(x, mask) if self.config.pool == "max" else mean_of_real(x, mask)
        return self.classify(x)


def sinusoids(places: Int[Tensor, "*b n"], dim: int) -> Float[Tensor, "*b n dim"]:
    """Places as waves of many lengths: sines in one half of the features, cosines in the other.

        sin(p / 10000^(k / half)),  cos(p / 10000^(k / half)),   k = 0 .. half - 1

    >>> sinusoids(torch.arange(2), 4)
    tensor([[0.0000, 0.0000, 1.0000, 1.0000],
            [0.8415, 0.0100, 0.5403, 0.9999]])

    Reference: Vaswani et al., Attention is all you need, NeurIPS 2017.
    """
    half = (dim + 1) // 2
    speed = 10000.0 ** (-torch.arange(half, device=places.device) / half)
    angle = places[..., None] * speed
    return torch.cat([angle.sin(), angle.cos()], -1)[..., :dim]
