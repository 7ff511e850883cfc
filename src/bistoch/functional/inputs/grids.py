"""Checks of how tokens lie on a grid, and of how blocks are cut from it."""

import math

from bistoch.functional.inputs.options import check_count
from bistoch.functional.inputs.tensors import kind


def check_grid(operator: str, grid: tuple[int, ...], n: int, m: int) -> None:
    """Check the sizes of a grid against the number of tokens."""
    if not _are_counts(grid) or not 2 <= len(grid) <= 3:
        raise _wrong(grid)(
            f"{operator}: grid must be two or three whole numbers above 0, the sizes of its axes, "
            f"but it is {_words(grid)}; write for example grid=(16, 16)"
        )
    tokens = math.prod(grid)
    if n != m:
        raise ValueError(
            f"{operator}: with a grid, queries and keys must be the same tokens, but there are {n} "
            f"queries and {m} keys; leave grid out"
        )
    if tokens > n:
        raise ValueError(
            f"{operator}: grid {tuple(grid)} has {tokens} tokens, but there are {n}; give the "
            "rows and columns of tokens, without those that are not on the grid"
        )


def check_block(
    operator: str, block: int | tuple[int, ...] | None, grid: tuple[int, ...] | None
) -> None:
    """Check the size of a block: one number in a sequence, one per axis on a grid."""
    if block is None:
        return
    if grid is None:
        if isinstance(block, tuple | list):
            raise TypeError(
                f"{operator}: block must be a whole number if there is no grid, but it is "
                f"{tuple(block)}; write for example block=16, or give grid=(16, 16) too"
            )
        check_count(operator, "block", block, least=1)
        return
    if not _are_counts(block) or len(block) != len(grid):  # type: ignore[arg-type]
        example = (1,) * (len(grid) - 1) + (grid[-1],)
        raise _wrong(block)(
            f"{operator}: with a grid of {len(grid)} axes, block must be {len(grid)} whole numbers "
            f"above 0, one per axis, but it is {_words(block)}; write for example block={example}"
        )


def check_others(operator: str, others: int, block: int) -> None:
    """Check that the tokens that are not on the grid fit into one block."""
    if others > block:
        raise ValueError(
            f"{operator}: tokens that are not on the grid form one block, and one has {block}, but "
            f"there are {others} of them; give larger blocks, or a grid of more tokens"
        )


def check_tiles(operator: str, tiles: tuple[int, int]) -> None:
    """Check into how many tiles groups of queries and blocks of keys are cut."""
    if not _are_counts(tiles) or len(tiles) != 2:
        raise _wrong(tiles)(
            f"{operator}: tiles must be two whole numbers above 0, for queries and keys, but it is "
            f"{_words(tiles)}; write for example tiles=(2, 1)"
        )


def _are_counts(numbers: object) -> bool:
    return isinstance(numbers, tuple | list) and all(
        isinstance(x, int) and not isinstance(x, bool) and 0 < x < 1 << 62 for x in numbers
    )


def _wrong(numbers: object) -> type[Exception]:
    """Of the wrong kind, or of the wrong size."""
    if isinstance(numbers, tuple | list) and all(isinstance(x, int) for x in numbers):
        return ValueError
    return TypeError


def _words(numbers: object) -> str:
    return str(tuple(numbers)) if isinstance(numbers, tuple | list) else kind(numbers)
