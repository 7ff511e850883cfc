"""The elastic operator on GPUs: Triton kernels, forward and exact backward, without n x m memory.

The long form: every pass makes the tiles of scores anew. An iteration is two launches, or three if
a tolerance watches it; nothing waits for the host.
"""

from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from bistoch.functional.elastic.operator import History
from bistoch.functional.elastic.triton.blocks import blocks_of
from bistoch.functional.elastic.triton.decide import decide_kernel, error_kernel
from bistoch.functional.elastic.triton.output import output_kernel
from bistoch.functional.elastic.triton.scores import BIAS, BOOLEAN, NONE
from bistoch.functional.elastic.triton.steps import column_step_kernel, row_step_kernel
from bistoch.functional.kernels.gpu import chunk, is_interpreted, launch, products, width
from bistoch.functional.problem import GivenScores, Problem, Scores, Solution

# entries that one program of a kernel over vectors reads at a time
VECTOR = 1024


class Pairs(NamedTuple):
    """Scores as kernels take them: pointers, sizes, strides, and what they are compiled for."""

    tensors: dict[str, Any]
    sizes: dict[str, int]
    kinds: dict[str, Any]

    def arguments(self) -> dict[str, Any]:
        """All of them, by the names that kernels give them."""
        return self.tensors | self.sizes | self.kinds


def pairs_of(scores: Scores | GivenScores) -> Pairs:
    """What all kernels need to know of scores; given ones are a bias between no tokens."""
    like, (_, n, m) = scores.like, scores.shape
    mask = index = None
    query = key = like
    features, sharpness = 0, like.new_ones(len(like))
    if isinstance(scores, GivenScores):
        mask = scores.given
    else:
        query, key = scores.query.contiguous(), scores.key.contiguous()
        features, mask, index = query.shape[2], scores.mask, scores.mask_index
        sharpness = scores.sharpness.contiguous()
    strides: tuple[int, ...] = (0, 0, 0)
    kind = NONE
    if mask is not None:
        kind = BOOLEAN if mask.dtype == torch.bool else BIAS
        strides = tuple(0 if mask.shape[a] == 1 and a else mask.stride(a) for a in range(3))
    real = {"query_real": scores.query_mask, "key_real": scores.key_mask}
    tensors = {
        "query": query, "key": key, "mask": like if mask is None else _bytes(mask),
        "mask_index": None if index is None else index.contiguous(), "sharpness": sharpness,
        **{name: None if x is None else _bytes(x.contiguous()) for name, x in real.items()},
    }  # fmt: skip
    sizes = {
        "n": n, "m": m, "mask_each": strides[0], "mask_row": strides[1], "mask_column": strides[2],
    }  # fmt: skip
    kinds = {
        "FEATURES": features, "WIDTH": width(features), "CHUNK": chunk(features, query.dtype),
        "MASK": kind.value,
        **_arithmetic(query),
    }  # fmt: skip
    return Pairs(tensors, sizes, kinds)


def _bytes(mask: Tensor) -> Tensor:
    return mask.view(torch.uint8) if mask.dtype == torch.bool else mask


def _arithmetic(tokens: Tensor) -> dict[str, Any]:
    """The type in which tokens are multiplied, and how exactly everything is."""
    kinds = {
        torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32,
        torch.float64: tl.float64,
    }  # fmt: skip
    if is_interpreted():
        # the interpreter would multiply the bits of bfloat16 as integers
        kinds[torch.bfloat16] = tl.float32
    hip = torch.version.hip is not None
    return {"DOT": kinds[tokens.dtype], "PRECISION": products(tokens.dtype, hip)}


def forward(problem: Problem, value: Tensor, solution: Solution, history: History | None) -> None:
    """Fill a solution, and the history if there is one."""
    scores, balance = problem
    size, n, m = scores.shape
    common, like = pairs_of(scores).arguments(), scores.like
    room = _Room.new(problem, history)
    lam, log_mass = balance.lam.contiguous(), balance.log_mass.contiguous()
    weights = None if balance.log_row_mass is None else balance.log_row_mass.contiguous()
    omega = balance.first_omega().clone()
    watch = _Watch.new(problem, omega) if balance.tol is not None else None
    running = None if watch is None else watch.running
    solution.iterations.fill_(0 if watch is not None else balance.iters)
    if history is not None:
        history.omega.copy_(omega[:, None].expand_as(history.omega))
    blocks = blocks_of("steps", common)
    for t in range(balance.iters):
        row, rest = room.row(t)
        column, moved = room.column(t), room.column(t + 1)
        if watch is not None:
            column = watch.column
        launch(
            row_step_kernel, size * blocks.count(n), **common, **blocks.arguments(), column=column,
            log_row_mass=weights, running=running, row=row, rest=rest, row_each=row.stride(0),
            column_each=column.stride(0),
        )  # fmt: skip
        residual = moved if watch is None else watch.residual
        kept = (None, None) if history is None else (history.peak[:, t], history.log_total[:, t])
        launch(
            column_step_kernel, size * blocks.count(m), **common, **blocks.arguments(), row=row,
            column=column, log_mass=log_mass, lam=lam, omega=omega, running=running, peaks=kept[0],
            log_totals=kept[1], moved=residual, row_each=row.stride(0),
            column_each=column.stride(0), moved_each=residual.stride(0), MOVE=watch is None,
            peaks_each=0 if history is None else history.peak.stride(0),
            log_totals_each=0 if history is None else history.log_total.stride(0),
        )  # fmt: skip
        if watch is not None:
            launch(
                decide_kernel, size, residual=watch.residual, before=watch.before, row=row,
                column=column, lam=lam, omega=omega, smallest=watch.smallest, running=running,
                iterations=solution.iterations, tol=watch.tol, n=n, m=m, row_each=row.stride(0),
                omegas=None if history is None else history.omega[:, t],
                omegas_each=0 if history is None else history.omega.stride(0),
                columns=None if history is None else moved, columns_each=moved.stride(0),
                rounding=torch.finfo(like.dtype).eps, CHOOSE=balance.omega is None, FIRST=t == 0,
                BLOCK=VECTOR,
            )  # fmt: skip

    column = room.column(balance.iters)
    if watch is not None:
        column.copy_(watch.column)
    row, rest = room.row(balance.iters)
    wide = blocks_of("output", common | {"VALUES": value.shape[2]})
    launch(
        output_kernel, size * wide.count(n), **common, **wide.arguments(), value=value.contiguous(),
        column=column, log_row_mass=weights, output=solution.output, row=solution.row, weighed=row,
        rest=rest, row_each=row.stride(0), column_each=column.stride(0), VALUES=value.shape[2],
        VALUE_WIDTH=width(value.shape[2]),
    )  # fmt: skip
    solution.column.copy_(column)
    if value.shape[2] == 0 or watch is not None or balance.start is not None:
        # one more column step: how far columns are from balance, and which nobody sees
        residual = like.new_empty(size, m)
        launch(
            column_step_kernel, size * blocks.count(m), **common, **blocks.arguments(), row=row,
            column=column, log_mass=log_mass, lam=lam, omega=omega, running=None, peaks=None,
            log_totals=None, moved=residual, row_each=row.stride(0),
            column_each=column.stride(0), moved_each=m, peaks_each=0, log_totals_each=0, MOVE=False,
        )  # fmt: skip
        solution.column.masked_fill_(residual.isnan(), -torch.inf)
    else:
        # nobody asked for more than what the last iteration knew
        residual = (column - room.column(max(balance.iters - 1, 0))) / omega[:, None]
        residual.masked_fill_(column == -torch.inf, torch.nan)
    launch(error_kernel, size, residual=residual, error=solution.error, m=m, BLOCK=VECTOR)


class _Room(NamedTuple):
    """Where potentials go: into the history, or in turn into the same places."""

    rows: Tensor  # (B, T + 1 or 1, 2, n)
    columns: Tensor  # (B, T + 1 or 2, m)

    @classmethod
    def new(cls, problem: Problem, history: History | None) -> "_Room":
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


class _Watch(NamedTuple):
    """What a tolerance needs beside the iteration: residuals, and who goes on."""

    residual: Tensor
    before: Tensor
    column: Tensor
    smallest: Tensor
    running: Tensor
    tol: Tensor

    @classmethod
    def new(cls, problem: Problem, omega: Tensor) -> "_Watch":
        column = problem.balance.first_column().clone(memory_format=torch.contiguous_format)
        running = torch.ones(len(omega), dtype=torch.int32, device=omega.device)
        return cls(
            torch.empty_like(column), torch.empty_like(column), column, torch.empty_like(omega),
            running, omega.new_full((1,), problem.balance.tol or 0.0),
        )  # fmt: skip
