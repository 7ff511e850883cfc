"""A batch of problems cut into parts, and parts into tiles of rows, so that memory is bounded."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from bistoch.functional.problem import Scores, forbid, part_of

# entries of one score tile: 2 MiB in float32, small enough for a second-level cache
TILE_ELEMENTS = 1 << 19


class Part(NamedTuple):
    """Scores of some of the batch, few enough that a tile of their rows fits the tile budget."""

    scores: Scores
    batch: slice
    tile_rows: int

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Row ranges with their scores, minus infinity where forbidden."""
        scores, n = self.scores, self.scores.query.shape[1]
        sharp_key = (scores.key * scores.sharpness[:, None, None]).mT
        for first in range(0, n, self.tile_rows):
            rows = slice(first, min(first + self.tile_rows, n))
            mask = None
            if scores.mask is not None:
                shared = scores.mask.shape[1] == 1
                mask = (scores.mask if shared else scores.mask[:, rows])[scores.mask_index]
            query_mask = None if scores.query_mask is None else scores.query_mask[:, rows]
            matrix = scores.query[:, rows] @ sharp_key
            yield rows, forbid(matrix, mask, query_mask, scores.key_mask)


def parts(scores: Scores) -> Iterator[Part]:
    """Cut the batch so that one tile of rows of each part keeps to the tile budget."""
    (size, n, _), m = scores.query.shape, scores.key.shape[1]
    tile_rows = max(1, min(n, TILE_ELEMENTS // max(m, 1)))
    together = max(1, TILE_ELEMENTS // max(1, tile_rows * m))
    for first in range(0, size, together):
        some = slice(first, min(first + together, size))
        yield Part(part_of(scores, some), some, tile_rows)
