"""The attention function that transformers calls, and the names under which it is found."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import dropout as drop

from bistoch.functional import OPERATORS, CausalState
from bistoch.functional.causal.growing import GrowingState
from bistoch.integrations.huggingface.caches import recall, remember
from bistoch.integrations.huggingface.layers import hides_the_future, is_cross_attention
from bistoch.integrations.huggingface.swapped import Swapped
from bistoch.nn import Softmax, build_operator
from bistoch.nn.swap.choose import check_scale, refuse_causal
from bistoch.nn.swap.masks import Masks, looks_causal, once_per_forward, read_masks
from bistoch.nn.swap.tokens import scale_tokens, share_keys

# the implementation of converted layers, and the name of what `convert` puts into them
NAME = "bistoch"

NOTHING_HIDDEN = Masks(mask=None, query_mask=None, key_mask=None)

# arguments of some models that change what their attention is
REFUSED = {
    "softcap": "caps its scores with a tanh (softcap)",
    "s_aux": "adds a learned sink to every row (s_aux)",
    "cache": "keeps its keys in pages",
    "indices": "lets every query see only keys of its choice (indices)",
    "block_indices": "lets every query see only blocks of its choice (block_indices)",
}


def register(*operators: str) -> None:
    """Make operators known to transformers, by their text.

    From then on `attn_implementation=` of `from_pretrained`, `from_config` and
    `set_attn_implementation` take them. "bistoch" is always among them: it is what `convert` put
    into a layer, and softmax where it put nothing.

    Args:
        operators: texts such as "elastic(lam=0.5, iters=5)"; by default the names of
            `bistoch.OPERATORS`. Operators with parameters of their own need `convert`.

    >>> import torch
    >>> from transformers import AutoModel, BertConfig
    >>> register("elastic(lam=0.5)")
    >>> config = BertConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2)
    >>> model = AutoModel.from_config(config, attn_implementation="elastic(lam=0.5)")
    >>> model(torch.tensor([[1, 2, 3]])).last_hidden_state.shape
    torch.Size([1, 3, 8])
    """
    texts = operators or [name for name in OPERATORS if not _has_parameters(name)]
    functions = {}
    for text in texts:
        operator = build_operator(text, heads=1, size=1)
        if _has_parameters(text):
            raise ValueError(
                f"register: {text!r} has parameters, which need a place in the model; use "
                f"convert(model, {text!r})"
            )
        check_scale("register", text, operator.options())
        functions[text] = functools.partial(attend, Swapped(operator, None, 1, None))
    _register(functions)
    register_converted()


def register_converted() -> None:
    """Make "bistoch" known to transformers: the implementation of converted layers."""
    _register({NAME: _attend_converted})


def import_interfaces() -> tuple[Any, Any, Any]:
    """The tables of transformers to register with, and its maker of boolean masks."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    except ImportError as missing:
        raise ImportError(
            "bistoch.integrations.huggingface needs transformers 5.10 or later; install it with "
            'pip install "bistoch[huggingface]"'
        ) from missing
    return AttentionInterface, AttentionMaskInterface, sdpa_mask


def attend(
    swapped: Swapped,
    module: nn.Module,
    query: Float[Tensor, "b h n d"],
    key: Float[Tensor, "b kv m d"],
    value: Float[Tensor, "b kv m e"],
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Float[Tensor, "#b #h n m"] | None = None,
    head_mask: Tensor | None = None,
    output_attentions: bool | None = None,
    **others: Any,
) -> tuple[Float[Tensor, "b n h e"], Float[Tensor, "b h n m"] | None]:
    """Attend with an operator, called as transformers calls its attention functions.

    Dropout acts on the result, not on the plan, whose sums it would undo. The plan is returned
    only where `output_attentions` asks for it.
    """
    layer = type(module).__name__
    for name, what in REFUSED.items():
        if others.get(name) is not None:
            raise NotImplementedError(
                f"{swapped.operator!r}: {layer} {what}, which the operators do not know; "
                "leave this layer out of the swap"
            )
    dtype, n, cache = query.dtype, query.shape[-2], swapped.take_cache()
    if cache is not None and swapped.operator.mesh is not None:
        raise NotImplementedError(
            f"attend: {layer} brings a cache, which is not sharded over ranks; call the model with "
            "use_cache=False"
        )
    # the configuration of the model, not the copy of a converted layer, is what a user changes
    config = module.config if swapped.config is None else swapped.config
    wanted = output_attentions or getattr(config, "output_attentions", False)
    state = None if cache is None else recall(cache, swapped.operator.row.name, n)
    masks = NOTHING_HIDDEN
    if cache is None or attention_mask is not None or position_bias is not None:
        causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
        masks = _read(swapped, module, query, key, attention_mask, position_bias, causal, cache)
    done = None
    if cache is not None and not wanted:
        # keys of several query heads stay one, and the state is not copied
        done = swapped.step_in_place(query, key, value, masks, state, scaling)
    make_plan: Callable[[], Tensor]
    after: CausalState | GrowingState
    if done is not None:
        result, after = done
    else:
        key, value = share_keys(query.shape[1], key, value)
        query, key, value = scale_tokens(query, key, value, scaling)
        if cache is None and n != key.shape[-2] and swapped.continues:
            result = swapped.next_rows(query, key, value, masks)
            make_plan = functools.partial(_plan_of_next_rows, swapped, query, key, masks)
        elif cache is None:
            result = swapped(query, key, value, **masks)
            make_plan = functools.partial(swapped.plan, query, key, **masks)
        else:
            before = state.state if isinstance(state, GrowingState) else state
            result, after = swapped.step(query, key, value, masks, before)
            make_plan = functools.partial(swapped.step_plan, query, key, masks, before)
    if cache is not None:
        remember(cache, after)
    result = result.to(dtype)
    if module.training and dropout:
        result = drop(result, dropout)
    plan = make_plan().to(dtype) if wanted else None
    if head_mask is not None:
        # a head is scaled by scaling its result, which is its plan times the values
        result = result * head_mask.reshape(-1, query.shape[1], 1, 1)
    return result.transpose(1, 2).contiguous(), plan


def _plan_of_next_rows(swapped: Swapped, query: Tensor, key: Tensor, masks: Masks) -> Tensor:
    unit = torch.eye(key.shape[-2], dtype=key.dtype, device=key.device)
    return swapped.next_rows(query, key, unit.expand(*key.shape[:-1], -1), masks)


def _read(
    swapped: Swapped, module: nn.Module, query: Tensor, key: Tensor, attention_mask: Tensor | None,
    position_bias: Tensor | None, causal: bool, cache: Any,
) -> Masks:  # fmt: skip
    """What a layer hides, in the words of the operators; layers that are given one mask share it.

    With a cache and no mask there is nothing to read: an operator that goes on from a state hides
    the future by itself.
    """
    n, m = query.shape[-2], key.shape[-2]
    independent = swapped.rows_are_independent
    crosses = swapped.crosses or is_cross_attention(module)
    hides_itself = causal and not swapped.is_causal_alone
    hide_queries = not independent and n == m and not crosses
    masks = once_per_forward(
        attention_mask if position_bias is None else None,
        id(module),
        (n, m, hides_itself, hide_queries),
        lambda: read_masks(
            attention_mask, position_bias, queries=n, keys=m, causal=hides_itself,
            hide_queries=hide_queries, device=query.device,
        ),
    )  # fmt: skip
    if crosses and not independent and masks["key_mask"] is not None:
        # of the queries of another sequence nothing is known, but that they were given
        real = masks["key_mask"].new_ones(1, 1, n)
        masks = Masks(mask=masks["mask"], query_mask=real, key_mask=masks["key_mask"])
    if not independent:
        ordered = causal or once_per_forward(
            masks["mask"], id(module), "looks causal", lambda: looks_causal(masks)
        )
        lacks_rows = cache is None and n != m and not swapped.continues
        _check_order(swapped, module, ordered, lacks_rows, n, m)
    return masks


def _register(functions: Mapping[str, Callable[..., Any]]) -> None:
    interface, mask_interface, make_mask = import_interfaces()
    for text, function in functions.items():
        interface.register(text, function)
        # without a mask function of the same name, transformers would drop the padding in silence
        mask_interface.register(text, make_mask)


def _has_parameters(text: str) -> bool:
    return next(build_operator(text, heads=1, size=1).parameters(), None) is not None


def _attend_converted(module: nn.Module, *arguments: Any, **options: Any) -> Any:
    swapped = getattr(module, NAME, None)
    return attend(SOFTMAX if swapped is None else swapped, module, *arguments, **options)


# what computes in a layer that was not converted
SOFTMAX = Swapped(Softmax(), None, 1, None)


def _check_order(
    swapped: Swapped, module: nn.Module, causal: bool, lacks_rows: bool, n: int, m: int
) -> None:
    operator, layer = swapped.operator.row, type(module).__name__
    if (causal or hides_the_future("", module)) and not operator.causal:
        raise refuse_causal("attend", operator.name, f"a {layer}")
    if causal and lacks_rows:
        raise NotImplementedError(
            f"attend: {operator.name} needs all rows at once, but {layer} asks for {n} of {m}; "
            "generate with use_cache=False, or swap causal_elastic in with convert, which keeps "
            "what it needs beside the cache"
        )
