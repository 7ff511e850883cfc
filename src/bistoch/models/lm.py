"""A decoder-only language model, for causal operators."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from bistoch.functional import OPERATORS, CausalState, inputs
from bistoch.models.build import check_sizes
from bistoch.models.ids import check_ids
from bistoch.nn import OperatorModule
from bistoch.nn.block import feed_forward
from bistoch.nn.build import build_operator
from bistoch.nn.heads import merge_heads, split_heads


@dataclass(frozen=True)
class LanguageConfig:
    """The sizes of a `LanguageModel`.

    Args:
        vocabulary: number of tokens.
        depth, dim, heads: blocks, features of a token, heads of a block.
        mlp: hidden features of the MLP of a block in units of `dim`.
        dropout: probability of dropping an output of attention or MLP.
        base: of the rotary positions; larger for longer texts.
        positions: number of learned positions, the longest text; None for rotary positions and
            texts of any length.
    """

    vocabulary: int
    depth: int = 4
    dim: int = 128
    heads: int = 4
    mlp: int = 4
    dropout: float = 0.0
    base: float = 10000.0
    positions: int | None = None

    def __post_init__(self) -> None:
        check_sizes("LanguageModel", self, "vocabulary", "depth")
        if self.positions is not None:
            inputs.check_count("LanguageModel", "positions", self.positions, least=1)
        elif self.dim // self.heads % 2:
            raise ValueError(
                "LanguageModel: a head must have an even number of features for rotary positions, "
                f"but dim / heads is {self.dim // self.heads}; use for example "
                f"dim={self.heads * (self.dim // self.heads + 1)}"
            )


class Cache(NamedTuple):
    """The cache of a block: keys and values of all tokens so far, and the state of its operator.

    Attributes:
        key, value: (b, heads, m, size), keys with their rotary positions.
        state: of an operator whose rows depend on earlier ones, else None.
    """

    key: Float[Tensor, "b h m size"]
    value: Float[Tensor, "b h m size"]
    state: CausalState | None


class LanguageModel(nn.Module):
    """A model of the next token: blocks of causal attention, rotary or learned positions.

    The operator must be causal: no row of its plan may depend on later tokens. Balance over all
    rows is not causal, however the plan is masked: a column sum depends on later rows. Whether an
    operator is causal is a property of its row in `bistoch.OPERATORS`.

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
        # the embedding is also the output layer, so it starts small
        nn.init.normal_(self.embed.weight, std=0.02)
        self.positions = None
        if config.positions is not None:
            self.positions = nn.Embedding(config.positions, config.dim)
            nn.init.normal_(self.positions.weight, std=0.02)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(CausalBlock(config, operator) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.dim)

    def forward(
        self, tokens: Int[Tensor, "b n"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n vocabulary"]:
        """The logits of every next token.

        Args:
            tokens: token ids.
            mask: True where a token is real; by default everywhere. Padding is at the end.
        """
        x = self._embed(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return nn.functional.linear(self.norm(x), self.embed.weight)

    @property
    def can_step(self) -> bool:
        """Whether `step` works: operators have a step, or rows that do not depend on others."""
        return all(block.attention.can_step for block in self._blocks())

    def step(
        self, tokens: Int[Tensor, "b n"], cache: tuple[Cache, ...] | None = None
    ) -> tuple[Float[Tensor, "b n vocabulary"], tuple[Cache, ...]]:
        """The logits after every new token, and the new cache; chunks may have any length.

        Args:
            tokens: the next token ids, equally many in every text.
            cache: what the step before returned; None at the beginning.

        >>> model = LanguageModel(LanguageConfig(vocabulary=50, depth=2, dim=16), "causal_elastic")
        >>> text = torch.tensor([[5, 3, 9, 7]])
        >>> logits, cache = model.step(text[:, :3])
        >>> last, cache = model.step(text[:, 3:], cache)
        >>> bool(torch.allclose(last[:, -1], model(text)[:, -1], atol=1e-5))
        True
        """
        if not self.can_step:
            raise NotImplementedError(
                f"LanguageModel: {self._blocks()[0].attention.operator!r} has no step, and its "
                "rows depend on each other; compute the whole text with model(tokens)"
            )
        x = self._embed(tokens, 0 if cache is None else cache[0].key.shape[-2])
        after = []
        for number, block in enumerate(self._blocks()):
            x, own = block.step(x, None if cache is None else cache[number])
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
        """The tokens and `count` more, sampled one after the other.

        Args:
            tokens: the beginning of the text, at least one token.
            count: how many to add.
            temperature: of sampling; 0 always takes the most likely token.
            cache: whether to use `step` where the operator has it; without, the whole text is
                computed for every token. The result is the same up to rounding.
            avoid: token ids that are never sampled, such as padding.
            generator: for sampling.
        """
        inputs.check_count("LanguageModel", "count", count)
        if not 0 <= temperature < float("inf"):
            raise ValueError(
                f"LanguageModel: temperature must be a number from 0 on, but it is {temperature}; "
                "0 always takes the most likely token, 1 samples from the model"
            )
        if tokens.shape[-1] == 0:
            raise ValueError("LanguageModel: tokens must be at least one, but there is none")
        new, past = tokens, None
        never = torch.tensor(list(avoid), dtype=torch.long, device=tokens.device)
        for _ in range(count):
            if cache and self.can_step:
                logits, past = self.step(new, past)
            else:
                logits = self(tokens)
            last = logits[:, -1].index_fill(-1, never, -torch.inf)
            new = _sample(last, temperature, generator).to(tokens.dtype)
            tokens = torch.cat([tokens, new], -1)
        return tokens

    def _blocks(self) -> list["CausalBlock"]:
        return cast(list[CausalBlock], list(self.blocks))

    def _embed(self, tokens: Int[Tensor, "b n"], start: int = 0) -> Float[Tensor, "b n d"]:
        check_ids("LanguageModel", tokens, self.config.vocabulary)
        x: Tensor = self.embed(tokens)
        if self.positions is not None:
            length = start + tokens.shape[-1]
            if length > self.positions.num_embeddings:
                raise ValueError(
                    f"LanguageModel: there are {self.positions.num_embeddings} learned positions, "
                    f"but the text has {length} tokens; give a shorter one, or train with "
                    "positions=None"
                )
            x = x + self.positions(torch.arange(start, length, device=tokens.device))
        return cast(Tensor, self.dropout(x))


class CausalBlock(nn.Module):
    """Causal attention and an MLP, with residual connections and pre-norms."""

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
        self, x: Float[Tensor, "b n d"], cache: Cache | None
    ) -> tuple[Float[Tensor, "b n d"], Cache]:
        """New tokens after the block, and its cache."""
        attended, after = self.attention.step(self.attention_norm(x), cache)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x)), after


class CausalAttention(nn.Module):
    """Self-attention of every token to itself and earlier ones."""

    def __init__(self, config: LanguageConfig, operator: str | nn.Module):
        super().__init__()
        self.heads, self.base, self.rotary = config.heads, config.base, config.positions is None
        self.project = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.operator = _causal_operator(operator, config)
        self.out = nn.Linear(config.dim, config.dim, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    @property
    def needs_mask(self) -> bool:
        """Whether the operator must be told to be causal; one that takes no mask is by itself."""
        row = getattr(self.operator, "row", None)
        return row is None or row.masks == "any"

    @property
    def can_step(self) -> bool:
        """Whether new tokens can be computed without computing the old ones again."""
        independent = getattr(self.operator, "rows_are_independent", False)
        return independent or hasattr(self.operator, "step")

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None
    ) -> Float[Tensor, "b n d"]:
        """The result of attention for every token."""
        query, key, value = self._project(x)
        causal = _causal_mask(x.shape[-2], x.shape[-2], x.device) if self.needs_mask else None
        real = None if mask is None else mask.unsqueeze(-2)
        result = self.operator(query, key, value, mask=causal, query_mask=real, key_mask=real)
        return self.dropout(self.out(merge_heads(result)))

    def step(
        self, x: Float[Tensor, "b n d"], cache: Cache | None
    ) -> tuple[Float[Tensor, "b n d"], Cache]:
        """The result of attention for new tokens, and the cache."""
        query, key, value = self._project(x, 0 if cache is None else cache.key.shape[-2])
        state = None
        if cache is not None:
            state = cache.state
            key, value = torch.cat([cache.key, key], -2), torch.cat([cache.value, value], -2)
        step = getattr(self.operator, "step", None)
        if step is not None:
            result, state = step(query, key, value, state)
        else:
            causal = _causal_mask(query.shape[-2], key.shape[-2], x.device)
            result = self.operator(query, key, value, mask=causal)
        return self.dropout(self.out(merge_heads(result))), Cache(key, value, state)

    def _project(self, x: Float[Tensor, "b n d"], start: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of tokens at the positions from `start` on."""
        query, key, value = (split_heads(y, self.heads) for y in self.project(x).chunk(3, -1))
        if self.rotary:
            query, key = rotate(query, self.base, start), rotate(key, self.base, start)
        return query, key, value


def rotate(
    x: Float[Tensor, "*b n size"], base: float = 10000.0, start: int = 0
) -> Float[Tensor, "*b n size"]:
    """Rotary positions from `start` on: pairs of features are rotated by the position.

    The product of a query and a key then depends on the difference of their positions only.

    >>> rotate(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    tensor([[1.0000, 0.0000],
            [0.5403, 0.8415]])

    Reference: Su et al., RoFormer, 2021.
    """
    length, half = x.shape[-2], x.shape[-1] // 2
    # angles in full precision: low precision cannot count positions
    precise = torch.promote_types(x.dtype, torch.float32)
    count = torch.arange(max(start + length, half), device=x.device, dtype=precise)
    angle = count[start : start + length, None] * base ** (-count[:half] / half)
    left, right = x.to(precise).chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    rotated = torch.cat([left * cos - right * sin, left * sin + right * cos], -1)
    return rotated.to(x.dtype)


def _causal_mask(rows: int, keys: int, device: torch.device) -> Bool[Tensor, "rows keys"]:
    """Which keys the last rows of a text may see: themselves and earlier ones."""
    return torch.ones(rows, keys, dtype=torch.bool, device=device).tril(keys - rows)


def _sample(
    logits: Float[Tensor, "b v"], temperature: float, generator: torch.Generator | None
) -> Int[Tensor, "b 1"]:
    """One token for every text."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)


def _causal_operator(operator: str | nn.Module, config: LanguageConfig) -> OperatorModule:
    # a module is copied, so that blocks do not share parameters
    made = build_operator(copy.deepcopy(operator), config.heads, config.dim // config.heads)
    if not getattr(made, "causal", False):
        known = ", ".join(name for name, row in OPERATORS.items() if row.causal)
        name = made.row.name if isinstance(made, OperatorModule) else type(made).__name__
        raise ValueError(
            f"LanguageModel: operator must be causal, but under {name!r} a token sees later ones; "
            f"use one of {known}, or a module of your own with causal = True"
        )
    return made
