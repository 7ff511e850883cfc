"""One block of a Transformer: attention, then an MLP on every token."""

import copy
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn

from bistoch.functional import inputs
from bistoch.nn.attention import Attention
from bistoch.nn.heads import check_division, check_features, explain_misfit


class Block(nn.Module):
    """Attention and an MLP, each with a residual connection and a pre- or post-norm.

        x = x + attention(norm(x)),  x = x + mlp(norm(x))           norm="pre"
        x = norm(x + attention(x)),  x = norm(x + mlp(x))           norm="post"

    Args:
        dim: features of a token.
        heads: number of heads.
        operator: as for `bistoch.nn.Attention`. A module is copied, so that blocks made from the
            same one do not share what it learns.
        mlp: hidden features of the MLP in units of `dim`; 0 leaves it out.
        norm: "pre" or "post".
        dropout: probability of dropping an entry of what either part returns.

    >>> import torch
    >>> block = Block(16, heads=2, operator="elastic(lam=0.5)")
    >>> block(torch.randn(3, 7, 16)).shape
    torch.Size([3, 7, 16])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        operator: str | nn.Module = "softmax",
        *,
        mlp: int = 2,
        norm: Literal["pre", "post"] = "pre",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_division("Block", "dim", dim, "heads", heads)
        inputs.check_probability("Block", "dropout", dropout)
        inputs.check_count("Block", "mlp", mlp)
        inputs.check_choice("Block", "norm", norm, ("pre", "post"))
        self.norm_first = norm == "pre"
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, copy.deepcopy(operator), dropout=dropout)
        self.mlp_norm = nn.LayerNorm(dim) if mlp else None
        self.mlp = feed_forward(dim, mlp * dim, dropout) if mlp else None

    def forward(
        self, x: Float[Tensor, "*b n dim"], mask: Bool[Tensor, "*b n"] | None = None
    ) -> Float[Tensor, "*b n dim"]:
        """The tokens after the block; `mask` is True where a token is real."""
        check_features("Block", "x", x, self.attention.query.in_features)
        if mask is not None:
            inputs.check_padding("Block", "mask", mask, x.shape[:-1], x.device)
        try:
            return self._run(x, mask)
        except RuntimeError as error:
            explain_misfit("Block", "x", x, self.attention.query.weight, error)
            raise

    def _run(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.norm_first:
            x = x + self.attention(self.attention_norm(x), query_mask=mask)
        else:
            x = self.attention_norm(x + self.attention(x, query_mask=mask))
        if self.mlp is None or self.mlp_norm is None:
            return x
        if self.norm_first:
            return x + self.mlp(self.mlp_norm(x))
        return self.mlp_norm(x + self.mlp(x))


def feed_forward(dim: int, hidden: int, dropout: float = 0.0) -> nn.Sequential:
    """An MLP with one hidden layer.

    >>> len(feed_forward(8, 16))
    5
    """
    return nn.Sequential(
        nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(dropout),
        nn.Linear(hidden, dim), nn.Dropout(dropout),
    )  # fmt: skip
