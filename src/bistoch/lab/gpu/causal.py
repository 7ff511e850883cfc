"""The kernels of causal balance: their launches, for compilers, and what they cost, in a model.

As `table` and `cost` are for the elastic family. Counts are exact up to the edges of tiles.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import torch

import bistoch
from bistoch.functional import backends
from bistoch.functional.causal.triton import blocks
from bistoch.functional.kernels.gpu import Launch, record_launches
from bistoch.functional.kernels.tuning import use_blocks
from bistoch.lab.gpu.compiled import (
    DEVICES,
    DTYPES,
    MASKS,
    TOKENS,
    WIDTHS,
    Configuration,
    distinct,
    masks_of,
)
from bistoch.lab.gpu.cost import GPUS, Gpu, Work, flash, flash_backward, row_dots

MODULE = "bistoch.functional.causal.triton.backend"
# whose blocks the families of kernels are
KERNELS = {"causal_queries": "query_grad_kernel", "causal_keys": "key_grad_kernel"}
MULTIPROCESSORS = {GPUS["H100"].name: 132, GPUS["MI300X"].name: 304}


def configurations(target: str) -> Iterator[tuple[Configuration, Launch]]:
    """Launches of all kernels as they are on a GPU: all widths, dtypes, masks, and the space."""
    for name, dtype in DTYPES.items():
        for d in WIDTHS:
            for mask in TOKENS[name]:
                found = launches(dtype, d, target, mask) + steps(dtype, d, target, mask)
                for launch in distinct(found):
                    yield Configuration(f"causal, {name}, d = {d}", mask), launch
    for family, candidates in blocks.SPACE.items():
        # the first is that of the table
        for mask, sizes in itertools.product(MASKS, candidates[1:]):
            with use_blocks({family: sizes}):
                found = launches(torch.bfloat16, 64, target, mask)
            title = f"causal, bf16, d = 64, {'x'.join(map(str, sizes))}"
            for launch in distinct(x for x in found if x.kernel.__name__ == KERNELS[family]):
                yield Configuration(title, mask), launch


def launches(dtype: torch.dtype, d: int, target: str, mask: str = "bias") -> list[Launch]:
    """All launches of a head, forward and backward, of which not all is kept."""
    n = 64 * (blocks.ALL + 1)
    tokens = torch.zeros(1, n, d, dtype=dtype, requires_grad=True)
    with as_on(target), record_launches(run=False) as found:
        result = bistoch.causal_elastic_attention(
            tokens, tokens, tokens, **masks_of(mask, n, n), backend="triton"
        )
        result.float().sum().backward()
    return found


def steps(
    dtype: torch.dtype, d: int, target: str, mask: str = "bias", keys: int = 16384
) -> list[Launch]:
    """All launches of one new token."""
    tokens, vector = torch.zeros(1, keys, d, dtype=dtype), torch.zeros(1, keys - 1)
    state = bistoch.CausalState(vector, vector, vector + 1, vector[:, 0], vector[:, 0].long())
    # a step has no gradient
    with torch.no_grad(), as_on(target), record_launches(run=False) as found:
        bistoch.causal_elastic_step(
            tokens[:, -1:], tokens, tokens, state, **masks_of(mask, 1, keys), backend="triton"
        )
    return found


@contextmanager
def as_on(target: str) -> Iterator[None]:
    """As if tensors were on a GPU, with the tiles that its maker's devices get."""
    backends._load(MODULE)
    here, hip = backends._LOADED[MODULE], blocks.IS_HIP
    backends._LOADED[MODULE] = here._replace(device="cpu")
    blocks.IS_HIP = DEVICES[target].backend == "hip"
    try:
        yield
    finally:
        backends._LOADED[MODULE], blocks.IS_HIP = here, hip


def forward(heads: int, n: int, d: int, block: int = 64, *, half: bool = True) -> Work:
    """One launch: rows as in flash attention, and scores once more for the column sums.

    The rows of the last block leave nothing behind.
    """
    tile = _tile("attend", d, half)
    rows, again = _pairs(heads, n, block, tile), _pairs(heads, n, block, block, without_last=True)
    size, kept = (2.0 if half else 4.0), blocks.layout_of(n, block).kept
    read = heads * n * (3 * size * d + 4.0 * d + 4.0 * (3 + kept))
    return Work(1, 2 * d * (rows + again), 2 * d * rows, rows + again, read)


def backward(heads: int, n: int, d: int, block: int = 64, *, half: bool = True) -> Work:
    """For every span the vectors, queries, and keys; and its accounts, if they were not kept."""
    vectors, tokens = (part(heads, n, d, block, half) for part in (_vectors, _tokens))
    return row_dots(heads, n, d) + vectors + tokens


def _vectors(heads: int, n: int, d: int, block: int, half: bool) -> Work:
    """What one program for every head does: dc and D of all blocks, one after the other."""
    layout, size = blocks.layout_of(n, block), (2.0 if half else 4.0)
    # P dc of the rows of all blocks but the last, and the sums of P (dP - D) of all but the first
    taken = _pairs(heads, n, block, _tile("vectors", d, half), without_last=True)
    handed = _pairs(heads, n, block, block) - _pairs(heads, min(n, block), block, block)
    moved = 1.0 * heads * n * (3 * size * d + 4.0 * d + 4.0 * 3 * layout.blocks / 2)
    both, spans = taken + handed, len(layout.spans())
    return Work(spans, 2 * d * both, 2 * d * handed, both, moved)


def _tokens(heads: int, n: int, d: int, block: int, half: bool) -> Work:
    """What blocks of tokens do at the same time: their gradients, and accounts of a span."""
    layout, whole = blocks.layout_of(n, block), _pairs(heads, n, block, block)
    queries, spans = _pairs(heads, n, block, _tile("queries", d, half)), len(layout.spans())
    size, each = (2.0 if half else 4.0), 1.0 * heads * n
    # a span adds to the gradients of keys and values
    moved = each * (3 * size * d + 2 * 4.0 * d) + spans * each * (2 * size * d + 2 * 4.0 * d)
    both = queries + whole
    work = Work(2 * spans, 2 * d * both, 2 * d * (2 * queries + 3 * whole), both, moved)
    if layout.every > 1:
        again = each * (2 * size * d + 4.0 * layout.blocks)
        work += Work(spans, 2 * d * whole, 0, whole, again)
    return work


def step(heads: int, keys: int, d: int, *, half: bool = True) -> Work:
    """Decoding of one token: keys are read twice and values once; tiles have 16 rows."""
    pairs, size = 16.0 * heads * keys, (2.0 if half else 4.0)
    read = heads * keys * (3 * size * d + 4.0 * 10)
    return Work(3, 2 * 2 * pairs * d, 2 * pairs * d, 2 * pairs, read)


def _tile(kernel: str, d: int, half: bool) -> int:
    """Rows of a tile."""
    return blocks.TABLE[kernel, half][0 if d <= 64 else 1 if d <= 128 else 2].x


def _pairs(heads: int, n: int, block: int, tile: int, *, without_last: bool = False) -> float:
    """Pairs that are worked on: rows of a tile, in one block, with all keys up to its end.

    >>> _pairs(1, 128, 64, 64), _pairs(1, 128, 64, 32), _pairs(1, 128, 64, 64, without_last=True)
    (12288.0, 10240.0, 4096.0)
    """
    found = 0.0
    for first in range(0, n, block):
        last = min(first + block, n)
        if without_last and last == n:
            break
        found += sum(tile * min(top + tile, last) for top in range(first, last, tile))
    return heads * found


def ratio(
    gpu: Gpu, n: int, *, heads: int = 256, d: int = 64, overlap: bool = False
) -> tuple[float, float]:
    """Expected time over that of causal flash attention: forward, and forward with backward.

    Flash attention skips the half that nobody sees. Where a program owns a head, only as many
    multiprocessors work as there are heads.
    """
    theirs = [flash(heads, n, n, d), flash_backward(heads, n, n, d)]
    theirs = [work._replace(half_flops=work.half_flops / 2, exponentials=work.exponentials / 2)
              for work in theirs]  # fmt: skip
    share = min(1.0, heads / MULTIPROCESSORS[gpu.name])
    few = gpu._replace(
        half=share * gpu.half,
        single=share * gpu.single,
        exact=share * gpu.exact,
        exponentials=share * gpu.exponentials,
    )
    first = forward(heads, n, d).seconds(few, overlap)
    second = _vectors(heads, n, d, 64, True).seconds(few, overlap)
    second += (row_dots(heads, n, d) + _tokens(heads, n, d, 64, True)).seconds(gpu, overlap)
    their_first, their_second = (work.seconds(gpu, overlap) for work in theirs)
    return first / their_first, (first + second) / (their_first + their_second)


def table(gpu: Gpu, lengths: tuple[int, ...], heads: tuple[int, ...]) -> str:
    """Expected ratios as a table of Markdown: forward / forward with backward.

    >>> print(table(GPUS["H100"], (512, 4096), (64, 256)))
    | n | 64 heads | 256 heads |
    | ---: | ---: | ---: |
    | 512 | ... / ... | ... / ... |
    | 4096 | ... / ... | ... / ... |
    """
    lines = ["| n | " + " | ".join(f"{count} heads" for count in heads) + " |"]
    lines.append("| ---: |" + " ---: |" * len(heads))
    for n in lengths:
        pairs = (ratio(gpu, n, heads=count) for count in heads)
        lines.append(f"| {n} | " + " | ".join(f"{a:.1f} / {b:.1f}" for a, b in pairs) + " |")
    return "\n".join(lines)
