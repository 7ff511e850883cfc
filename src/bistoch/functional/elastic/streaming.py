"""The elastic operator in tiles of rows: portable torch with memory linear in n + m, both ways.

Scores are computed again, tile by tile, in every pass; nothing of size n x m exists for all rows.
The gradient is the exact one of the iterations that ran: the forward keeps the row potential f, the
column totals and the step of each, O(iters (n + m)), and `gradient.py` replays them.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bistoch.functional.backends import Backend
from bistoch.functional.elastic.gradient import backward
from bistoch.functional.elastic.operator import History, empty, empty_history, register
from bistoch.functional.elastic.pace import choose
from bistoch.functional.elastic.tiles import Part, parts
from bistoch.functional.problem import (
    Balance,
    Problem,
    Solution,
    part_of,
    row_softmax,
    spread,
)


def forward(problem: Problem, value: Tensor, solution: Solution, history: History | None) -> None:
    """Fill a solution, part by part."""
    for part in parts(problem.scores):
        some, balance = part.batch, part_of(problem.balance, part.batch)
        kept = None if history is None else History(*(field[some] for field in history))
        column, solution.iterations[some] = _iterate(part, balance, kept)
        _finish(part, balance, value[some], column, Solution(*(field[some] for field in solution)))


def _iterate(part: Part, balance: Balance, history: History | None) -> tuple[Tensor, Tensor]:
    pace, lam = None, balance.lam
    omega = balance.first_omega()
    column = balance.first_column()
    running = torch.ones_like(lam, dtype=torch.bool)
    iterations = torch.zeros_like(lam, dtype=torch.int64)
    for t in range(balance.iters):
        totals, level = _Totals.none(column), column.new_zeros(len(column), 1)
        for rows, scores in part.tiles():
            row = balance.weighed(_row_step(scores, column), rows)
            totals = totals.add(scores + row[:, :, None])
            level = torch.maximum(level, row.abs().amax(-1, keepdim=True))
            if history is not None:
                history.row[:, t, rows] = row
        if history is not None:
            history.peak[:, t], history.log_total[:, t] = totals.peak, totals.log_total()
        residual = lam[:, None] * totals.column_step(balance.log_mass) - column
        if balance.tol is not None:
            error = spread(residual, totals.live())
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
    return column, iterations


class _Totals(NamedTuple):
    """Sums over the rows so far of exponentials, per column: exp(peak) * total."""

    peak: Tensor
    total: Tensor

    @classmethod
    def none(cls, column: Tensor) -> "_Totals":
        # a column without any term keeps the lowest finite peak, so that no inf - inf can arise
        return cls(torch.full_like(column, torch.finfo(column.dtype).min), torch.zeros_like(column))

    def add(self, logs: Tensor) -> "_Totals":
        peak = torch.maximum(self.peak, logs.amax(-2))
        total = self.total * (self.peak - peak).exp() + (logs - peak[:, None, :]).exp().sum(-2)
        return _Totals(peak, total)

    def live(self) -> Tensor:
        return self.total > 0

    def log_total(self) -> Tensor:
        return torch.where(self.live(), self.total, 1).log()

    def column_step(self, log_mass: Tensor) -> Tensor:
        """`h = log b - LSE_i(S + f)`, zero for a column that no query may see."""
        return torch.where(self.live(), log_mass - (self.peak + self.log_total()), 0)


def _row_step(scores: Tensor, column: Tensor) -> Tensor:
    total = torch.logsumexp(scores + column[:, None, :], -1)
    return torch.where(total == -torch.inf, 0, -total)


def _finish(
    part: Part, balance: Balance, value: Tensor, column: Tensor, solution: Solution
) -> None:
    """Take the last row step and write all that the same tiles can give."""
    totals = _Totals.none(column)
    for rows, scores in part.tiles():
        row = _row_step(scores, column)
        solution.row[:, rows] = row.masked_fill((scores == -torch.inf).all(-1), -torch.inf)
        solution.output[:, rows] = row_softmax(scores + column[:, None, :]) @ value
        totals = totals.add(scores + balance.weighed(row, rows)[:, :, None])
    residual = balance.lam[:, None] * totals.column_step(balance.log_mass) - column
    solution.column.copy_(column.masked_fill(~totals.live(), -torch.inf))
    solution.error.copy_(spread(residual, totals.live()))


def replay(problem: Problem, value: Tensor) -> tuple[Solution, History]:
    """Solve a problem outside of autograd and keep its history."""
    solution, history = empty(problem, value), empty_history(problem)
    forward(problem, value, solution, history)
    return solution, history


BACKEND = Backend("streaming", "", register("elastic_streaming", forward, backward))
