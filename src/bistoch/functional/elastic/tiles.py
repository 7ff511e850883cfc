"""A batch of problems cut into parts, and parts into tiles of rows, so that memory is bounded."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from bistoch.functional.problem import GivenScores, Scores, forbid, part_of

# entries of one score tile: 2 MiB in float32, small enough for a second-level cache
TILE_ELEMENTS = 1 << 19
# on a GPU what costs is every launch: 64 MiB in float32, which fill it for about 0.1 ms
GPU_TILE_ELEMENTS = 1 << 24


def tile_elements(device: torch.device) -> int:
    """How many entries of a score tile a device works on at a time."""
    return TILE_ELEMENTS if device.type == "cpu" else GPU_TILE_ELEMENTS


class Part(NamedTuple):
    """Scores of some of the batch, few enough that a tile of their rows fits the tile budget."""

    scores: Scores | GivenScores
    batch: slice
    tile_rows: int

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Row ranges with their scores, minus infinity where forbidden."""
        scores, n, mask = self.scores, self.scores.shape[1], None
        if isinstance(scores, Scores):
            sharp_key = (scores.key * scores.sharpness[:, None, None]).mT
        for first in range(0, n, self.tile_rows):
            rows = slice(first, min(first + self.tile_rows, n))
            if isinstance(scores, Scores):
                matrix = scores.query[:, rows] @ sharp_key
                if scores.mask is not None:
                    shared = scores.mask.shape[1] == 1
                    mask = (scores.mask if shared else scores.mask[:, rows])[scores.mask_index]
            else:
                matrix = scores.given[:, rows]
            query_mask = None if scores.query_mask is None else scores.query_mask[:, rows]
            yield rows, forbid(matrix, mask, query_mask, scores.key_mask)


def parts(scores: Scores | GivenScores) -> Iterator[Part]:
    """Cut the batch so that one tile of rows of each part keeps to the tile budget."""
    (size, n, m), budget = scores.shape, tile_elements(scores.like.device)
    tile_rows = max(1, min(n, budget // max(m, 1)))
    together = max(1, budget // max(1, tile_rows * m))
    for first in range(0, size, together):
        some = slice(first, min(first + together, size))
        yield Part(part_of(scores, some), some, tile_rows)
