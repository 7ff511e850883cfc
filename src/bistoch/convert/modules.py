"""Layers that compute with a swapped operator: their own class, and a mode while they run.

The class of a converted layer is a subclass of its own that runs `forward` in a mode of torch,
which hands calls of attention to the operator. The mode belongs to the thread and ends with the
call, so no other module feels it; nothing of torch or of the layer's file is replaced.
"""

import functools
import inspect
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from bistoch.convert.multihead import attend_multihead
from bistoch.convert.swap import Swap
from bistoch.convert.varlen import attend_nested, attend_varlen
from bistoch.nn.swap.choose import refuse_causal
from bistoch.nn.swap.masks import Masks, looks_causal

# the name of the operator in a layer, as in the models of transformers
NAME = "bistoch"
_SDPA = torch._C._nn.scaled_dot_product_attention
_CHECKPOINT = checkpoint.__file__
# where a converted layer begins, in a stack of calls
_LAYER = (__file__, "forward")


class Swapping(TorchFunctionMode):
    """While it is on, calls of attention in this thread are computed by an operator."""

    def __init__(self, swap: Swap) -> None:
        super().__init__()
        self.swap, self.calls = swap, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict | None = None
    ) -> Any:
        """Attend, or do what was asked."""
        options = {} if kwargs is None else kwargs
        # `analysis.capture` listens to the function by wrapping it
        if func is _SDPA or getattr(func, "__wrapped__", None) is _SDPA:
            self._count()
            attend = attend_nested if _is_nested(args, options) else Swap.__call__
            return attend(self.swap, *args, **options)
        if func is functional.multi_head_attention_forward:
            self._count()
            return attend_multihead(self.swap, *args, **options)
        if _is_varlen(func):
            self._count()
            return attend_varlen(self.swap, *args, **options)
        if func is Tensor.unflatten:
            # the one method in use that torch.compile cannot trace from here
            return torch.unflatten(*args, **options)
        return func(*args, **options)

    def _count(self) -> None:
        self.calls += 1
        if not torch.compiler.is_compiling():
            _refuse_checkpoint(self.swap)


@functools.cache
def converted_class(kind: Any) -> Any:
    """The class of a layer, but one that attends with the operator that is put into it.

    >>> kind = converted_class(nn.MultiheadAttention)
    >>> issubclass(kind, nn.MultiheadAttention), kind.__name__, original_class(kind).__module__
    (True, 'MultiheadAttention', 'torch.nn.modules.activation')
    """

    class Converted(kind):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            if isinstance(self, nn.TransformerDecoderLayer):
                _check_decoder(self, *args[2:], **kwargs)
            swap = self._modules.get(NAME)
            if swap is None:
                return super().forward(*args, **kwargs)
            if isinstance(self, nn.MultiheadAttention) and _is_nested(args, kwargs):
                return _attend_rows(self, *args, **kwargs)
            mode = Swapping(swap)
            with mode:
                result = super().forward(*args, **kwargs)
            if not mode.calls:
                raise RuntimeError(
                    f"convert: {swap.where} did not call scaled_dot_product_attention, so the "
                    "operator was not used; switch its fused attention on, or leave the layer out "
                    "with layers="
                )
            return result

        def __reduce_ex__(self, protocol: Any) -> Any:
            # the class is made, not imported: a pickle names the one that it is made from
            make, arguments, *rest = super().__reduce_ex__(protocol)
            arguments = tuple(kind if x is type(self) else x for x in arguments)
            return (_rebuild, (kind, make, arguments), *rest)

    # data descriptors come before attributes of the instance, which stay as they are
    if issubclass(kind, nn.TransformerEncoderLayer):
        # else the layer computes softmax by itself in evaluation, from the weights of its attention
        Converted.activation_relu_or_gelu = property(lambda self: 0)
    if issubclass(kind, nn.TransformerEncoder):
        # nested tensors are for layers that do so
        Converted.use_nested_tensor = property(lambda self: False)
    if any("fused_attn" in inspect.get_annotations(owner) for owner in kind.__mro__):
        # layers of timm use scaled_dot_product_attention only if this is on
        Converted.fused_attn = property(lambda self: True)
    Converted.__name__, Converted.__qualname__ = kind.__name__, kind.__qualname__
    Converted.__module__, Converted.__doc__ = kind.__module__, kind.__doc__
    Converted._bistoch_original = kind
    # torch.compile counts recompilations by code, of which every class needs its own
    Converted.forward.__code__ = Converted.forward.__code__.replace()
    return Converted


def original_class(kind: type[nn.Module]) -> Any:
    """The class of a layer before it was converted."""
    return vars(kind).get("_bistoch_original", kind)


def _rebuild(kind: Any, make: Any, arguments: tuple[Any, ...]) -> nn.Module:
    made = make(*arguments)
    made.__class__ = converted_class(kind)
    return made


def _is_varlen(func: Any) -> bool:
    # loaded by whoever calls it
    module = sys.modules.get("torch.nn.attention.varlen")
    return module is not None and func is torch.ops.torch_attn._varlen_attn


def _refuse_checkpoint(swap: Swap) -> None:
    """Refuse a checkpoint inside a layer: what it computes again, it computes after the layer."""
    frame = sys._getframe()
    while frame.f_back is not None and (frame.f_code.co_filename, frame.f_code.co_name) != _LAYER:
        frame = frame.f_back
        if frame.f_code.co_filename == _CHECKPOINT:
            raise NotImplementedError(
                f"convert: {swap.where} calls its attention inside torch.utils.checkpoint, which "
                "would compute it again without the operator; checkpoint the whole layer instead"
            )


def _check_decoder(
    layer: nn.Module,
    tgt_mask: Tensor | None = None,
    memory_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    tgt_is_causal: bool = False,
    *rest: Any,
    **others: Any,
) -> None:
    """Cross-attention is not masked, but its queries have an order if self-attention is causal."""
    swap = getattr(getattr(layer, "multihead_attn", None), NAME, None)
    if not isinstance(swap, Swap) or swap.operator.row.causal:
        return
    seen = tgt_mask if isinstance(tgt_mask, Tensor) else None
    if seen is not None and seen.dtype == torch.bool:
        seen = ~seen
    if tgt_is_causal or looks_causal(Masks(mask=seen, query_mask=None, key_mask=None)):
        raise refuse_causal("convert", swap.operator.row.name, swap.where)


def _is_nested(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    query = args[0] if args else kwargs.get("query")
    return isinstance(query, Tensor) and query.is_nested


def _attend_rows(
    layer: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, None]:
    """Nested tensors, one sequence after the other."""
    if need_weights or key_padding_mask is not None or attn_mask is not None:
        raise ValueError(
            "MultiheadAttention: nested tensors need need_weights=False and no masks; "
            "pad them and pass key_padding_mask instead"
        )
    same = query is key
    rows = zip(query.unbind(), key.unbind(), value.unbind(), strict=True)
    # one tensor as query and key is self-attention
    made = [layer(q, q if same else k, v, need_weights=False)[0] for q, k, v in rows]
    return torch.nested.as_nested_tensor(made, layout=query.layout), None
