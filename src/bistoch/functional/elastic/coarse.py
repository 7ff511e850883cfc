"""Column potentials from every s-th query, from which the last iteration on all queries starts.

An iteration costs as much as there are queries, but a column sum over a sample of them, evenly
spread, is already near to that over all: so all iterations but the last are taken on the sample,

    g = potentials of the plan of queries 0, s, 2s, ... after iters - 1 iterations
    one iteration on all queries that starts from g, and the last row step

The gradient is that of all that ran, through the start of the last iteration. With a tolerance the
sample is solved to it, and so are all queries, in as many iterations as that takes.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from bistoch.functional.problem import Problem, Scores


def split(problem: Problem[Scores], stride: int) -> tuple[Problem[Scores], Problem[Scores]] | None:
    """The problem of the sample, and that of all queries without its start; None for no sample."""
    scores, balance = problem
    if stride == 1 or scores.query.shape[1] == 0 or balance.iters < 2:
        return None
    last = balance._replace(iters=balance.iters if balance.tol is not None else 1)
    return sampled(problem, stride), Problem(scores, last)


def started(problem: Problem[Scores], column: Tensor) -> Problem[Scores]:
    """The problem of all queries, from potentials of the sample.

    A key that no query of the sample may see starts at zero.
    """
    start = column.masked_fill(column == -torch.inf, 0)
    return problem._replace(balance=problem.balance._replace(start=start))


def sampled(problem: Problem[Scores], stride: int) -> Problem[Scores]:
    """The same problem for every s-th real query, with one iteration less unless it has a `tol`."""
    scores, balance = problem
    iters = balance.iters if balance.tol is not None else balance.iters - 1
    if scores.query_mask is None:
        some = _every(scores, stride)
        log_row_mass = balance.log_row_mass
        log_row_mass = None if log_row_mass is None else log_row_mass[:, ::stride]
    else:
        place, real = _real_places(scores.query_mask, stride)
        some = _chosen(scores, place, real)
        log_row_mass = balance.log_row_mass
        log_row_mass = None if log_row_mass is None else log_row_mass.gather(1, place)
    # columns share what the rows of the sample have, not what all rows have
    shift = _log_total(some, log_row_mass) - _log_total(scores, balance.log_row_mass)
    log_mass = balance.log_mass + shift[:, None]
    own = balance._replace(log_mass=log_mass, log_row_mass=log_row_mass, iters=iters)
    return Problem(some, own)


def _every(scores: Scores, stride: int) -> Scores:
    mask = scores.mask
    if mask is not None and mask.shape[1] > 1:
        mask = mask[:, ::stride]
    return scores._replace(query=scores.query[:, ::stride], mask=mask)


def _real_places(
    query_mask: Bool[Tensor, "B n"], stride: int
) -> tuple[Int[Tensor, "B r"], Bool[Tensor, "B r"]]:
    """Where every s-th real query is: padding is not counted, wherever it stands.

    What is left of the row is padding again.
    """
    order = torch.argsort(~query_mask, dim=1, stable=True)[:, ::stride]
    return order, query_mask.gather(1, order)


def _chosen(scores: Scores, place: Int[Tensor, "B r"], real: Bool[Tensor, "B r"]) -> Scores:
    features, mask, index = scores.query.shape[-1], scores.mask, scores.mask_index
    query = scores.query.gather(1, place[..., None].expand(*place.shape, features))
    if mask is not None and index is not None and mask.shape[1] > 1:
        # every problem has its own queries, and so its own rows of a mask that others share
        mask = mask[index[:, None], place]
        index = torch.arange(len(index), device=index.device)
    return scores._replace(query=query, mask=mask, mask_index=index, query_mask=real)


def _log_total(scores: Scores, log_row_mass: Tensor | None) -> Tensor:
    """The log of what all rows have together, zero where there is none."""
    (size, n, _), like, real = scores.shape, scores.like, scores.query_mask
    mass = like.new_ones(size, n) if log_row_mass is None else log_row_mass.exp()
    mass = mass if real is None else mass.masked_fill(~real, 0)
    total = mass.sum(-1)
    return torch.where(total > 0, total, 1).log()
