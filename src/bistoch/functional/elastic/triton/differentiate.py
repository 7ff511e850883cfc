"""The exact gradient of the iterations that ran, by the kernels of this folder (docs/gradient.md).

Two launches for each iteration, or one in the fused form, and four to seven for all the rest;
nothing waits for the host.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bistoch.functional.elastic.operator import Gradients, History, Upstream
from bistoch.functional.elastic.triton.blocks import blocks_of, strip_of
from bistoch.functional.elastic.triton.dots import row_dots
from bistoch.functional.elastic.triton.fused import go_back_fused
from bistoch.functional.elastic.triton.launch import pairs_of
from bistoch.functional.elastic.triton.tokens import (
    bias_grad_kernel,
    token_grad_kernel,
    value_grad_kernel,
)
from bistoch.functional.elastic.triton.vectors import (
    column_grad_kernel,
    row_grad_kernel,
)
from bistoch.functional.kernels.gpu import chunk, launch, no_finer, products_of, width
from bistoch.functional.problem import GivenScores, Problem, Solution

# the largest logarithm of a factor of the rank-2T form; a plan that underflows then hides no more
# than exp(2 * 20 - 87)
FACTOR_LIMIT = 20.0
# the largest potential beside which the rounding of a score, which the factors do not share, is
# small: 4e-6 of an entry of the plan
SCORE_LIMIT = 64.0
# columns of the rank-2T form that are multiplied at a time, as few as matrix units take
RANK = 16


def backward(
    problem: Problem,
    value: Tensor,
    solution: Solution,
    history: History,
    upstream: Upstream,
    grads: Gradients,
) -> None:
    """Add the gradients of a solved problem."""
    replay = _Replay.new(problem, value, solution, history, upstream)
    column_grads = replay.column_grads(grads.value)
    row_grads = replay.iterate(column_grads)
    _options(replay, column_grads, row_grads, grads)
    _tokens(replay, column_grads, row_grads, grads)


class _Replay(NamedTuple):
    """A problem with what its forward left behind, as the kernels take it."""

    problem: Problem
    solution: Solution
    history: History
    upstream: Upstream
    common: dict[str, Any]
    values: dict[str, Any]  # the arguments of kernels that multiply with values
    delta: Tensor  # (B, n): what the softmax of a row takes off
    columns: Tensor  # (B, T + 1, m): column potentials before every iteration, and the last

    @classmethod
    def new(
        cls,
        problem: Problem,
        value: Tensor,
        solution: Solution,
        history: History,
        upstream: Upstream,
    ) -> "_Replay":
        features = value.shape[2]
        common = pairs_of(problem.scores).arguments()
        tokens = common["query"]
        values = {
            "value": no_finer(value, tokens), "output_grad": no_finer(upstream.output, tokens),
            "VALUES": features, "VALUE_WIDTH": width(features),
            "VALUE_CHUNK": chunk(features, value.dtype),
        }  # fmt: skip
        delta = row_dots(solution.output, common | values)
        if upstream.row is not None:
            delta = (delta + upstream.row).contiguous()
        columns = history.peak[:, history.omega.shape[1] :]
        return cls(problem, solution, history, upstream, common, values, delta, columns)

    @property
    def iters(self) -> int:
        return self.history.omega.shape[1]

    def column_grads(self, value_grad: Tensor) -> Tensor:
        """Room for dg before every iteration and after the last, `(B, T + 1, m)`; this is there."""
        size, _, m = self.problem.scores.shape
        found = self.columns.new_empty(self.columns.shape)
        above = self.upstream.column
        if above is not None:
            above = above.masked_fill(self.solution.column == -torch.inf, 0).contiguous()
        last, rest = self.history.row[:, -1].unbind(1)
        blocks = blocks_of("values", self.common | self.values)
        launch(
            value_grad_kernel, size * blocks.count(m), **self.common, **self.values,
            **blocks.arguments(), delta=self.delta, row=last, rest=rest,
            column=self.columns[:, -1], above=above, value_grad=value_grad,
            column_grad=found[:, -1], row_each=self.history.row.stride(0),
            column_each=self.columns.stride(0), vector_each=found.stride(0),
        )  # fmt: skip
        return found

    def iterate(self, column_grads: Tensor) -> Tensor:
        """Go back through the iterations: fill dg before each of them, return df, `(B, T, n)`."""
        (size, n, m), history = self.problem.scores.shape, self.history
        row_grads = self.delta.new_empty(size, self.iters, n)
        strip = strip_of(self.problem)
        if strip is not None and self.iters:
            go_back_fused(
                self.problem, strip, self.common, self.solution, history, column_grads, row_grads
            )
            return row_grads
        lam = self.problem.balance.lam.contiguous()
        blocks = blocks_of("vectors", self.common)
        for t in reversed(range(self.iters)):
            row, rest = history.row[:, t].unbind(1)
            shared = {
                **self.common, **blocks.arguments(), "t": t, "row": row,
                "column_grad": column_grads[:, t + 1], "row_grad": row_grads[:, t],
                "omega": history.omega[:, t], "iterations": self.solution.iterations,
                "row_each": history.row.stride(0), "vector_each": column_grads.stride(0),
                "omega_each": history.omega.stride(0), "grad_each": row_grads.stride(0),
            }  # fmt: skip
            launch(
                row_grad_kernel, size * blocks.count(n), **shared, peaks=history.peak[:, t],
                log_totals=history.log_total[:, t], lam=lam, peaks_each=history.peak.stride(0),
                log_totals_each=history.log_total.stride(0),
            )  # fmt: skip
            launch(
                column_grad_kernel, size * blocks.count(m), **shared, rest=rest,
                column=self.columns[:, t], earlier_grad=column_grads[:, t],
                column_each=self.columns.stride(0),
            )  # fmt: skip
        return row_grads

    def running(self) -> Tensor:
        """Which iterations were taken, `(B, T, 1)`."""
        counts = torch.arange(self.iters, device=self.delta.device)
        return (counts < self.solution.iterations[:, None])[..., None]

    def steps(self) -> Tensor:
        """The full column steps h, `(B, T, m)`, zero where nothing moved."""
        history, dead = self.history, (self.solution.column == -torch.inf)[:, None]
        steps = self.problem.balance.log_mass[:, None] - (self.peaks() + history.log_total)
        return torch.where(self.running() & ~dead, steps, 0)

    def peaks(self) -> Tensor:
        """The peaks of the column totals, `(B, T, m)`."""
        return self.history.peak[:, : self.iters]

    def omegas(self) -> Tensor:
        """The steps that were taken, `(B, T, 1)`; zero once a problem had stopped."""
        return torch.where(self.running(), self.history.omega[..., None], 0)


def _options(replay: _Replay, column_grads: Tensor, row_grads: Tensor, grads: Gradients) -> None:
    """Gradients of all that is one number or vector for each problem."""
    balance, steps, omegas = replay.problem.balance, replay.steps(), replay.omegas()
    lam, arriving = balance.lam[:, None, None], column_grads[:, 1:]
    dead = (replay.solution.column == -torch.inf)[:, None]
    residual = torch.where(replay.running() & ~dead, lam * steps - replay.columns[:, :-1], 0)
    grads.lam.add_((arriving * omegas * steps).sum((1, 2)))
    grads.omega.add_((arriving * residual).sum((1, 2)))
    grads.log_mass.add_((omegas * lam * arriving).masked_fill(dead, 0).sum(1))
    if balance.log_row_mass is not None:
        # it is added to f before the column step, and nowhere else
        grads.log_row_mass.add_(row_grads.sum(1))
    if balance.start is not None:
        grads.start.add_(column_grads[:, 0])


class _Factors(NamedTuple):
    """The rank-2T form of what the iterations add to dS, and for which heads it does not do."""

    row: Tensor  # (B, n, 2T)
    column: Tensor  # (B, m, 2T)
    exact: Tensor  # (B,)


def _factors(replay: _Replay, step_grads: Tensor, row_grads: Tensor) -> _Factors:
    history, running = replay.history, replay.running()
    alive, seen = (x[:, None] != -torch.inf for x in (replay.solution.row, replay.solution.column))
    row, rest = history.row.unbind(2)
    # logarithms of what turns the plan P into C^t and R^t
    rows_to_c = row[:, :-1] - (row[:, -1:] - rest[:, -1:])
    rows_to_c = torch.where(running & alive, rows_to_c, 0)
    # peak and potential are close: their sum is exact
    columns_to_c = -(replay.peaks() + replay.columns[:, -1:]) - history.log_total
    columns_to_c = torch.where(running & seen, columns_to_c, 0)
    columns_to_r = torch.where(seen, replay.columns[:, :-1] - replay.columns[:, -1:], 0)
    # what rows gain and columns lose together is invisible, and may be large
    shift = rows_to_c.mean(-1, keepdim=True)
    rows_to_c = torch.where(running & alive, rows_to_c - shift, 0)
    rows_to_r = torch.where(running & alive, rows_to_c - rest[:, :-1], 0)
    columns_to_c, columns_to_r = (
        torch.where(running & seen, x + shift, 0) for x in (columns_to_c, columns_to_r)
    )
    logs = (rows_to_c, rows_to_r, columns_to_c, columns_to_r)
    worst = torch.stack([x.abs().amax((1, 2)) for x in logs]).amax(0)
    potentials = torch.where(alive, row[:, -1:], 0), torch.where(seen, replay.columns[:, -1:], 0)
    largest = torch.stack([x.abs().amax((1, 2)) for x in potentials]).amax(0)
    exact = (worst > FACTOR_LIMIT) | (largest > SCORE_LIMIT)
    on_rows, on_columns = running & alive, running & seen
    left = torch.where(on_rows, rows_to_c.exp(), 0), row_grads * rows_to_r.exp()
    right = step_grads * columns_to_c.exp(), torch.where(on_columns, columns_to_r.exp(), 0)
    row_factor, column_factor = (torch.cat(x, 1).mT.contiguous() for x in (left, right))
    return _Factors(row_factor, column_factor, exact.to(torch.int32))


def _tokens(replay: _Replay, column_grads: Tensor, row_grads: Tensor, grads: Gradients) -> None:
    """Gradients of all that scores were made of, in passes over their tiles."""
    scores, iters = replay.problem.scores, replay.iters
    size, n, m = scores.shape
    lam, like = replay.problem.balance.lam[:, None, None], replay.delta
    step_grads = (replay.omegas() * lam * column_grads[:, 1:]).contiguous()
    factors = _Factors(like, like, torch.zeros(size, dtype=torch.int32, device=like.device))
    if iters:
        factors = _factors(replay, step_grads, row_grads)
    shared = replay.common | replay.values | {
        "delta": replay.delta, "rows": replay.history.row, "columns": replay.columns,
        "row_factor": factors.row,
        "column_factor": factors.column, "exact": factors.exact, "peaks": replay.history.peak,
        "log_totals": replay.history.log_total, "step_grad": step_grads, "row_grad": row_grads,
        "iterations": replay.solution.iterations, "T": iters,
        "kept_each": replay.history.peak.stride(0), "RANK": RANK,
        "FACTOR_PRECISION": products_of(like),
    }  # fmt: skip
    # without iterations every head is done by the first launch
    forms = (True, False) if iters else (True,)
    if not isinstance(scores, GivenScores) and scores.query.shape[2]:
        from_key, from_query = (like.new_empty(x.shape) for x in (scores.query, scores.key))
        blocks = blocks_of("tokens", shared)
        for factored in forms:
            for rows, grad, length in ((True, from_key, n), (False, from_query, m)):
                launch(
                    token_grad_kernel, size * blocks.count(length), **shared,
                    **blocks.arguments(), grad=grad, ROWS=rows, FACTORED=factored,
                )  # fmt: skip
        sharpness = scores.sharpness[:, None, None]
        grads.query.add_(from_key * sharpness)
        grads.key.add_(from_query * sharpness)
        grads.sharpness.add_((scores.query * from_key).sum((-2, -1)))
    if grads.bias.numel():
        _bias(replay, shared, forms, grads.bias)


def _bias(replay: _Replay, shared: dict[str, Any], forms: tuple[bool, ...], grad: Tensor) -> None:
    count, rows, columns = grad.shape
    scores, device = replay.problem.scores, grad.device
    index = None if isinstance(scores, GivenScores) else scores.mask_index
    if index is None:
        index = torch.arange(count, device=device)
    # the heads of every mask, one mask after the other
    heads = index.argsort(stable=True)
    bounds = torch.arange(count + 1, device=device)
    first_heads = torch.searchsorted(index[heads], bounds)
    blocks = blocks_of("bias", shared)
    _, n, m = scores.shape
    tiles = (1 if rows == 1 else blocks.count(n)) * (1 if columns == 1 else -(-m // blocks.y))
    arguments = {name: field for name, field in shared.items() if name != "mask_index"}
    for factored in forms:
        launch(
            bias_grad_kernel, count * tiles, **arguments, **blocks.arguments(), heads=heads,
            first_heads=first_heads, grad=grad, grad_rows=rows, grad_columns=columns,
            FACTORED=factored,
        )  # fmt: skip
