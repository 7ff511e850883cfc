"""Swap an operator into a trained model without training, and measure how its output changes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from bistoch.integrations.huggingface import convert, restore
from bistoch.lab.inspect.load import Subject


def operator_for(causal: bool, lam: float) -> str:
    """The operator with this `lam` that fits the model.

    >>> operator_for(True, 0.5)
    'causal_elastic(lam=0.5, block=8)'
    """
    # short blocks, since texts may be short
    return f"causal_elastic(lam={lam}, block=8)" if causal else f"elastic(lam={lam})"


@contextmanager
def _swapped(subject: Subject, lam: float, **where: Any) -> Iterator[None]:
    """Balance in some heads, until the end of the block."""
    convert(subject.model, operator_for(subject.causal, lam), **where)
    try:
        yield
    finally:
        restore(subject.model)


@torch.no_grad()
def embed(
    model: Any, batches: Sequence[Mapping[str, Tensor]], real: Sequence[Tensor]
) -> Float[Tensor, "samples features"]:
    """One vector per sample: the mean of the last states of its real tokens.

    Args:
        model: a model of transformers.
        batches: what it is called with.
        real: for every batch, which tokens are no padding.
    """
    vectors = []
    for batch, tokens in zip(batches, real, strict=True):
        states = model(**batch, output_hidden_states=True).hidden_states[-1]
        weights = tokens[..., None].to(states.dtype)
        vectors.append((states * weights).sum(1) / weights.sum(1))
    return torch.cat(vectors)


@torch.no_grad()
def loss_of(subject: Subject) -> float:
    """The mean loss per predicted token of a causal model, in nats."""
    total, count = 0.0, 0
    for batch, real in zip(subject.batches, subject.real, strict=True):
        logits = subject.model(**batch).logits[:, :-1]
        wanted = batch["input_ids"][:, 1:].masked_fill(~real[:, 1:], -100)
        total += cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum").item()
        count += int(real[:, 1:].sum())
    return total / max(count, 1)


def swap_all(
    subject: Subject, lams: Sequence[float], step: Callable[[], None] = lambda: None
) -> dict[float, dict[str, float]]:
    """The output with all heads swapped, for several elasticities.

    Returns for each `lam` the mean and the lowest cosine with the original embeddings; for a causal
    model also its loss.
    """
    before = embed(subject.model, subject.batches, subject.real)
    found = {}
    for lam in lams:
        with _swapped(subject, lam):
            after = embed(subject.model, subject.batches, subject.real)
            cosine = cosine_similarity(after, before)
            found[lam] = {"cosine": cosine.mean().item(), "lowest": cosine.min().item()}
            if subject.causal:
                found[lam]["loss"] = loss_of(subject)
        step()
    return found


def swap_heads(
    subject: Subject, lam: float, heads: Sequence[int], step: Callable[[], None] = lambda: None
) -> Float[Tensor, "layers heads"]:
    """The output with one head swapped, for every head: the mean cosine with the original.

    Args:
        subject: the model with its samples; it is left as it was.
        lam: the elasticity of the head under test; all others stay with softmax.
        heads: how many heads each layer has.
        step: called after each head.
    """
    before = embed(subject.model, subject.batches, subject.real)
    table = torch.full((len(heads), max(heads)), torch.nan)
    for layer, count in enumerate(heads):
        for head in range(count):
            with _swapped(subject, lam, layers=[layer], heads=[head]):
                after = embed(subject.model, subject.batches, subject.real)
            table[layer, head] = cosine_similarity(after, before).mean()
            step()
    return table


@torch.no_grad()
def swapped_plan(subject: Subject, layer: int, head: int, lam: float) -> Float[Tensor, "n n"]:
    """The plan of one head on the first sample, with balance in this head alone."""
    first = {name: tensor[:1] for name, tensor in subject.batches[0].items()}
    with _swapped(subject, lam, layers=[layer], heads=[head]):
        plan = subject.model(**first, output_attentions=True).attentions[layer][0, head]
    real = subject.real[0][0]
    return plan[real][:, real]
