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

# samples that are looked at, and how many of them at once
SAMPLES, AT_ONCE = 48, 8
# the load of a column, from nothing to four times its share and more; an even one is no border
EDGES = [0.0, *((2 * i + 1) / 20 for i in range(41))]


@dataclass
class Seen:
    """Plans and states of some samples, layer by layer; one entry per sample."""

    names: list[str]
    plans: list[list[Float[Tensor, "heads n m"]]]
    states: list[list[Float[Tensor, "n d"]]]


@torch.no_grad()
def see(model: nn.Module, task: Task, rows: range) -> Seen:
    """Send test samples through a model; texts each alone, so that no padding is among them."""
    model.eval()
    seen = Seen([], [], [])
    for some in torch.tensor(rows).split(1 if task.kind == "text" else max(len(rows), 1)):
        with capture(model, budget=1 << 30, problems=None) as found:
            device = next(model.parameters()).device
            model(*task.batch("test", some).to(device).inputs)
        seen.names = [plan.name for plan in found.plans]
        for place in range(len(some)):
            # a plan that is the same for all samples has no axis for them
            seen.plans.append([
                (plan.plan[place] if plan.plan.ndim > 3 else plan.plan).float().cpu().reshape(
                    -1, *plan.plan.shape[-2:]
                )
                for plan in found.plans
            ])  # fmt: skip
            seen.states.append([state.state[place].float().cpu() for state in found.states])
    return seen


def measure(model: nn.Module, task: Task) -> dict[str, Any]:
    """Numbers of every layer, as JSON: means over samples and heads.

    `entropy` is that of the rows over the largest possible, `sink` the mean attention on the key
    that receives most, `peak` its load, `gini` how unequal the loads are, `rank` the effective rank
    of the states before the first and after every block. `loads` counts columns by their load,
    `lam` is what was learned, by layer and head.
    """
    causal = task.kind == "corpus"
    rows: list[list[dict[str, float]]] = []
    ranks: list[Tensor] = []
    counts = torch.zeros(len(EDGES), dtype=torch.float64)
    names: list[str] = []
    many = range(min(SAMPLES, task.count("test")))
    # some at a time: plans of long sequences are large
    for start in many[::AT_ONCE]:
        seen = see(model, task, many[start : start + AT_ONCE])
        names = seen.names
        for plans, states in zip(seen.plans, seen.states, strict=True):
            rows.append([_of_plan(plan, causal) for plan in plans])
            ranks.append(torch.stack([metrics.effective_rank(state) for state in states]))
            for plan in plans:
                counts += _count_loads(_loads(plan, causal).flatten())
    found: dict[str, Any] = {
        name: [sum(row[layer][name] for row in rows) / len(rows) for layer in range(len(names))]
        for name in ("entropy", "sink", "peak", "gini")
    }
    found["layers"] = names
    found["rank"] = torch.stack(ranks).mean(0).tolist()
    found["loads"] = (counts / counts.sum().clamp_min(1)).tolist()
    found["lam"] = learned_lam(model)
    return found


def _count_loads(loads: Float[Tensor, "columns"]) -> Float[Tensor, "bins"]:
    places = torch.bucketize(loads, torch.tensor(EDGES), right=True) - 1
    return torch.bincount(places.clamp(0, len(EDGES) - 1), minlength=len(EDGES)).double()


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
