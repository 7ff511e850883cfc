"""The elastic iteration with keys that are passed round: every rank has its rows and its columns.

An iteration is two rounds: in the first every row is summed over all keys, in the second every key
over all rows. No rank ever holds more than two blocks of keys, and no vector longer than a shard.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from bistoch.distributed.ring import Block, Ring
from bistoch.functional.elastic.pace import choose
from bistoch.functional.elastic.tiles import parts
from bistoch.functional.problem import Balance, Scores, Solution


class Totals(NamedTuple):
    """Sums of exponentials, `exp(peak) * total`: of rows over keys, or of keys over rows."""

    peak: Tensor
    total: Tensor

    @classmethod
    def none(cls, like: Tensor) -> "Totals":
        """Sums without a term."""
        # what has no term keeps the lowest finite peak, so that no inf - inf can arise
        return cls(torch.full_like(like, torch.finfo(like.dtype).min), torch.zeros_like(like))

    def log_total(self) -> Tensor:
        """The log of the total, zero where there is no term."""
        return torch.where(self.total > 0, self.total, 1).log()

    def log_sum(self) -> Tensor:
        """The log of the sum, zero where there is no term."""
        return torch.where(self.total > 0, self.peak + self.log_total(), 0)


def add(one: Block, other: Block) -> Block:
    """Two totals together."""
    peak = torch.maximum(one[0], other[0])
    return peak, one[1] * (one[0] - peak).exp() + other[1] * (other[0] - peak).exp()


class Record(NamedTuple):
    """What an iteration leaves for the backward, on the rank of its rows and of its columns."""

    rows: Totals
    columns: Totals
    # the column potential that the iteration began with, and the step that it took
    column: Tensor
    omega: Tensor


class Round(NamedTuple):
    """The problem of one rank; the mask of its scores has a column for every key of all ranks."""

    ring: Ring
    scores: Scores
    balance: Balance

    def block(self, *vectors: Tensor) -> Block:
        """The keys of this rank, whether they are real, and what else goes round with them."""
        key, real = self.scores.key, self.scores.key_mask
        told = torch.ones_like(key[..., 0]) if real is None else real.to(key.dtype)
        return (key, told, *vectors)

    def tiles(self, owner: int, block: Block) -> Iterator[tuple[slice, slice, Tensor]]:
        """Heads, rows and their scores with a block of keys, a tile at a time."""
        key, told = block[:2]
        if not key.shape[1] or not self.scores.query.shape[1]:
            return
        mask = self.scores.mask
        if mask is not None and mask.shape[-1] > 1:
            mask = mask[..., self.ring.columns(owner)]
        real = None if self.scores.key_mask is None else told > 0
        for part in parts(self.scores._replace(key=key, key_mask=real, mask=mask)):
            for rows, scores in part.tiles():
                yield part.batch, rows, scores

    def row_totals(self, column: Tensor) -> Totals:
        """`sum_j exp(S_ij + g_j)` of the rows of this rank, over the keys of all."""
        totals = Totals.none(self.scores.query[..., 0])
        for owner, block in self.ring.blocks(self.block(column)):
            for some, rows, scores in self.tiles(owner, block):
                add_row(totals, some, rows, scores + block[2][some, None, :])
        return totals

    def column_totals(self, row: Tensor) -> Totals:
        """`sum_i exp(S_ij + f_i)` of the keys of this rank, over the rows of all."""

        def part_of(owner: int, block: Block) -> Block:
            totals = Totals.none(block[1])
            for some, rows, scores in self.tiles(owner, block):
                logs = scores + row[some, rows, None]
                peak = torch.maximum(totals.peak[some], logs.amax(-2))
                old = totals.total[some] * (totals.peak[some] - peak).exp()
                totals.total[some] = old + (logs - peak[:, None, :]).exp().sum(-2)
                totals.peak[some] = peak
            return totals

        return Totals(*self.ring.summed(self.block(), part_of, add))

    def output(self, column: Tensor, value: Tensor) -> tuple[Tensor, Totals]:
        """The plan applied to the values, and the row totals that it was made with."""
        totals = Totals.none(self.scores.query[..., 0])
        output = value.new_zeros(*totals.peak.shape, value.shape[-1])
        for owner, block in self.ring.blocks(self.block(column, value)):
            for some, rows, scores in self.tiles(owner, block):
                logs, old = scores + block[2][some, None, :], totals.peak[some, rows]
                old = old.clone()
                add_row(totals, some, rows, logs)
                peak = totals.peak[some, rows]
                output[some, rows] *= (old - peak).exp()[..., None]
                output[some, rows] += (logs - peak[..., None]).exp() @ block[3][some]
        return output / torch.where(totals.total > 0, totals.total, 1)[..., None], totals

    def forward(self, value: Tensor, wants_error: bool) -> tuple[Solution, Totals, list[Record]]:
        """The solution, the last row totals, and all iterations."""
        balance, ranks = self.balance, self.ring.ranks
        lam, pace, omega = balance.lam, None, balance.first_omega()
        column, records = balance.first_column(), []
        running = torch.ones_like(lam, dtype=torch.bool)
        iterations = torch.zeros_like(lam, dtype=torch.int64)
        live = torch.ones_like(column, dtype=torch.bool)
        for _ in range(balance.iters):
            row_totals = self.row_totals(column)
            row = balance.weighed(-row_totals.log_sum())
            totals = self.column_totals(row)
            residual, live = self._residual(totals, column), totals.total > 0
            if balance.tol is not None:
                error, level = self._error(residual, live, row)
                running = running & (error > balance.tol)
                if not running.any():
                    break
                if balance.omega is None:
                    pace = choose(residual, live, error, lam, level, pace, ranks.sum)
                    omega = pace.omega
            taken = torch.where(running, omega, 0)
            records.append(Record(row_totals, totals, column, taken))
            column = torch.where(running[:, None], column + omega[:, None] * residual, column)
            iterations += running
        output, last = self.output(column, value)
        row, error = -last.log_sum(), torch.zeros_like(lam)
        if wants_error or not balance.iters:
            totals = self.column_totals(balance.weighed(row))
            live = totals.total > 0
            error, _ = self._error(self._residual(totals, column), live, row)
        row = row.masked_fill(last.total == 0, -torch.inf)
        column = column.masked_fill(~live, -torch.inf)
        return Solution(output, row, column, error, iterations), last, records

    def _residual(self, totals: Totals, column: Tensor) -> Tensor:
        step = self.balance.log_mass - totals.log_sum()
        return self.balance.lam[:, None] * step.masked_fill(totals.total == 0, 0) - column

    def _error(self, residual: Tensor, live: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        """How far the residuals of all ranks lie apart, and the largest row potential of all."""
        none = residual.new_full((len(residual), 1), -torch.inf)
        highest = torch.cat([residual.masked_fill(~live, -torch.inf), none], 1).amax(-1)
        lowest = torch.cat([(-residual).masked_fill(~live, -torch.inf), none], 1).amax(-1)
        level = torch.cat([row.abs(), torch.zeros_like(none)], 1).amax(-1)
        found = torch.stack([highest, lowest, level])
        highest, lowest, level = self.ring.ranks.max(found).unbind()
        error = torch.where(highest == -torch.inf, 0, highest + lowest)
        return error.clamp_min(0), level[:, None]


def add_row(totals: Totals, some: slice, rows: slice, logs: Tensor) -> None:
    """Add the keys of a tile to the totals of its rows."""
    old = totals.peak[some, rows]
    peak = torch.maximum(old, logs.amax(-1))
    total = totals.total[some, rows] * (old - peak).exp()
    totals.total[some, rows] = total + (logs - peak[..., None]).exp().sum(-1)
    totals.peak[some, rows] = peak
