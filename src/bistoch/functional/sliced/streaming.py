"""Sliced attention without a plan: values move along the sorted order, one line at a time.

A line carries values from keys to queries in three linear steps, `T(x) H T(y)`: blur among the
keys, move along the coupled quantiles, blur among the queries. The backward takes the transposed
steps and computes each line again, so that memory does not grow with the number of lines. A hard
line costs a sort and a few passes over the values; a soft one n^2 exponentials, in tiles.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bistoch.functional.elastic.operator import refuse_tangents
from bistoch.functional.elastic.tiles import tile_elements
from bistoch.functional.precision import no_autocast
from bistoch.functional.problem import forbid, row_softmax
from bistoch.functional.sliced.reference import Problem


class Pieces(NamedTuple):
    """The quantile coupling as a list: so much of the row of one rank meets another rank."""

    query_rank: Int[Tensor, "B pieces"]
    key_rank: Int[Tensor, "B pieces"]
    share: Float[Tensor, "B pieces"]


def quantile_pieces(problem: Problem, is_padded: bool) -> Pieces:
    """Cut [0, 1] wherever a rank of the queries or of the keys begins: n + m pieces at most."""
    (size, n), m = problem.query_real.shape, problem.key_real.shape[1]
    if n == m and not is_padded:
        # no sum is needed: one piece is a whole row
        same = torch.arange(n, device=problem.query.device).expand(size, n)
        return Pieces(same, same, problem.query.new_ones(size, n))
    queries, keys = (real.sum(-1, keepdim=True) for real in (problem.query_real, problem.key_real))
    whole = queries * keys
    counted = [torch.arange(count, device=whole.device) for count in (n, m)]
    # in whole numbers, as in the reference; ranks of padding begin at the end and have no length
    first = torch.cat([counted[0] * keys, counted[1] * queries], -1).minimum(whole).sort().values
    length = torch.cat([first[:, 1:], whole], -1) - first
    return Pieces(
        (first // keys.clamp_min(1)).clamp_max(n - 1),
        (first // queries.clamp_min(1)).clamp_max(m - 1),
        length.to(problem.query.dtype) / keys.clamp_min(1),
    )


def attend(problem: Problem, value: Float[Tensor, "B m e"], pieces: Pieces) -> Tensor:
    """The average plan applied to the values."""
    inputs = (value, *(field for field in problem if field is not None))
    refuse_tangents("sliced_attention", inputs, "use sliced_plan(q, k) @ v")
    return _forward_op(value, *problem, *pieces)[0]


class _Places(NamedTuple):
    """Tokens on one line: where they lie, who comes when, and who shares a place with whom."""

    x: Float[Tensor, "B n"]
    real: Bool[Tensor, "B n"]
    eps: Float[Tensor, "B"] | None
    order: Int[Tensor, "B n"]
    # the number of each token's place, if the sort met two tokens at one place
    tied: Int[Tensor, "B n"] | None

    @classmethod
    def sort(cls, x: Tensor, real: Tensor, eps: Tensor | None) -> "_Places":
        ahead, order = x.masked_fill(~real, torch.inf).sort(dim=-1, stable=True)
        tied = None
        begins = (ahead[:, 1:] != ahead[:, :-1]) | (ahead[:, 1:] == torch.inf)
        if not begins.all():
            number = torch.nn.functional.pad(begins.cumsum(-1), (1, 0))
            tied = torch.empty_like(order).scatter_(1, order, number)
        return cls(x, real, eps, order, tied)

    def tiles(self, eps: Tensor) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """Parts of the batch and ranges of rows, with their gaps and their rows of T."""
        (size, n), budget = self.x.shape, tile_elements(self.x.device)
        height = max(1, min(n, budget // n))
        together = max(1, budget // (height * n))
        for start in range(0, size, together):
            some = slice(start, min(start + together, size))
            for top in range(0, n, height):
                rows = slice(top, min(top + height, n))
                gap = self.x[some, rows, None] - self.x[some, None, :]
                scores = -gap.square() / eps[some, None, None]
                real = self.real[some]
                yield some, rows, gap, row_softmax(forbid(scores, None, real[:, rows], real))

    def share(self, value: Tensor) -> Tensor:
        """The mean over the tokens at the same place: what the coupling gives to each of them."""
        return value if self.tied is None else _share(value, self.tied)

    def blur(self, value: Tensor) -> Tensor:
        """`T v`."""
        if self.eps is None:
            return value
        blurred = torch.empty_like(value)
        for some, rows, _, weights in self.tiles(self.eps):
            blurred[some, rows] = weights @ value[some]
        return blurred

    def blur_back(self, value: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of `T v` with respect to v, to the places, and to eps."""
        place_grad, eps_grad = torch.zeros_like(self.x), self.x.new_zeros(len(self.x))
        if self.eps is None:
            # where a token lies matters only through the order
            return grad, place_grad, eps_grad
        value_grad = torch.zeros_like(value)
        for some, rows, gap, weights in self.tiles(self.eps):
            arrived = grad[some, rows]
            value_grad[some] += weights.mT @ arrived
            scores_grad = arrived @ value[some].mT
            scores_grad -= (weights * scores_grad).sum(-1, keepdim=True)
            scores_grad *= weights
            # scores are -gap^2 / eps
            eps_grad[some] += (scores_grad * gap.square()).sum((-2, -1)) / self.eps[some].square()
            gap_grad = scores_grad * gap * (-2 / self.eps[some, None, None])
            place_grad[some, rows] += gap_grad.sum(-1)
            place_grad[some] -= gap_grad.sum(-2)
        return value_grad, place_grad, eps_grad


class _Line(NamedTuple):
    """One line: queries and keys in their order, and the pieces that connect them."""

    queries: _Places
    keys: _Places
    query_of: Int[Tensor, "B pieces"]
    key_of: Int[Tensor, "B pieces"]
    weight: Float[Tensor, "B pieces"]

    @classmethod
    def sort(cls, problem: Problem, pieces: Pieces, line: int) -> "_Line":
        queries = _Places.sort(problem.query_place[:, line], problem.query_real, problem.eps)
        keys = _Places.sort(problem.key_place[:, line], problem.key_real, problem.eps)
        query_of = queries.order.gather(1, pieces.query_rank)
        key_of = keys.order.gather(1, pieces.key_rank)
        return cls(queries, keys, query_of, key_of, pieces.share)

    def carry(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """`H T(y) v`, and from there `T(x) H T(y) v`."""
        n = self.queries.x.shape[1]
        # a soft sort would not need the sharing for its values, since tokens at the same place are
        # blurred alike; but the gradient of their places does
        blurred = self.keys.share(self.keys.blur(value))
        moved = self.queries.share(_move(blurred, self.key_of, self.query_of, self.weight, n))
        return moved, self.queries.blur(moved)

    def carry_back(self, value: Tensor, moved: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        """The gradients for values, places of queries, places of keys, and eps."""
        m = self.keys.x.shape[1]
        grad, query_grad, eps_grad = self.queries.blur_back(moved, grad)
        # sharing is symmetric
        grad = _move(self.queries.share(grad), self.query_of, self.key_of, self.weight, m)
        grad, key_grad, more = self.keys.blur_back(value, self.keys.share(grad))
        return grad, query_grad, key_grad, eps_grad + more


def _move(value: Tensor, source: Tensor, target: Tensor, share: Tensor, size: int) -> Tensor:
    """Add to each target its share of the source: a sparse matrix, given by its entries."""
    batch, _, features = value.shape
    source, target = (index[:, :, None].expand(-1, -1, features) for index in (source, target))
    pieces = value.gather(1, source) * share[:, :, None]
    return value.new_zeros(batch, size, features).scatter_add_(1, target, pieces)


def _share(value: Tensor, tied: Tensor) -> Tensor:
    """The mean over the tokens at the same place."""
    count = value.new_zeros(tied.shape).scatter_add_(1, tied, torch.ones_like(value[..., 0]))
    tied = tied[:, :, None].expand_as(value)
    total = torch.zeros_like(value).scatter_add_(1, tied, value)
    return (total / count.clamp_min(1)[:, :, None]).gather(1, tied)


def _pack(problem: Problem, value: Tensor) -> Tensor:
    """Values, keys and their squares: a line that carried these knows its result and its cost.

    The mean of |q_i - k_j|^2 over matched pairs is that of |k_j|^2 - 2 q_i k_j, up to a constant.
    """
    return torch.cat([value, problem.key, problem.key.square().sum(-1, keepdim=True)], -1)


def _forward(problem: Problem, value: Tensor, pieces: Pieces) -> tuple[Tensor, Tensor]:
    """The output, and the costs (B, L) for the backward."""
    packed, e = _pack(problem, value), value.shape[-1]
    count = problem.query_real.sum(-1).clamp_min(1)
    costs = torch.empty_like(problem.query_place[..., 0])
    output = value.new_zeros(*problem.query.shape[:2], e)
    total, peak = output.new_zeros(len(value)), output.new_full((len(value),), -torch.inf)
    for line in range(costs.shape[1]):
        _, carried = _Line.sort(problem, pieces, line).carry(packed)
        score = (problem.query * carried[..., e:-1]).sum((-2, -1))
        costs[:, line] = cost = (carried[..., -1].sum(-1) - 2 * score) / count
        # a softmax over lines that have not all been seen: what was summed so far is rescaled
        highest = torch.maximum(peak, -problem.tau * cost)
        before, now = (peak - highest).exp(), (-problem.tau * cost - highest).exp()
        output = output * before[:, None, None] + carried[..., :e] * now[:, None, None]
        total, peak = total * before + now, highest
    return output / total[:, None, None], costs


def _backward(
    problem: Problem, value: Tensor, pieces: Pieces, costs: Tensor, output: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    packed, e = _pack(problem, value), value.shape[-1]
    count = problem.query_real.sum(-1).clamp_min(1)[:, None, None]
    packed_grad, query_grad = torch.zeros_like(packed), torch.zeros_like(problem.query)
    query_place_grad = torch.zeros_like(problem.query_place)
    key_place_grad = torch.zeros_like(problem.key_place)
    tau_grad, eps_grad = torch.zeros_like(problem.tau), torch.zeros_like(problem.tau)
    weights = (-problem.tau[:, None] * costs).softmax(-1)
    mean = (grad * output).sum((-2, -1))
    for index in range(costs.shape[1]):
        line = _Line.sort(problem, pieces, index)
        moved, carried = line.carry(packed)
        weight = weights[:, index]
        logit_grad = weight * ((grad * carried[..., :e]).sum((-2, -1)) - mean)
        tau_grad -= logit_grad * costs[:, index]
        cost_grad = (-problem.tau * logit_grad)[:, None, None] / count
        query_grad -= 2 * cost_grad * carried[..., e:-1]
        carried_grad = [grad * weight[:, None, None], -2 * cost_grad * problem.query]
        carried_grad.append(cost_grad.expand(-1, grad.shape[1], 1))
        grads = line.carry_back(packed, moved, torch.cat(carried_grad, -1))
        packed_grad += grads[0]
        query_place_grad[:, index], key_place_grad[:, index] = grads[1], grads[2]
        eps_grad += grads[3]
    value_grad, key_grad, square_grad = packed_grad.tensor_split([e, packed.shape[-1] - 1], -1)
    key_grad = key_grad + 2 * problem.key * square_grad
    # copies, since the outputs of an operator may not share memory
    return (
        value_grad.contiguous(), query_grad, key_grad, query_place_grad, key_place_grad,
        tau_grad, eps_grad,
    )  # fmt: skip


@torch.library.custom_op("bistoch::sliced", mutates_args=())
def _forward_op(
    value: Tensor,
    query: Tensor,
    key: Tensor,
    query_place: Tensor,
    key_place: Tensor,
    query_real: Tensor,
    key_real: Tensor,
    tau: Tensor,
    eps: Tensor | None,
    query_rank: Tensor,
    key_rank: Tensor,
    share: Tensor,
) -> tuple[Tensor, Tensor]:
    problem = Problem(query, key, query_place, key_place, query_real, key_real, tau, eps)
    with no_autocast(query.device):
        return _forward(problem, value, Pieces(query_rank, key_rank, share))


@_forward_op.register_fake
def _(value, query, key, query_place, *_):
    return query.new_empty(*query.shape[:2], value.shape[2]), query_place.new_empty(
        query_place.shape[:2]
    )


@torch.library.custom_op("bistoch::sliced_backward", mutates_args=())
def _backward_op(
    grad: Tensor,
    value: Tensor,
    query: Tensor,
    key: Tensor,
    query_place: Tensor,
    key_place: Tensor,
    query_real: Tensor,
    key_real: Tensor,
    tau: Tensor,
    eps: Tensor | None,
    query_rank: Tensor,
    key_rank: Tensor,
    share: Tensor,
    output: Tensor,
    costs: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    problem = Problem(query, key, query_place, key_place, query_real, key_real, tau, eps)
    pieces = Pieces(query_rank, key_rank, share)
    with no_autocast(query.device):
        return _backward(problem, value, pieces, costs, output, grad)


@_backward_op.register_fake
def _(grad, value, query, key, query_place, key_place, query_real, key_real, tau, *_):
    like = (value, query, key, query_place, key_place, tau, tau)
    return tuple(torch.empty_like(tensor) for tensor in like)


def _keep(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx, grad, _):
    value, query, key, query_place, key_place, tau, eps = _backward_op(grad, *ctx.saved_tensors)
    eps = eps if ctx.needs_input_grad[8] else None
    return value, query, key, query_place, key_place, None, None, tau, eps, None, None, None


_forward_op.register_autograd(_differentiate, setup_context=_keep)
