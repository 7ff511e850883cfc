"""The exact gradient of the elastic iterations that ran, in tiles of rows (docs/gradient.md).

Backward through iteration t needs only its row potential f, its column totals and its step. With
C = exp(S + f - LSE_i(S + f)), whose columns sum to one, and R = softmax_row(S + g), whose rows do:

    dS -= C diag(dh),   df = -C dh,   dS -= diag(df) R,   dg = (1 - omega) dg - R^T df
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bistoch.functional.elastic.operator import Gradients, History, Upstream
from bistoch.functional.elastic.tiles import Part, parts
from bistoch.functional.problem import (
    Balance,
    GivenScores,
    Problem,
    Solution,
    part_of,
    row_softmax,
)


def backward(
    problem: Problem,
    value: Tensor,
    solution: Solution,
    history: History,
    upstream: Upstream,
    grads: Gradients,
) -> None:
    """Add the gradients of a solved problem, part by part."""
    for part in parts(problem.scores):
        some = part.batch
        # with a tolerance a part may have stopped early: what was not written is not read
        iters = int(solution.iterations[some].max())
        replay = _Replay(
            part,
            part_of(problem.balance, some),
            iters,
            value[some],
            Solution(*(field[some] for field in solution)),
            History(*(field[some, :iters] for field in history)),
            upstream.of(some),
        )
        _accumulate(replay, grads)


class _Replay(NamedTuple):
    """One part of the batch with what its forward left behind."""

    part: Part
    balance: Balance
    iters: int
    value: Tensor
    solution: Solution
    history: History
    upstream: Upstream

    def softmax_grad(self, rows: slice, scores: Tensor) -> tuple[Tensor, Tensor]:
        """A tile of the plan P, and of Z = P * (dP - row means): the last row step's gradient."""
        plan = row_softmax(scores + self.solution.column[:, None, :])
        plan_grad = self.upstream.output[:, rows] @ self.value.mT
        row_mean = (plan * plan_grad).sum(-1)
        if self.upstream.row is not None:
            row_mean = row_mean + self.upstream.row[:, rows]
        return plan, plan * (plan_grad - row_mean[:, :, None])

    def columns_to_one(self, t: int, rows: slice, scores: Tensor) -> Tensor:
        """A tile of C, the softmax over rows of iteration t."""
        logs = scores + self.history.row[:, t, rows, None]
        # one after the other: each difference is exact where it matters
        logs -= self.history.peak[:, t, None, :]
        logs -= self.history.log_total[:, t, None, :]
        return logs.exp_()


def _accumulate(replay: _Replay, grads: Gradients) -> None:
    """Go back through the iterations for the vectors, then once over the scores."""
    part, history, iters = replay.part, replay.history, replay.iters
    balance, some = replay.balance, part.batch
    lam = balance.lam[:, None]

    column_grad = torch.zeros_like(replay.solution.column)
    if replay.upstream.column is not None:
        column_grad += replay.upstream.column
        column_grad.masked_fill_(replay.solution.column == -torch.inf, 0)
    for rows, scores in part.tiles():
        plan, softmax_grad = replay.softmax_grad(rows, scores)
        grads.value[some] += plan.mT @ replay.upstream.output[:, rows]
        column_grad += softmax_grad.sum(-2)

    # a problem that stopped early took steps of size zero from there on
    running = torch.arange(iters, device=lam.device) < replay.solution.iterations[:, None]
    omegas = torch.where(running, history.omega, 0)
    dead = (replay.solution.column == -torch.inf)[:, None, :]
    steps = balance.log_mass[:, None, :] - (history.peak + history.log_total)
    steps = steps.masked_fill(dead, 0)
    columns = [balance.first_column()]
    for t in range(iters):
        columns.append(columns[t] + omegas[:, t, None] * (lam * steps[:, t] - columns[t]))

    step_grads, row_grads = torch.zeros_like(steps), torch.zeros_like(history.row)
    for t in reversed(range(iters)):
        omega = omegas[:, t, None]
        residual = lam * steps[:, t] - columns[t]
        grads.lam[some] += (column_grad * omega * steps[:, t]).sum(-1)
        grads.omega[some] += (column_grad * running[:, t, None] * residual).sum(-1)
        step_grads[:, t] = omega * lam * column_grad
        column_grad = (1 - omega) * column_grad
        for rows, scores in part.tiles():
            row_grad = -(replay.columns_to_one(t, rows, scores) @ step_grads[:, t, :, None])
            row_grads[:, t, rows] = row_grad.squeeze(-1)
            rows_to_one = row_softmax(scores + columns[t][:, None, :])
            column_grad -= (rows_to_one.mT @ row_grad).squeeze(-1)
    grads.log_mass[some] += step_grads.sum(1)
    if balance.log_row_mass is not None:
        # it is added to f before the column step, and nowhere else
        grads.log_row_mass[some] += row_grads.sum(1)
    if balance.start is not None:
        grads.start[some] += column_grad

    for rows, scores in part.tiles():
        _, scores_grad = replay.softmax_grad(rows, scores)
        for t in range(iters):
            scores_grad -= replay.columns_to_one(t, rows, scores).mul_(step_grads[:, t, None, :])
            rows_to_one = row_softmax(scores + columns[t][:, None, :])
            scores_grad -= rows_to_one.mul_(row_grads[:, t, rows, None])
        _scatter(part, rows, scores_grad, grads)


def _scatter(part: Part, rows: slice, scores_grad: Tensor, grads: Gradients) -> None:
    """Send a tile of the gradient of the scores to what the scores were made of."""
    scores, some = part.scores, part.batch
    if isinstance(scores, GivenScores):
        if grads.bias.numel():
            grads.bias[some, rows] = scores_grad
        return
    query, sharpness = scores.query[:, rows], scores.sharpness[:, None, None]
    from_key = scores_grad @ scores.key
    grads.query[some, rows] = from_key * sharpness
    grads.key[some] += scores_grad.mT @ (query * sharpness)
    grads.sharpness[some] += (query * from_key).sum((-2, -1))
    if grads.bias.numel() and scores.mask_index is not None:
        shared_rows, shared_columns = (size == 1 for size in grads.bias.shape[1:])
        if shared_columns:
            scores_grad = scores_grad.sum(-1, keepdim=True)
        if shared_rows:
            scores_grad = scores_grad.sum(-2, keepdim=True)
        target = grads.bias if shared_rows else grads.bias[:, rows]
        target.index_add_(0, scores.mask_index, scores_grad)
