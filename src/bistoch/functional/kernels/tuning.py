"""Sizes of blocks that somebody chose, instead of those in the tables of the GPU kernels.

The environment variable `BISTOCH_TRITON_BLOCKS` names them for a process, `use_blocks` for a part
of a program. `bistoch bench --device cuda --tune` finds out what is best on a device.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from bistoch.functional.inputs.blocks import read_blocks

VARIABLE = "BISTOCH_TRITON_BLOCKS"
# families of kernels that have blocks, by what they compute
FAMILIES = (
    "steps", "output", "values", "vectors", "tokens", "bias", "causal_attend", "causal_replay",
    "causal_vectors", "causal_queries", "causal_keys", "causal_bias", "causal_step",
)  # fmt: skip

# tokens that a program owns, tokens of a step of its walk, warps, pipeline stages
Sizes = tuple[int, int, int, int]

_used: list[Mapping[str, Sizes]] = []


def chosen_blocks(family: str) -> Sizes | None:
    """What was chosen for a family of kernels; None for what is in its table.

    >>> chosen_blocks("steps")
    >>> with use_blocks({"steps": (64, 32, 4, 2)}):
    ...     chosen_blocks("steps")
    (64, 32, 4, 2)
    """
    if _used and family in _used[-1]:
        return _used[-1][family]
    text = os.environ.get(VARIABLE, "")
    return _read(text).get(family) if text else None


@contextmanager
def use_blocks(blocks: Mapping[str, Sizes]) -> Iterator[None]:
    """Take these blocks while it is open, for all widths and dtypes of tokens."""
    _used.append(_read(write_blocks(blocks)))
    try:
        yield
    finally:
        _used.pop()


def write_blocks(blocks: Mapping[str, Sizes]) -> str:
    """The value of the environment variable that names these blocks.

    >>> write_blocks({"steps": (64, 32, 4, 2), "output": (64, 64, 4, 2)})
    'steps=64x32x4x2,output=64x64x4x2'
    """
    return ",".join(f"{name}={'x'.join(map(str, sizes))}" for name, sizes in blocks.items())


@cache
def _read(text: str) -> dict[str, Sizes]:
    return read_blocks(VARIABLE, text, FAMILIES)
