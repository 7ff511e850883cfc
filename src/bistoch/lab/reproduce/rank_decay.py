"""Rank decay: what depth leaves of the differences between tokens, by operator.

Three kinds of depth are measured: products of independent random plans, random networks with and
without their parts, and trained networks with parts taken out afterwards.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from torch import Tensor

import bistoch
from bistoch.analysis import capture, metrics
from bistoch.lab.reproduce.network import (
    LAMS,
    SMALL,
    Network,
    Shape,
    load_pictures,
    operator_text,
    random_network,
    trained_network,
)
from bistoch.lab.reproduce.rank_report import write_report
from bistoch.lab.reproduce.study import Cells, Measurement, Settings, measure_all

# iterations before training, and for products of plans
RANDOM_ITERS, PRODUCT_ITERS = 20, 200


class Plan(NamedTuple):
    """What one run measures."""

    operators: tuple[str, ...]
    scales: tuple[float, ...]
    product_depth: int
    product_size: int
    draws: int
    random: Shape
    # the parts that are missing, in a network before training and after it
    missing: tuple[tuple[str, ...], ...]
    trained: Shape
    trained_missing: tuple[tuple[str, ...], ...]
    pictures: int


FULL = Plan(
    operators=tuple(LAMS),
    scales=(1.0, 2.0, 4.0),
    product_depth=12,
    product_size=32,
    draws=8,
    random=Shape(depth=12),
    missing=(
        ("skip", "mlp", "norm"), ("mlp", "norm"), ("skip", "norm"), ("skip", "mlp"),
        ("mlp",), ("skip",), (),
    ),
    trained=Shape(),
    trained_missing=((), ("mlp",), ("skip",), ("skip", "mlp"), ("skip", "mlp", "norm")),
    pictures=8,
)  # fmt: skip
SMOKE = FULL._replace(
    operators=("softmax", "sinkhorn"),
    scales=(2.0,),
    product_depth=5,
    product_size=16,
    draws=2,
    random=Shape(depth=5, dim=16, heads=2),
    missing=(("skip", "mlp", "norm"), ()),
    trained=SMALL,
    trained_missing=((), ("skip", "mlp", "norm")),
    pictures=4,
)


def run_rank_decay(settings: Settings, console: Console) -> Path:
    """Measure what is missing, print the verdicts, and write picture and report; its path."""
    plan = SMOKE if settings.smoke else FULL
    folder = settings.out / "rank-decay"
    configuration = {**plan._asdict(), "random": asdict(plan.random), "seeds": settings.seeds,
                     "trained": asdict(plan.trained)}  # fmt: skip
    cells = Cells(folder / "cells.json", configuration)
    measure_all(list(_jobs(plan, settings)), cells, console)
    return write_report(cells, folder, console, settings)


def _jobs(plan: Plan, settings: Settings) -> list[tuple[str, Callable[[], Measurement]]]:
    jobs: list[tuple[str, Callable[[], Measurement]]] = []

    def add(name: str, measure: Callable[..., Measurement], *arguments: object) -> None:
        jobs.append((name, lambda: measure(plan, *arguments)))

    for seed in settings.seeds:
        for operator in plan.operators:
            for scale in plan.scales:
                add(f"product/{operator}/{scale:g}/{seed}", measure_product, operator, scale, seed)
                for missing in plan.missing:
                    name = f"random/{operator}/{scale:g}/{_without(missing)}/{seed}"
                    add(name, measure_random, operator, scale, missing, seed)
            folder = settings.out / "networks"
            for missing in plan.trained_missing:
                name = f"trained/{operator}/1/{_without(missing)}/{seed}"
                add(name, measure_trained, operator, missing, seed, folder)
    return jobs


def measure_product(plan: Plan, operator: str, scale: float, seed: int) -> Measurement:
    """Multiply independent plans of Gaussian scores onto random tokens."""
    generator = torch.Generator().manual_seed(seed)
    n, shape = plan.product_size, (plan.draws, plan.product_depth)
    scores = scale * torch.randn(*shape, n, n, generator=generator, dtype=torch.float64)
    states = [torch.randn(plan.draws, n, n, generator=generator, dtype=torch.float64)]
    plans = bistoch.balance(scores, lam=LAMS[operator], iters=PRODUCT_ITERS, backend="reference")
    for one in plans.unbind(1):
        states.append(one @ states[-1])
    return profile(states, list(plans.unbind(1)))


def measure_random(
    plan: Plan, operator: str, scale: float, missing: tuple[str, ...], seed: int
) -> Measurement:
    """Send pictures through a network before training, without some of its parts."""
    network = random_network(plan.random, operator_text(operator, RANDOM_ITERS, scale), seed)
    return _measure_network(network, missing, plan.pictures)


def measure_trained(
    plan: Plan, operator: str, missing: tuple[str, ...], seed: int, folder: Path
) -> Measurement:
    """Send pictures through a trained network, without some of its parts."""
    network, accuracy = trained_network(plan.trained, operator_text(operator), seed, folder)
    found = _measure_network(network.double(), missing, plan.pictures)
    return {**found, "accuracy": accuracy}


def profile(states: Sequence[Tensor], plans: Sequence[Tensor]) -> Measurement:
    """All rank metrics by depth: of the states after every layer, and of the plans inside.

    >>> x = torch.randn(3, 5, 4)
    >>> found = profile([x, x.mean(-2, keepdim=True).expand(3, 5, 4)], [torch.full((3, 5, 5), 0.2)])
    >>> found["residual"][1] < 1e-6 < found["residual"][0], len(found["sigma_2"])
    (True, 1)
    """
    of_states = {
        "residual": metrics.rank_one_residual,
        "residual_composite": lambda x: metrics.rank_one_residual(x, norm="composite"),
        "effective_rank": metrics.effective_rank,
        "stable_rank": metrics.stable_rank,
        "cosine": metrics.mean_cosine,
    }
    of_plans = {
        "sigma_2": metrics.second_singular_value,
        "worst_contraction": metrics.worst_contraction,
        "column_error": metrics.doubly_stochastic_error,
        "entropy": metrics.mean_entropy,
    }
    found: Measurement = {
        name: [_mean(metric(x), name) for x in states] for name, metric in of_states.items()
    }
    found |= {name: [_mean(metric(p), name) for p in plans] for name, metric in of_plans.items()}
    found["contraction"] = [
        _mean(metrics.contraction(before, after), "contraction")
        for before, after in itertools.pairwise(states)
    ]
    return found


def _measure_network(network: Network, missing: tuple[str, ...], pictures: int) -> Measurement:
    network.take_out(*missing)
    _, _, x_test, _ = load_pictures(0)
    with torch.no_grad(), capture(network, problems=None, budget=1 << 30) as seen:
        network(x_test[:pictures].double())
    return profile([s.state for s in seen.states], [p.plan for p in seen.plans])


def _without(missing: tuple[str, ...]) -> str:
    return "whole" if not missing else "no " + " ".join(missing)


def _mean(values: Tensor, name: str) -> float:
    # what shrinks by factors is averaged by factors
    if name in ("residual", "residual_composite", "contraction"):
        return values.clamp_min(1e-300).log().mean().exp().item()
    return values.mean().item()
