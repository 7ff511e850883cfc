"""The readable version, which is the specification: torch operations on whole factors.

Queries come in groups and keys in blocks (`layout.py`). Query l of group p weighs key i of block k
with

    P[(l, p), (k, i)] = between[p, k, l] * within[k, p, i]

`between` chooses a block (sums to one over k) and `within` a key inside it (sums to one over i), so
rows of P sum to one whatever the factors are. All queries of a group share what is within a block.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bistoch.functional._recompute import checkpointed
from bistoch.functional.backends import Backend
from bistoch.functional.elastic.reference import logsumexp
from bistoch.functional.monarch.layout import placed, taken
from bistoch.functional.monarch.problem import Monarch
from bistoch.functional.problem import Balance, row_softmax


class Blocks(NamedTuple):
    """A problem in its layout: queries by group p and member l, keys by block k and place i."""

    query: Float[Tensor, "B p l d"]
    real: Bool[Tensor, "B p l"]
    key: Float[Tensor, "B k i d"]
    # what is added to all scores of a key: minus infinity if it is not real
    bias: Float[Tensor, "B k i"]
    # the member that a group has in the block of the same number, or -1
    own: Int[Tensor, "p k"]
    # of columns that are balanced
    log_mass: Float[Tensor, "B k i"] | None
    balance: Balance | None

    def pairs(self) -> int:
        """How many numbers the two factors have together."""
        size, places, theirs, _ = self.query.shape
        return size * places * self.key.shape[1] * (theirs + self.key.shape[2])


class Tangent(NamedTuple):
    """Scores in Monarch form: S[(l, p), (k, i)] = base[k, p, i] + tilt[p, k, l].

    The softmax of such scores, with any bias of the keys, is a Monarch matrix.
    """

    base: Float[Tensor, "B k p i"]
    tilt: Float[Tensor, "B p k l"]


class Factors(NamedTuple):
    """The two factors; sums over queries are taken of the logarithms, which cannot underflow."""

    within: Float[Tensor, "B k p i"]
    log_within: Float[Tensor, "B k p i"]
    log_between: Float[Tensor, "B p k l"]


def attend(problem: Monarch, value: Float[Tensor, "B m e"]) -> Float[Tensor, "B n e"]:
    """Solve, and apply the two factors to the values one after the other."""

    def finish(base: Tensor, tilt: Tensor, column: Tensor, value: Tensor) -> Tensor:
        found = factor(blocks, Tangent(base, tilt), column)
        answers = (found.within @ value).transpose(1, 2)
        return found.log_between.exp().mT @ answers

    blocks, layout = cut(problem), problem.layout
    scores, column = solve(blocks, problem.updates)
    values = placed(value, layout.keys)
    output = checkpointed(blocks.pairs(), finish, *scores, column, values)
    return taken(output, layout.members, problem.query.shape[1])


def dense(problem: Monarch) -> Float[Tensor, "B n m"]:
    """The product of the two factors as a matrix."""
    blocks, layout = cut(problem), problem.layout
    found = factor(blocks, *solve(blocks, problem.updates))
    plan = torch.einsum("zpkl,zkpi->zkipl", found.log_between.exp(), found.within)
    # put the keys in order, then the queries
    plan = taken(plan.flatten(3, 4), layout.keys, problem.key.shape[1]).mT
    plan = plan.unflatten(1, tuple(layout.members.shape))
    return taken(plan, layout.members, problem.query.shape[1])


def solve(blocks: Blocks, updates: int) -> tuple[Tangent, Tensor]:
    """Find scores in Monarch form and the column potentials that balance them.

    Column steps run along with the updates as long as there are any; those that are left balance
    scores that no longer move, which is Sinkhorn's problem and converges as surely.
    """
    steps = 0 if blocks.balance is None else blocks.balance.iters

    def advance(mean: Tensor, column: Tensor, steps: bool) -> tuple[Tensor, Tensor]:
        found = factor(blocks, touch(blocks, mean, column), column)
        mean = row_softmax(found.log_between) @ blocks.query
        return mean, column_step(blocks, found, column) if steps else column

    def balance(base: Tensor, tilt: Tensor, column: Tensor) -> Tensor:
        return column_step(blocks, factor(blocks, Tangent(base, tilt), column), column)

    mean, column = first_mean(blocks), torch.zeros_like(blocks.bias)
    for t in range(updates - 1):
        mean, column = checkpointed(blocks.pairs(), advance, mean, column, t < steps)
    scores = Tangent(*checkpointed(blocks.pairs(), lambda *x: touch(blocks, *x), mean, column))
    for _ in range(updates - 1, steps):
        column = checkpointed(blocks.pairs(), balance, *scores, column)
    return scores, column


def first_mean(blocks: Blocks) -> Float[Tensor, "B p k d"]:
    """What the queries of group p ask of block k before anything is known.

    The question of the query in the block of the same number; where there is none, because of
    padding or of fewer queries than keys, the mean of all queries of the group.
    """
    weights = blocks.real[..., None].to(blocks.query.dtype)
    count = weights.sum(2, keepdim=True)
    mean = (blocks.query * weights).sum(2, keepdim=True) / count.clamp_min(1)
    group = torch.arange(blocks.own.shape[0], device=mean.device)[:, None]
    index = blocks.own.clamp_min(0)
    exists = (blocks.own >= 0) & blocks.real[:, group, index]
    return torch.where(exists[..., None], blocks.query[:, group, index], mean)


def touch(
    blocks: Blocks, mean: Float[Tensor, "B p k d"], column: Float[Tensor, "B k i"]
) -> Tangent:
    """The scores at the mean query, and for every query the tangent there.

    A softmax weighs block k by LSE_i(S), a convex function of the query. Here it is weighed by the
    tangent of that function at the mean query, which all queries of a group share.
    """
    base = mean.transpose(1, 2) @ blocks.key.mT + blocks.bias[:, :, None, :]
    slope = (row_softmax(base + column[:, :, None, :]) @ blocks.key).transpose(1, 2)
    tilt = slope @ blocks.query.mT - (slope * mean).sum(-1, keepdim=True)
    return Tangent(base, tilt)


def factor(blocks: Blocks, scores: Tangent, column: Float[Tensor, "B k i"]) -> Factors:
    """The softmax of scores in Monarch form and a bias per key."""
    base = scores.base + column[:, :, None, :]
    # minus infinity, with a gradient of zero, for a block without a real key
    total = logsumexp(base, -1)
    log_within = base - total.masked_fill(total == -torch.inf, 0)[..., None]
    choice = scores.tilt + total.transpose(1, 2)[..., None]
    dead = (choice == -torch.inf).all(-2, keepdim=True)
    log_between = choice.masked_fill(dead, 0).log_softmax(-2)
    dead = dead | ~blocks.real[:, :, None, :]
    return Factors(row_softmax(base), log_within, log_between.masked_fill(dead, -torch.inf))


def column_step(
    blocks: Blocks, found: Factors, column: Float[Tensor, "B k i"]
) -> Float[Tensor, "B k i"]:
    """The elastic, relaxed step towards the column mass, from column sums in Monarch form.

    c[k, i] = sum over p of (sum over l of between[p, k, l]) within[k, p, i]
    """
    if blocks.balance is None or blocks.log_mass is None:
        return column
    asked = logsumexp(found.log_between, -1).transpose(1, 2)
    received = logsumexp(found.log_within + asked[..., None], -2)
    live = received > -torch.inf
    exact = column + blocks.log_mass - received.masked_fill(~live, 0)
    lam, omega = (x[:, None, None] for x in (blocks.balance.lam, blocks.balance.first_omega()))
    return torch.where(live, (1 - omega) * column + omega * lam * exact, 0)


def cut(problem: Monarch) -> Blocks:
    """Put a problem in its layout; where there is no token, nothing is seen."""
    layout, balance = problem.layout, problem.balance
    query, real, bias = problem.query, problem.real, problem.bias
    real = query.new_ones(query.shape[:2], dtype=torch.bool) if real is None else real
    bias = query.new_zeros(problem.key.shape[:2]) if bias is None else bias
    log_mass = None
    if balance is not None:
        log_mass = placed(balance.log_mass[..., None], layout.keys).squeeze(-1)
    return Blocks(
        query=placed(query * problem.sharpness[:, None, None], layout.members),
        real=placed(real[..., None], layout.members).squeeze(-1),
        key=placed(problem.key, layout.keys),
        bias=placed(bias[..., None], layout.keys, -torch.inf).squeeze(-1),
        own=layout.own,
        log_mass=log_mass,
        balance=balance,
    )


BACKEND = Backend("reference", "", attend)
