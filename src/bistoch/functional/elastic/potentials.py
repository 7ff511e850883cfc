"""What is found of a plan besides the plan: its potentials, and how well it is balanced."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bistoch.functional._masks import read_bias
from bistoch.functional.inputs import Mask
from bistoch.functional.problem import Solution

# the column error below which a run without a tolerance of its own is called converged
CONVERGED = 1e-3


class Potentials(NamedTuple):
    """The log factors of a plan, `P = exp(S + row + column)`, and how well it is balanced.

    A query without any key to see has row potential minus infinity, a key that no query may see
    has column potential minus infinity; all others are finite. `column` is the per-key bias that
    turns `scaled_dot_product_attention` into this operator. `error` bounds the largest relative
    column error at `lam = 1`, and measures the distance from the fixed point for any `lam`.
    `converged` says that it is at most `tol` (1e-3 when no `tol` was given).
    """

    row: Float[Tensor, "*b n"]
    column: Float[Tensor, "*b m"]
    iterations: Int[Tensor, "*b"]
    error: Float[Tensor, "*b"]
    converged: Bool[Tensor, "*b"]


def as_potentials(
    found: Solution, tol: float | None, batch: torch.Size, mask: Mask | None
) -> Potentials:
    """The potentials of a solution, with the leading axes of the call."""
    row = found.row.reshape(*batch, found.row.shape[-1])
    if mask is not None and mask.dtype != torch.bool:
        # the problem was posed without what all biases of a row have in common, if that is much
        row = row - read_bias(mask, row.dtype).level.squeeze(-1)
    tol = CONVERGED if tol is None else tol
    return Potentials(
        row=row,
        column=found.column.reshape(*batch, found.column.shape[-1]),
        iterations=found.iterations.reshape(batch),
        error=found.error.reshape(batch),
        converged=(found.error <= tol).reshape(batch),
    )
