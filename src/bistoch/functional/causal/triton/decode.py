"""Steps of decoding by the kernels of this folder: three launches for every piece of a step.

Long sequences of few heads go the same way if there is no gradient: where a program for each head
would leave most of a GPU idle, keys are split over programs.
"""

from typing import Any

import torch
from torch import Tensor

from bistoch.functional.causal.problem import cut
from bistoch.functional.causal.triton.blocks import VECTOR, blocks_of
from bistoch.functional.causal.triton.launch import least, pairs_of
from bistoch.functional.causal.triton.operator import Inputs
from bistoch.functional.causal.triton.step import (
    step_close_kernel,
    step_keys_kernel,
    step_rows_kernel,
)
from bistoch.functional.elastic.triton.launch import _bytes
from bistoch.functional.kernels.gpu import dense, launch, power_of_two, width

# programs that keep a GPU busy, and parts of the keys, at most
BUSY = 256
PARTS = 64


def step(
    inputs: Inputs, real: Tensor | None, ends: Tensor | None, first: int, last: int, block: int,
    account: tuple[Tensor, ...], output: Tensor, new: tuple[Tensor, ...],
) -> None:  # fmt: skip
    """Fill the rows of a piece and the account after it: bias, received, wanted and level."""
    (size, n, _), m, work = inputs.query.shape, inputs.key.shape[1], inputs.sharpness
    bias, received, wanted, level = (column.contiguous() for column in account)
    new_bias, new_received, new_wanted, new_level = new
    new_level.copy_(level)
    rows, stop, features = last - first, m - n + last, inputs.value.shape[2]
    if not size * m:
        return
    common = pairs_of(inputs, 1.0, block).arguments() | {
        "m": m, "first": first, "last": last, "VALUES": features, "VALUE_WIDTH": width(features),
        "real": None if real is None else _bytes(real.contiguous()),
    }  # fmt: skip
    blocks = blocks_of("step", common)
    for name in ("lam", "prior", "lengths", "block"):
        del common[name]
    splits = _splits(size * blocks.count(rows), stop, blocks.y)
    part = -(-stop // (splits * blocks.y)) * blocks.y
    partial: dict[str, Any] = {
        name: work.new_empty(size, splits, rows) for name in ("peaks", "totals", "counts")
    }
    partial["results"] = work.new_empty(size, splits, rows, features)
    launch(
        step_rows_kernel, size * blocks.count(rows) * splits, **common, **blocks.arguments(),
        **partial, value=dense(inputs.value), bias=bias, part=part, splits=splits,
    )  # fmt: skip
    launch(
        step_keys_kernel, size * (-(-m // blocks.y) + blocks.count(rows)), **common,
        **blocks.arguments(), **partial, bias=bias, received=received, wanted=wanted,
        found_rows=output, output_each=output.stride(0), new_bias=new_bias,
        new_received=new_received, new_wanted=new_wanted, splits=splits,
        SPLITS=max(2, power_of_two(splits)), LEAST=least(work.dtype),
    )  # fmt: skip
    if ends is not None:
        launch(
            step_close_kernel, size, real=common["real"], lam=inputs.lam.contiguous(),
            ends=_bytes(ends.contiguous()), bias=new_bias, received=new_received,
            wanted=new_wanted, level=new_level, m=m, stop=stop, block=block, VECTOR=VECTOR,
            num_warps=4,
        )  # fmt: skip


def attend(inputs: Inputs, prior: float, block: int, output: Tensor) -> None:
    """Fill the rows of a whole sequence, block by block."""
    (size, n, _), work = inputs.query.shape, inputs.sharpness
    wanted = work.new_full((size, n), prior)
    account: tuple[Tensor, ...] = (
        torch.zeros_like(wanted), wanted.log(), wanted, work.new_zeros(size),
    )  # fmt: skip
    other = tuple(torch.empty_like(column) for column in account)
    ends = torch.ones(size, dtype=torch.bool, device=work.device)
    real = None
    if inputs.length is not None:
        real = torch.arange(n, device=work.device) < inputs.length[:, None]
    for first, last, closes in cut(n, block):
        # all tokens are new here: keys behind the last row are to come
        step(
            inputs, real, ends if closes else None, first, last, block, account,
            output[:, first:last], other,
        )  # fmt: skip
        account, other = other, account


def _splits(programs: int, keys: int, tile: int) -> int:
    """Over how many programs the keys of a row are split; each has four tiles at least.

    >>> _splits(8, 65536, 64), _splits(512, 65536, 64), _splits(1, 100, 64)
    (32, 1, 1)
    """
    return max(1, min(PARTS, BUSY // max(programs, 1), keys // (4 * tile)))
