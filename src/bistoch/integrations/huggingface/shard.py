"""Models of transformers over sequences of which every rank has a part."""

from typing import TYPE_CHECKING

from bistoch.integrations.huggingface.convert import Model, convert
from bistoch.integrations.huggingface.interface import NAME
from bistoch.integrations.huggingface.layers import (
    attention_layers,
    hides_pairs,
    hides_the_future,
    is_cross_attention,
)
from bistoch.integrations.huggingface.swapped import Swapped
from bistoch.nn.over_ranks import check_over_ranks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def shard_sequence(model: Model, mesh: "DeviceMesh | None") -> Model:
    """Let every attention layer of a model attend to the tokens of all ranks, in place.

    From then on each rank passes the model its own part of the sequence, with the `position_ids` of
    these tokens and `use_cache=False`, and gets the states of these tokens, as if one process had
    the whole sequence. Ranks may have different numbers of tokens. Weights are the same on all
    ranks, and their gradients add up over ranks to those of one process.

    Args:
        model: a model of transformers. Layers that were converted keep their operator, softmax,
            sinkhorn, elastic or causal_elastic; the others stay with softmax.
        mesh: the ranks, a device mesh with one axis; None makes it a model of one process again.
    """
    plans = {}
    for number, (name, layer) in enumerate(attention_layers(model).items()):
        where = f"layer {number} ({name}) of {type(model).__name__}"
        swapped, causal = getattr(layer, NAME, None), hides_the_future(name, layer)
        if isinstance(swapped, Swapped):
            check_over_ranks(f"shard_sequence, {where}", swapped.operator.row.name)
        else:
            # causal balance without elasticity is causal softmax
            plans[number] = "causal_elastic(lam=0.0)" if causal else "softmax"
        what = "attends to another sequence" if is_cross_attention(layer, name) else None
        if mesh is not None and (what := what or hides_pairs(layer)) is not None:
            raise NotImplementedError(
                f"shard_sequence: {where} {what}, and such pairs cannot be told over ranks; run "
                "this model in one process"
            )
    # all is well: nothing of the model was touched before this line
    for number, operator in plans.items() if mesh is not None else ():
        convert(model, operator, layers=[number])
    for layer in attention_layers(model).values():
        swapped = getattr(layer, NAME, None)
        if isinstance(swapped, Swapped):
            swapped.operator.mesh = mesh
    return model
