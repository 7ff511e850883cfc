"""A text classifier whose result does not depend on padding and batching."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from bistoch.functional import inputs
from bistoch.models.build import check_sizes
from bistoch.models.ids import PADDING, check_ids
from bistoch.models.pooling import max_of_real, mean_of_real
from bistoch.nn import Block


@dataclass(frozen=True)
class TextConfig:
    """The sizes of a `TextEncoder`.

    Args:
        vocabulary: number of tokens, padding (id 0) included.
        classes: number of classes.
        depth, dim, heads: blocks, features of a token, heads of a block.
        mlp: hidden features of the MLP of a block in units of `dim`.
        norm: "pre" or "post".
        pool: "max" or "mean" over the real tokens. After a balanced operator the mean keeps little
            of the last attention, see `ViT`.
        dropout: probability of dropping an output of attention or MLP.
    """

    vocabulary: int
    classes: int
    depth: int = 2
    dim: int = 128
    heads: int = 4
    mlp: int = 2
    norm: Literal["pre", "post"] = "pre"
    pool: Literal["max", "mean"] = "max"
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_sizes("TextEncoder", self, "vocabulary", "classes", "depth")
        inputs.check_choice("TextEncoder", "pool", self.pool, ("max", "mean"))


class TextEncoder(nn.Module):
    """A text classifier: embeddings and positions, blocks, and a pool over real tokens.

    Padding neither sends nor receives mass, and positions are counted over real tokens. So a text
    has the same scores alone, in any batch, and with any amount of padding. (monarch needs a fixed
    `block` for that and quantum fixed `tokens`: else their sizes follow the padded length.)

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
            tokens: token ids, padded with zeros.
            mask: True where a token is real; by default where its id is not 0.
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


def sinusoids(positions: Int[Tensor, "*b n"], dim: int) -> Float[Tensor, "*b n dim"]:
    """Sinusoidal positions: sines in one half of the features, cosines in the other.

        sin(p / 10000^(k / half)),  cos(p / 10000^(k / half)),   k = 0 .. half - 1

    >>> sinusoids(torch.arange(2), 4)
    tensor([[0.0000, 0.0000, 1.0000, 1.0000],
            [0.8415, 0.0100, 0.5403, 0.9999]])

    Reference: Vaswani et al., Attention is all you need, NeurIPS 2017.
    """
    half = (dim + 1) // 2
    speed = 10000.0 ** (-torch.arange(half, device=positions.device) / half)
    angle = positions[..., None] * speed
    return torch.cat([angle.sin(), angle.cos()], -1)[..., :dim]
