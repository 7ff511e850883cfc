"""Softmax attention, the end of the family where columns are free, over torch's fused kernels."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bistoch.functional import inputs
from bistoch.functional._masks import as_bias
from bistoch.functional._nonfinite import Pairs, clean, show
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import working_dtype
from bistoch.functional.precision import full_precision
from bistoch.functional.problem import row_softmax
from bistoch.functional.rowwise import weigh_rows


@full_precision
def softmax_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    eps: Option = 1.0,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n e"]:
    """Attend with the row softmax of the scores: `elastic_attention` at `lam = 0`.

        P = softmax_row(q k^T * scale / eps + bias)

    Arguments are those of `elastic_attention`. Computed by `scaled_dot_product_attention`, with the
    padding of this library: a query without a key to see returns zeros. A float mask is added in
    float32 to half precision scores, and what is finite in it stays possible: where all keys of a
    row are as low as numbers go, they share it equally.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 8, 5, 4).unbind()
    >>> bistoch.softmax_attention(q, k, v).shape
    torch.Size([8, 5, 4])
    """
    operator = "softmax_attention"
    batch = inputs.check_tokens(operator, query, key, value)
    n, m = query.shape[-2], key.shape[-2]
    inputs.check_eps(operator, eps, batch, query.device)
    inputs.check_scale(operator, scale)
    scale = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale
    _check_masks(operator, (*batch, n, m), query.device, mask, query_mask, key_mask)
    dtype, work = query.dtype, working_dtype(query.dtype)
    if mask is not None and mask.dtype not in (torch.bool, dtype):
        mask = as_bias(mask, work)
    factor = scale / (eps.to(work) if isinstance(eps, Tensor) else eps)
    query, key, value, mask, broken = clean(
        query, key, value, Pairs(mask, None, query_mask, key_mask), factor, "row"
    )
    bias, dead = _join_masks(n, m, mask, query_mask, key_mask)
    has_bias = bias is not None and bias.dtype != torch.bool
    if isinstance(factor, Tensor) or (has_bias and bias.dtype != dtype):
        # torch's kernels compute half precision in float32 inside, but want one dtype outside
        query, key, value = (x.to(work) for x in (query, key, value))
        bias = bias.to(work) if has_bias else bias
    if isinstance(factor, Tensor):
        # a temperature per problem is multiplied into the queries
        query, factor = query * factor[..., None, None], 1.0
    query, key, value = (x.expand(*batch, *x.shape[-2:]) for x in (query, key, value))
    if m == 0:
        return value.new_zeros(*batch, n, value.shape[-1], dtype=dtype)
    output = scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=factor)
    output = output if dead is None else output.masked_fill(dead[..., None], 0)
    return show(output, broken).to(dtype)


@full_precision
def softmax_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    eps: Option = 1.0,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n m"]:
    """The plan of `softmax_attention` as a matrix: rows sum to one, columns are free.

    Arguments are those of `softmax_attention`.

    >>> import torch, bistoch
    >>> q, k = torch.randn(2, 5, 4).unbind()
    >>> bool(torch.allclose(bistoch.softmax_plan(q, k), (q @ k.T / 2).softmax(-1), atol=1e-6))
    True
    """
    return weigh_rows(
        "softmax_plan", row_softmax, query, key, eps, mask, query_mask, key_mask, scale,
        bias="scores",
    )  # fmt: skip


def _check_masks(operator, shape, device, mask, query_mask, key_mask) -> None:
    *batch, n, m = shape
    if mask is not None:
        inputs.check_mask(operator, mask, shape, device)
    if key_mask is not None:
        inputs.check_padding(operator, "key_mask", key_mask, (*batch, m), device)
    if query_mask is not None:
        inputs.check_padding(operator, "query_mask", query_mask, (*batch, n), device)


def _join_masks(n, m, mask, query_mask, key_mask):
    """One mask for torch's kernel, in which every row sees a key, and the rows that should not."""
    allowed = bias = None
    if mask is not None:
        if mask.dtype == torch.bool:
            allowed = mask
        else:
            bias, allowed = mask, mask > -torch.inf
    if key_mask is not None:
        seen = key_mask[..., None, :]
        allowed = seen if allowed is None else allowed & seen
    if allowed is None:
        return None, None if query_mask is None else ~query_mask
    dead = ~allowed.any(-1)
    # a row of minus infinities is a NaN to some kernels: let it see all, and drop it after
    allowed = allowed | dead[..., None]
    dead = dead if query_mask is None else dead | ~query_mask
    if bias is None:
        return allowed.expand(*allowed.shape[:-2], n, m), dead
    return torch.where(allowed, bias.masked_fill(bias == -torch.inf, 0), -torch.inf), dead
