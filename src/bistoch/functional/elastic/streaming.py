"""The elastic operator in tiles of rows: portable torch with memory linear in n + m, both ways.

Scores are computed again, tile by tile, in every pass; nothing of size n x m exists for all rows.
The gradient is the exact one of the iterations that ran: the forward keeps the row potential f, the
column totals and the step of each, O(iters (n + m)), and `gradient.py` replays them.

If other processes hold other rows, an iteration sums the totals of all columns over them, once.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bistoch.functional.backends import Backend
from bistoch.functional.elastic.gradient import backward
from bistoch.functional.elastic.operator import History, empty, empty_history, register
from bistoch.functional.elastic.pace import choose
from bistoch.functional.elastic.reference import agreed
from bistoch.functional.elastic.tiles import Part, parts
from bistoch.functional.problem import (
    Balance,
    Problem,
    Shards,
    Solution,
    part_of,
    row_softmax,
    spread,
)

# by how much sums over processes may differ from those of the iteration before, either way, and
# still be summed without asking for the largest term first
FACTOR = 2.0**16


def forward(problem: Problem, value: Tensor, solution: Solution, history: History | None) -> None:
    """Fill a solution."""
    cut = list(parts(problem.scores))
    balance, shards = problem.balance, problem.balance.shards
    column, iterations, before = _iterate(cut, balance, history)
    solution.iterations.copy_(iterations)
    totals = _Totals.none(column)
    for part in cut:
        some = part.batch
        own, place = part_of(balance, some), Solution(*(field[some] for field in solution))
        totals.put(some, _finish(part, own, value[some], column[some], place))
    totals = totals if shards is None else totals.over(shards, before)
    residual = balance.lam[:, None] * totals.column_step(balance.log_mass) - column
    solution.column.copy_(column.masked_fill(~totals.live(), -torch.inf))
    solution.error.copy_(spread(residual, totals.live()))


def _iterate(
    cut: list[Part], balance: Balance, history: History | None
) -> tuple[Tensor, Tensor, "_Totals | None"]:
    """The column potentials, how many iterations made them, and the totals of the last."""
    pace, lam, shards = None, balance.lam, balance.shards
    totals: _Totals | None = None
    omega = balance.first_omega()
    column = balance.first_column()
    running = torch.ones_like(lam, dtype=torch.bool)
    iterations = torch.zeros_like(lam, dtype=torch.int64)

    def any_running(some: slice) -> bool:
        # what has stopped takes no more steps; processes may have cut their batch differently, and
        # whether anybody goes on was asked before
        if shards is not None or balance.tol is None or running.is_meta or len(cut) == 1:
            return True
        return bool(running[some].any())

    for t in range(balance.iters):
        before, totals, level = totals, _Totals.none(column), column.new_zeros(len(column), 1)
        for part in cut:
            some = part.batch
            if any_running(some):
                kept = None if history is None else history.row[some, t]
                own = part_of(balance, some)
                found, level[some] = _sum_columns(part, own, column[some], kept)
                totals.put(some, found)
        totals = totals if shards is None else totals.over(shards, before)
        if history is not None:
            history.peak[:, t], history.log_total[:, t] = totals.peak, totals.log_total()
        residual = lam[:, None] * totals.column_step(balance.log_mass) - column
        if balance.tol is not None:
            error = spread(residual, totals.live())
            if shards is not None:
                error, level = agreed(error, level, shards)
            running &= error > balance.tol
            if not running.is_meta and not running.any():
                break
            if balance.omega is None:
                pace = choose(residual, totals.live(), error, lam, level, pace)
                omega = pace.omega
        column = torch.where(running[:, None], column + omega[:, None] * residual, column)
        if history is not None:
            history.omega[:, t] = omega
        iterations += running
    return column, iterations, totals


class _Totals(NamedTuple):
    """Sums over the rows so far of exponentials, per column: exp(peak) * total."""

    peak: Tensor
    total: Tensor

    @classmethod
    def none(cls, column: Tensor) -> "_Totals":
        # a column without any term keeps the lowest finite peak, so that no inf - inf can arise
        return cls(torch.full_like(column, torch.finfo(column.dtype).min), torch.zeros_like(column))

    def put(self, some: slice, totals: "_Totals") -> None:
        """Write those of a part of the batch."""
        self.peak[some], self.total[some] = totals

    def add(self, logs: Tensor) -> "_Totals":
        peak = torch.maximum(self.peak, logs.amax(-2))
        total = self.total * (self.peak - peak).exp() + (logs - peak[:, None, :]).exp().sum(-2)
        return _Totals(peak, total)

    def over(self, shards: Shards, before: "_Totals | None") -> "_Totals":
        """The totals of all processes.

        Those of the iteration before are near: relative to them one sum is enough. If it shows that
        they were not near, or if there are none, the largest term is found first. All processes
        see the same sums, and so decide alike.
        """
        if before is not None:
            peak = before.peak + before.log_total()
            total = shards.sum(self.total * (self.peak - peak).exp())
            near = (total >= 1 / FACTOR) & (total <= FACTOR)
            if bool((near | ~before.live()).all()):
                return _Totals(peak, total)
        peak = shards.max(self.peak)
        return _Totals(peak, shards.sum(self.total * (self.peak - peak).exp()))

    def live(self) -> Tensor:
        return self.total > 0

    def log_total(self) -> Tensor:
        return torch.where(self.live(), self.total, 1).log()

    def column_step(self, log_mass: Tensor) -> Tensor:
        """`h = log b - LSE_i(S + f)`, zero for a column that no query may see."""
        return torch.where(self.live(), log_mass - (self.peak + self.log_total()), 0)


def _sum_columns(
    part: Part, balance: Balance, column: Tensor, kept: Tensor | None
) -> tuple[_Totals, Tensor]:
    """A row step, what its rows give to the columns, and the size of the largest potential."""
    totals, level = _Totals.none(column), column.new_zeros(len(column), 1)
    for rows, scores in part.tiles():
        row = balance.weighed(_row_step(scores, column), rows)
        totals = totals.add(scores + row[:, :, None])
        level = torch.maximum(level, row.abs().amax(-1, keepdim=True))
        if kept is not None:
            kept[:, rows] = row
    return totals, level


def _row_step(scores: Tensor, column: Tensor) -> Tensor:
    total = torch.logsumexp(scores + column[:, None, :], -1)
    return torch.where(total == -torch.inf, 0, -total)


def _finish(
    part: Part, balance: Balance, value: Tensor, column: Tensor, solution: Solution
) -> _Totals:
    """Take the last row step and write all that the same tiles can give."""
    totals = _Totals.none(column)
    for rows, scores in part.tiles():
        row = _row_step(scores, column)
        solution.row[:, rows] = row.masked_fill((scores == -torch.inf).all(-1), -torch.inf)
        solution.output[:, rows] = row_softmax(scores + column[:, None, :]) @ value
        totals = totals.add(scores + balance.weighed(row, rows)[:, :, None])
    return totals


def replay(problem: Problem, value: Tensor) -> tuple[Solution, History]:
    """Solve a problem outside of autograd and keep its history."""
    solution, history = empty(problem, value), empty_history(problem)
    forward(problem, value, solution, history)
    return solution, history


BACKEND = Backend("streaming", "", register("elastic_streaming", forward, backward))
