"""Numbers of every head and every layer of a model, averaged over its samples."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bistoch.analysis import metrics
from bistoch.lab.compare.attention import column_loads, mean_entropy
from bistoch.lab.inspect.load import Subject


@dataclass(frozen=True)
class Measured:
    """One entry per layer and head; states have one entry more, for the input of the first layer.

    `peak` is the largest load of a key, relative to its even share, and `fullest` its token;
    `sinks` is the share of samples in which a key is a sink. `plans` are those of the first sample.
    """

    entropy: Tensor
    peak: Tensor
    sinks: Tensor
    fullest: list[list[str]]
    rank: Tensor
    cosine: Tensor
    plans: list[Tensor]


@torch.no_grad()
def measure(subject: Subject) -> Measured:
    """Run the model once over its samples and measure each."""
    entropy, peak, sinks, rank, cosine = [], [], [], [], []
    keys: list[Tensor] = []
    plans: list[Tensor] = []
    for batch, real in zip(subject.batches, subject.real, strict=True):
        asked = {"output_attentions": True, "output_hidden_states": True}
        found = subject.model(**batch, **asked)
        attentions = _whole(subject, found.attentions, real)
        for sample, tokens in enumerate(real):
            count = int(tokens.sum())
            # (layers, heads, n, n) without padding
            own = torch.stack([layer[sample][:, tokens][:, :, tokens] for layer in attentions])
            load = column_loads(own, subject.causal)
            score = metrics.sink_score(own, causal=subject.causal)
            if subject.causal:
                # the last keys are seen by few queries
                load, score = load[..., : max(count // 2, 1)], score[..., : max(count // 2, 1)]
            entropy.append(mean_entropy(own, subject.causal))
            peak.append(load.amax(-1))
            keys.append(load.argmax(-1))
            sinks.append((score.amax(-1) > metrics.SINK).float())
            states = torch.stack([layer[sample][tokens] for layer in found.hidden_states])
            rank.append(metrics.effective_rank(states) / min(states.shape[-2:]))
            cosine.append(metrics.mean_cosine(states))
            if not plans:
                plans = list(own)
    return Measured(
        entropy=_mean(entropy), peak=_mean(peak), sinks=_mean(sinks),
        fullest=_most_frequent(keys, subject.tokens), rank=_mean(rank), cosine=_mean(cosine),
        plans=plans,
    )  # fmt: skip


def _whole(subject: Subject, attentions: Any, real: Tensor) -> list[Tensor]:
    """The plans of all layers, if the model shows them."""
    kept = [layer for layer in attentions or () if layer is not None]
    if not kept:
        raise ValueError(f"inspect: {subject.name} does not show the plans of its attention")
    tokens = kept[0].shape[-1]
    if any(layer.ndim != 4 or layer.shape[-2:] != (tokens, tokens) for layer in kept) or (
        tokens != real.shape[-1]
    ):
        raise ValueError(
            f"inspect: the layers of {subject.name} see different tokens (windows, pools or "
            f"registers), plans of {tuple(kept[0].shape[-2:])} for {real.shape[-1]} tokens; only "
            "models in which all layers see the same tokens are shown"
        )
    return kept


def _mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean(0)


def _most_frequent(keys: list[Tensor], tokens: list[list[str]]) -> list[list[str]]:
    """For every layer and head, the token that has the largest load most often."""
    layers, heads = keys[0].shape

    def token(layer: int, head: int) -> str:
        found = [own[int(key[layer, head])] for key, own in zip(keys, tokens, strict=True)]
        return max(sorted(set(found)), key=found.count)

    return [[token(layer, head) for head in range(heads)] for layer in range(layers)]
