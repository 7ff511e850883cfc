"""The iterations of free slack with their exact gradient, in memory that does not grow by n x m.

The forward keeps the potentials of every iteration, O(iters (n + m)). Of a column step, with
A = exp(S + f + g), and likewise of a row step,

    dS -= A diag(dg),     df = -A dg,     dw -= e^(w + g) dg

An iteration in logarithms takes an exponential of every pair for each step. While potentials stay
near those of an earlier iteration, its matrix serves instead: `K = exp(S + f0 + g0)` is made once,
and a step is the product of K with a vector. What K loses to underflow is then nothing beside what
is summed. The gradient is that of the same products, with one of rank 2 iters for the scores.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from bistoch.functional.elastic.reference import logsumexp
from bistoch.functional.matching.triton.steps import slack_grad, slack_product, slack_step

# how far potentials may move from those of the matrix: a lost entry, below 1e-38, is at most
# e^(2 * 20) * 1e-38 = 2e-21 of its sum
NEAR = 20.0


class Slack(NamedTuple):
    """Scores, and the scores of staying single; minus infinity for what is forbidden."""

    scores: Float[Tensor, "*b n m"]
    row: Float[Tensor, "*b n"]
    column: Float[Tensor, "*b m"]


class Trace(NamedTuple):
    """All potentials, how many iterations each problem took, and near which each was made.

    `near` has, for every iteration, which of all iterations its matrix is of, or -1 if it was
    made in logarithms; row potential t is between column potentials t and t + 1.
    """

    columns: list[Float[Tensor, "*b m"]]
    rows: list[Float[Tensor, "*b n"]]
    near: list[int]
    iterations: Int[Tensor, "*b"]


def step(
    scores: Float[Tensor, "*b n m"], column: Float[Tensor, "*b m"], slack: Float[Tensor, "*b n"]
) -> Float[Tensor, "*b n"]:
    """The row step, and with transposed scores the column step; zero where nothing is allowed."""
    total = logsumexp(scores + column[..., None, :], -1)
    total = logsumexp(torch.stack([total, slack], -1), -1)
    return torch.where(total == -torch.inf, 0, -total)


def iterate(
    slack: Slack,
    start: Float[Tensor, "*b m"],
    iters: int,
    tol: float | None,
    *,
    by_products: bool,
    take: Callable[[Tensor, Tensor, Tensor], Tensor] = step,
) -> Trace:
    """Row and column steps; with a tolerance every problem keeps the potentials it stopped at.

    `take` computes a step, as `step` does.
    """
    scores = slack.scores
    columns, rows, near = [start], [], []
    running = torch.ones(scores.shape[:-2], dtype=torch.bool, device=scores.device)
    iterations = torch.zeros_like(running, dtype=torch.int64)
    matrix, at = None, -1
    for t in range(iters):
        found = None if matrix is None else matrix.steps(columns[-1], slack)
        near.append(-1 if found is None else at)
        if found is None:
            matrix = None
            row = take(scores, columns[-1], slack.row)
            found = row, take(scores.mT, row, slack.column)
        row, column = found
        if tol is not None and column.shape[-1]:
            # a NaN is no reason to stop: it must reach all rows
            running = running & ~((column - columns[-1]).detach().abs().amax(-1) <= tol)
            if not torch.compiler.is_compiling() and not bool(running.any()):
                break
            column = torch.where(running[..., None], column, columns[-1])
        rows.append(row)
        columns.append(column)
        iterations = iterations + running
        if by_products and matrix is None and t + 1 < iters:
            matrix, at = _Near.of(slack, row, column), t
    return Trace(columns, rows, near[: len(rows)], iterations)


class _Near(NamedTuple):
    """What is made once for all steps whose potentials are near to these."""

    row: Float[Tensor, "*b n"]
    column: Float[Tensor, "*b m"]
    matrix: Float[Tensor, "*b n m"]
    # rows and columns that may neither match nor stay single
    dead_row: Bool[Tensor, "*b n"]
    dead_column: Bool[Tensor, "*b m"]

    @classmethod
    def of(cls, slack: Slack, row: Tensor, column: Tensor) -> "_Near":
        matrix = _matrix(slack.scores, row, column)
        forbidden = slack.scores == -torch.inf
        dead_row = forbidden.all(-1) & (slack.row == -torch.inf)
        dead_column = forbidden.all(-2) & (slack.column == -torch.inf)
        return cls(row, column, matrix, dead_row, dead_column)

    def steps(self, column: Tensor, slack: Slack) -> tuple[Tensor, Tensor] | None:
        """A row and a column step by products, or None if that leads too far away."""
        total = _product((column - self.column).exp(), self.matrix.mT)
        row = -torch.logaddexp(total.log() - self.row, slack.row)
        row = row.masked_fill(self.dead_row, 0)
        moved = (row - self.row).abs().amax().item() if row.numel() else 0.0
        # a NaN is not near
        if not moved <= NEAR:
            return None
        total = _product((row - self.row).exp(), self.matrix)
        column = -torch.logaddexp(total.log() - self.column, slack.column)
        column = column.masked_fill(self.dead_column, 0)
        moved = (column - self.column).abs().amax().item() if column.numel() else 0.0
        return (row, column) if moved <= NEAR else None


class Iterations(torch.autograd.Function):
    """The column potentials of `iterate`, differentiable."""

    @staticmethod
    def forward(ctx, scores, row_slack, column_slack, start, iters, tol, backend):
        """Iterate, and keep all potentials."""
        slack = Slack(scores, row_slack, column_slack)
        ctx.in_kernels = backend == "triton" and scores.numel() > 0
        take = slack_step if ctx.in_kernels else step
        trace = iterate(slack, start, iters, tol, by_products=backend == "cpu", take=take)
        ctx.near = trace.near
        ctx.save_for_backward(*slack, trace.iterations, *trace.columns, *trace.rows)
        # what was passed in is not what an operator may return
        return trace.columns[-1] if trace.rows else start.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, column_grad):
        """Go back through the iterations, those of one matrix together."""
        scores, row_slack, column_slack, iterations, *potentials = ctx.saved_tensors
        slack, near = Slack(scores, row_slack, column_slack), ctx.near
        columns, rows = potentials[: len(near) + 1], potentials[len(near) + 1 :]
        if ctx.in_kernels and near:
            return *_back_in_kernels(slack, iterations, columns, rows, column_grad), *(None,) * 3
        grads = Slack(*(torch.zeros_like(x) for x in slack))
        products = None
        for t in reversed(range(len(near))):
            # a problem that had stopped kept its potentials
            moved = (t < iterations)[..., None]
            step_grad = torch.where(moved, column_grad, 0)
            before, row, after = columns[t], rows[t], columns[t + 1]
            if near[t] >= 0 and products is None:
                products = _Products(slack.scores, rows[near[t]], columns[near[t] + 1])
            if near[t] >= 0:
                row_grad, column_before = products.back(before, row, after, step_grad)
            else:
                row_grad, column_before = _back(slack, grads, before, row, after, step_grad)
            grads.column.sub_((slack.column + after).exp() * step_grad)
            grads.row.sub_((slack.row + row).exp() * row_grad)
            column_grad = torch.where(moved, column_before, column_grad)
            if products is not None and (t == 0 or near[t - 1] != near[t]):
                products.add_to(grads.scores)
                products = None
        return *grads, column_grad, None, None, None


def _back(
    slack: Slack, grads: Slack, before: Tensor, row: Tensor, after: Tensor, step_grad: Tensor
) -> tuple[Tensor, Tensor]:
    """Through one iteration by its matrices: the gradients of its row step and of its start."""
    matrix = _matrix(slack.scores, row, after)
    row_grad = -_product(step_grad, matrix.mT)
    grads.scores.sub_(matrix.mul_(step_grad[..., None, :]))
    matrix = _matrix(slack.scores, row, before)
    column_grad = -_product(row_grad, matrix)
    grads.scores.sub_(matrix.mul_(row_grad[..., None]))
    return row_grad, column_grad


def _back_in_kernels(
    slack: Slack,
    iterations: Int[Tensor, "*b"],
    columns: Sequence[Tensor],
    rows: Sequence[Tensor],
    column_grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Through all iterations: gradients of scores and of both slacks, and that of the start."""
    row_grads: list[Tensor] = []
    step_grads: list[Tensor] = []
    from_row, from_column = torch.zeros_like(slack.row), torch.zeros_like(slack.column)
    for t in reversed(range(len(rows))):
        moved = (t < iterations)[..., None]
        step_grad = torch.where(moved, column_grad, 0)
        row, before, after = rows[t], columns[t], columns[t + 1]
        row_grad = slack_product(slack.scores, row, after, step_grad, True)
        column_before = slack_product(slack.scores, row, before, row_grad, False)
        from_column -= (slack.column + after).exp() * step_grad
        from_row -= (slack.row + row).exp() * row_grad
        column_grad = torch.where(moved, column_before, column_grad)
        row_grads.insert(0, row_grad)
        step_grads.insert(0, step_grad)
    all_rows, all_columns, of_rows, of_columns = (
        torch.stack(list(x), -2) for x in (rows, columns, row_grads, step_grads)
    )
    found = slack_grad(slack.scores, all_rows, all_columns, of_rows, of_columns)
    return found, from_row, from_column, column_grad


class _Products:
    """Back through iterations that share a matrix; for its scores, all of them at once."""

    def __init__(self, scores: Tensor, row: Tensor, column: Tensor) -> None:
        self.row, self.column = row, column
        self.matrix = _matrix(scores, row, column)
        self.left: list[Tensor] = []
        self.right: list[Tensor] = []

    def back(
        self, before: Tensor, row: Tensor, after: Tensor, step_grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `_back`, but for the gradient of the scores."""
        factor = (row - self.row).exp()
        first, last = (before - self.column).exp(), (after - self.column).exp()
        row_grad = -factor * _product(last * step_grad, self.matrix.mT)
        column_grad = -first * _product(factor * row_grad, self.matrix)
        self.left += [factor, factor * row_grad]
        self.right += [last * step_grad, first]
        return row_grad, column_grad

    def add_to(self, scores_grad: Tensor) -> None:
        """Subtract `K * (A B^T)`, the matrices of all these iterations."""
        left, right = torch.stack(self.left, -1), torch.stack(self.right, -1)
        scores_grad.sub_((left @ right.mT).mul_(self.matrix))


def _matrix(scores: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """`exp(S + f + g)`."""
    return (scores + row[..., None]).add_(column[..., None, :]).exp_()


def _product(vector: Float[Tensor, "*b n"], matrix: Float[Tensor, "*b n m"]) -> Tensor:
    """`vector^T matrix`: in this order torch reads the matrix once, at the speed of memory."""
    return (vector[..., None, :] @ matrix).squeeze(-2)
