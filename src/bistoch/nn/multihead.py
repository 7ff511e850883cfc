"""The contract of torch.nn.MultiheadAttention, word for word, around any operator."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from bistoch.functional import inputs
from bistoch.functional._masks import read_bias
from bistoch.functional.inputs.tensors import check_dense, check_device
from bistoch.functional.pose import working_dtype
from bistoch.nn.build import build_operator
from bistoch.nn.heads import (
    check_division,
    check_features,
    explain_misfit,
    merge_heads,
    split_heads,
)


class MultiheadAttention(nn.Module):
    """Attention with the arguments, results and weights of `torch.nn.MultiheadAttention`.

    With `operator="softmax"` it is the same function. The `state_dict` of one loads into the other;
    an operator with parameters of its own adds them as `operator.*` (load with `strict=False`).
    It can be the `self_attn` of `nn.TransformerEncoderLayer`, also in evaluation mode.

    Three things differ. Dropout acts on the result, not on the weights, whose sums it would undo. A
    query that may see no key returns the bias of the output projection, not NaN. And where one row
    of the plan depends on another (all operators but softmax), `key_padding_mask` in self-attention
    (one tensor as query and key) hides the padded queries too, whose weights are then zero.

    Args:
        embed_dim, num_heads, dropout, bias, batch_first, device, dtype: as in torch.
        operator: as for `bistoch.nn.Attention`.
        others: `kdim`, `vdim`, `add_bias_kv` and `add_zero_attn` are not offered; `bistoch.convert`
            puts an operator into torch's layer that has them.

    >>> import torch, bistoch
    >>> theirs = torch.nn.MultiheadAttention(16, 4)
    >>> ours = bistoch.nn.MultiheadAttention(16, 4, operator="elastic(lam=0.5)")
    >>> ours.load_state_dict(theirs.state_dict())
    <All keys matched successfully>
    >>> x = torch.randn(5, 2, 16)
    >>> output, weights = ours(x, x, x)
    >>> output.shape, weights.shape
    (torch.Size([5, 2, 16]), torch.Size([2, 5, 5]))
    """

    # In evaluation mode nn.TransformerEncoderLayer reads the weights of its self_attn and computes
    # softmax by itself, unless this is false. It is what torch says of a layer with a kdim.
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        operator: str | nn.Module = "softmax",
        **others: Any,
    ) -> None:
        super().__init__()
        _check_others(others)
        check_division("MultiheadAttention", "embed_dim", embed_dim, "num_heads", num_heads)
        inputs.check_probability("MultiheadAttention", "dropout", dropout)
        for name, flag in (("bias", bias), ("batch_first", batch_first)):
            inputs.check_flag("MultiheadAttention", name, flag)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.operator = build_operator(operator, num_heads, self.head_dim).to(device)
        # the order of torch, so that one seed makes the same weights here and there
        self.in_proj_weight = nn.Parameter(
            torch.empty(3 * embed_dim, embed_dim, device=device, dtype=dtype)
        )
        self.in_proj_bias = (
            nn.Parameter(torch.zeros(3 * embed_dim, device=device, dtype=dtype)) if bias else None
        )
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        nn.init.xavier_uniform_(self.in_proj_weight)
        if bias:
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Float[Tensor, "... n embed_dim"],
        key: Float[Tensor, "... m embed_dim"],
        value: Float[Tensor, "... m embed_dim"],
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Float[Tensor, "... n embed_dim"], Float[Tensor, "... queries keys"] | None]:
        """Attend; return the result, and the plan (averaged over heads) or None.

        Args:
            query, key, value: (length, batch, features), or (batch, length, features) if
                `batch_first`, or (length, features) for one sequence.
            key_padding_mask: (batch, m), True where a key is padding, or a float bias of the keys.
            need_weights: whether to return the plan.
            attn_mask: (n, m) or (batch * num_heads, n, m), True where attention is forbidden, or a
                float bias added to the scores.
            average_attn_weights: whether to average the plan over the heads.
            is_causal: says that `attn_mask` is causal. An operator that balances columns refuses:
                a column sum holds the future. With the mask alone you may do it all the same.
        """
        if is_causal:
            self._check_causal(attn_mask)
        if isinstance(query, Tensor) and query.is_nested:
            self._check_nested(need_weights, key_padding_mask, attn_mask)
            return self._attend_nested(query, key, value), None
        same_tokens = query is key
        q, k, v = self._project(query, key, value)
        batch = inputs.check_tokens("MultiheadAttention", q, k, v)
        shape = (*batch, q.shape[-2], k.shape[-2])
        # a padded query is left out only where another row depends on it; else it is as in torch
        independent = getattr(self.operator, "rows_are_independent", False)
        mask, key_mask = _read_masks(shape, attn_mask, key_padding_mask, q.device, independent)
        query_mask = None
        if key_mask is not None and not independent:
            # of other queries nothing is known, but that they were given
            query_mask = key_mask if same_tokens else key_mask.new_ones(q.shape[-2])
        masks: dict[str, Any] = {"mask": mask, "query_mask": query_mask, "key_mask": key_mask}
        plan = self.operator.plan(q, k, **masks) if need_weights else None
        heads = self.operator(q, k, v, **masks) if plan is None else plan @ v
        result = functional.dropout(self.out_proj(merge_heads(heads)), self.dropout, self.training)
        if result.ndim == 3 and not self.batch_first:
            result = result.transpose(0, 1)
        if plan is not None and average_attn_weights:
            plan = plan.mean(-3)
        return result, plan

    def _project(self, *tokens: Tensor) -> list[Float[Tensor, "... heads length size"]]:
        weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        heads = []
        for name, x, weight, bias in zip(
            ("query", "key", "value"), tokens, weights, biases, strict=True
        ):
            check_features("MultiheadAttention", name, x, self.embed_dim)
            x = x.transpose(0, 1) if x.ndim == 3 and not self.batch_first else x
            try:
                projected = functional.linear(x, weight, bias)
            except RuntimeError as error:
                explain_misfit("MultiheadAttention", name, x, weight, error)
                raise
            heads.append(split_heads(projected, self.num_heads))
        return heads

    def _check_causal(self, attn_mask: Tensor | None) -> None:
        if not getattr(self.operator, "causal", False):
            raise ValueError(
                f"MultiheadAttention: is_causal must be False for the operator {self.operator!r}, "
                "because a balanced column sums over rows of the future; use 'causal_elastic', "
                "or pass the attn_mask with is_causal=False if that is what you want"
            )
        if attn_mask is None:
            raise ValueError(
                "MultiheadAttention: is_causal=True needs the causal attn_mask too, as in torch; "
                "make it with torch.nn.Transformer.generate_square_subsequent_mask(length)"
            )

    def _check_nested(self, need_weights: bool, *masks: Tensor | None) -> None:
        if need_weights or any(mask is not None for mask in masks):
            raise ValueError(
                "MultiheadAttention: nested tensors need need_weights=False and no masks; "
                "pad them and pass key_padding_mask instead"
            )

    def _attend_nested(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # nn.TransformerEncoder turns a padded batch into this form in evaluation mode
        rows = zip(query.unbind(), key.unbind(), value.unbind(), strict=True)
        return torch.nested.as_nested_tensor([self(*row, need_weights=False)[0] for row in rows])


def _check_others(others: dict[str, Any]) -> None:
    for name, value in others.items():
        if name not in ("kdim", "vdim", "add_bias_kv", "add_zero_attn"):
            raise TypeError(f"MultiheadAttention: unknown argument {name!r}")
        if value is not None and value is not False:
            raise TypeError(
                f"MultiheadAttention: {name} must be left out, but it is {value!r}; make "
                f"torch.nn.MultiheadAttention(..., {name}={value!r}) and put the operator into it "
                "with bistoch.convert"
            )


def _read_masks(
    shape: tuple[int, ...],
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    device: torch.device,
    independent: bool,
) -> tuple[Tensor | None, Bool[Tensor, "... 1 m"] | None]:
    """Turn torch's masks, where True forbids, into `mask` and `key_mask`, where True allows.

    Where rows are independent, very low numbers need not be told from minus infinity.
    """
    *batch, heads, n, m = shape
    mask = key_mask = None
    if attn_mask is not None:
        shapes = ((n, m), (math.prod(batch) * heads, n, m))
        _check_mask("attn_mask", attn_mask, shapes, device)
        mask = attn_mask.reshape(shape) if attn_mask.ndim == 3 else attn_mask
        mask = ~mask if mask.dtype == torch.bool else mask
    if key_padding_mask is not None:
        _check_mask("key_padding_mask", key_padding_mask, ((*batch, m),), device)
        padding = key_padding_mask[..., None, :]
        if padding.dtype == torch.bool:
            return mask, ~padding
        if not independent:
            read = read_bias(padding, working_dtype(padding.dtype))
            padding = read.bias + read.level
        # minus infinity, to which torch's layers convert True, is padding; the rest is a bias
        key_mask = padding > -torch.inf
        bias = padding.masked_fill(~key_mask, 0)[..., None, :]
        if _says_nothing(bias):
            # an operator that knows padding but no bias can then be used in torch's layers
            return mask, key_mask
        if mask is None:
            mask = bias
        elif mask.dtype == torch.bool:
            mask = torch.where(mask, bias, -torch.inf)
        else:
            mask = mask + bias
    return mask, key_mask


def _says_nothing(bias: Tensor) -> bool:
    # reading a value would break a compiled graph, and would stall an accelerator
    at_hand = not torch.compiler.is_compiling() and bias.device.type == "cpu"
    return at_hand and not bias.requires_grad and not bool(bias.any())


def _check_mask(
    name: str, mask: Tensor, shapes: tuple[tuple[int, ...], ...], device: torch.device
) -> None:
    wanted = "a boolean tensor (True = hidden) or a float bias added to the scores"
    check_dense("MultiheadAttention", name, mask, wanted)
    check_device("MultiheadAttention", name, mask, device)
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(
            f"MultiheadAttention: {name} must be {wanted}, but its dtype is {mask.dtype}; convert "
            "it, for example .bool()"
        )
    if tuple(mask.shape) not in shapes:
        wanted = " or ".join(str(shape) for shape in shapes)
        raise ValueError(
            f"MultiheadAttention: {name} must have the shape {wanted}, "
            f"but its shape is {tuple(mask.shape)}"
        )
