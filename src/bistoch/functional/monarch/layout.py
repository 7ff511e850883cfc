"""Which tokens form a block: where every token of a sequence or a grid stands.

Keys come in blocks, which every group of queries weighs by one distribution, and queries in groups,
which share one question to every block: a group has the queries at one place of all blocks. In a
sequence a block is a run of tokens, on a grid a rectangle. Tiles cut groups and blocks further: the
form then has more factors, and is nearer to softmax.
"""

import itertools
import math
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad as pad_axes


class Cut(NamedTuple):
    """How tokens are cut, checked: the block has one size per axis of the grid, if there is one."""

    block: tuple[int, ...]
    pad: str = "post"
    grid: tuple[int, ...] | None = None
    # into how many parts the members of a group and the keys of a block are cut
    tiles: tuple[int, int] = (1, 1)


class Layout(NamedTuple):
    """Places of tokens, -1 where there is none."""

    members: Int[Tensor, "groups members"]
    keys: Int[Tensor, "blocks width"]
    # the member that a group has in the block of the same number
    own: Int[Tensor, "groups blocks"]


def default_block(n: int, m: int, grid: tuple[int, ...] | None) -> tuple[int, ...]:
    """The block that makes the work within and between blocks most equal.

    In a sequence it has as many tokens as there are blocks; on a grid it has some axes whole, of
    those that are as good the last ones.

    >>> default_block(100, 100, None), default_block(256, 256, (16, 16))
    ((10,), (1, 16))
    >>> default_block(512, 512, (2, 16, 16))
    (1, 1, 16)
    """
    if grid is None:
        return (math.isqrt(max(min(n, m) - 1, 0)) + 1,)
    choices = [
        tuple(size if whole else 1 for size, whole in zip(grid, axes, strict=True))
        for axes in itertools.product((False, True), repeat=len(grid))
        if any(axes) and not all(axes)
    ]
    # the sum of tokens per block and blocks is what the work grows with
    return min(choices, key=lambda block: math.prod(block) + n / math.prod(block))


def lay_out(n: int, m: int, cut: Cut, device: torch.device) -> Layout:
    """The layout of n queries and m keys.

    >>> lay_out(5, 3, Cut((2,)), torch.device("cpu")).members
    tensor([[ 0,  2,  4],
            [ 1,  3, -1]])
    >>> lay_out(6, 6, Cut((2, 1), grid=(2, 3)), torch.device("cpu")).keys
    tensor([[0, 3],
            [1, 4],
            [2, 5]])
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return _lay_out(n, m, cut, device)
    return _kept(n, m, cut, device)


@lru_cache(maxsize=64)
def _kept(n: int, m: int, cut: Cut, device: torch.device) -> Layout:
    # made in inference mode, it could not be used outside of it
    with torch.inference_mode(False):
        return _lay_out(n, m, cut, device)


def _lay_out(n: int, m: int, cut: Cut, device: torch.device) -> Layout:
    if cut.grid is None:
        queries, keys = (_cut_sequence(length, cut, device) for length in (n, m))
    else:
        queries = keys = _cut_grid(n, cut, device)
    theirs, ours = queries.shape[0], keys.shape[0]
    # the block of queries with the number of a block of keys
    own = torch.arange(ours, device=device) - (ours - theirs if cut.pad == "pre" else 0)
    own = torch.where((own >= 0) & (own < theirs), own, -1)
    return _tiled(queries, keys, own, cut.tiles)


def _cut_sequence(length: int, cut: Cut, device: torch.device) -> Int[Tensor, "blocks width"]:
    (block,) = cut.block
    missing = -length % block
    ends = (missing, 0) if cut.pad == "pre" else (0, missing)
    return pad_axes(torch.arange(length, device=device), ends, value=-1).unflatten(0, (-1, block))


def _cut_grid(length: int, cut: Cut, device: torch.device) -> Int[Tensor, "blocks width"]:
    """Rectangles of a grid; the tokens beside it form one block, before or behind the others."""
    grid, block = cut.grid or (), cut.block
    others = length - math.prod(grid)
    first = others if cut.pad == "pre" else 0
    places = first + torch.arange(math.prod(grid), device=device).reshape(grid)
    for axis, size in enumerate(block):
        # a short rectangle lies where a short block would
        missing = -grid[axis] % size
        ends = (missing, 0) if cut.pad == "pre" else (0, missing)
        places = pad_axes(places.movedim(axis, -1), ends, value=-1).movedim(-1, axis)
    for axis, size in reversed(list(enumerate(block))):
        places = places.unflatten(axis, (-1, size))
    count = len(grid)
    order = [*range(0, 2 * count, 2), *range(1, 2 * count, 2)]
    places = places.permute(order).reshape(-1, math.prod(block))
    if not others:
        return places
    missing = math.prod(block) - others
    start, ends = (0, (missing, 0)) if cut.pad == "pre" else (math.prod(grid), (0, missing))
    beside = pad_axes(torch.arange(start, start + others, device=device), ends, value=-1)[None]
    return torch.cat([beside, places] if cut.pad == "pre" else [places, beside])


def _tiled(
    queries: Int[Tensor, "theirs places"],
    keys: Int[Tensor, "ours width"],
    own: Int[Tensor, "ours"],
    tiles: tuple[int, int],
) -> Layout:
    """Groups of the queries at one place, and blocks of keys, both cut into tiles."""
    rows, columns = min(tiles[0], queries.shape[0]), min(tiles[1], keys.shape[1])
    members = _parts(queries.T, rows)
    size = members.shape[1]
    blocks = _parts(keys, columns)
    # a tile of a group has the blocks of queries from `start` on
    start = size * torch.arange(rows, device=own.device)
    own = own.repeat_interleave(columns)
    there = own - start[:, None]
    exists = (there >= 0) & (there < size) & (own >= 0)
    there = torch.where(exists, there, -1)
    groups = queries.shape[1]
    own = there.expand(groups, *there.shape).reshape(groups * rows, -1)
    return Layout(members, blocks, own.contiguous())


def _parts(places: Int[Tensor, "rows columns"], count: int) -> Int[Tensor, "parts size"]:
    """Every row as several, of the same size."""
    size = -(-places.shape[1] // count)
    # padding by nothing keeps strides, which a compiled graph does not expect
    filled = pad_axes(places.contiguous(), (0, count * size - places.shape[1]), value=-1)
    return filled.reshape(-1, size).contiguous()


def placed(
    tokens: Shaped[Tensor, "B length f"], places: Int[Tensor, "rows columns"], filling: float = 0.0
) -> Shaped[Tensor, "B rows columns f"]:
    """Tokens at their places, and a number where there is none."""
    # the last row is what -1 stands for
    filled = pad_axes(tokens, (0, 0, 0, 1), value=filling)
    return filled[:, places.flatten()].unflatten(1, tuple(places.shape))


def taken(
    blocks: Float[Tensor, "B rows columns f"], places: Int[Tensor, "rows columns"], length: int
) -> Float[Tensor, "B length f"]:
    """Tokens back in their order."""
    # padding, which is lower than all, comes first
    order = places.flatten().argsort()[places.numel() - length :]
    return blocks.flatten(1, 2)[:, order]
