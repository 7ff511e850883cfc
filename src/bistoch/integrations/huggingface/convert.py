"""Swap the attention of a model that exists, layer by layer and head by head, and swap it back."""

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from bistoch.functional import Operator
from bistoch.integrations.huggingface.interface import NAME, import_interfaces, register_converted
from bistoch.integrations.huggingface.layers import (
    attention_layers,
    count_heads,
    head_size,
    hides_pairs,
    hides_the_future,
    is_cross_attention,
)
from bistoch.integrations.huggingface.swapped import Swapped
from bistoch.nn.swap.choose import (
    Heads,
    Start,
    check_heads,
    check_layer,
    choose_layers,
    make_operator,
    of_layer,
    read_operator,
    write_operator,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Model = TypeVar("Model", bound="PreTrainedModel")


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
    row, options = read_operator(operator, lam)
    text = write_operator(row.name, options)
    chosen = choose_layers(type(model).__name__, [name for name, _ in known], layers, heads, lam)
    made = {}
    for number in chosen:
        name, layer = known[number]
        where = f"layer {number} ({name}) of {type(model).__name__}"
        made[number] = prepare(
            row, text, name, layer, where, of_layer(heads, number), of_layer(lam, number)
        )
    # all is well: nothing of the model was touched before this line
    for number, swapped in made.items():
        put(model, number, known[number][1], swapped, text)
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


def put(
    model: "PreTrainedModel", number: int, layer: nn.Module, swapped: Swapped, text: str
) -> None:
    """Let a layer of a model compute with what was prepared for it, and record that."""
    register_converted()
    swapped.text = text
    record = dict(getattr(model.config, NAME, None) or {})
    record[str(number)] = {"operator": text, "heads": swapped.heads}
    setattr(model.config, NAME, record)
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


def prepare(
    row: Operator,
    text: str,
    name: str,
    layer: nn.Module,
    where: str,
    heads: Heads | None,
    lam: Start | None,
) -> Swapped:
    """What will compute in a layer; the layer is not touched."""
    crosses = is_cross_attention(layer, name)
    check_layer(
        row, where, ordered=hides_the_future(name, layer), crosses=crosses, pairs=hides_pairs(layer)
    )
    count = count_heads(name, layer)
    chosen = None if heads is None else check_heads(name, heads, count)
    module = make_operator(text, heads, count, head_size(layer), lam)
    like = next(layer.parameters(), None)
    module = module if like is None else module.to(like.device)
    everywhere = chosen is None or len(chosen) == count
    swapped = Swapped(module, None if everywhere else chosen, count, layer.config)
    swapped.crosses = crosses
    return swapped
