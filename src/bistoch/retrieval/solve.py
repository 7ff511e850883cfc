"""Column potentials of a bank of queries over documents, with memory linear in both.

The iteration is that of `bistoch.elastic_potentials`, and so is its limit. Here one pass over
blocks of queries takes a row step and a column step: one matrix product and one exponential per
score and iteration, and nothing larger than a block is kept. A single block keeps its exponentials,
and an iteration is two products of a matrix with a vector.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.functional.elastic.pace import choose
from bistoch.retrieval import vectors
from bistoch.retrieval.ranks import ALONE, Split

# sums of exponentials outside of this range are taken again around the largest exponent
SMALLEST, LARGEST = 1e-20, 1e20
# exponentials that are kept are made again where a potential has moved by more than this
FAR = 20.0


class Solved(NamedTuple):
    """Row and column potentials, iterations, and the last column error."""

    row: Float[Tensor, "n"]
    column: Float[Tensor, "m"]
    iterations: int
    error: float


def solve(
    queries: Float[Tensor, "n d"],
    documents: Float[Tensor, "m d"],
    *,
    eps: float,
    lam: float,
    tol: float,
    iters: int,
    split: Split = ALONE,
) -> Solved:
    """The potentials of the plan with scores `q d^T / eps` and elasticity lam.

    With a split, ranks hold the queries or the documents together: the rows are those of the own
    queries, the columns always those of all documents.

    >>> import torch
    >>> queries, documents = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(0))
    >>> found = solve(queries, documents, eps=1.0, lam=1.0, tol=1e-4, iters=1000)
    >>> plan = (queries @ documents.T + found.row[:, None] + found.column).exp()
    >>> [bool(torch.allclose(plan.sum(axis), torch.ones(7), atol=1e-3)) for axis in (0, 1)]
    [True, True]
    """
    blocks = _Blocks(queries / eps, documents, split)
    n, m = split.total("queries", queries), split.total("documents", documents)
    column, own = documents.new_zeros(m), split.own_documents()
    log_mass = math.log(n / m)
    elasticity, live = column.new_full((1,), lam), torch.ones_like(column, dtype=torch.bool)[None]
    row, pace, iteration = None, None, 0
    while True:
        row, total = blocks.step(row, column[own])
        total = split.all_columns(total)
        # no query is near to a document whose sum underflows: it gets as large a step as there is
        total = total.clamp_min(torch.finfo(column.dtype).tiny)
        residual = (lam * (log_mass - total.log() + column) - column).to(column)
        # equal on all ranks but for rounding, where machines differ: they must decide alike
        apart = split.max((residual.amax() - residual.amin())[None])
        error = apart.item()
        # a NaN would stay one
        if not error > tol or iteration == iters:
            return Solved(row, column, iteration, error)
        level = split.max(row.abs().amax()[None])
        pace = choose(residual[None], live, apart, elasticity, level[None], pace)
        column = column + pace.omega * residual
        iteration += 1


class _Blocks:
    """Exponentials of scores in blocks of queries, in one room; a single block stays there."""

    def __init__(self, queries: Tensor, documents: Tensor, split: Split):
        self._queries, self._documents, self._split = queries, documents.T, split
        # ranks that share documents take the same blocks of queries
        width = split.widest(len(documents))
        self._height = max(1, min(len(queries), vectors.BLOCK_ELEMENTS // width))
        self._room = queries.new_empty(self._height, len(documents))
        # what the exponentials in the room were made with: row and column terms
        self._made: tuple[Tensor, Tensor] | None = None

    def step(self, row: Tensor | None, column: Tensor) -> tuple[Tensor, Tensor]:
        """Row potentials for these column potentials, and the column sums of their plan.

        `row` are those of the iteration before, close to these, so that no exponential is large.
        """
        if (found := self._step_in_room(column)) is None:
            rows, total = [], column.new_zeros(len(column), dtype=torch.float64)
            for part in self._parts():
                shift, sums = self._fill(part, row, column)
                total += (1 / sums) @ self._room[: len(sums)]
                rows.append(shift - sums.log())
            if self._height == len(self._queries):
                self._made = shift, column
            found = torch.cat(rows), total
        return found

    def _step_in_room(self, column: Tensor) -> tuple[Tensor, Tensor] | None:
        """The step by two products with what is in the room; None if that is not there or far."""
        if self._made is None:
            return None
        shift, before = self._made
        moved = column - before
        if self._split.row_max(moved.abs().amax()[None]) > FAR:
            return None
        weights = moved.exp()
        sums = self._split.row_sum(self._room @ weights)
        if not _is_safe(sums):
            return None
        return shift - sums.log(), (weights * ((1 / sums) @ self._room)).double()

    def _parts(self) -> Iterator[slice]:
        for first in range(0, len(self._queries), self._height):
            yield slice(first, min(first + self._height, len(self._queries)))

    def _fill(self, part: slice, row: Tensor | None, column: Tensor) -> tuple[Tensor, Tensor]:
        """Write `exp(S + shift + column)` of a block into the room; the shift, and sums of rows."""
        room = self._room[: part.stop - part.start]
        if row is not None:
            torch.add(row[part, None], column, out=room)
            sums = room.addmm_(self._queries[part], self._documents).exp_().sum(1)
            sums = self._split.row_sum(sums)
            if _is_safe(sums):
                return row[part], sums
        torch.mm(self._queries[part], self._documents, out=room)
        peak = self._split.row_max(room.add_(column).amax(1))
        return -peak, self._split.row_sum(room.sub_(peak[:, None]).exp_().sum(1))


def _is_safe(sums: Tensor) -> bool:
    return bool(((sums > SMALLEST) & (sums < LARGEST)).all())
