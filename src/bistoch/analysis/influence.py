"""Whether it matters where a layer attends: the result of a model with other queries."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from bistoch.analysis import metrics
from bistoch.analysis.capture import CapturedPlan, capture
from bistoch.analysis.capture.record import first_tensor
from bistoch.functional import Operator
from bistoch.nn.operators import OperatorModule

# below this a layer could attend to all tokens alike; a mean after balance gives 1e-5 and less,
# layers that were trained for an epoch or two about 1e-2 and more
LITTLE = 0.001
# column masses that differ by less from each other are even
EVEN = 0.01
# samples that do not differ by more than rounding have no spread
ALIKE = 1e-6


@torch.no_grad()
def attention_influence(model: nn.Module, *inputs: Any, **options: Any) -> dict[str, float]:
    """How much the result of a model depends on where each of its layers attends.

        |result with random queries in this layer - result| / |result - its mean over samples|

    Near zero, the queries and keys of a layer have no effect and learn nothing. The mean over all
    tokens straight after a balanced layer makes it so: with column sums of one
    `sum_i sum_j P_ij v_j = sum_j v_j`, whatever the plan is.

    The change is compared with how results differ between samples, since what they share, such as
    the level of a series, says nothing about attention. One sample is compared with its own norm.

    Args:
        model: has operators of bistoch, by itself or after `convert`.
        inputs, options: what to call the model with, once and then once per layer; the first axis
            of its result is that of the samples.

    Returns:
        The influence of each layer that attends by an operator, by its name. Layers whose plan
        does not look at the tokens ("mixing") are left out: they attend nowhere else by design.

    >>> import torch, bistoch
    >>> class Pooled(torch.nn.Module):
    ...     def __init__(self, operator):
    ...         super().__init__()
    ...         self.attention = bistoch.nn.Attention(16, 2, operator=operator)
    ...     def forward(self, x):
    ...         return self.attention(x).mean(-2)
    >>> for operator in ("sinkhorn(iters=100)", "softmax"):
    ...     found = attention_influence(Pooled(operator), torch.randn(4, 7, 16))
    ...     print(operator, found["attention"] > 0.001)
    sinkhorn(iters=100) False
    softmax True
    """
    with _undisturbed(model):
        usual, calls = _watch(model, inputs, options)
        size, spread = usual.norm(), (usual - usual.mean(0)).norm()
        scale = spread if spread > ALIKE * size else size
        found: dict[str, float] = {}
        for call in calls:
            with _on_operators(_other_query(call.number)):
                changed = _result(model, inputs, options)
            share = float((changed - usual).norm() / scale.clamp_min(1e-30))
            # a layer that attends several times has the influence of all
            found[call.seen.name] = max(share, found.get(call.seen.name, 0.0))
    return found


@torch.no_grad()
def balanced_layers(model: nn.Module, *inputs: Any, **options: Any) -> list[str]:
    """The layers whose operator balances columns, and whose plans have even ones.

    A plan that is nearly uniform has even columns too, but not by its operator: a layer with
    softmax is never among them. Arguments are those of `attention_influence`.

    >>> import torch, bistoch
    >>> for operator in ("softmax", "elastic(lam=0.1)", "sinkhorn(iters=100)"):
    ...     layer = bistoch.nn.Attention(16, 2, operator=operator)
    ...     model = torch.nn.Sequential(layer, torch.nn.Tanh())
    ...     print(operator, balanced_layers(model, 2 * torch.randn(4, 7, 16)))
    softmax []
    elastic(lam=0.1) []
    sinkhorn(iters=100) ['0']
    """
    with _undisturbed(model):
        _, calls = _watch(model, inputs, options)
    even: dict[str, bool] = {}
    for call in calls:
        pulled = call.row.columns != "free" and _unevenness(call.seen.plan) < EVEN
        even[call.seen.name] = pulled and even.get(call.seen.name, True)
    return [name for name, is_even in even.items() if is_even]


def influence_warning(influence: Mapping[str, float], balanced: Collection[str] = ()) -> str | None:
    """A sentence about layers whose attention has next to no effect; None if there are none.

    Args:
        influence: what `attention_influence` found.
        balanced: what `balanced_layers` found; only for these a cause and a remedy are known.

    >>> influence_warning({"blocks.0": 0.3, "blocks.1": 0.0002})
    'Where blocks.1 attends changes the result by less than 0.1 % of ... no effect so far.'
    >>> influence_warning({"blocks.1": 0.0002}, ["blocks.1"])
    'Where blocks.1 ... The columns of blocks.1 are balanced: a mean over tokens ...'
    """
    idle = [name for name, value in influence.items() if value < LITTLE]
    if not idle:
        return None
    sentence = (
        f"Where {', '.join(idle)} attends changes the result by less than {100 * LITTLE:g} % of "
        "its spread over samples: queries and keys there have next to no effect so far."
    )
    if known := [name for name in idle if name in balanced]:
        sentence += (
            f" The columns of {', '.join(known)} are balanced: a mean over tokens straight after "
            "that cancels the plan. Put an MLP, a maximum or a class token between, or take "
            "lam < 1."
        )
    return sentence


class _Call(NamedTuple):
    """A call of an operator that looks at the tokens: the how-manieth, by which, and its plan."""

    number: int
    row: Operator
    seen: CapturedPlan


def _watch(model: nn.Module, inputs: Any, options: Any) -> tuple[Tensor, list[_Call]]:
    """The usual result, and the calls of operators that look at the tokens."""
    made: list[tuple[int, Operator, int]] = []

    def note(number: int, module: OperatorModule, args: tuple) -> None:
        if not module.row.static:
            # a plan is kept when its operator returns, so it is the next one
            made.append((number, module.row, len(seen.plans)))

    with capture(model, problems=1, states=None) as seen, _on_operators(note):
        usual = _result(model, inputs, options)
    return usual, [_Call(number, row, seen.plans[place]) for number, row, place in made]


def _unevenness(plan: Tensor) -> float:
    """The mean distance of column masses from an even share, in the head where it is largest."""
    load = metrics.column_load(plan.float())
    # padded keys receive exactly nothing
    real = load > 0
    load = load * (real.sum(-1, keepdim=True) / load.shape[-1])
    return metrics.load_deviation(load, key_mask=real).max().item()


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluate, and leave the mode of the model and random numbers as they were."""
    was_training = model.training
    model.eval()
    try:
        with torch.random.fork_rng(devices=()):
            yield
    finally:
        model.train(was_training)


def _result(model: nn.Module, inputs: Any, options: Any) -> Tensor:
    result = first_tensor(model(*inputs, **options))
    if result is None:
        raise TypeError("attention_influence: the model returned no tensor to compare")
    return result.double()


@contextmanager
def _on_operators(do: Callable[[int, OperatorModule, tuple], Any]) -> Iterator[None]:
    """Call a function with the number, the module and the arguments of every operator that runs."""
    number = 0

    def hook(module: nn.Module, args: tuple[Any, ...]) -> Any:
        nonlocal number
        if not isinstance(module, OperatorModule):
            return None
        number += 1
        changed = do(number - 1, module, args)
        return changed if isinstance(changed, tuple) else None

    handle = register_module_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _other_query(chosen: int) -> Callable[[int, OperatorModule, tuple], tuple | None]:
    """Random queries of the same size, for one call."""

    def change(number: int, module: OperatorModule, args: tuple[Any, ...]) -> tuple | None:
        if number != chosen:
            return None
        query, *others = args
        size = query.float().square().mean().sqrt().to(query.dtype)
        return (torch.randn_like(query) * size, *others)

    return change
