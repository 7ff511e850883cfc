"""A decoder-only language model, for operators under which no token sees a later one."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from bistoch.functional import OPERATORS, CausalState, _inputs
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


class Past(NamedTuple):
    """What a block remembers of the tokens it has read: the cache, and the state of its operator.

    Attributes:
        key, value: of all tokens so far, keys turned already, (b, heads, m, size).
        state: of an operator whose rows depend on earlier ones; None for one without.
    """

    key: Float[Tensor, "b h m size"]
    value: Float[Tensor, "b h m size"]
    state: CausalState | None


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

    @property
    def steps(self) -> bool:
        """Whether `step` can read on: operators must say how, or have rows that stand alone."""
        return all(block.attention.steps for block in self._blocks())

    def step(
        self, tokens: Int[Tensor, "b n"], past: tuple[Past, ...] | None = None
    ) -> tuple[Float[Tensor, "b n vocabulary"], tuple[Past, ...]]:
        """The scores after every new token, and what to remember: however a text is cut, the same.

        Args:
            tokens: what comes next, one token or many, the same number in every text.
            past: what the step before returned; None at the beginning.

        >>> model = LanguageModel(LanguageConfig(vocabulary=50, depth=2, dim=16), "causal_elastic")
        >>> text = torch.tensor([[5, 3, 9, 7]])
        >>> scores, past = model.step(text[:, :3])
        >>> last, past = model.step(text[:, 3:], past)
        >>> bool(torch.allclose(last[:, -1], model(text)[:, -1], atol=1e-5))
        True
        """
        check_ids("LanguageModel", tokens, self.config.vocabulary)
        if not self.steps:
            raise NotImplementedError(
                f"LanguageModel: {self._blocks()[0].attention.operator!r} has no step, and its "
                "rows do not stand alone; read the whole text with model(tokens)"
            )
        read = 0 if past is None else past[0].key.shape[-2]
        x = self.dropout(self._embed(tokens, read))
        after = []
        for number, block in enumerate(self._blocks()):
            x, own = block.step(x, None if past is None else past[number])
            after.append(own)
        return nn.functional.linear(self.norm(x), self.embed.weight), tuple(after)

    @torch.no_grad()
    def generate(
        self,
        tokens: Int[Tensor, "b n"],
        count: int,
        *,
        temperature: float = 1.0,
        cache: bool = True,
        avoid: Sequence[int] = (),
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "b longer"]:
        """The tokens and so many more, drawn one after the other.

        Args:
            tokens: how the text begins, at least one token.
            count: how many to add.
            temperature: below 1 prefers the likeliest; 0 always takes it.
            cache: whether to remember what was read, if the operator can; without, the whole text
                is read for every token. The result is the same to rounding.
            avoid: tokens that are never drawn, such as padding.
            generator: where chance comes from.
        """
        _inputs.check_count("LanguageModel", "count", count)
        if not 0 <= temperature < float("inf"):
            raise ValueError(
                f"LanguageModel: temperature must be a number from 0 on, but it is {temperature}; "
                "0 always takes the likeliest token, 1 draws as the model says"
            )
        if tokens.shape[-1] == 0:
            raise ValueError("LanguageModel: tokens must be at least one, but there is none")
        new, past = tokens, None
        never = torch.tensor(list(avoid), dtype=torch.long, device=tokens.device)
        for _ in range(count):
            if cache and self.steps:
                scores, past = self.step(new, past)
            else:
                scores = self(tokens)
            last = scores[:, -1].index_fill(-1, never, -torch.inf)
            new = _draw(last, temperature, generator).to(tokens.dtype)
            tokens = torch.cat([tokens, new], -1)
        return tokens

    def _blocks(self) -> list["CausalBlock"]:
        return cast(list[CausalBlock], list(self.blocks))

    def _embed(self, tokens: Int[Tensor, "b n"], read: int = 0) -> Float[Tensor, "b n d"]:
        x: Tensor = self.embed(tokens)
        if self.places is None:
            return x
        length = read + tokens.shape[-1]
        if length > self.places.num_embeddings:
            raise ValueError(
                f"LanguageModel: a place was learned for {self.places.num_embeddings} tokens, but "
                f"the text has {length}; give a shorter one, or train with places=None"
            )
        return x + self.places(torch.arange(read, length, device=tokens.device))


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

    def step(
        self, x: Float[Tensor, "b n d"], past: Past | None
    ) -> tuple[Float[Tensor, "b n d"], Past]:
        """New tokens after the block, and what it remembers."""
        taken, after = self.attention.step(self.attention_norm(x), past)
        x = x + taken
        return x + self.mlp(self.mlp_norm(x)), after


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

    @property
    def steps(self) -> bool:
        """Whether new tokens can be read without the old ones being read again."""
        alone = getattr(self.operator, "rows_are_independent", False)
        return alone or hasattr(self.operator, "step")

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None
    ) -> Float[Tensor, "b n d"]:
        """What every token takes from itself and earlier ones."""
        query, key, value = self._split(x)
        length = x.shape[-2]
        earlier = _earlier(length, length, x.device) if self.needs_mask else None
        real = None if mask is None else mask.unsqueeze(-2)
        result = self.operator(query, key, value, mask=earlier, query_mask=real, key_mask=real)
        return self.dropout(self.out(merge_heads(result)))

    def step(
        self, x: Float[Tensor, "b n d"], past: Past | None
    ) -> tuple[Float[Tensor, "b n d"], Past]:
        """What new tokens take from themselves and earlier ones, and what to remember."""
        query, key, value = self._split(x, 0 if past is None else past.key.shape[-2])
        if past is not None:
            key, value = torch.cat([past.key, key], -2), torch.cat([past.value, value], -2)
        state = None if past is None else past.state
        step = getattr(self.operator, "step", None)
        if step is not None:
            result, state = step(query, key, value, state)
        else:
            earlier = _earlier(query.shape[-2], key.shape[-2], x.device)
            result = self.operator(query, key, value, mask=earlier)
        return self.dropout(self.out(merge_heads(result))), Past(key, value, state)

    def _split(self, x: Float[Tensor, "b n d"], read: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of tokens that come after so many others."""
        query, key, value = (split_heads(y, self.heads) for y in self.project(x).chunk(3, -1))
        if self.turns:
            query, key = rotate(query, self.base, read), rotate(key, self.base, read)
        return query, key, value


def rotate(
    x: Float[Tensor, "*b n size"], base: float = 10000.0, start: int = 0
) -> Float[Tensor, "*b n size"]:
    """Turn pairs of features by angles that grow with the place of a token, from `start` on.

    The product of a query and a key then depends on their places only through the difference.

    >>> rotate(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    tensor([[1.0000, 0.0000],
            [0.5403, 0.8415]])

    Reference: Su et al., RoFormer, 2021.
    """
    length, half = x.shape[-2], x.shape[-1] // 2
    # angles in full precision: low precision cannot count places
    precise = torch.promote_types(x.dtype, torch.float32)
    count = torch.arange(max(start + length, half), device=x.device, dtype=precise)
    angle = count[start : start + length, None] * base ** (-count[:half] / half)
    left, right = x.to(precise).chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    turned = torch.cat([left * cos - right * sin, left * sin + right * cos], -1)
    return turned.to(x.dtype)


def _earlier(rows: int, keys: int, device: torch.device) -> Bool[Tensor, "rows keys"]:
    """Which keys the last rows of a text may see: themselves and earlier ones."""
    return torch.ones(rows, keys, dtype=torch.bool, device=device).tril(keys - rows)


def _draw(
    scores: Float[Tensor, "b v"], temperature: float, generator: torch.Generator | None
) -> Int[Tensor, "b 1"]:
    """One token for every text."""
    if temperature == 0:
        return scores.argmax(-1, keepdim=True)
    return torch.multinomial((scores / temperature).softmax(-1), 1, generator=generator)


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
