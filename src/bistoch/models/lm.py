"""A decoder-only language model, for operators under which no token sees a later one."""

import copy
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from bistoch.functional import OPERATORS, _inputs
from bistoch.models.ids import check_ids
from bistoch.nn import OperatorModule
from bistoch.nn.block import feed_forward
from bistoch.nn.build import build_operator
from bistoch.nn.heads import check_division, merge_heads, split_heads


@dataclass(frozen=True)
class LanguageConfig:
    """The sizes of a `LanguageModel`.

    Args:
        vocabulary: how many tokens there are.
        depth, dim, heads: blocks, features of a token, heads of a block.
        mlp: hidden features of a block's network in units of `dim`.
        dropout: probability of dropping an entry of what attention or the network returns.
        base: how slow the slowest rotation is; larger for longer texts.
        places: how many places to learn a vector for, the longest text; None turns queries and keys
            instead, for texts of any length.
    """

    vocabulary: int
    depth: int = 4
    dim: int = 128
    heads: int = 4
    mlp: int = 4
    dropout: float = 0.0
    base: float = 10000.0
    places: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocabulary", "depth"):
            _inputs.check_count("LanguageModel", name, getattr(self, name), least=1)
        if self.places is not None:
            _inputs.check_count("LanguageModel", "places", self.places, least=1)
        check_division("LanguageModel", "dim", self.dim, "heads", self.heads)
        if self.places is None and self.dim // self.heads % 2:
            raise ValueError(
                "LanguageModel: a head must have an even number of features, since they turn in "
                f"pairs, but dim / heads is {self.dim // self.heads}; use for example "
                f"dim={self.heads * (self.dim // self.heads + 1)}"
            )


class LanguageModel(nn.Module):
    """A model of the next token: blocks of causal attention with rotary or learned places.

    The operator must be causal: a row of its plan may not depend on later tokens. Balance over all
    rows is not, however the plan is masked: a column sum tells a row what later rows do. Whether an
    operator is causal is a promise of its row in `bistoch.OPERATORS`.

    Args:
        config: its sizes.
        operator: text or module with the call of `bistoch.nn.OperatorModule`; every block has its
            own.

    >>> import torch
    >>> model = LanguageModel(LanguageConfig(vocabulary=50, depth=2, dim=16), "sink(learn='head')")
    >>> model(torch.tensor([[5, 3, 9]])).shape
    torch.Size([1, 3, 50])
    >>> LanguageModel(LanguageConfig(vocabulary=50), "sinkhorn")
    Traceback (most recent call last):
    ...
    ValueError: LanguageModel: operator must be causal, but under 'sinkhorn' a token sees later
    ones; use one of softmax, ...
    """

    def __init__(self, config: LanguageConfig, operator: str | nn.Module = "softmax") -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary, config.dim)
        # the embedding reads tokens and scores them, so it starts small
        nn.init.normal_(self.embed.weight, std=0.02)
        self.places = None
        if config.places is not None:
            self.places = nn.Embedding(config.places, config.dim)
            nn.init.normal_(self.places.weight, std=0.02)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(CausalBlock(config, operator) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.dim)

    def forward(
        self, tokens: Int[Tensor, "b n"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n vocabulary"]:
        """The scores of every next token.

        Args:
            tokens: numbers of tokens.
            mask: True where a token is real; by default everywhere. Padding stands at the end.
        """
        check_ids("LanguageModel", tokens, self.config.vocabulary)
        x = self.dropout(self._embed(tokens))
        for block in self.blocks:
            x = block(x, mask)
        return nn.functional.linear(self.norm(x), self.embed.weight)

    def _embed(self, tokens: Int[Tensor, "b n"]) -> Float[Tensor, "b n d"]:
        x: Tensor = self.embed(tokens)
        if self.places is None:
            return x
        length = tokens.shape[-1]
        if length > self.places.num_embeddings:
            raise ValueError(
                f"LanguageModel: a place was learned for {self.places.num_embeddings} tokens, but "
                f"the text has {length}; give a shorter one, or train with places=None"
            )
        return x + self.places(torch.arange(length, device=tokens.device))

    @torch.no_grad()
    def generate(
        self,
        tokens: Int[Tensor, "b n"],
        count: int,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "b longer"]:
        """The tokens and so many more, drawn one after the other; the whole text is read each time.

        Args:
            tokens: how the text begins, at least one token.
            count: how many to add.
            temperature: below 1 prefers the likeliest; 0 always takes it.
            generator: where chance comes from.
        """
        _inputs.check_count("LanguageModel", "count", count)
        for _ in range(count):
            scores = self(tokens)[:, -1]
            if temperature == 0:
                drawn = scores.argmax(-1, keepdim=True)
            else:
                chances = (scores / temperature).softmax(-1)
                drawn = torch.multinomial(chances, 1, generator=generator)
            tokens = torch.cat([tokens, drawn.to(tokens.dtype)], -1)
        return tokens


class CausalBlock(nn.Module):
    """Causal attention and a network, each behind a norm and beside a skip."""

    def __init__(self, config: LanguageConfig, operator: str | nn.Module):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(config.dim), nn.LayerNorm(config.dim)
        self.attention = CausalAttention(config, operator)
        self.mlp = feed_forward(config.dim, config.mlp * config.dim, config.dropout)

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None
    ) -> Float[Tensor, "b n d"]:
        """The tokens after the block."""
        x = x + self.attention(self.attention_norm(x), mask)
        return x + self.mlp(self.mlp_norm(x))


class CausalAttention(nn.Module):
    """Self-attention of every token with itself and earlier ones."""

    def __init__(self, config: LanguageConfig, operator: str | nn.Module):
        super().__init__()
        self.heads, self.base, self.turns = config.heads, config.base, config.places is None
        self.project = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.operator = _causal_operator(operator, config)
        self.out = nn.Linear(config.dim, config.dim, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        row = getattr(self.operator, "row", None)
        # an operator that takes no mask of pairs hides the future by itself
        self.needs_mask = row is None or row.masks == "any"

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None
    ) -> Float[Tensor, "b n d"]:
        """What every token takes from itself and earlier ones."""
        query, key, value = (split_heads(y, self.heads) for y in self.project(x).chunk(3, -1))
        if self.turns:
            query, key = rotate(query, self.base), rotate(key, self.base)
        length = x.shape[-2]
        past = None
        if self.needs_mask:
            past = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        real = None if mask is None else mask.unsqueeze(-2)
        result = self.operator(query, key, value, mask=past, query_mask=real, key_mask=real)
        return self.dropout(self.out(merge_heads(result)))


def rotate(x: Float[Tensor, "*b n size"], base: float = 10000.0) -> Float[Tensor, "*b n size"]:
    """Turn pairs of features by angles that grow with the place of a token.

    The product of a query and a key then depends on their places only through the difference.

    >>> rotate(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    tensor([[1.0000, 0.0000],
            [0.5403, 0.8415]])

    Reference: Su et al., RoFormer, 2021.
    """
    length, half = x.shape[-2], x.shape[-1] // 2
    # angles in full precision: low precision cannot count places
    precise = torch.promote_types(x.dtype, torch.float32)
    count = torch.arange(max(length, half), device=x.device, dtype=precise)
    angle = count[:length, None] * base ** (-count[:half] / half)
    left, right = x.to(precise).chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    turned = torch.cat([left * cos - right * sin, left * sin + right * cos], -1)
    return turned.to(x.dtype)


def _causal_operator(operator: str | nn.Module, config: LanguageConfig) -> OperatorModule:
    # a module is copied, so that blocks do not share what it learns
    made = build_operator(copy.deepcopy(operator), config.heads, config.dim // config.heads)
    if not getattr(made, "causal", False):
        known = ", ".join(name for name, row in OPERATORS.items() if row.causal)
        name = made.row.name if isinstance(made, OperatorModule) else type(made).__name__
        raise ValueError(
            f"LanguageModel: operator must be causal, but under {name!r} a token sees later ones; "
            f"use one of {known}, or a module of your own with causal = True"
        )
    return made
