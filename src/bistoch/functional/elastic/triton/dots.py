# mypy: ignore-errors
"""`<dO_i, O_i>`: what the softmax of a row takes off, `sum_j P_ij dP_ij`, with `dP = dO V^T`.

A row that sees one key has its value as its result, and dP minus this is zero. It has to be zero in
floats too, since keys that it is multiplied with may be large, so the sum over features is taken as
`multiply` takes that of dP, as an entry of a product of tiles, and not in an order of its own.

O is float32 beside half precision tokens too, and is not rounded to fewer bits: what is lost of it
would be the whole of a small difference.
"""

from typing import Any

import triton.language as tl
from torch import Tensor

from bistoch.functional.elastic.triton.scores import multiply, own_tokens
from bistoch.functional.kernels.gpu import launch, products_of
from bistoch.functional.kernels.jit import kernel

# rows of a tile: as few as matrix units take, since only the diagonal of the product is wanted
ROWS = 16


@kernel
def row_dots_kernel(
    output_grad, output, dots, rows,
    VALUES: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_CHUNK: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The diagonal of `dO O^T` of a tile of the rows of all heads."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    at, left = tl.arange(0, BLOCK), tl.minimum(rows - first, BLOCK).to(tl.int32)
    kind: tl.constexpr = dots.dtype.element_ty
    output_grad, output = output_grad + first * VALUES, output + first * VALUES
    arriving = own_tokens(output_grad, at, left, VALUES, VALUE_WIDTH, VALUE_CHUNK)
    product = multiply(
        arriving, output, at, at, left, left, kind, VALUES, VALUE_WIDTH, VALUE_CHUNK, kind,
        PRECISION,
    )  # fmt: skip
    found = tl.sum(tl.where(at[:, None] == at[None, :], product, 0.0), 1)
    tl.store(dots + first + at, found, mask=at < left)


def row_dots(output: Tensor, arguments: dict[str, Any]) -> Tensor:
    """`<dO, O>` of all rows, `(B, n)`; with the tiles of values that other kernels are given."""
    size, n, features = output.shape
    if features == 0:
        return output.new_zeros(size, n)
    found = output.new_empty(size, n)
    names = ("output_grad", "VALUES", "VALUE_WIDTH", "VALUE_CHUNK")
    launch(
        row_dots_kernel, -(-size * n // ROWS), **{name: arguments[name] for name in names},
        output=output.contiguous(), dots=found, rows=size * n,
        PRECISION=products_of(output), BLOCK=ROWS, num_warps=1,
        num_stages=1,
    )  # fmt: skip
    return found
