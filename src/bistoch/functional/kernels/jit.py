# mypy: ignore-errors
"""How kernels of Triton are compiled, and what all of them do to numbers; importing needs Triton.

Triton compiles a kernel again for every integer that is 1 or a multiple of 16, and for every
pointer that is aligned to 16 bytes. Here it may look at tokens and at the strides of masks only: a
kernel of a width, dtype and kind of mask is one kernel, whatever the sizes.
"""

import inspect
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

# matrices with features, or results in their shape, that are read and written 16 bytes at a time
ALIGNED = frozenset(
    {
        "query", "key", "value", "output", "output_grad", "grad", "query_grad", "key_grad",
        "value_grad", "results",
    }
)  # fmt: skip
# strides of masks and scores: where one is 1, neighbours in memory are loaded by neighbours
STRIDES = frozenset(
    {"mask_row", "mask_column", "along_x", "along_y", "along_row", "along_column"}
)  # fmt: skip


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function as a kernel that is specialised for the kind of its inputs only."""
    names = [
        name for name, parameter in inspect.signature(function).parameters.items()
        if parameter.annotation is not tl.constexpr
    ]  # fmt: skip
    return triton.jit(
        function, do_not_specialize=[x for x in names if x not in ALIGNED | STRIDES],
        do_not_specialize_on_alignment=[x for x in names if x in STRIDES],
    )  # fmt: skip


@triton.jit
def rounded(tile, PRECISION: tl.constexpr):
    """A tile as matrix units multiply it: rounded to 11 bits if they take no more.

    They would drop the low 13 bits of a float32 number, all errors with the same sign.
    """
    if PRECISION == "tf32":
        bits = tile.to(tl.int32, bitcast=True)
        nearest = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
        # a NaN with all bits set would become zero
        return tl.where(tile == tile, nearest, tile)
    else:
        return tile
