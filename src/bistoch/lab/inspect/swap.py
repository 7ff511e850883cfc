"""Swap an operator into a trained model without training, and measure how its output changes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity

from bistoch.integrations.huggingface import convert, restore
from bistoch.lab.inspect.observe import observe
from bistoch.lab.inspect.own import swapped_run
from bistoch.lab.inspect.subject import Subject


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
    if subject.own:
        with swapped_run(subject, lam, **where):
            yield
        return
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
        weights = tokens[..., None].to(states)
        vectors.append((states * weights).sum(1) / weights.sum(1))
    return torch.cat(vectors)


def _embed(subject: Subject) -> Float[Tensor, "samples features"]:
    if not subject.own:
        return embed(subject.model, subject.batches, subject.real)
    return torch.cat([observe(subject, batch).states[-1].mean(1) for batch in subject.batches])


def swap_all(
    subject: Subject, lams: Sequence[float], step: Callable[[], None] = lambda: None
) -> dict[float, dict[str, float]]:
    """The output with all heads swapped, for several elasticities.

    Returns for each `lam` the mean and the lowest cosine with the original embeddings, and the
    loss or score where targets are known: of causal models, and of runs on their own data.
    """
    before = _embed(subject)
    found = {}
    for lam in lams:
        with _swapped(subject, lam):
            after = _embed(subject)
            cosine = cosine_similarity(after, before)
            found[lam] = {"cosine": cosine.mean().item(), "lowest": cosine.min().item()}
            if subject.score is not None:
                found[lam] |= subject.score()
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
    before = _embed(subject)
    table = torch.full((len(heads), max(heads)), torch.nan)
    for layer, count in enumerate(heads):
        for head in range(count):
            with _swapped(subject, lam, layers=[layer], heads=[head]):
                after = _embed(subject)
            table[layer, head] = cosine_similarity(after, before).mean()
            step()
    return table


@torch.no_grad()
def plan_of(
    subject: Subject, sample: int, layer: int, head: int, lam: float | None = None
) -> Float[Tensor, "n m"]:
    """The plan of one head on one sample, with balance in this head alone if there is a `lam`."""
    batch, row = subject.place(sample)
    one = {name: tensor[row : row + 1] for name, tensor in subject.batches[batch].items()}
    if lam is None:
        plan = observe(subject, one).plans[layer][0, head]
    else:
        with _swapped(subject, lam, layers=[layer], heads=[head]):
            plan = observe(subject, one).plans[layer][0, head]
    if subject.own:
        return plan
    real = subject.real[batch][row]
    return plan[real][:, real]
