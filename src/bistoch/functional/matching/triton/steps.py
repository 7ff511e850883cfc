"""The passes of matching with prices as torch operators, which compilers do not look into."""

import torch
from torch import Tensor

from bistoch.functional.kernels.gpu import (
    ALL_REGISTERS,
    launch,
    register_options,
    triton_module,
)

# rows, or columns, that a program owns, and those of a step of its walk
OWNED, WALKED = 16, 128


def _flat(scores: Tensor) -> tuple[Tensor, dict[str, int]]:
    """Scores with one leading axis, and where their entries are."""
    flat = scores.reshape(-1, *scores.shape[-2:])
    each, along_x, along_y = flat.stride()
    return flat, {"each": each, "along_x": along_x, "along_y": along_y}


def _programs(flat: Tensor) -> int:
    return len(flat) * -(-flat.shape[1] // OWNED)


@torch.library.custom_op("bistoch::slack_step", mutates_args=())
def slack_step(scores: Tensor, potential: Tensor, slack: Tensor) -> Tensor:
    """As `iterations.step`."""
    flat, strides = _flat(scores)
    found = torch.empty_like(slack, memory_format=torch.contiguous_format)
    launch(
        triton_module("matching.triton.kernels").slack_step_kernel, _programs(flat), scores=flat,
        potential=potential.contiguous(), slack=slack.contiguous(), found=found, X=flat.shape[1],
        Y=flat.shape[2], **strides, BLOCK_X=OWNED, BLOCK_Y=WALKED, num_warps=4,
    )  # fmt: skip
    return found


@torch.library.custom_op("bistoch::slack_product", mutates_args=())
def slack_product(
    scores: Tensor, row: Tensor, column: Tensor, weights: Tensor, rows: bool
) -> Tensor:
    """`-A weights` if `rows`, else `-A^T weights`, with `A = exp(S + f + g)`."""
    flat, strides = _flat(scores if rows else scores.mT)
    like = row if rows else column
    found = torch.empty_like(like, memory_format=torch.contiguous_format)
    launch(
        triton_module("matching.triton.kernels").slack_product_kernel, _programs(flat), scores=flat,
        row=row.contiguous(), column=column.contiguous(), weights=weights.contiguous(),
        found=found, X=flat.shape[1], Y=flat.shape[2], **strides, ROWS=rows, BLOCK_X=OWNED,
        BLOCK_Y=WALKED, num_warps=4,
    )  # fmt: skip
    return found


@torch.library.custom_op("bistoch::slack_grad", mutates_args=())
def slack_grad(
    scores: Tensor, rows: Tensor, columns: Tensor, row_grads: Tensor, column_grads: Tensor
) -> Tensor:
    """The gradient of the scores, from the potentials of all iterations `(*b, T, n)` and theirs."""
    flat, strides = _flat(scores)
    (size, n, m), iters = flat.shape, rows.shape[-2]
    found = torch.empty_like(scores, memory_format=torch.contiguous_format)
    launch(
        triton_module("matching.triton.kernels").slack_grad_kernel,
        size * -(-n // OWNED) * -(-m // WALKED), scores=flat, rows=rows.contiguous(),
        columns=columns.contiguous(), row_grads=row_grads.contiguous(),
        column_grads=column_grads.contiguous(), grad=found, n=n, m=m, T=iters,
        each=strides["each"], along_row=strides["along_x"], along_column=strides["along_y"],
        BLOCK_X=OWNED, BLOCK_Y=WALKED, num_warps=4, **register_options(ALL_REGISTERS, 4),
    )  # fmt: skip
    return found


@slack_step.register_fake
def _(scores, potential, slack):
    return torch.empty_like(slack, memory_format=torch.contiguous_format)


@slack_product.register_fake
def _(scores, row, column, weights, rows):
    return torch.empty_like(row if rows else column, memory_format=torch.contiguous_format)


@slack_grad.register_fake
def _(scores, rows, columns, row_grads, column_grads):
    return torch.empty_like(scores, memory_format=torch.contiguous_format)
