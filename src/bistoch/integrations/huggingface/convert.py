"""Swap the attention of a model that exists, layer by layer and head by head, and swap it back."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from bistoch.functional import OPERATORS, Operator, inputs, parse_operator
from bistoch.integrations.huggingface.interface import (
    NAME,
    check_scale,
    import_interfaces,
    refuse_causal,
    register_converted,
)
from bistoch.integrations.huggingface.layers import (
    attention_layers,
    count_heads,
    head_size,
    hides_pairs,
    hides_the_future,
    is_cross_attention,
)
from bistoch.integrations.huggingface.swapped import Swapped
from bistoch.nn import build_operator

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Model = TypeVar("Model", bound="PreTrainedModel")
Start = float | Sequence[float] | Tensor
Heads = Sequence[int]


def convert(
    model: Model,
    operator: str = "elastic(learn='head')",
    *,
    layers: Sequence[int | str] | None = None,
    heads: Heads | Mapping[int, Heads] | None = None,
    lam: Start | Mapping[int, Start] | None = None,
) -> Model:
    """Swap an operator into layers and heads of a model, in place; all weights stay.

    By default every head learns an elasticity of its own, starting as softmax: the outputs of the
    model do not change until it is trained.

    Args:
        model: a model of transformers.
        operator: a text such as "elastic(lam=0.5, iters=5)" with a name of `bistoch.OPERATORS`.
        layers: which layers, by their number in `attention_layers(model)`, or by the beginning of
            their name, such as "encoder"; by default all, or those that `heads` or `lam` names.
        heads: which heads, the same in every layer, or by the number of the layer; the others
            stay with softmax. By default all.
        lam: where a learned elasticity starts: a number, or one for each chosen head, or these by
            the number of the layer. Each layer then has a parameter with one entry per head.

    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2)
    >>> model = convert(BertModel(config), "elastic(iters=5)", lam={0: 0.5, 1: [0.0, 1.0]})
    >>> model.encoder.layer[1].attention.self.bistoch.operator.lam
    Parameter containing:
    tensor([0., 1.], requires_grad=True)
    >>> restore(model).encoder.layer[1].attention.self._modules.keys()
    dict_keys(['query', 'key', 'value', 'dropout'])
    """
    import_interfaces()
    known = list(attention_layers(model).items())
    row, options = parse_operator(operator, OPERATORS)
    check_scale("convert", operator, options)
    if lam is not None:
        options = _learning(operator, row.name, row.options(), options)
    chosen = _choose_layers(model, known, layers, heads, lam)
    made = {}
    for number in chosen:
        name, layer = known[number]
        _check_layer(row, name, layer, f"layer {number} ({name}) of {type(model).__name__}")
        own_heads = heads.get(number) if isinstance(heads, Mapping) else heads
        own_lam = lam.get(number) if isinstance(lam, Mapping) else lam
        made[number] = _make(name, layer, row.name, options, own_heads, own_lam)
    # all is well: nothing of the model was touched before this line
    register_converted()
    record = dict(getattr(model.config, NAME, None) or {})
    for number, swapped in made.items():
        _put(known[number][1], swapped)
        record[str(number)] = {"operator": _text(row.name, options), "heads": swapped.heads}
    setattr(model.config, NAME, record)
    return model


def restore(model: Model) -> Model:
    """Give every layer of a model its own attention back, in place.

    What was learned in an operator is dropped. A model that was not converted stays as it is.

    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2)
    >>> len(converted_layers(restore(convert(BertModel(config)))))
    0
    """
    for layer in converted_layers(model).values():
        swapped = getattr(layer, NAME)
        swapped.leave()
        layer.config = swapped.config
        delattr(layer, NAME)
    if hasattr(model.config, NAME):
        delattr(model.config, NAME)
    return model


def converted_layers(model: "PreTrainedModel") -> dict[str, nn.Module]:
    """The layers of a model that `convert` changed, by name."""
    layers = model.named_modules()
    return {name: layer for name, layer in layers if isinstance(getattr(layer, NAME, 0), Swapped)}


def convert_as_recorded(model: "PreTrainedModel", record: Mapping[str, Any]) -> None:
    """Convert a new model as the record in its configuration says; the weights come later."""
    for number, entry in record.items():
        convert(model, entry["operator"], layers=[int(number)], heads=entry["heads"])


def _put(layer: nn.Module, swapped: Swapped) -> None:
    earlier = getattr(layer, NAME, None)
    if isinstance(earlier, Swapped):
        earlier.leave()
        swapped.config = earlier.config
    setattr(layer, NAME, swapped)
    swapped.watch(layer)
    # a configuration of its own says who computes in this layer; all others stay as they are
    config = copy.deepcopy(swapped.config)
    config._attn_implementation = NAME
    layer.config = config


def _check_layer(row: Operator, name: str, layer: nn.Module, where: str) -> None:
    """Refuse at once what no call of the layer could do."""
    if not row.causal and hides_the_future(name, layer):
        raise refuse_causal("convert", row.name, where)
    if row.square and is_cross_attention(layer, name):
        raise ValueError(
            f"convert: {row.name} may not be used in {where}, where queries and keys are different "
            f"tokens: {row.name} needs as many queries as keys; name the other layers with layers="
        )
    pairs = hides_pairs(layer)
    if row.masks != "any" and pairs is not None:
        able = [known for known, one in OPERATORS.items() if one.causal and one.masks == "any"]
        raise ValueError(
            f"convert: {row.name} may not be used in {where}, which {pairs}: {row.name} can leave "
            f"out whole tokens, but treats all pairs alike; use {' or '.join(able)}"
        )


def _make(
    name: str,
    layer: nn.Module,
    operator: str,
    options: dict[str, Any],
    heads: Heads | None,
    lam: Start | None,
) -> Swapped:
    count = count_heads(name, layer)
    asked = heads
    if heads is not None:
        heads = _check_heads(name, heads, count)
    size = count if heads is None else len(heads)
    module = build_operator(_text(operator, options), size, head_size(layer))
    if lam is not None:
        try:
            start = torch.as_tensor(lam)
            start = start if start.is_floating_point() else start.to(torch.float32)
        except (TypeError, ValueError, RuntimeError):
            start = None
        if start is None or isinstance(lam, bool | str):
            raise TypeError(
                f"convert: lam must be a number, or one for each of {size} heads, but it is {lam!r}"
            )
        inputs.check_lam("convert", start, (size,))
        if asked is not None:
            # heads are kept in order, and each keeps the number that was said beside it
            start = start.expand(size)[torch.tensor(asked).argsort()]
        with torch.no_grad():
            module.get_parameter("lam").copy_(start)
    like = next(layer.parameters(), None)
    module = module if like is None else module.to(like.device)
    swapped = Swapped(module, None if size == count else heads, count, layer.config)
    swapped.crosses = is_cross_attention(layer, name)
    return swapped


def _check_heads(name: str, heads: Heads, count: int) -> list[int]:
    """Chosen heads of a layer, in order."""
    chosen = list(heads) if isinstance(heads, Sequence) and not isinstance(heads, str) else [None]
    whole = all(isinstance(head, int) and not isinstance(head, bool) for head in chosen)
    within = whole and bool(chosen) and min(chosen) >= 0 and max(chosen) < count
    if not within or len(set(chosen)) < len(chosen):
        raise ValueError(
            f"convert: heads of the layer {name} must be different numbers from 0 to "
            f"{count - 1}, at least one, but they are {heads!r}"
        )
    return sorted(chosen)


def _learning(
    text: str, name: str, known: Mapping[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """The options of an operator whose lam starts at given values and is learned."""
    if "lam" not in known:
        raise ValueError(f"convert: {name} has no lam to start from; leave lam out, or use elastic")
    if "lam" in options:
        raise ValueError(f"convert: lam is given twice, in {text!r} and as lam=; choose one")
    return options | {"learn": "head"}


def _choose_layers(
    model: nn.Module,
    known: list[tuple[str, nn.Module]],
    layers: Sequence[int | str] | None,
    heads: Any,
    lam: Any,
) -> list[int]:
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
            found = {i for i, (name, _) in enumerate(known) if f"{name}.".startswith(f"{layer}.")}
        elif isinstance(layer, bool):
            found = set()
        else:
            found = {layer} & set(range(len(known)))
        if not found:
            raise ValueError(
                f"convert: there is no layer {layer!r} in {type(model).__name__}; its "
                f"{len(known)} attention layers are 0 ({known[0][0]}) to {len(known) - 1} "
                f"({known[-1][0]})"
            )
        chosen |= found
    return sorted(chosen)


def _text(name: str, options: Mapping[str, Any]) -> str:
    """An operator in words, as `parse_operator` reads it."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})"
