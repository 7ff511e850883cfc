"""What the Triton kernels cost: launches, products, exponentials and bytes of a call, in a model.

Counts are exact up to the edges of tiles; `tests/lab/gpu` compares them with what the interpreter
does. From them, and the figures of a GPU, follow times that nobody has measured yet.
"""

from typing import NamedTuple

FORWARD, BACKWARD = "forward", "backward"


class Gpu(NamedTuple):
    """Peak figures of a GPU by its maker: dense, without sparsity, per second."""

    name: str
    half: float  # flops of products of half precision
    single: float  # flops of products with plans and gradients, whose operands have 11 bits
    exact: float  # flops of products of float32: three of 11 bits on NVIDIA
    exponentials: float
    bandwidth: float  # bytes of main memory
    cache: float  # bytes of the cache that all multiprocessors share
    launch: float  # seconds between two small kernels in a stream


GPUS = {
    # 132 multiprocessors at 1.755 GHz with 16 exponentials a cycle each, 32 bytes of the L2 cache
    "H100": Gpu(
        "H100 SXM", 989e12, 495e12, 165e12, 132 * 16 * 1.755e9, 3.35e12, 132 * 32 * 1.755e9, 3e-6
    ),
    # 304 compute units at 2.1 GHz with 16 exponentials a cycle each (4 SIMDs, a quarter rate); the
    # cache of all dies together
    "MI300X": Gpu("MI300X", 1307e12, 653e12, 163e12, 304 * 16 * 2.1e9, 5.3e12, 17.2e12, 6e-6),
}


class Work(NamedTuple):
    """Work of a call, or of a part of it."""

    launches: float = 0
    half_flops: float = 0  # of products of tokens
    single_flops: float = 0  # of products with plans and gradients
    exponentials: float = 0
    bytes: float = 0  # of main memory, if every tile of the other side comes from the cache
    cached: float = 0  # bytes of tiles that come from the cache
    exact_flops: float = 0  # of products of float32: the rank-2T form and <dO, O>

    @property
    def flops(self) -> float:
        """Of all products."""
        return self.half_flops + self.single_flops + self.exact_flops

    def __add__(self, other: "Work") -> "Work":  # type: ignore[override]
        return Work(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, count: float) -> "Work":
        """So many of it."""
        return Work(*(count * x for x in self))

    def seconds(self, gpu: Gpu, overlap: bool) -> float:
        """A lower bound; products and exponentials overlap fully, or one waits for the other."""
        products = self.half_flops / gpu.half + self.single_flops / gpu.single
        products += self.exact_flops / gpu.exact
        exponentials = self.exponentials / gpu.exponentials
        busy = max(products, exponentials) if overlap else products + exponentials
        moved = max(self.bytes / gpu.bandwidth, self.cached / gpu.cache)
        return max(busy, moved) + self.launches * gpu.launch


def flash(heads: int, n: int, m: int, d: int) -> Work:
    """Flash attention forward: two products, one exponential per pair, blocks of 128 queries."""
    pairs = 1.0 * heads * n * m
    read = 2.0 * heads * (2 * n + 2 * m) * d
    return Work(1, 4 * pairs * d, 0, pairs, read, 4 * pairs * d / 128)


def flash_backward(heads: int, n: int, m: int, d: int) -> Work:
    """Flash attention backward: five products, one exponential per pair."""
    pairs = 1.0 * heads * n * m
    read = 2.0 * heads * (5 * n + 4 * m) * d
    return Work(2, 10 * pairs * d, 0, pairs, read, 8 * pairs * d / 128)


def _step(heads: int, n: int, m: int, d: int, owned: int) -> Work:
    """One pass over the tiles of scores of half precision tokens, in blocks of `owned` of them."""
    pairs, tokens = 1.0 * heads * n * m, 2.0 * heads * (n + m) * d
    vectors = 4.0 * heads * (3 * n + 3 * m)
    return Work(1, 2 * pairs * d, 0, pairs, tokens + vectors, 2 * pairs * d / owned)


# queries, or keys, that a program of the long form owns at 64 features; docs/gpu.md has the others
OWNED = 64


def long_forward(heads: int, n: int, m: int, d: int, iters: int) -> Work:
    """Two passes an iteration, the output, and a look at the last residual."""
    return _step(heads, n, m, d, OWNED).times(2 * iters) + _output(heads, n, m, d)


def _output(heads: int, n: int, m: int, d: int) -> Work:
    pairs, tokens = 1.0 * heads * n * m, 2.0 * heads * (n + m) * d
    read, cached = tokens + 4.0 * heads * (n + m) * d, 6 * pairs * d / OWNED
    return Work(2, 2 * pairs * d, 2 * pairs * d, pairs, read, cached)


def fused_forward(heads: int, n: int, m: int, d: int, iters: int) -> Work:
    """One pass an iteration, in which all keys stay on chip, a last join, and the output."""
    step, join = _fused_step(heads, n, m, d, 2), Work(launches=1 if iters else 0)
    return step.times(iters) + join + _output(heads, n, m, d)


def _fused_step(heads: int, n: int, m: int, d: int, vectors: int) -> Work:
    """A pass in which programs own all keys and leave so many vectors of partial sums."""
    parts = max(1, min(-(-256 // heads), -(-n // 32), 16))
    # they are written once, and read by all programs of the next launch
    left = 4.0 * vectors * heads * parts * m
    return _step(heads, n, m, d, max(m, 1)) + Work(bytes=2 * left, cached=parts * left)


def long_backward(heads: int, n: int, m: int, d: int, iters: int) -> Work:
    """The values, two passes an iteration for the vectors, two with the rank-2T product."""
    return _step(heads, n, m, d, OWNED).times(2 * iters) + _gradients(heads, n, m, d, iters)


def fused_backward(heads: int, n: int, m: int, d: int, iters: int) -> Work:
    """As `long_backward`, with one pass an iteration for the vectors, and a last join."""
    step, join = _fused_step(heads, n, m, d, 1), Work(launches=1 if iters else 0)
    return step.times(iters) + join + _gradients(heads, n, m, d, iters)


def _gradients(heads: int, n: int, m: int, d: int, iters: int) -> Work:
    """What is left beside the vectors: rows and values before them, tokens after them."""
    pairs, tokens = 1.0 * heads * n * m, 2.0 * heads * (n + m) * d
    # in tiles of 16
    rank = -(-2 * iters // 16) * 16
    values = Work(
        1, 2 * pairs * d, 4 * pairs * d, pairs, tokens + 4.0 * heads * (n + 2 * m) * d,
        6 * pairs * d / OWNED,
    )  # fmt: skip
    factors = 4.0 * heads * (n + m) * 2 * iters
    last = Work(
        1, 2 * pairs * d, 4 * pairs * d, pairs, 2 * tokens + factors,
        pairs * (8 * d + 8 * iters) / 32, 2 * pairs * rank,
    )  # fmt: skip
    # those of heads whose factors leave the range end at once
    return row_dots(heads, n, d) + values + last.times(2) + Work(launches=2 if iters else 0)


def row_dots(heads: int, n: int, d: int) -> Work:
    """What the softmax of a row takes off: diagonals of products of 16 rows with 16 results."""
    rows = 1.0 * heads * n
    return Work(1, bytes=2 * 4.0 * rows * d, exact_flops=2 * 16 * rows * d)


def short_forward(heads: int, n: int, m: int, d: int, iters: int) -> Work:
    """One launch: products once, two exponentials per pair and iteration, and three at the end."""
    pairs = 1.0 * heads * n * m
    read = heads * (2.0 * (n + m) * d + 4.0 * (n + m) * d)
    return Work(1, 2 * pairs * d, 2 * pairs * d, (2 * iters + 3) * pairs, read)


def short_backward(heads: int, n: int, m: int, d: int, iters: int) -> Work:
    """One launch: five products, two exponentials per pair and iteration, and one."""
    pairs = 1.0 * heads * n * m
    read = heads * (6.0 * (n + m) * d + 8.0 * iters * (n + m))
    return Work(1, 2 * pairs * d, 8 * pairs * d, (2 * iters + 1) * pairs, read)


# n and m up to which a whole head stays on chip, and m up to which all keys do
SHORT, FUSED = 64, 512


def call(heads: int, n: int, m: int, d: int, iters: int) -> tuple[Work, Work]:
    """The forward and the backward of half precision tokens, in the form that takes them.

    >>> [work.launches for work in call(64, 4096, 4096, 64, 5)]
    [12, 16]
    >>> [work.launches for work in call(64, 4096, 256, 64, 5)]
    [8, 12]
    """
    if max(n, m) <= SHORT:
        forms = short_forward, short_backward
    elif m * d <= FUSED * 64:
        forms = fused_forward, fused_backward
    else:
        forms = long_forward, long_backward
    forward, backward = forms
    return forward(heads, n, m, d, iters), backward(heads, n, m, d, iters)


def ratio(
    gpu: Gpu, n: int, iters: int, *, heads: int = 64, d: int = 64, overlap: bool = False
) -> tuple[float, float]:
    """Expected time over that of flash attention: forward, and forward with backward."""
    theirs = flash(heads, n, n, d), flash_backward(heads, n, n, d)
    (forward, back), (flash_forward, flash_back) = (
        [work.seconds(gpu, overlap) for work in works]
        for works in (call(heads, n, n, d, iters), theirs)
    )
    return forward / flash_forward, (forward + back) / (flash_forward + flash_back)


def table(
    gpu: Gpu, lengths: tuple[int, ...], iterations: tuple[int, ...], overlap: bool = False
) -> str:
    """Expected ratios as a table of Markdown: forward / forward with backward.

    >>> print(table(GPUS["H100"], (256, 4096), (1, 5)))
    | n | T = 1 | T = 5 |
    | ---: | ---: | ---: |
    | 256 | ... / ... | ... / ... |
    | 4096 | ... / ... | ... / ... |
    """
    lines = ["| n | " + " | ".join(f"T = {t}" for t in iterations) + " |"]
    lines.append("| ---: |" + " ---: |" * len(iterations))
    for n in lengths:
        pairs = (ratio(gpu, n, t, overlap=overlap) for t in iterations)
        lines.append(f"| {n} | " + " | ".join(f"{a:.1f} / {b:.1f}" for a, b in pairs) + " |")
    return "\n".join(lines)


def pass_seconds(gpu: Gpu, owned: int, d: int, half: bool = True) -> float:
    """What a pair of tokens costs in one pass whose programs own blocks of so many tokens.

    It is what tiles of the space for tuning are chosen by: below some size the cache is the limit.

    >>> gpu = GPUS["H100"]
    >>> pass_seconds(gpu, 64, 64) == pass_seconds(gpu, 128, 64)
    True
    >>> pass_seconds(gpu, 64, 128) > pass_seconds(gpu, 128, 128)
    True
    """
    busy = 2.0 * d / (gpu.half if half else gpu.exact) + 1 / gpu.exponentials
    return max(busy, (2.0 if half else 4.0) * d / owned / gpu.cache)
