"""What attention does in a trained model: numbers of every layer, over real samples."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bistoch.analysis import capture, metrics
from bistoch.lab.train import Task
from bistoch.models import operators
from bistoch.nn import OperatorModule

# samples that are looked at
SAMPLES = 48
# the load of a column, from nothing to four times its share and more; an even one is no border
EDGES = [0.0, *(i / 10 + 0.05 for i in range(41))]


@dataclass
class Seen:
    """Plans and states of some samples, layer by layer; one entry per sample."""

    names: list[str]
    plans: list[list[Float[Tensor, "heads n m"]]]
    states: list[list[Float[Tensor, "n d"]]]


@torch.no_grad()
def see(model: nn.Module, task: Task, rows: range) -> Seen:
    """Send test samples through a model, each alone, so that no padding is among them."""
    model.eval()
    seen = Seen([], [], [])
    for row in rows:
        batch = task.batch("test", torch.tensor([row]))
        with capture(model, budget=1 << 29) as found:
            model(*batch.inputs)
        seen.names = [plan.name for plan in found.plans]
        seen.plans.append([plan.plan.flatten(0, -4)[0].float() for plan in found.plans])
        seen.states.append([state.state[0].float() for state in found.states])
    return seen


def measure(model: nn.Module, task: Task) -> dict[str, Any]:
    """Numbers of every layer, as JSON: means over samples and heads.

    `entropy` is that of the rows over the largest possible, `sink` the mean attention on the key
    that receives most, `peak` its load, `gini` how unequal the loads are, `rank` the effective rank
    of the states before the first and after every block. `loads` counts columns by their load,
    `lam` is what was learned, by layer and head.
    """
    causal = task.kind == "corpus"
    seen = see(model, task, range(min(SAMPLES, task.count("test"))))
    found: dict[str, Any] = {"layers": seen.names}
    numbers: dict[str, list[float]] = {n: [] for n in ("entropy", "sink", "peak", "gini")}
    counts = torch.zeros(len(EDGES), dtype=torch.float64)
    for layer in range(len(seen.names)):
        rows = [_of_plan(plans[layer], causal) for plans in seen.plans]
        for name in numbers:
            numbers[name].append(sum(row[name] for row in rows) / len(rows))
        for plans in seen.plans:
            loads = _loads(plans[layer], causal).flatten()
            places = torch.bucketize(loads, torch.tensor(EDGES), right=True) - 1
            counts += torch.bincount(places.clamp(0, len(EDGES) - 1), minlength=len(EDGES))
    depth = min((len(states) for states in seen.states), default=0)
    ranks = [
        torch.stack([metrics.effective_rank(states[i]) for states in seen.states]).mean().item()
        for i in range(depth)
    ]
    found |= numbers | {"rank": ranks, "loads": (counts / counts.sum().clamp_min(1)).tolist()}
    found["lam"] = learned_lam(model)
    return found


def learned_lam(model: nn.Module) -> dict[str, list[float]]:
    """The elasticities that a model learned, as they are used, by the name of the operator.

    >>> from bistoch.nn import Attention
    >>> learned_lam(Attention(8, 2, operator="elastic(learn='head')"))
    {'operator': [0.0, 0.0]}
    >>> learned_lam(Attention(8, 2, operator="elastic(lam=0.5)"))
    {}
    """
    return {
        name: module.options()["lam"].detach().flatten().tolist()
        for name, module in operators(model).items()
        if _learns_lam(module)
    }


def _learns_lam(module: OperatorModule) -> bool:
    return isinstance(getattr(module, "lam", None), nn.Parameter)


def _of_plan(plan: Float[Tensor, "heads n m"], causal: bool) -> dict[str, float]:
    loads = _loads(plan, causal)
    if causal:
        visible = torch.arange(1, plan.shape[-1] + 1).log().mean().clamp_min(1e-9)
        entropy = metrics.row_entropy(plan).mean(-1) / visible
        # few queries see the last keys, and one is not a crowd
        half = max(plan.shape[-1] // 2, 1)
        score = metrics.sink_score(plan, causal=True)[..., :half]
        loads = loads[..., :half]
    else:
        entropy, score = metrics.mean_entropy(plan), metrics.sink_score(plan)
    return {
        "entropy": entropy.mean().item(),
        "sink": score.amax(-1).mean().item(),
        "peak": loads.amax(-1).mean().item(),
        "gini": metrics.load_gini(loads).mean().item(),
    }


def _loads(plan: Float[Tensor, "heads n m"], causal: bool) -> Float[Tensor, "heads m"]:
    mass = None
    if causal:
        # what keys receive if every query spreads evenly over those it may see
        mass = (1 / torch.arange(1, plan.shape[-1] + 1)).flip(0).cumsum(0).flip(0)
    return metrics.column_load(plan, column_mass=mass)
