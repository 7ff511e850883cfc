"""Whether it matters where a layer attends: the result of a model with other queries."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from bistoch.analysis.capture import capture
from bistoch.analysis.capture.record import first_tensor
from bistoch.nn.operators import OperatorModule

# below this a layer could attend to all tokens alike
LITTLE = 0.01


@torch.no_grad()
def attention_influence(model: nn.Module, *inputs: Any, **options: Any) -> dict[str, float]:
    """How much the result of a model depends on where each of its layers attends.

        |result with random queries in this layer - result| / |result|

    Near zero, the queries and keys of a layer have no effect and learn nothing. The mean over all
    tokens straight after a balanced layer makes it so: with column sums of one
    `sum_i sum_j P_ij v_j = sum_j v_j`, whatever the plan is.

    Args:
        model: has operators of bistoch, by itself or after `convert`.
        inputs, options: what to call the model with, once and then once per layer.

    Returns:
        The influence of each layer that attends by an operator, by its name.

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
    was_training = model.training
    model.eval()
    places: list[int] = []
    try:
        with torch.random.fork_rng(devices=()):
            # a plan is kept when its operator returns, so it is the next one
            with (
                capture(model, problems=1, states=None) as seen,
                _on_operators(lambda number, args: places.append(len(seen.plans))),
            ):
                usual = _result(model, inputs, options)
            found: dict[str, float] = {}
            for chosen, place in enumerate(places):
                with _on_operators(_other_query(chosen)):
                    changed = _result(model, inputs, options)
                share = float((changed - usual).norm() / usual.norm().clamp_min(1e-30))
                name = seen.plans[place].name
                # a layer that attends several times has the influence of all
                found[name] = max(share, found.get(name, 0.0))
        return found
    finally:
        model.train(was_training)


def influence_warning(influence: Mapping[str, float]) -> str | None:
    """A sentence about layers whose attention has next to no effect; None if there are none.

    >>> influence_warning({"blocks.0": 0.3, "blocks.1": 0.0002})
    'Where blocks.1 attends changes the result by less than 1 %: ...'
    """
    idle = [name for name, value in influence.items() if value < LITTLE]
    if not idle:
        return None
    return (
        f"Where {', '.join(idle)} attends changes the result by less than {100 * LITTLE:g} %: its "
        "queries and keys have next to no effect, as before a mean over tokens if columns are "
        "balanced. Put an MLP, a maximum or a class token between, or take lam < 1."
    )


def _result(model: nn.Module, inputs: Any, options: Any) -> Tensor:
    result = first_tensor(model(*inputs, **options))
    if result is None:
        raise TypeError("attention_influence: the model returned no tensor to compare")
    return result.double()


@contextmanager
def _on_operators(do: Callable[[int, tuple], Any]) -> Iterator[None]:
    """Call a function with the number and the arguments of every call of an operator."""
    number = 0

    def hook(module: nn.Module, args: tuple[Any, ...]) -> Any:
        nonlocal number
        if not isinstance(module, OperatorModule):
            return None
        number += 1
        changed = do(number - 1, args)
        return changed if isinstance(changed, tuple) else None

    handle = register_module_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _other_query(chosen: int) -> Callable[[int, tuple], tuple | None]:
    """Random queries of the same size, for one call."""

    def change(number: int, args: tuple[Any, ...]) -> tuple | None:
        if number != chosen:
            return None
        query, *others = args
        size = query.float().square().mean().sqrt().to(query.dtype)
        return (torch.randn_like(query) * size, *others)

    return change
