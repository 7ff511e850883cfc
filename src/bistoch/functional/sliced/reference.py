"""The specification: sorted matchings along lines, blurred and averaged, as dense torch."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bistoch.functional.problem import forbid, row_softmax


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
    """The plans of all lines, weighted by what they cost: `w = softmax_l(-tau cost_l)`.

    A line is computed again wherever it is needed, so that one matrix at a time is kept.
    """
    query, key = problem.query, problem.key
    distance = query.square().sum(-1)[:, :, None] + key.square().sum(-1)[:, None, :]
    distance = distance - 2 * query @ key.mT
    count = problem.query_real.sum(-1).clamp_min(1).to(query.dtype)

    def plan_of(line: int, weight: Tensor) -> Tensor:
        x, y = problem.query_place[:, line], problem.key_place[:, line]
        plan = line_plan(x, y, problem.query_real, problem.key_real, problem.eps)
        return weight[:, None, None] * plan

    def cost_of(line: int) -> Tensor:
        return (plan_of(line, 1 / count) * distance).sum((-2, -1))

    lines = range(problem.query_place.shape[1])
    costs = torch.stack([checkpoint(cost_of, line, use_reentrant=False) for line in lines], -1)
    weights = (-problem.tau[:, None] * costs).softmax(-1)
    average = torch.zeros_like(distance)
    for line in lines:
        average = average + checkpoint(plan_of, line, weights[:, line], use_reentrant=False)
    return average


def line_plan(
    x: Float[Tensor, "B n"],
    y: Float[Tensor, "B m"],
    x_real: Bool[Tensor, "B n"],
    y_real: Bool[Tensor, "B m"],
    eps: Float[Tensor, "B"] | None,
) -> Float[Tensor, "B n m"]:
    """The plan of one line, `T(x) H T(y)`: quantiles are coupled, and with an eps blurred."""
    coupled = couple(x, y, x_real, y_real)
    return coupled if eps is None else blur(x, x_real, eps) @ coupled @ blur(y, y_real, eps)


def couple(
    x: Float[Tensor, "B n"],
    y: Float[Tensor, "B m"],
    x_real: Bool[Tensor, "B n"],
    y_real: Bool[Tensor, "B m"],
) -> Float[Tensor, "B n m"]:
    """H, the quantile coupling: smallest with smallest, rows sum to one, columns to n/m.

    A place on the line covers a part of [0, 1]: from the share of tokens below it to the share of
    those not above it. Two places share as much as their parts overlap, and the tokens at a place
    share its part equally. Counted in whole numbers: one query covers m, one key covers n.
    """
    n, m = x_real.sum(-1)[:, None, None], y_real.sum(-1)[:, None, None]
    x_below, x_here = (count[:, :, None] for count in _count(x, x_real))
    y_below, y_here = (count[:, None, :] for count in _count(y, y_real))
    first = torch.maximum(x_below * m, y_below * n)
    last = torch.minimum((x_below + x_here) * m, (y_below + y_here) * n)
    overlap = (last - first).clamp_min(0) * (x_real[:, :, None] & y_real[:, None, :])
    return overlap.to(x.dtype) / (m * x_here * y_here).clamp_min(1)


def blur(
    x: Float[Tensor, "B n"], real: Bool[Tensor, "B n"], eps: Float[Tensor, "B"]
) -> Float[Tensor, "B n n"]:
    """T, who stands for whom on a line: `softmax_row(-(x_i - x_j)^2 / eps)`."""
    gap = x[:, :, None] - x[:, None, :]
    return row_softmax(forbid(-gap.square() / eps[:, None, None], None, real, real))


def _count(x: Float[Tensor, "B n"], real: Bool[Tensor, "B n"]) -> tuple[Tensor, Tensor]:
    """For each token the number of real ones below it, and of those at its place."""
    below = (x[:, None, :] < x[:, :, None]) & real[:, None, :]
    here = (x[:, None, :] == x[:, :, None]) & real[:, None, :]
    return below.sum(-1), here.sum(-1)
