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
    """Add the gradients of a solved problem: back through the iterations, then over the scores."""
    balance, shards = problem.balance, problem.balance.shards
    replays = []
    for part in parts(problem.scores):
        some = part.batch
        iters = history.omega.shape[1]
        if balance.tol is not None:
            # a part may have stopped early: what was not written is not read
            iters = int(solution.iterations[some].max())
        replays.append(
            _Replay(
                part,
                iters,
                value[some],
                Solution(*(field[some] for field in solution)),
                History(*(field[some, :iters] for field in history)),
                upstream.of(some),
            )
        )
    column_grad = torch.zeros_like(solution.column)
    if upstream.column is not None:
        column_grad += upstream.column
        column_grad.masked_fill_(solution.column == -torch.inf, 0)
    for replay in replays:
        some = replay.part.batch
        for rows, scores in replay.part.tiles():
            plan, softmax_grad = replay.softmax_grad(rows, scores)
            grads.value[some] += plan.mT @ replay.upstream.output[:, rows]
            column_grad[some] += softmax_grad.sum(-2)
    path = _Path.of(balance, solution, history)
    step_grads, row_grads = _vectors(replays, balance, path, column_grad, grads)
    for replay in replays:
        some = replay.part.batch
        for rows, scores in replay.part.tiles():
            _, scores_grad = replay.softmax_grad(rows, scores)
            for t in range(replay.iters):
                by_column = replay.columns_to_one(t, rows, scores)
                scores_grad -= by_column.mul_(step_grads[some, t, None, :])
                rows_to_one = row_softmax(scores + path.columns[t][some, None, :])
                scores_grad -= rows_to_one.mul_(row_grads[some, t, rows, None])
            _scatter(replay.part, rows, scores_grad, grads)
    if shards is not None:
        # columns are everybody's, and so were these: each process keeps its share
        for shared in (grads.lam, grads.omega, grads.log_mass, grads.start):
            shared /= shards.size


class _Replay(NamedTuple):
    """One part of the batch with what its forward left behind."""

    part: Part
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


class _Path(NamedTuple):
    """The column potentials before every iteration, and what made them."""

    # whether a problem had not stopped, and the step that it took
    running: Tensor  # (B, T)
    omegas: Tensor  # (B, T)
    steps: Tensor  # (B, T, m)
    columns: list[Tensor]

    @classmethod
    def of(cls, balance: Balance, solution: Solution, history: History) -> "_Path":
        lam, iters = balance.lam[:, None], history.omega.shape[1]
        if balance.tol is not None and len(lam):
            # only a tolerance stops before: without one no number is read on the host
            iters = int(solution.iterations.max())
        # a problem that stopped early took steps of size zero from there on
        running = torch.arange(iters, device=lam.device) < solution.iterations[:, None]
        omegas = torch.where(running, history.omega[:, :iters], 0)
        dead = (solution.column == -torch.inf)[:, None, :]
        totals = history.peak[:, :iters] + history.log_total[:, :iters]
        steps = balance.log_mass[:, None, :] - totals
        steps = steps.masked_fill(dead | ~running[:, :, None], 0)
        columns = [balance.first_column()]
        for t in range(iters):
            columns.append(columns[t] + omegas[:, t, None] * (lam * steps[:, t] - columns[t]))
        return cls(running, omegas, steps, columns)


def _vectors(
    replays: list[_Replay],
    balance: Balance,
    path: _Path,
    column_grad: Tensor,
    grads: Gradients,
) -> tuple[Tensor, Tensor]:
    """Go back through the iterations; the gradients of the column and row steps of each."""
    lam, shards, iters = balance.lam[:, None], balance.shards, path.omegas.shape[1]
    rows_of_all = replays[0].solution.row.shape[1] if replays else 0
    step_grads = torch.zeros_like(path.steps)
    row_grads = column_grad.new_zeros(len(column_grad), iters, rows_of_all)
    wants_start = balance.start is not None
    if shards is not None and (iters or wants_start):
        column_grad = shards.sum(column_grad)
    for t in reversed(range(iters)):
        omega, step = path.omegas[:, t, None], path.steps[:, t]
        residual = lam * step - path.columns[t]
        grads.lam.add_((column_grad * omega * step).sum(-1))
        grads.omega.add_((column_grad * path.running[:, t, None] * residual).sum(-1))
        step_grads[:, t] = omega * lam * column_grad
        column_grad = (1 - omega) * column_grad
        from_rows = torch.zeros_like(column_grad)
        for replay in replays:
            some = replay.part.batch
            if t >= replay.iters:
                continue
            for rows, scores in replay.part.tiles():
                by_column = replay.columns_to_one(t, rows, scores)
                row_grad = -(by_column @ step_grads[some, t, :, None])
                row_grads[some, t, rows] = row_grad.squeeze(-1)
                rows_to_one = row_softmax(scores + path.columns[t][some, None, :])
                from_rows[some] += (rows_to_one.mT @ row_grad).squeeze(-1)
        # before the first iteration only a start asks for it
        if shards is not None and (t or wants_start):
            from_rows = shards.sum(from_rows)
        column_grad = column_grad - from_rows
    grads.log_mass.add_(step_grads.sum(1))
    if balance.log_row_mass is not None:
        # it is added to f before the column step, and nowhere else
        grads.log_row_mass.add_(row_grads.sum(1))
    if wants_start:
        grads.start.add_(column_grad)
    return step_grads, row_grads


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
