"""The elastic operator on GPUs: Triton kernels, forward and exact backward, without n x m memory.

The long form: every pass makes the tiles of scores anew. An iteration is two launches, or three if
a tolerance watches it; nothing waits for the host. If all keys of a head fit one tile, its
iterations are those of `fused.py`.
"""

from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from bistoch.functional.elastic.operator import History
from bistoch.functional.elastic.triton.blocks import blocks_of, strip_of
from bistoch.functional.elastic.triton.decide import error_kernel
from bistoch.functional.elastic.triton.fused import iterate_fused
from bistoch.functional.elastic.triton.output import output_kernel
from bistoch.functional.elastic.triton.rooms import VECTOR, Run
from bistoch.functional.elastic.triton.scores import BIAS, BOOLEAN, NONE
from bistoch.functional.elastic.triton.steps import column_step_kernel, row_step_kernel
from bistoch.functional.kernels.gpu import (
    chunk,
    dense,
    is_interpreted,
    launch,
    no_finer,
    products_of,
    width,
)
from bistoch.functional.problem import GivenScores, Problem, Scores, Solution


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
    features, sharpness = 0, like.new_ones(len(like))
    query = key = sharpness
    if isinstance(scores, GivenScores):
        mask = scores.given
    else:
        query, key = dense(scores.query), dense(scores.key)
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
    return {"DOT": kinds[tokens.dtype], "PRECISION": products_of(tokens)}


def forward(problem: Problem, value: Tensor, solution: Solution, history: History | None) -> None:
    """Fill a solution, and the history if there is one."""
    scores, balance = problem
    size, n, m = scores.shape
    common, like = pairs_of(scores).arguments(), scores.like
    run = Run.new(problem, common, solution, history)
    room, watch, strip = run.room, run.watch, strip_of(problem)
    if strip is None:
        _iterate(run)
    else:
        iterate_fused(run, strip)
    column = room.column(balance.iters)
    if watch is not None:
        column.copy_(watch.column)
    row, rest = room.row(balance.iters)
    wide = blocks_of("output", common | {"VALUES": value.shape[2]})
    values = no_finer(value, common["query"])
    launch(
        output_kernel, size * wide.count(n), **common, **wide.arguments(), value=values,
        column=column, log_row_mass=run.weights, output=solution.output, row=solution.row,
        weighed=row, rest=rest, row_each=row.stride(0), column_each=column.stride(0),
        VALUES=value.shape[2], VALUE_WIDTH=width(value.shape[2]),
    )  # fmt: skip
    solution.column.copy_(column)
    if value.shape[2] == 0 or watch is not None or balance.start is not None:
        # one more column step: how far columns are from balance, and which nobody sees
        residual, blocks = like.new_empty(size, m), blocks_of("steps", common)
        launch(
            column_step_kernel, size * blocks.count(m), **common, **blocks.arguments(), row=row,
            column=column, log_mass=run.log_mass, lam=run.lam, omega=run.omega, running=None,
            peaks=None, log_totals=None, moved=residual, row_each=row.stride(0),
            column_each=column.stride(0), moved_each=m, peaks_each=0, log_totals_each=0, MOVE=False,
        )  # fmt: skip
        solution.column.masked_fill_(residual.isnan(), -torch.inf)
    else:
        # nobody asked for more than what the last iteration knew
        residual = (column - room.column(max(balance.iters - 1, 0))) / run.omega[:, None]
        residual.masked_fill_(column == -torch.inf, torch.nan)
    launch(error_kernel, size, residual=residual, error=solution.error, m=m, BLOCK=VECTOR)


def _iterate(run: Run) -> None:
    """A row step and a column step at a time, of heads of any length."""
    (size, n, m), blocks = run.problem.scores.shape, blocks_of("steps", run.common)
    for t in range(run.problem.balance.iters):
        (row, rest), step = run.room.row(t), run.column_step(t, ("peaks", "log_totals"))
        launch(
            row_step_kernel, size * blocks.count(n), **run.common, **blocks.arguments(),
            column=step["column"], log_row_mass=run.weights, running=run.running, row=row,
            rest=rest, row_each=row.stride(0), column_each=step["column_each"],
        )  # fmt: skip
        launch(
            column_step_kernel, size * blocks.count(m), **run.common, **blocks.arguments(), **step,
            row=row, running=run.running, row_each=row.stride(0), MOVE=run.watch is None,
        )  # fmt: skip
        run.decide(t)
