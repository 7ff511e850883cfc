"""The specification: sorted matchings along lines, blurred and averaged, as dense torch."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bistoch.functional.elastic.problem import forbid, row_softmax


class Problem(NamedTuple):
    """Checked tokens with one leading axis, padding set to zero, and their places on L lines."""

    query: Float[Tensor, "B n d"]
    key: Float[Tensor, "B m d"]
    query_place: Float[Tensor, "B L n"]
    key_place: Float[Tensor, "B L m"]
    query_real: Bool[Tensor, "B n"]
    key_real: Bool[Tensor, "B m"]
    tau: Float[Tensor, "B"]
    # None for the hard sort
    eps: Float[Tensor, "B"] | None


def average_plan(problem: Problem) -> Float[Tensor, "B n m"]:
    """The plans of all lines, weighted by what they cost: `w = softmax_l(-tau cost_l)`."""
    plans = torch.stack([
        line_plan(x, y, problem.query_real, problem.key_real, problem.eps)
        for x, y in zip(problem.query_place.unbind(1), problem.key_place.unbind(1), strict=True)
    ], dim=1)  # fmt: skip
    query, key = problem.query, problem.key
    distance = query.square().sum(-1)[:, :, None] + key.square().sum(-1)[:, None, :]
    distance = distance - 2 * query @ key.mT
    count = problem.query_real.sum(-1).clamp_min(1)
    costs = (plans * distance[:, None]).sum((-2, -1)) / count[:, None]
    weights = (-problem.tau[:, None] * costs).softmax(-1)
    return (weights[:, :, None, None] * plans).sum(1)


def line_plan(
    x: Float[Tensor, "B n"],
    y: Float[Tensor, "B m"],
    x_real: Bool[Tensor, "B n"],
    y_real: Bool[Tensor, "B m"],
    eps: Float[Tensor, "B"] | None,
) -> Float[Tensor, "B n m"]:
    """The plan of one line, `T(x) H T(y)`: quantiles are coupled, and blurred at both ends."""
    return blur(x, x_real, eps) @ couple(x, y, x_real, y_real) @ blur(y, y_real, eps)


def couple(
    x: Float[Tensor, "B n"],
    y: Float[Tensor, "B m"],
    x_real: Bool[Tensor, "B n"],
    y_real: Bool[Tensor, "B m"],
) -> Float[Tensor, "B n m"]:
    """H, the quantile coupling: smallest with smallest, rows sum to one, columns to n/m.

    The token of rank r among n covers the r-th of n equal parts of [0, 1]; two tokens share as much
    as their parts overlap. In whole numbers: n parts of length m, and m parts of length n.
    """
    n, m = x_real.sum(-1)[:, None, None], y_real.sum(-1)[:, None, None]
    x_rank, y_rank = _rank(x, x_real)[:, :, None], _rank(y, y_real)[:, None, :]
    first = torch.maximum(x_rank * m, y_rank * n)
    last = torch.minimum((x_rank + 1) * m, (y_rank + 1) * n)
    overlap = (last - first).clamp_min(0) * (x_real[:, :, None] & y_real[:, None, :])
    return overlap.to(x.dtype) / m.clamp_min(1)


def blur(
    x: Float[Tensor, "B n"], real: Bool[Tensor, "B n"], eps: Float[Tensor, "B"] | None
) -> Float[Tensor, "B n n"]:
    """T, who stands for whom on a line: tokens at the same place, or with an eps near it.

    This is the row softmax of `-(x_i - x_j)^2 / eps`. As eps tends to zero it shares among ties,
    and is the identity where there are none.
    """
    gap = x[:, :, None] - x[:, None, :]
    if eps is None:
        scores = torch.zeros_like(gap).masked_fill(gap != 0, -torch.inf)
    else:
        scores = -gap.square() / eps[:, None, None]
    return row_softmax(forbid(scores, None, real, real))


def _rank(x: Float[Tensor, "B n"], real: Bool[Tensor, "B n"]) -> Int[Tensor, "B n"]:
    # padding comes last
    return x.masked_fill(~real, torch.inf).argsort(dim=-1, stable=True).argsort(-1)
