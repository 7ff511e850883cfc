"""Swap the attention of any model, layer by layer and head by head, and swap it back."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from torch import nn

from bistoch.convert.layers import (
    Layer,
    count_heads,
    find_layers,
    head_size,
    is_cross_attention,
    is_ordered,
)
from bistoch.convert.modules import NAME, converted_class, original_class
from bistoch.convert.swap import Swap
from bistoch.functional import Operator
from bistoch.integrations.huggingface.convert import prepare as prepare_transformers
from bistoch.integrations.huggingface.convert import put as put_transformers
from bistoch.integrations.huggingface.convert import restore as restore_transformers
from bistoch.integrations.huggingface.interface import import_interfaces
from bistoch.integrations.huggingface.swapped import Swapped
from bistoch.models.lm import CausalAttention
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

Model = TypeVar("Model", bound=nn.Module)
# where a layer of bistoch keeps the operator it was made with, and the text, the chosen heads and
# the number of heads of the one it has now
BEFORE = "_bistoch_before"
# containers of torch that compute in the place of their layers, or know what these must not see
CONTAINERS = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def convert(
    model: Model,
    operator: str = "elastic(learn='head')",
    *,
    layers: Sequence[int | str] | None = None,
    heads: Heads | Mapping[int, Heads] | None = None,
    lam: Start | Mapping[int, Start] | None = None,
) -> Model:
    """Swap an operator into attention layers and heads of a model, in place; all weights stay.

    By default every head learns an elasticity of its own, starting as softmax: the outputs of the
    model do not change until it is trained.

    Args:
        model: any module with `nn.MultiheadAttention`, layers that call
            `scaled_dot_product_attention`, layers of bistoch, or models of transformers.
        operator: a text such as "elastic(lam=0.5, iters=5)" with a name of `bistoch.OPERATORS`.
        layers: which layers, by their number in `attention_layers(model)`, or by the beginning of
            their name, such as "encoder"; by default all, or those that `heads` or `lam` names.
        heads: which heads, the same in every layer, or by the number of the layer; the others
            stay as they were. By default all.
        lam: where a learned elasticity starts: a number, or one for each chosen head, or these by
            the number of the layer. Each layer then has a parameter with one entry per head.

    >>> import torch
    >>> layer = nn.TransformerEncoderLayer(16, 4, batch_first=True)
    >>> model = nn.TransformerEncoder(layer, 2).eval()
    >>> x = torch.randn(2, 5, 16)
    >>> before = model(x)
    >>> _ = convert(model, "elastic(iters=5)", layers=[1], lam=0.5)
    >>> model.layers[1].self_attn.bistoch.operator.lam
    Parameter containing:
    tensor([0.5000, 0.5000, 0.5000, 0.5000], requires_grad=True)
    >>> torch.allclose(model(x), before), torch.equal(restore(model)(x), before)
    (False, True)
    """
    known = find_layers(model)
    row, options = read_operator(operator, lam)
    text = write_operator(row.name, options)
    names = [layer.name or type(model).__name__ for layer in known]
    chosen = choose_layers(type(model).__name__, names, layers, heads, lam)
    steps: list[Callable[[], Any]] = []
    for number in chosen:
        layer = known[number]
        where = f"layer {number} ({names[number]}) of {type(model).__name__}"
        prepare = {"torch": _torch, "bistoch": _bistoch, "transformers": _transformers}[layer.kind]
        own_heads, own_lam = of_layer(heads, number), of_layer(lam, number)
        steps.append(prepare(layer, row, text, where, own_heads, own_lam))
    # all is well: nothing of the model was touched before this line
    for step in steps:
        step()
    for module in model.modules():
        if isinstance(module, CONTAINERS) and converted_layers(module):
            _change_class(module)
    return model


def restore(model: Model) -> Model:
    """Give every layer of a model its own attention back, in place.

    What was learned in an operator is dropped. A model that was not converted stays as it is.

    >>> model = nn.MultiheadAttention(16, 4)
    >>> type(restore(convert(model))) is nn.MultiheadAttention, list(model.state_dict())[-1]
    (True, 'out_proj.bias')
    """
    for module in list(model.modules()):
        if isinstance(getattr(getattr(module, "config", None), NAME, None), dict):
            restore_transformers(module)  # type: ignore[type-var]
        if isinstance(getattr(module, NAME, None), Swap):
            delattr(module, NAME)
        module.__class__ = original_class(type(module))
        if BEFORE in vars(module):
            earlier = vars(module).pop(BEFORE)[0]
            like = next(module.parameters(), None)
            module.operator = earlier if like is None else earlier.to(like.device)
    return model


def is_converted(module: nn.Module) -> bool:
    """Whether the attention of a layer was swapped, in whatever way."""
    return isinstance(getattr(module, NAME, None), Swap | Swapped) or BEFORE in vars(module)


def converted_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers of a model that `convert` changed, by name.

    >>> list(converted_layers(convert(nn.Sequential(nn.MultiheadAttention(16, 4)))))
    ['0']
    """
    return {name: module for name, module in model.named_modules() if is_converted(module)}


# one function for each kind of layer: what is wrong is said now, what is right is done later


def _torch(
    layer: Layer, row: Operator, text: str, where: str, heads: Heads | None, lam: Start | None
) -> Callable[[], Any]:
    module, crosses = layer.module, is_cross_attention(layer)
    if "forward" in vars(module):
        raise NotImplementedError(
            f"convert: the forward of {where} was replaced in this object (by hooks of accelerate, "
            "perhaps), and would not be swapped; convert the model first, and replace it then"
        )
    check_layer(row, where, ordered=is_ordered(layer), crosses=crosses)
    operator, chosen, count = _make(layer, text, where, heads, lam)
    swap = Swap(operator, text, chosen, count, crosses, where)
    return partial(_put, module, swap)


def _put(module: nn.Module, swap: Swap) -> None:
    swap.train(module.training)
    setattr(module, NAME, swap)
    _change_class(module)


def _change_class(module: nn.Module) -> None:
    module.__class__ = converted_class(original_class(type(module)))


def _bistoch(
    layer: Layer, row: Operator, text: str, where: str, heads: Heads | None, lam: Start | None
) -> Callable[[], Any]:
    check_layer(row, where, ordered=is_ordered(layer), crosses=is_cross_attention(layer))
    operator, chosen, count = _make(layer, text, where, heads, lam)
    if chosen is not None and count is not None:
        if isinstance(layer.module, CausalAttention):
            raise NotImplementedError(
                f"convert: heads of {where} can not be chosen, since it decodes with one operator; "
                "leave heads= out"
            )
        operator = Swapped(operator, chosen, count, config=None)

    def put() -> None:
        # in a list, so that it is no part of the model
        earlier = vars(layer.module).get(BEFORE, [layer.module.operator])[0]
        vars(layer.module)[BEFORE] = [earlier, text, chosen, count]
        layer.module.operator = operator.train(layer.module.training)

    return put


def _transformers(
    layer: Layer, row: Operator, text: str, where: str, heads: Heads | None, lam: Start | None
) -> Callable[[], Any]:
    import_interfaces()
    swapped = prepare_transformers(row, text, layer.name, layer.module, where, heads, lam)
    return partial(put_transformers, layer.owner, layer.number, layer.module, swapped, text)


def _make(
    layer: Layer, text: str, where: str, heads: Heads | None, lam: Start | None
) -> tuple[Any, list[int] | None, int | None]:
    """The operator of a layer, the chosen heads (None for all), and how many the layer has."""
    count, size = count_heads(layer), head_size(layer)
    chosen = None if heads is None or count is None else check_heads(where, heads, count)
    operator = make_operator(text, None if count is None else heads, count or 1, size, lam)
    per_head = heads is not None or isinstance(getattr(operator, "heads", None), int)
    if count is None and per_head:
        raise ValueError(
            f"convert: {where} does not say how many heads it has; set the attribute num_heads of "
            f"{type(layer.module).__name__}, or use an operator that learns nothing, for all heads"
        )
    like = next(layer.module.parameters(), None)
    operator = operator if like is None else operator.to(like.device)
    return operator, None if chosen is None or len(chosen) == count else chosen, count
