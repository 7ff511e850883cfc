"""A batch of problems cut into parts, and parts into tiles of rows, so that memory is bounded."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from bistoch.functional.problem import Problem, forbid, part_of

# entries of one score tile: 2 MiB in float32, small enough for a second-level cache
TILE_ELEMENTS = 1 << 19


class Part(NamedTuple):
    """Some problems of the batch, few enough that a tile of their rows fits the tile budget."""

    problem: Problem
    batch: slice
    tile_rows: int

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Row ranges with their scores, minus infinity where forbidden."""
        problem, n = self.problem, self.problem.query.shape[1]
        sharp_key = (problem.key * problem.sharpness[:, None, None]).mT
        for first in range(0, n, self.tile_rows):
            rows = slice(first, min(first + self.tile_rows, n))
            mask = None
            if problem.mask is not None:
                shared = problem.mask.shape[1] == 1
                mask = (problem.mask if shared else problem.mask[:, rows])[problem.mask_index]
            query_mask = None if problem.query_mask is None else problem.query_mask[:, rows]
            yield (
                rows,
                forbid(problem.query[:, rows] @ sharp_key, mask, query_mask, problem.key_mask),
            )


def parts(problem: Problem) -> Iterator[Part]:
    """Cut the batch so that one tile of rows of each part keeps to the tile budget."""
    (size, n, _), m = problem.query.shape, problem.key.shape[1]
    tile_rows = max(1, min(n, TILE_ELEMENTS // max(m, 1)))
    together = max(1, TILE_ELEMENTS // max(1, tile_rows * m))
    for first in range(0, size, together):
        some = slice(first, min(first + together, size))
        yield Part(part_of(problem, some), some, tile_rows)
