"""What all checks of legal calls share; a promise that is not kept raises `Found`."""

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import bistoch
from fuzz.agree import Results, Values, agree, peak, working
from fuzz.call import Call, Found, limits
from fuzz.exact import (
    allowed_pairs,
    shape_of,
    sizes_of,
    terms_of,
)

# calls whose results were checked
counts: Counter = Counter()


def invoke(call: Call, function: Callable, /, *tokens: Any, **values: Any) -> Any:
    """A call that is counted, under the limits that were drawn."""
    counts["legal"] += 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", bistoch.ConvergenceWarning)
        warnings.simplefilter("ignore", bistoch.PaddingWarning)
        with limits(**call.limits):
            return function(*tokens, **values)


def ensure(holds: Any, sentence: str) -> None:
    if not bool(holds):
        raise Found(sentence)


def judge(found: Results, again: Callable[[Values], Results], values: Values, pairs: bool) -> None:
    """Compare results with what is exact; with a tolerance, iterations may differ by one."""
    shape, tol = shape_of(values), values.get("tol") or 0.0
    agree(
        found, again, values, terms=terms_of(values), sizes=sizes_of(values), slack=8 * tol,
        pairs=shape if pairs else (),
    )  # fmt: skip


# operators of the table


def operator_of(call: Call) -> Any:
    name = call.function.removeprefix("bistoch.").removesuffix("_attention")
    name = "hard" if name == "hard_balance" else name
    return bistoch.OPERATORS[name if name in bistoch.OPERATORS else "elastic"]


def readings(row: Any, values: Values) -> tuple[Tensor, Tensor]:
    """Pairs that are allowed however a low bias is read, and pairs that may be."""
    if row.always_causal:
        allowed = allowed_pairs(values, "causal")
        if row.masks != "any":
            # query t and key t are one token: a mask that hides the one hides the other
            allowed = allowed & allowed.diagonal(dim1=-2, dim2=-1)[..., None]
        return allowed, allowed
    if row.name == "softmax":
        return (allowed_pairs(values, "loose"),) * 2
    if row.rows_stand_alone:
        return (allowed_pairs(values, "strict"),) * 2
    return allowed_pairs(values, "strict"), allowed_pairs(values, "loose")


def gradients(
    function: Callable[[Values], Tensor], values: Values, wanted: list[str], **limited: int
) -> Results:
    """Those of a fixed weighted sum of the result, under the limits of the forward."""
    leaves = {name: values[name].detach().clone().requires_grad_() for name in wanted}
    result = function(values | leaves)
    # weights that every precision holds
    weights = (64 * torch.arange(result.numel()).cos()).round() / 64
    loss = (result * weights.to(result.dtype).reshape(result.shape)).sum()
    found = [torch.zeros_like(leaf) for leaf in leaves.values()]
    if loss.requires_grad:
        inputs = [*leaves.values()]
        with limits(**limited):
            found = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
    return {f"gradient of {name}": x for name, x in zip(wanted, found, strict=True)}


def floating(values: Values) -> list[str]:
    """Arguments that have a gradient; a bias that is cut to the range of its precision has none."""
    tokens = values["scores" if "scores" in values else "query"]
    most = torch.finfo(working(tokens.dtype)).max
    names = [name for name, x in values.items() if isinstance(x, Tensor) and x.is_floating_point()]
    return [n for n in names if peak(values[n][values[n].isfinite()].double()) <= most]


def without(values: Values, *names: str) -> Values:
    return {name: value for name, value in values.items() if name not in names}
