"""Which layers and heads of a model get which operator, and what no call of a layer could do."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bistoch.functional import OPERATORS, Operator, inputs, parse_operator
from bistoch.nn.build import build_operator
from bistoch.nn.operators import OperatorModule

Start = float | Sequence[float] | Tensor
Heads = Sequence[int]


def read_operator(text: str, lam: Any) -> tuple[Operator, dict[str, Any]]:
    """The row and the options of an operator for a model; with `lam` it learns from there.

    >>> read_operator("elastic(iters=5)", lam=0.5)[1]
    {'iters': 5, 'learn': 'head'}
    """
    row, options = parse_operator(text, OPERATORS)
    check_scale("convert", text, options)
    if lam is None:
        return row, options
    if "lam" not in row.options():
        raise ValueError(
            f"convert: {row.name} has no lam to start from; leave lam out, or use elastic"
        )
    if "lam" in options:
        raise ValueError(f"convert: lam is given twice, in {text!r} and as lam=; choose one")
    return row, options | {"learn": "head"}


def write_operator(name: str, options: Mapping[str, Any]) -> str:
    """An operator in words, as `parse_operator` reads it.

    >>> write_operator("elastic", {"lam": 0.5, "iters": 5})
    'elastic(lam=0.5, iters=5)'
    """
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})"


def choose_layers(
    model: str, known: Sequence[str], layers: Sequence[int | str] | None, heads: Any, lam: Any
) -> list[int]:
    """The numbers of the chosen layers, in order.

    Args:
        model: what to call the model in a sentence.
        known: the names of its attention layers.
        layers: numbers, or beginnings of names; None for all, or for those that `heads` or `lam`
            names.
        heads, lam: as the user gave them; if they are mappings, their keys are numbers of layers.

    >>> choose_layers("Model", ["encoder.0", "encoder.1", "decoder.0"], ["encoder"], None, None)
    [0, 1]
    """
    named = [set(choice) for choice in (heads, lam) if isinstance(choice, Mapping)]
    if layers is None:
        layers = sorted(set.intersection(*named)) if named else range(len(known))
        if not layers:
            raise ValueError(
                "convert: heads and lam must name a layer in common, or lam and heads of one that "
                f"exists, but they name {[sorted(some) for some in named]}"
            )
    if isinstance(layers, str) or not isinstance(layers, Iterable):
        raise TypeError(f"convert: layers must be a list, but it is {layers!r}; write [{layers!r}]")
    layers = list(layers)
    if not layers:
        raise ValueError(
            "convert: layers must name a layer, but it is empty; leave it out to convert all"
        )
    chosen: set[int] = set()
    for layer in layers:
        if isinstance(layer, str):
            found = {i for i, name in enumerate(known) if f"{name}.".startswith(f"{layer}.")}
        elif isinstance(layer, bool):
            found = set()
        else:
            found = {layer} & set(range(len(known)))
        if not found:
            raise ValueError(
                f"convert: there is no layer {layer!r} in {model}; its {len(known)} attention "
                f"layers are 0 ({known[0]}) to {len(known) - 1} ({known[-1]})"
            )
        chosen |= found
    return sorted(chosen)


def of_layer(choice: Any, number: int) -> Any:
    """What a choice says for one layer: its own entry, or the same for all."""
    return choice.get(number) if isinstance(choice, Mapping) else choice


def check_heads(name: str, heads: Heads, count: int) -> list[int]:
    """Chosen heads of a layer, in order.

    >>> check_heads("attn", [3, 0], 4)
    [0, 3]
    """
    chosen = list(heads) if isinstance(heads, Sequence) and not isinstance(heads, str) else [None]
    whole = all(isinstance(head, int) and not isinstance(head, bool) for head in chosen)
    within = whole and bool(chosen) and min(chosen) >= 0 and max(chosen) < count
    if not within or len(set(chosen)) < len(chosen):
        raise ValueError(
            f"convert: heads of the layer {name} must be different numbers from 0 to "
            f"{count - 1}, at least one, but they are {heads!r}"
        )
    return sorted(chosen)


def make_operator(
    text: str, asked: Heads | None, count: int, size: int | None, lam: Start | None
) -> OperatorModule:
    """The operator of a layer, for the chosen heads of `count`, with a lam that starts where asked.

    Args:
        text: the operator, as `read_operator` completed it.
        asked: the chosen heads in the order of the user; None for all.
        count: how many heads the layer has.
        size: the features of a head, if they are known.
        lam: a number, or one for each chosen head, in the same order.

    >>> make_operator("elastic(learn='head')", [2, 0], 4, None, [0.5, 1.0]).lam.tolist()
    [1.0, 0.5]
    """
    heads = count if asked is None else len(asked)
    module = build_operator(text, heads, size)
    if lam is None:
        return module
    try:
        start = torch.as_tensor(lam)
        start = start if start.is_floating_point() else start.to(torch.float32)
    except (TypeError, ValueError, RuntimeError):
        start = None
    if start is None or isinstance(lam, bool | str):
        raise TypeError(
            f"convert: lam must be a number, or one for each of {heads} heads, but it is {lam!r}"
        )
    inputs.check_lam("convert", start, (heads,))
    if asked is not None:
        # heads are kept in order, and each keeps the number that was said beside it
        start = start.expand(heads)[torch.tensor(asked).argsort()]
    with torch.no_grad():
        module.get_parameter("lam").copy_(start)
    return module


def check_layer(
    row: Operator, where: str, *, ordered: bool, crosses: bool, pairs: str | None = None
) -> None:
    """Refuse at once what no call of a layer could do.

    Args:
        row: the operator.
        where: what to call the layer in a sentence.
        ordered: whether its queries are a sequence in which none may know of a later one.
        crosses: whether its keys are other tokens than its queries.
        pairs: what it does to single pairs of tokens, in words; None if nothing.
    """
    if ordered and not row.causal:
        raise refuse_causal("convert", row.name, where)
    if row.square and crosses:
        raise ValueError(
            f"convert: {row.name} may not be used in {where}, where queries and keys are different "
            f"tokens: {row.name} needs as many queries as keys; name the other layers with layers="
        )
    if row.masks != "any" and pairs is not None:
        able = [known for known, one in OPERATORS.items() if one.causal and one.masks == "any"]
        raise ValueError(
            f"convert: {row.name} may not be used in {where}, which {pairs}: {row.name} can leave "
            f"out whole tokens, but treats all pairs alike; use {' or '.join(able)}"
        )


def refuse_causal(operator: str, name: str, where: str) -> ValueError:
    """The mistake of balancing columns where the future must stay hidden."""
    causal = [known for known, row in OPERATORS.items() if row.causal]
    return ValueError(
        f"{operator}: {name} may not be used in {where}, whose queries must not know of later "
        f"ones: a balanced column sums over the future; use {' or '.join(causal)}"
    )


def check_scale(function: str, text: str, options: dict[str, Any]) -> None:
    """Refuse a scale of the scores: a model has its own."""
    if options.get("scale") is not None:
        raise ValueError(
            f"{function}: {text!r} sets scale, but a model sets the scale of its own scores; "
            "leave it out, and use eps for a temperature"
        )
