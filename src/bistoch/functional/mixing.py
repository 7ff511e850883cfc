"""Mixing by position: a learned matrix that does not look at the tokens, rows normalised."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import softplus

from bistoch.functional import inputs
from bistoch.functional._nonfinite import Pairs, clean_values, show
from bistoch.functional.elastic.api import balance_scores
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import BalanceOptions, ScoreOptions, working_dtype
from bistoch.functional.precision import full_precision

# below this, softplus(x) is exp(x) to the last digit, and would underflow before its log is taken
STEEP = -30.0


@full_precision
def mixing_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    weight: Float[Tensor, "..."] | None = None,
    lam: Option = 0.0,
    iters: int = 10,
    tol: float | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n e"]:
    """Mix the values with a matrix of weights that is the same for all tokens.

    Arguments are those of `mixing_plan`. The plan is made once for all problems that share weight
    and masks. Query and key say only how many there are; they receive no gradient.

    >>> import torch, bistoch
    >>> x = torch.randn(8, 5, 4)
    >>> bistoch.mixing_attention(x, x, x, weight=torch.randn(5, 5)).shape
    torch.Size([8, 5, 4])
    """
    operator = "mixing_attention"
    batch = inputs.check_tokens(operator, query, key, value)
    shape = (*batch, query.shape[-2], key.shape[-2])
    value = value.to(working_dtype(query.dtype))
    plan, value, broken = _mix(
        operator, shape, query, value, weight, lam, iters, tol, mask, query_mask, key_mask, backend
    )
    output = show(plan @ value, broken)
    return output.expand(*batch, *output.shape[-2:]).to(query.dtype)


@full_precision
def mixing_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    weight: Float[Tensor, "..."] | None = None,
    lam: Option = 0.0,
    iters: int = 10,
    tol: float | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n m"]:
    """The rows of a positive matrix, each divided by its sum, or balanced as far as `lam` says.

        P = balance(log softplus(W), lam)
        P_ij = softplus(W_ij) / sum_k softplus(W_ik)   at lam = 0

    Args:
        query, key, mask, query_mask, key_mask: as for `elastic_attention`; a float mask is added to
            log softplus(W).
        weight: W, (n, m) or with leading axes that broadcast (one matrix per head); differentiable.
            By default W_ij = [i = j] + sqrt(2) cos(i j), counted from one: fixed numbers with the
            mean and the deviation of a new layer's weight.
        lam: 0 is the NormLin of OLinear, 1 makes columns equal; as for `elastic_attention`.
        iters, tol, backend: of the balancing; as for `elastic_attention`.

    >>> import torch, bistoch
    >>> x, weight = torch.randn(3, 4), torch.tensor([[1.0, 0.0, 0.0]] * 3)
    >>> bistoch.mixing_plan(x, x, weight=weight).sum(0)
    tensor([1.4594, 0.7703, 0.7703])
    >>> bistoch.mixing_plan(x, x, weight=weight, lam=1.0).sum(0)
    tensor([1., 1., 1.])

    Reference: Yue et al., OLinear, NeurIPS 2025.
    """
    operator = "mixing_plan"
    batch = inputs.check_tokens(operator, query, key)
    shape = (*batch, query.shape[-2], key.shape[-2])
    nothing = key.new_empty(key.shape[-2], 0)
    plan, _, broken = _mix(
        operator, shape, query, nothing, weight, lam, iters, tol, mask, query_mask, key_mask,
        backend,
    )  # fmt: skip
    return show(plan, broken).expand(shape).to(query.dtype)


def _mix(
    operator, shape, query, value, weight, lam, iters, tol, mask, query_mask, key_mask, backend
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The plan in working precision, with only those leading axes that weight and masks have.

    And the values to apply it to, with the rows that are to be NaN.
    """
    *batch, n, m = shape
    own: list[tuple[int, ...]] = []
    if weight is None:
        weight = _cosines(n, m, query)
    inputs.check_weight(operator, weight, shape, query.device)
    own.append(tuple(weight.shape[:-2]))
    if mask is not None:
        inputs.check_mask(operator, mask, shape, query.device)
        own.append(tuple(mask.shape[:-2]))
    for name, padding, size in (("query_mask", query_mask, n), ("key_mask", key_mask, m)):
        if padding is not None:
            inputs.check_padding(operator, name, padding, (*batch, size), query.device)
            own.append(tuple(padding.shape[:-1]))
    inputs.check_lam(operator, lam, batch, query.device)
    if isinstance(lam, Tensor):
        own.append(tuple(lam.shape))
    elif lam == 0:
        # free columns: the first row step is the last
        inputs.check_count(operator, "iters", iters)
        iters = 0
    found = clean_values(value, n, Pairs(mask, None, query_mask, key_mask))
    scores = _log_softplus(weight.to(working_dtype(query.dtype)))
    scores = scores.expand(*torch.broadcast_shapes(*own), n, m)
    pairs = ScoreOptions(1.0, None, found.mask, query_mask, key_mask)
    balance = BalanceOptions(lam, None, iters, tol)
    plan = balance_scores(operator, scores, pairs, balance, backend)
    return plan, found.value, found.broken


def _log_softplus(x: Tensor) -> Tensor:
    # each branch gets only arguments in its range, or its gradient would be NaN in the other
    gentle = x.clamp_min(STEEP)
    return torch.where(x < STEEP, x, softplus(gentle).log())


def _cosines(n: int, m: int, like: Tensor) -> Float[Tensor, "n m"]:
    """The documented default: it looks random, and is the same on every machine."""
    rows, columns = (
        torch.arange(1, size + 1, dtype=torch.float64, device=like.device) for size in (n, m)
    )
    wave = math.sqrt(2) * torch.outer(rows, columns).cos()
    return (wave + (rows[:, None] == columns)).to(working_dtype(like.dtype))
