"""Launches of the fused form: one an iteration, forward and backward, and one at the end."""

from typing import Any

from torch import Tensor

from bistoch.functional.elastic.operator import History
from bistoch.functional.elastic.triton.blocks import Strip
from bistoch.functional.elastic.triton.rooms import Run
from bistoch.functional.elastic.triton.strips import (
    join_grad_kernel,
    join_kernel,
    strip_grad_kernel,
    strip_kernel,
)
from bistoch.functional.kernels.gpu import launch
from bistoch.functional.problem import Problem, Solution

KEPT = ("kept_peaks", "kept_totals")


def iterate_fused(run: Run, strip: Strip) -> None:
    """All iterations of a forward; a column step waits for the row step that needs it.

    With a tolerance every column step is a launch, since its residual decides who goes on.
    """
    (size, _, m), iters = run.problem.scores.shape, run.problem.balance.iters
    # what one launch reads, another one writes at the same time
    places = run.lam.new_empty(2, 2, size, strip.parts, m)
    shared = {"parts": strip.parts, "m": m}
    for t in range(iters):
        (row, rest), (peaks, totals), earlier = run.room.row(t), places[t % 2], places[1 - t % 2]
        join = t > 0 and run.watch is None
        step = run.column_step(t - 1 if join else t, KEPT)
        launch(
            strip_kernel, size * strip.parts, **run.common, **strip.arguments(), **step, row=row,
            rest=rest, log_row_mass=run.weights, running=run.running, peaks=peaks, totals=totals,
            earlier_peaks=earlier[0], earlier_totals=earlier[1], parts=strip.parts,
            row_each=row.stride(0), JOIN=join,
        )  # fmt: skip
        if run.watch is not None or t == iters - 1:
            launch(
                join_kernel, size, **run.column_step(t, KEPT), **shared, peaks=peaks, totals=totals,
                running=run.running, MOVE=run.watch is None, BLOCK=strip.blocks.y,
            )  # fmt: skip
        run.decide(t)


def go_back_fused(
    problem: Problem,
    strip: Strip,
    common: dict[str, Any],
    solution: Solution,
    history: History,
    column_grads: Tensor,
    row_grads: Tensor,
) -> None:
    """Back through all iterations: fill dg before each of them, and df."""
    (size, _, m), iters = problem.scores.shape, history.omega.shape[1]
    columns, lam = history.peak[:, iters:], problem.balance.lam.contiguous()
    places = lam.new_empty(2, size, strip.parts, m)
    shared = {
        "iterations": solution.iterations, "parts": strip.parts, "m": m,
        "vector_each": column_grads.stride(0), "omega_each": history.omega.stride(0),
    }  # fmt: skip
    for t in reversed(range(iters)):
        row, rest = history.row[:, t].unbind(1)
        # of the iteration that was gone back before this one
        after = min(t + 1, iters - 1)
        launch(
            strip_grad_kernel, size * strip.parts, **common | shared, **strip.arguments(), t=t,
            row=row, rest=rest, column=columns[:, t], peaks=history.peak[:, t],
            log_totals=history.log_total[:, t], column_grad=column_grads[:, t + 1],
            later_grad=column_grads[:, after + 1], lam=lam, omega=history.omega[:, t],
            later_omega=history.omega[:, after], row_grad=row_grads[:, t], sums=places[t % 2],
            later_sums=places[1 - t % 2], row_each=history.row.stride(0),
            column_each=columns.stride(0), peaks_each=history.peak.stride(0),
            log_totals_each=history.log_total.stride(0), grad_each=row_grads.stride(0),
            JOIN=t < iters - 1,
        )  # fmt: skip
    launch(
        join_grad_kernel, size, **shared, sums=places[0], column_grad=column_grads[:, 1],
        omega=history.omega[:, 0], earlier_grad=column_grads[:, 0], t=0, BLOCK=strip.blocks.y,
    )  # fmt: skip
