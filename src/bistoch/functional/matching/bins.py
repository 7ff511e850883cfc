"""Dustbins: one more row and column, of one score, that take whatever stays single.

    Z = [[S, alpha], [alpha, alpha]],   row masses (1, ..., 1, m),   column masses (1, ..., 1, n)

A balancing problem like any other, so every backend of `balance` solves it.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional._nonfinite import show
from bistoch.functional.elastic.api import solve as solve_balance
from bistoch.functional.elastic.logs import solve_logs
from bistoch.functional.elastic.scores import pose_given
from bistoch.functional.matching.problem import Logs, Sides, Steps
from bistoch.functional.pose import BalanceOptions, ScoreOptions
from bistoch.functional.problem import no_values


def solve(operator: str, sides: Sides, steps: Steps) -> Logs:
    """Balance rows and columns with their bins, for sides with a `bin_score`."""
    iters, tol, backend, start_on_rows = steps
    scores = _with_bins(sides)
    rows, columns = _side(sides.rows, sides.columns), _side(sides.columns, sides.rows)
    start = broken = None
    if not start_on_rows:
        # without iterations, a row step of the other side is all that is done
        other = pose_given(operator, scores.mT, *_options(columns, rows, 0, None, None))
        start = solve_balance(operator, other, no_values(other.scores), backend).row
        start = start.reshape(columns.mass.shape)
        # a NaN in the scores is told by every row that depends on it
        broken = start.isnan().any(-1, keepdim=True).expand(rows.real.shape)
        start = start.nan_to_num(0.0, neginf=-torch.inf)
    problem = pose_given(operator, scores, *_options(rows, columns, iters, tol, start))
    logs, error = solve_logs(operator, problem, backend)
    logs = show(logs.reshape(scores.shape), broken)
    return Logs(
        plan=logs[..., :-1, :-1],
        rows=logs[..., :-1, -1],
        columns=logs[..., -1, :-1],
        error=error.reshape(scores.shape[:-2]),
    )


def _with_bins(sides: Sides) -> Float[Tensor, "*b rows columns"]:
    *batch, n, m = sides.scores.shape
    if sides.bin_score is None:
        raise ValueError("bins: expected sides with a bin_score, but there are prices")
    bin_score = sides.bin_score[..., None, None]
    scores = torch.cat([sides.scores, bin_score.expand(*batch, n, 1)], -1)
    return torch.cat([scores, bin_score.expand(*batch, 1, m + 1)], -2)


class _Side(NamedTuple):
    """Rows or columns with their bin behind them: what they should sum to, and who is there."""

    mass: Float[Tensor, "*b length"]
    real: Bool[Tensor, "*b length"]


def _side(real: Bool[Tensor, "*b n"], others: Bool[Tensor, "*b m"]) -> _Side:
    """A bin has room for all others; without any it is not there, unless there is nothing else."""
    room = others.sum(-1, keepdim=True)
    needed = (room > 0) | ~real.any(-1, keepdim=True)
    mass = torch.cat([torch.ones_like(real, dtype=torch.float32), room.clamp_min(1)], -1)
    return _Side(mass, torch.cat([real, needed], -1))


def _options(
    rows: _Side, columns: _Side, iters: int, tol: float | None, start: Tensor | None
) -> tuple[ScoreOptions, BalanceOptions]:
    pairs = ScoreOptions(1.0, None, None, rows.real, columns.real)
    return pairs, BalanceOptions(1.0, None, iters, tol, columns.mass, rows.mass, start)
