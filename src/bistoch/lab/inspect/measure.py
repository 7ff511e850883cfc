"""Numbers of every head and every layer of a model, averaged over its samples."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bistoch.analysis import metrics
from bistoch.lab.compare.attention import column_loads, mean_entropy
from bistoch.lab.inspect.observe import observe
from bistoch.lab.inspect.subject import Subject

# a sample of at most so many tokens is preferred for pictures, since these can be named
NAMED = 40


@dataclass(frozen=True)
class Measured:
    """One entry per layer and head; states have one entry more, for the input of the first layer.

    `peak` is the largest load of a key, relative to its even share, and `fullest` its token;
    `sinks` is the share of samples in which a key is a sink. `worst` is the sample with the largest
    load, of those that are short enough for names on the axes if there are any. `names` are those
    of the layers. A layer with fewer heads than others ends in NaN.
    """

    entropy: Tensor
    peak: Tensor
    sinks: Tensor
    fullest: list[list[str]]
    worst: list[list[int]]
    rank: Tensor
    cosine: Tensor
    names: list[str]


@torch.no_grad()
def measure(subject: Subject, step: Callable[[int], None] = lambda done: None) -> Measured:
    """Run the model once over its samples and measure each; `step` is told how many are done."""
    found: dict[str, list[Tensor]] = {
        name: [] for name in ("entropy", "peak", "sinks", "keys", "rank", "cosine")
    }
    names: list[str] = []
    counts: list[list[int]] = []
    for number, batch in enumerate(subject.batches):
        seen = observe(subject, batch)
        names = seen.names
        for sample in range(len(seen.plans[0])):
            plans = [plan[sample].float() for plan in seen.plans]
            states = [state[sample].float() for state in seen.states]
            if not subject.own:
                real = subject.real[number][sample]
                plans = [plan[:, real][:, :, real] for plan in plans]
                states = [state[real] for state in states]
            rows = [_numbers(plan, subject.causal) for plan in plans]
            for name in ("entropy", "peak", "sinks", "keys"):
                found[name].append(_table([row[name] for row in rows]))
            ranks = [metrics.effective_rank(x) / min(x.shape[-2:]) for x in states]
            found["rank"].append(torch.stack(ranks))
            found["cosine"].append(torch.stack([metrics.mean_cosine(x) for x in states]))
            counts.append([plan.shape[-1] for plan in plans])
            step(len(counts))
    means = {name: torch.stack(values).mean(0) for name, values in found.items() if name != "keys"}
    return Measured(
        **means, fullest=_most_frequent(found["keys"], counts, subject),
        worst=_worst(found["peak"], subject.tokens), names=names,
    )  # fmt: skip


def _numbers(plan: Tensor, causal: bool) -> dict[str, Tensor]:
    """Numbers of every head of a plan (heads, n, m)."""
    load, score = column_loads(plan, causal), metrics.sink_score(plan, causal=causal)
    if causal:
        # the last keys are seen by few queries
        half = max(plan.shape[-1] // 2, 1)
        load, score = load[..., :half], score[..., :half]
    return {
        "entropy": mean_entropy(plan, causal),
        "peak": load.amax(-1),
        "keys": load.argmax(-1).float(),
        "sinks": (score.amax(-1) > metrics.SINK).float(),
    }


def _table(rows: list[Tensor]) -> Tensor:
    """Layers by heads; NaN where a layer has fewer heads than others."""
    return pad_sequence(rows, batch_first=True, padding_value=torch.nan)


def _worst(peaks: list[Tensor], tokens: list[list[str]]) -> list[list[int]]:
    """For every layer and head, the sample in which it is most overloaded."""
    short = torch.tensor([len(own) <= NAMED for own in tokens])
    every = torch.stack(peaks).nan_to_num(0)
    if short.any():
        every[~short] = -1
    return [[int(i) for i in row] for row in every.argmax(0)]


def _most_frequent(
    keys: list[Tensor], counts: list[list[int]], subject: Subject
) -> list[list[str]]:
    """For every layer and head, the token that has the largest load most often."""
    layers, heads = keys[0].shape

    def token(layer: int, head: int) -> str:
        found = [
            subject.key_names(sample, counts[sample][layer])[int(key[layer, head])]
            for sample, key in enumerate(keys)
            if not key[layer, head].isnan()
        ]
        return max(sorted(set(found)), key=found.count, default="")

    return [[token(layer, head) for head in range(heads)] for layer in range(layers)]
