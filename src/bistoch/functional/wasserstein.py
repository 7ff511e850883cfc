"""Gaussian tokens: attention by the Wasserstein distance between them, of means and variances."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional.elastic.api import attend, make_plan, solve, warn_if_far
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import BalanceOptions, ScoreOptions, flatten, pose, working_dtype
from bistoch.functional.precision import full_precision
from bistoch.functional.problem import Scores, free_columns


class Gaussian(NamedTuple):
    """Tokens that are normal distributions: a mean and a variance for every feature."""

    mean: Float[Tensor, "*b length features"]
    variance: Float[Tensor, "*b length features"]


@full_precision
def wasserstein_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    query_variance: Float[Tensor, "..."] | None = None,
    key_variance: Float[Tensor, "..."] | None = None,
    lam: Option = 1.0,
    eps: Option = 1.0,
    omega: Option | None = None,
    iters: int = 10,
    tol: float | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n e"]:
    """Attend to the keys that are near in the Wasserstein distance: the mean of the result.

        P = elastic plan of  -W2^2 * scale / eps,
        W2^2(i, j) = |mean_i - mean_j|^2 + |sqrt(variance_i) - sqrt(variance_j)|^2

    Args:
        query, key: means of the tokens, (*b, n, d) and (*b, m, d).
        value: means of the values; for their variances see `wasserstein_moments`.
        query_variance, key_variance: variances of the features, of the shape of query and key; by
            default zero, which makes the distance that of points.
        lam: elasticity: 0 is the softmax of the published attention, 1 is doubly stochastic.
        scale: factor of the squared distances, by default `1/sqrt(d)`.
        other arguments: as for `elastic_attention`, whose solvers do the work: the distance becomes
            a dot product of longer tokens, so nothing of size n x m is kept.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 8, 5, 4).unbind()
    >>> bistoch.wasserstein_attention(q, k, v, query_variance=torch.rand(8, 5, 4)).shape
    torch.Size([8, 5, 4])

    Reference: Fan et al., Sequential recommendation via stochastic self-attention, WWW 2022.
    """
    operator = "wasserstein_attention"
    batch = inputs.check_tokens(operator, query, key, value)
    longer = _longer_tokens(operator, batch, query, key, query_variance, key_variance, key_mask)
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    balance = BalanceOptions(lam, omega, iters, tol, column_mass)
    pairs, balance = _for_longer_tokens(operator, pairs, balance, batch, query)
    value = value.to(longer[0].dtype)
    return attend(operator, *longer, value, pairs, balance, backend).to(query.dtype)


@full_precision
def wasserstein_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    query_variance: Float[Tensor, "..."] | None = None,
    key_variance: Float[Tensor, "..."] | None = None,
    lam: Option = 1.0,
    eps: Option = 1.0,
    omega: Option | None = None,
    iters: int = 10,
    tol: float | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n m"]:
    """The plan of `wasserstein_attention` as a matrix: the nearer, the more, columns lean to b.

    Arguments are those of `wasserstein_attention`.

    >>> import torch, bistoch
    >>> x = torch.randn(5, 4)
    >>> plan = bistoch.wasserstein_plan(x, x, lam=0.0)
    >>> bool(torch.allclose(plan, (-torch.cdist(x, x).square() / 2).softmax(-1), atol=1e-5))
    True
    """
    operator = "wasserstein_plan"
    batch = inputs.check_tokens(operator, query, key)
    longer = _longer_tokens(operator, batch, query, key, query_variance, key_variance, key_mask)
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    balance = BalanceOptions(lam, omega, iters, tol, column_mass)
    pairs, balance = _for_longer_tokens(operator, pairs, balance, batch, query)
    return make_plan(operator, *longer, pairs, balance, backend).to(query.dtype)


@full_precision
def wasserstein_moments(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    value_variance: Float[Tensor, "*#b m e"],
    *,
    query_variance: Float[Tensor, "..."] | None = None,
    key_variance: Float[Tensor, "..."] | None = None,
    lam: Option = 1.0,
    eps: Option = 1.0,
    omega: Option | None = None,
    iters: int = 10,
    tol: float | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Gaussian:
    """The mean and the variance of what `wasserstein_attention` adds up, for independent values.

        mean = P v,   variance = (P * P) value_variance      (entry by entry)

    The squared plan has the potentials 2f and 2g, so the variance costs one softmax pass more and
    no matrix. Other arguments are those of `wasserstein_attention`.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 8, 5, 4).unbind()
    >>> found = bistoch.wasserstein_moments(q, k, v, torch.ones(8, 5, 4))
    >>> plan = bistoch.wasserstein_plan(q, k)
    >>> bool(torch.allclose(found.variance[..., 0], plan.square().sum(-1), atol=1e-5))
    True
    """
    operator = "wasserstein_moments"
    batch = inputs.check_tokens(operator, query, key, value)
    inputs.check_variance(operator, "value_variance", value_variance, value)
    longer = _longer_tokens(operator, batch, query, key, query_variance, key_variance, key_mask)
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    balance = BalanceOptions(lam, omega, iters, tol, column_mass)
    pairs, balance = _for_longer_tokens(operator, pairs, balance, batch, query)
    problem = pose(operator, batch, *longer, pairs, balance)
    found = solve(operator, problem, flatten(value, batch), backend)
    warn_if_far(operator, problem.balance, found.error)
    squared = free_columns(_squared(problem.scores, found.column))
    spread = value_variance.to(found.output.dtype).expand(*batch, *value.shape[-2:])
    share = solve(operator, squared, flatten(spread, batch), backend)
    # softmax made rows of one; what they really sum to is the sum of squares of the plan
    dead = (found.row == -torch.inf) | (share.row == -torch.inf)
    log_sum = 2 * found.row.masked_fill(dead, 0) - share.row.masked_fill(dead, 0)
    # never above one, but the potentials of large scores are rounded
    variance = share.output * log_sum.clamp_max(0).exp()[..., None]
    mean, variance = (x.reshape(*batch, *x.shape[1:]) for x in (found.output, variance))
    return Gaussian(mean.to(query.dtype), variance.to(query.dtype))


def _longer_tokens(
    operator, batch, query, key, query_variance, key_variance, key_mask
) -> tuple[Tensor, Tensor]:
    """Tokens whose dot product is minus half the squared distance, up to a constant of the row.

    The constant, half the squared length of the query, changes no row softmax and so no plan.
    """
    for name, variance, tokens in (
        ("query_variance", query_variance, query), ("key_variance", key_variance, key),
    ):  # fmt: skip
        if variance is not None:
            inputs.check_variance(operator, name, variance, tokens)
    if key_mask is not None:
        inputs.check_padding(operator, "key_mask", key_mask, (*batch, key.shape[-2]), key.device)
    dtype = working_dtype(query.dtype)
    query, key = query.to(dtype), key.to(dtype)
    if query_variance is not None or key_variance is not None:
        query = torch.cat([query, _deviation(query_variance, query)], -1)
        key = torch.cat([key, _deviation(key_variance, key)], -1)
    if key_mask is not None:
        # a padded key may hold anything, also what overflows when squared
        key = torch.where(key_mask[..., None], key, 0)
    # a shift changes no distance, but its rounding: measure from the mean of the keys, but not of
    # those that are not finite, which only the queries that see them may depend on
    middle = key.detach().nan_to_num(0, 0, 0).sum(-2, keepdim=True)
    if key_mask is None:
        middle = middle / max(key.shape[-2], 1)
        query, key = query - middle, key - middle
    else:
        middle = middle / key_mask.sum(-1).clamp_min(1)[..., None, None]
        query, key = query - middle, torch.where(key_mask[..., None], key - middle, 0)
    lengths = key.square().sum(-1, keepdim=True) / 2
    ones = query.new_ones(*query.shape[:-1], 1)
    return torch.cat([query, ones], -1), torch.cat([key, -lengths], -1)


def _deviation(variance: Tensor | None, tokens: Tensor) -> Tensor:
    if variance is None:
        return torch.zeros_like(tokens)
    variance = variance.to(tokens.dtype).expand_as(tokens)
    # the root has an infinite slope at zero: a feature that never varies gets none
    varies = variance > 0
    return torch.where(varies, torch.where(varies, variance, 1).sqrt(), 0)


def _for_longer_tokens(
    operator: str,
    pairs: ScoreOptions,
    balance: BalanceOptions,
    batch: torch.Size,
    query: Tensor,
) -> tuple[ScoreOptions, BalanceOptions]:
    """The options as the longer tokens need them."""
    inputs.check_lam(operator, balance.lam, batch, query.device)
    inputs.check_scale(operator, pairs.scale)
    inputs.check_count(operator, "iters", balance.iters)
    scale = 1 / math.sqrt(max(query.shape[-1], 1)) if pairs.scale is None else pairs.scale
    if not isinstance(balance.lam, Tensor) and balance.lam == 0:
        # free columns: the first row step is the last
        balance = balance._replace(iters=0)
    # their dot product is half of the squared distance
    return pairs._replace(scale=2 * scale), balance


def _squared(scores: Scores, column: Float[Tensor, "B m"]) -> Scores:
    """The scores whose softmax has the rows of the squared plan: all of them and g doubled."""
    column = column.masked_fill(column == -torch.inf, 0)
    query = 2 * scores.sharpness[:, None, None] * scores.query
    mask = scores.mask
    return scores._replace(
        query=torch.cat([query, torch.ones_like(query[..., :1])], -1),
        key=torch.cat([scores.key, 2 * column[..., None]], -1),
        mask=mask if mask is None or mask.dtype == torch.bool else 2 * mask,
        sharpness=torch.ones_like(scores.sharpness),
    )
