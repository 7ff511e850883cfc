"""Numbers about attention in a trained model: by layer, over test samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bistoch.analysis import attention_influence, balanced_layers, capture, metrics
from bistoch.analysis.capture import CapturedPlan
from bistoch.lab.train import Task
from bistoch.models import operators

# samples that are measured, and how many of them at once
SAMPLES, AT_ONCE = 48, 8
# samples that are measured after every epoch of a training
WATCHED = 8
# bins of a histogram of column loads, from zero to above four; 1 lies within a bin
EDGES = [0.0, *((2 * i + 1) / 20 for i in range(41))]


@dataclass
class Captured:
    """Plans and states of some samples by layer; one entry per sample."""

    names: list[str]
    plans: list[list[Float[Tensor, "heads n m"]]]
    states: list[list[Float[Tensor, "n d"]]]


@torch.no_grad()
def capture_samples(model: nn.Module, task: Task, rows: range) -> Captured:
    """Run test samples through a model; texts one by one, so that there is no padding."""
    model.eval()
    device = device_of(model)
    captured = Captured([], [], [])
    for some in torch.tensor(rows).split(1 if task.kind == "text" else max(len(rows), 1)):
        with capture(model, budget=1 << 30, problems=None) as found:
            model(*task.batch("test", some).to(device).inputs)
        captured.names = [layer.name for layer in found.plans]
        layers = [plans_by_sample(layer, len(some)).float().cpu() for layer in found.plans]
        for sample in range(len(some)):
            captured.plans.append([plans[sample] for plans in layers])
            captured.states.append([state.state[sample].float().cpu() for state in found.states])
    return captured


def plans_by_sample(captured: CapturedPlan, size: int) -> Float[Tensor, "b heads n m"]:
    """The plans of a layer with an axis for samples and one for heads, which it may lack.

    Args:
        captured: a layer of a model that was called with a batch.
        size: how many samples the batch has.

    >>> plan, value = torch.rand(2, 5, 3, 3), torch.rand(2, 5, 3, 4)
    >>> plans_by_sample(CapturedPlan("", 0, "operator", plan, value), 2).shape
    torch.Size([2, 5, 3, 3])

    A mixer without heads has an axis for samples, which its values have too.

    >>> plans_by_sample(CapturedPlan("", 0, "operator", plan[0], value[0]), 5).shape
    torch.Size([5, 1, 3, 3])

    A plan that is the same for all samples has none.

    >>> plans_by_sample(CapturedPlan("", 0, "operator", plan[0], value), 2).shape
    torch.Size([2, 5, 3, 3])
    """
    plan, value = captured.plan, captured.value
    if plan.ndim == 3 and value is not None and value.ndim == 3 and len(plan) == size:
        plan = plan[:, None]
    if plan.ndim < 4:
        plan = plan.expand(size, *plan.shape)
    return plan.reshape(size, -1, *plan.shape[-2:])


def device_of(model: nn.Module) -> torch.device:
    """Where the parameters of a model are."""
    return next(model.parameters()).device


def measure(model: nn.Module, task: Task) -> dict[str, Any]:
    """Numbers by layer, as JSON: means over samples and heads.

    `entropy` is that of the rows, relative to the largest possible; `sink` the mean attention on
    the key that receives most, and `peak` its load; `gini` how unequal the loads are; `rank` the
    effective rank of the states before the first and after every block. `loads` is the histogram of
    column loads, `lam` the learned elasticities by layer and head, `influence` how much the result
    depends on where each layer attends, `balanced` the layers whose columns an operator makes even.
    """
    causal = task.kind == "corpus"
    rows: list[list[dict[str, float]]] = []
    ranks: list[Tensor] = []
    counts = torch.zeros(len(EDGES), dtype=torch.float64)
    names: list[str] = []
    many = range(min(SAMPLES, task.count("test")))
    # plans of long sequences are large
    for start in many[::AT_ONCE]:
        captured = capture_samples(model, task, many[start : start + AT_ONCE])
        names = captured.names
        for plans, states in zip(captured.plans, captured.states, strict=True):
            rows.append([_numbers_of(plan, causal) for plan in plans])
            ranks.append(torch.stack([metrics.effective_rank(state) for state in states]))
            for plan in plans:
                counts += _count_loads(column_loads(plan, causal).flatten())
    found: dict[str, Any] = {
        name: [sum(row[layer][name] for row in rows) / len(rows) for layer in range(len(names))]
        for name in ("entropy", "sink", "peak", "gini")
    }
    found["layers"] = names
    found["rank"] = torch.stack(ranks).mean(0).tolist()
    found["loads"] = (counts / counts.sum().clamp_min(1)).tolist()
    found["lam"] = learned_lam(model)
    some = task.batch("test", torch.tensor(many[:AT_ONCE])).to(device_of(model)).inputs
    found["influence"] = attention_influence(model, *some)
    found["balanced"] = balanced_layers(model, *some)
    return found


def column_deviations(model: nn.Module, task: Task) -> dict[str, float]:
    """How far column masses are from even ones by layer: means over keys, heads and test samples.

    For `observe` of `bistoch.lab.train.fit`: whether plans drift towards doubly stochastic ones.
    """
    captured = capture_samples(model, task, range(min(WATCHED, task.count("test"))))
    causal = task.kind == "corpus"
    return {
        name: sum(
            metrics.load_deviation(column_loads(plans[layer], causal)).mean().item()
            for plans in captured.plans
        )
        / len(captured.plans)
        for layer, name in enumerate(captured.names)
    }


def drift_of(observed: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """What `column_deviations` found in a run as JSON: names of layers, and rows by epoch.

    >>> drift_of([{"a": 0.5, "b": 0.25}, {"a": 0.125, "b": 0.0}])
    {'layers': ['a', 'b'], 'deviation': [[0.5, 0.25], [0.125, 0.0]]}
    """
    return {
        "layers": list(observed[0]) if observed else [],
        "deviation": [list(row.values()) for row in observed],
    }


def _count_loads(loads: Float[Tensor, "columns"]) -> Float[Tensor, "bins"]:
    bins = torch.bucketize(loads, torch.tensor(EDGES), right=True) - 1
    return torch.bincount(bins.clamp(0, len(EDGES) - 1), minlength=len(EDGES)).double()


def learned_lam(model: nn.Module) -> dict[str, list[float]]:
    """The learned elasticities of a model by the name of the operator module.

    >>> from bistoch.nn import Attention
    >>> learned_lam(Attention(8, 2, operator="elastic(learn='head')"))
    {'operator': [0.0, 0.0]}
    >>> learned_lam(Attention(8, 2, operator="elastic(lam=0.5)"))
    {}
    """
    return {
        name: module.options()["lam"].detach().flatten().tolist()
        for name, module in operators(model).items()
        if isinstance(getattr(module, "lam", None), nn.Parameter)
    }


def _numbers_of(plan: Float[Tensor, "heads n m"], causal: bool) -> dict[str, float]:
    loads, score = column_loads(plan, causal), metrics.sink_score(plan, causal=causal)
    if causal:
        # few queries see the last keys, so their means are noise
        half = max(plan.shape[-1] // 2, 1)
        loads, score = loads[..., :half], score[..., :half]
    return {
        "entropy": mean_entropy(plan, causal).mean().item(),
        "sink": score.amax(-1).mean().item(),
        "peak": loads.amax(-1).mean().item(),
        "gini": metrics.load_gini(loads).mean().item(),
    }


def mean_entropy(plan: Float[Tensor, "*heads n m"], causal: bool) -> Float[Tensor, "*heads"]:
    """The mean entropy of the rows, relative to the largest that a row can have."""
    if not causal:
        return metrics.mean_entropy(plan)
    largest = torch.arange(1, plan.shape[-1] + 1).log().mean().clamp_min(1e-9)
    return metrics.row_entropy(plan).mean(-1) / largest


def column_loads(plan: Float[Tensor, "*heads n m"], causal: bool) -> Float[Tensor, "*heads m"]:
    """Column sums relative to even ones, or to those of uniform causal attention."""
    mass = None
    if causal:
        mass = (1 / torch.arange(1, plan.shape[-1] + 1)).flip(0).cumsum(0).flip(0)
    return metrics.column_load(plan, column_mass=mass)
