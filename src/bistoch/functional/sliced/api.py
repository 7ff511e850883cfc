"""The public functions: check, then the dense specification or the moving of values."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional._nonfinite import Pairs, clean, show
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import flatten, per_problem
from bistoch.functional.precision import full_precision
from bistoch.functional.sliced.reference import Problem, average_plan
from bistoch.functional.sliced.streaming import attend, quantile_pieces


@full_precision
def sliced_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    eps: Option = 0.0,
    tau: Option = 1.0,
    directions: Float[Tensor, "..."] | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b n e"]:
    """Attend with an average of sorted matchings: doubly stochastic without iterating.

        P = sum_l w_l P_l,   P_l matches the queries to the keys in their order along line l
        w = softmax_l(-tau * cost_l),   cost_l = mean over matched pairs of |q_i - k_j|^2

    Arguments are those of `sliced_plan`. The hard sort takes O(n log n) time per line and no
    n x m memory; the soft one O(n^2) time, in tiles. First derivatives only, in reverse mode; for
    others use `sliced_plan`.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 8, 5, 4).unbind()
    >>> mean = bistoch.sliced_attention(q, k, v).mean(-2)
    >>> bool(torch.allclose(mean, v.mean(-2), atol=1e-5))
    True

    Reference: Shahbazi et al., ESPFormer: doubly-stochastic attention with expected sliced
    transport plans, ICML 2025.
    """
    operator = "sliced_attention"
    batch = inputs.check_tokens(operator, query, key, value)
    n, m = query.shape[-2], key.shape[-2]
    problem, values, broken = _pose(
        operator, batch, query, key, value, eps, tau, directions, mask, query_mask, key_mask
    )
    if n == 0 or m == 0:
        return query.new_zeros(*batch, n, value.shape[-1])
    is_padded = query_mask is not None or key_mask is not None
    output = show(attend(problem, values, quantile_pieces(problem, is_padded)), broken)
    return output.reshape(*batch, n, value.shape[-1]).to(query.dtype)


@full_precision
def sliced_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    eps: Option = 0.0,
    tau: Option = 1.0,
    directions: Float[Tensor, "..."] | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b n m"]:
    """The average of sorted matchings as a matrix: rows sum to one, with `eps = 0` columns to n/m.

        P = sum_l w_l T(x_l) H_l T(y_l),   x_l = q theta_l,  y_l = k theta_l
        T(x) = softmax_row(-(x_i - x_j)^2 / eps),   H_l couples the quantiles of x_l and y_l

    Keeps a few n x m matrices; for study, and for derivatives that `sliced_attention` has not.

    Args:
        query, key: as for `elastic_attention`.
        eps: temperature of the sort. The number 0 is the hard sort, in which tokens at the same
            place share their matches. Above 0 the matching is blurred at both ends: positions
            receive a gradient, and columns are no longer exact. A number, or a tensor that
            broadcasts to the leading axes.
        tau: how strongly lines with a cheap matching are preferred; 0 weighs all equally. A number
            or a tensor, like `eps`.
        directions: the lines, (*b, count, d), by default the d features themselves.
        mask: must be None, since sorting cannot hide a pair.
        query_mask, key_mask: True where the token is real; others are left out of the sort.

    >>> import torch, bistoch
    >>> q, k = torch.tensor([[0.3], [0.1], [0.2]]), torch.tensor([[7.0], [9.0], [8.0]])
    >>> bistoch.sliced_plan(q, k)
    tensor([[0., 1., 0.],
            [1., 0., 0.],
            [0., 0., 1.]])
    """
    operator = "sliced_plan"
    batch = inputs.check_tokens(operator, query, key)
    problem, _, broken = _pose(
        operator, batch, query, key, None, eps, tau, directions, mask, query_mask, key_mask
    )
    plan = show(average_plan(problem), broken)
    return plan.reshape(*batch, *plan.shape[1:]).to(query.dtype)


def _pose(
    operator, batch, query, key, value, eps, tau, directions, mask, query_mask, key_mask
) -> tuple[Problem, Any, Any]:
    """The problem, the values to move, and the rows that are to be NaN."""
    inputs.refuse_pairs(operator, mask, "a sort knows an order of tokens and no pairs")
    inputs.check_blur(operator, eps, batch, query.device)
    inputs.check_tau(operator, tau, batch, query.device)
    reals = []
    for name, given, tokens in (("query_mask", query_mask, query), ("key_mask", key_mask, key)):
        shape = (*batch, tokens.shape[-2])
        if given is None:
            given = torch.ones((), dtype=torch.bool, device=query.device)
        else:
            inputs.check_padding(operator, name, given, shape, query.device)
        reals.append(given.expand(shape).reshape(math.prod(batch), tokens.shape[-2]))
    n, m = query.shape[-2], key.shape[-2]
    inputs.warn_half_padding(operator, n, m, None, query_mask, key_mask)
    query, key = flatten(query, batch), flatten(key, batch)
    lines = None
    if directions is not None:
        inputs.check_vectors(operator, "directions", directions, query, batch)
        lines = flatten(directions.to(query.dtype), batch)
    options = [per_problem(option, batch, query) for option in (tau, eps)]
    query, key, value, _, broken = clean(
        query, key, None if value is None else flatten(value, batch),
        Pairs(None, None, *reals), None, "problem", options=options,
        others=() if lines is None else (lines,),
    )  # fmt: skip
    # whatever stands in padding, it must not reach a sum
    query, key, value = (
        None if tokens is None else tokens.masked_fill(~real[:, :, None], 0)
        for tokens, real in zip((query, key, value), (*reals, reals[1]), strict=True)
    )
    if lines is not None:
        lines = lines.nan_to_num(0.0, 0.0, 0.0)
        places = [lines @ tokens.mT for tokens in (query, key)]
    elif query.shape[-1]:
        places = [query.mT, key.mT]
    else:
        # tokens without features all lie at the same place of one line
        places = [tokens.new_zeros(tokens.shape[0], 1, tokens.shape[1]) for tokens in (query, key)]
    # a common shift changes no distance, but its rounding
    count = reals[1].sum(-1).clamp_min(1)[:, None, None]
    centre = (key.sum(1, keepdim=True) / count).detach()
    query, key = (
        (tokens - centre).masked_fill(~real[:, :, None], 0)
        for tokens, real in zip((query, key), reals, strict=True)
    )
    is_hard = not isinstance(eps, Tensor) and eps == 0
    problem = Problem(
        query=query,
        key=key,
        query_place=places[0],
        key_place=places[1],
        query_real=reals[0],
        key_real=reals[1],
        tau=options[0],
        eps=None if is_hard else options[1],
    )
    return problem, value, broken
