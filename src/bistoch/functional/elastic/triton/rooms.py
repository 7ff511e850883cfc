"""What a forward of the long and of the fused form holds in memory while it iterates."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bistoch.functional.elastic.operator import History
from bistoch.functional.elastic.triton.decide import decide_kernel
from bistoch.functional.kernels.gpu import launch
from bistoch.functional.problem import Problem, Solution

# entries that one program of a kernel over vectors reads at a time
VECTOR = 1024


class Room(NamedTuple):
    """Where potentials go: into the history, or in turn into the same places."""

    rows: Tensor  # (B, T + 1 or 1, 2, n)
    columns: Tensor  # (B, T + 1 or 2, m)

    @classmethod
    def new(cls, problem: Problem, history: History | None) -> "Room":
        """With the potentials before the first iteration."""
        (size, n, m), like = problem.scores.shape, problem.scores.like
        if history is not None:
            found = cls(history.row, history.peak[:, problem.balance.iters :])
        else:
            found = cls(like.new_empty(size, 1, 2, n), like.new_empty(size, 2, m))
        found.columns[:, 0].copy_(problem.balance.first_column())
        return found

    def row(self, t: int) -> tuple[Tensor, Tensor]:
        """The row potentials of iteration t, and what they lost to rounding."""
        potential, rest = self.rows[:, t % self.rows.shape[1]].unbind(1)
        return potential, rest

    def column(self, t: int) -> Tensor:
        """The column potentials before iteration t."""
        return self.columns[:, t % self.columns.shape[1]]


class Watch(NamedTuple):
    """What a tolerance needs beside the iteration: residuals, and who goes on."""

    residual: Tensor
    before: Tensor
    column: Tensor
    smallest: Tensor
    running: Tensor
    tol: Tensor

    @classmethod
    def new(cls, problem: Problem, omega: Tensor) -> "Watch":
        """With all problems going on."""
        column = problem.balance.first_column().clone(memory_format=torch.contiguous_format)
        running = torch.ones(len(omega), dtype=torch.int32, device=omega.device)
        return cls(
            torch.empty_like(column), torch.empty_like(column), column, torch.empty_like(omega),
            running, omega.new_full((1,), problem.balance.tol or 0.0),
        )  # fmt: skip


class Run(NamedTuple):
    """A forward under way: the problem as kernels take it, where its vectors are, what is kept."""

    problem: Problem
    common: dict[str, Any]
    room: Room
    watch: Watch | None
    omega: Tensor
    lam: Tensor
    log_mass: Tensor
    weights: Tensor | None
    history: History | None
    solution: Solution

    @classmethod
    def new(
        cls,
        problem: Problem,
        common: dict[str, Any],
        solution: Solution,
        history: History | None,
    ) -> "Run":
        """Before the first iteration."""
        balance = problem.balance
        omega = balance.first_omega().clone()
        watch = Watch.new(problem, omega) if balance.tol is not None else None
        solution.iterations.fill_(0 if watch is not None else balance.iters)
        if history is not None:
            history.omega.copy_(omega[:, None].expand_as(history.omega))
        weights = None if balance.log_row_mass is None else balance.log_row_mass.contiguous()
        return cls(
            problem, common, Room.new(problem, history), watch, omega, balance.lam.contiguous(),
            balance.log_mass.contiguous(), weights, history, solution,
        )  # fmt: skip

    @property
    def running(self) -> Tensor | None:
        """Which problems go on; None if all do."""
        return None if self.watch is None else self.watch.running

    def column_step(self, t: int, names: tuple[str, str]) -> dict[str, Any]:
        """The arguments of a column step of iteration t; peaks and totals are called differently.

        With a tolerance it stores residuals, of which `decide` will make potentials.
        """
        found = self.room.column(t + 1) if self.watch is None else self.watch.residual
        column = self.room.column(t) if self.watch is None else self.watch.column
        history = self.history
        peaks, totals = (None, None) if history is None else (history.peak, history.log_total)
        kept = {
            name: None if x is None else x[:, t]
            for name, x in zip(names, (peaks, totals), strict=True)
        }
        strides = {
            f"{name}_each": 0 if x is None else x.stride(0)
            for name, x in zip(names, (peaks, totals), strict=True)
        }
        return {
            "column": column, "column_each": column.stride(0), "log_mass": self.log_mass,
            "lam": self.lam, "omega": self.omega, "moved": found, "moved_each": found.stride(0),
            **kept, **strides,
        }  # fmt: skip

    def decide(self, t: int) -> None:
        """Stop those that are done after iteration t, and move the columns of the others."""
        if self.watch is None:
            return
        (size, n, m), balance, watch = self.problem.scores.shape, self.problem.balance, self.watch
        (row, _), history, moved = self.room.row(t), self.history, self.room.column(t + 1)
        launch(
            decide_kernel, size, residual=watch.residual, before=watch.before, row=row,
            column=watch.column, lam=self.lam, omega=self.omega, smallest=watch.smallest,
            running=watch.running, iterations=self.solution.iterations, tol=watch.tol, n=n, m=m,
            row_each=row.stride(0), omegas=None if history is None else history.omega[:, t],
            omegas_each=0 if history is None else history.omega.stride(0),
            columns=None if history is None else moved, columns_each=moved.stride(0),
            rounding=torch.finfo(row.dtype).eps, CHOOSE=balance.omega is None, FIRST=t == 0,
            BLOCK=VECTOR,
        )  # fmt: skip
