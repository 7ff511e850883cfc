"""How many tokens a program works on at a time, by kernel and width of the tokens."""

from typing import Any, NamedTuple

import torch

from bistoch.functional.elastic.triton.blocks import Blocks, free
from bistoch.functional.kernels.gpu import ALL_REGISTERS, width
from bistoch.functional.kernels.tuning import Sizes, chosen_blocks

# entries of a vector over keys that are worked on at a time
VECTOR = 1024
# blocks of a sequence up to which all accounts are kept for the backward; of longer ones only
# that before each span of at least SHORTEST blocks, at most KEPT of them
ALL = 32
SHORTEST = 16
KEPT = 32

# whether kernels are for AMD: what a thread of it may hold depends on the number of warps
IS_HIP = torch.version.hip is not None

# by kernel and whether tokens are of half precision, for widths up to 64, 128 and 256: tiles that
# spill no register on any GPU, with any mask and padding, that docs/gpu.md lists. A program that
# owns a head is alone on its multiprocessor if heads are few, so it has eight warps where these fit
TABLE = {
    ("attend", True): (Blocks(64, 32, 8, 2), Blocks(32, 32, 8, 2), Blocks(32, 32, 8, 2)),
    ("replay", True): (Blocks(64, 32, 4, 2), Blocks(64, 32, 4, 2), Blocks(32, 32, 4, 2)),
    ("vectors", True): (Blocks(64, 64, 8, 2), free(64, 32, 8, 2), free(32, 32, 8, 1)),
    ("queries", True): (Blocks(32, 32, 4, 2), free(32, 32, 4, 1), Blocks(32, 16, 8, 1)),
    ("keys", True): (Blocks(32, 16, 4, 2), Blocks(32, 16, 4, 1), free(16, 16, 8, 1)),
    ("bias", True): (Blocks(64, 32, 4, 2), Blocks(16, 16, 4, 1), Blocks(32, 32, 4, 1)),
    ("step", True): (Blocks(16, 32, 4, 2), Blocks(16, 32, 4, 2), free(16, 32, 4, 2)),
    ("attend", False): (free(64, 32, 8, 1), free(32, 32, 8, 1), free(16, 16, 4, 1)),
    ("replay", False): (free(64, 32, 4, 2), free(64, 32, 4, 2), free(32, 32, 4, 2)),
    ("vectors", False): (free(32, 32, 8, 1), free(32, 16, 8, 1), free(32, 16, 8, 1)),
    ("queries", False): (free(32, 32, 4, 1), free(32, 16, 4, 1), free(16, 16, 4, 1)),
    ("keys", False): (free(32, 16, 4, 1), free(16, 16, 8, 1), free(16, 16, 4, 1)),
    ("bias", False): (free(32, 16, 4, 1), free(32, 16, 8, 1), free(16, 16, 4, 1)),
    ("step", False): (free(16, 32, 4, 2), free(16, 32, 8, 1), free(16, 16, 4, 2)),
}
# where padding needs other tiles, and where a bias without padding does
PADDED_TABLE = {
    ("attend", True): (free(64, 32, 8, 1), Blocks(32, 32, 8, 2), Blocks(32, 32, 8, 2)),
    ("vectors", True): (Blocks(64, 64, 8, 2), free(32, 32, 8, 2), free(32, 32, 8, 1)),
}
BIAS_TABLE = {
    ("attend", True): (Blocks(64, 32, 8, 1), Blocks(32, 32, 8, 2), Blocks(32, 32, 8, 2)),
}
# where AMD differs, and with padding
HIP_TABLE = {
    ("attend", True): (Blocks(64, 32, 4, 2), Blocks(64, 32, 4, 2), Blocks(32, 32, 4, 2)),
    ("vectors", True): (Blocks(64, 32, 4, 2), Blocks(32, 32, 4, 2), Blocks(32, 32, 4, 2)),
    ("attend", False): (free(64, 32, 4, 2), free(32, 32, 4, 1), free(16, 16, 4, 1)),
    ("vectors", False): (free(32, 16, 4, 1), free(32, 16, 4, 1), free(16, 16, 4, 1)),
}
PADDED_HIP_TABLE = {
    ("attend", True): (Blocks(64, 16, 4, 2), Blocks(32, 32, 4, 2), Blocks(32, 32, 4, 2)),
}

# what is worth trying on a device, for half precision tokens of 64 features: twice as many tokens
# that a program owns. Other tiles of the kernels that own a head spill on some GPU
SPACE: dict[str, tuple[Sizes, ...]] = {
    "causal_queries": ((32, 32, 4, 2), (64, 32, 8, 1)),
    "causal_keys": ((32, 16, 4, 2), (64, 16, 8, 1)),
}


def blocks_of(kernel: str, arguments: dict[str, Any]) -> Blocks:
    """The blocks of a kernel for tokens and values of a width, and for the dtype of tokens.

    Those that a user chose, else those of the table.
    """
    half = arguments["query"].dtype.itemsize == 2
    widest = max(arguments["WIDTH"], width(arguments.get("VALUES", 0)))
    masked = bool(arguments["MASK"])
    own = [HIP_TABLE] if IS_HIP else []
    if arguments["lengths"] is not None:
        own.insert(0, PADDED_HIP_TABLE if IS_HIP else PADDED_TABLE)
    elif masked and arguments["mask"].dtype.is_floating_point and not IS_HIP:
        own.insert(0, BIAS_TABLE)
    row = next(table[kernel, half] for table in (*own, TABLE) if (kernel, half) in table)
    found = row[0 if widest <= 64 else 1 if widest <= 128 else 2]
    found = found.unless(chosen_blocks(f"causal_{kernel}"))
    if masked and kernel in ("queries", "keys"):
        # left to itself, the compiler would spill some, where other programs fit beside it
        found = found._replace(registers=ALL_REGISTERS)
    return found


# heads and tokens from which, without a gradient, keys are split over programs
FEW = 32
LONG = 4096


def is_split(heads: int, n: int) -> bool:
    """Whether a forward goes through a sequence in steps, since a program for each head is too few.

    >>> is_split(32, 4096), is_split(32, 2048), is_split(64, 4096)
    (True, False, False)
    """
    return heads <= FEW and n >= LONG


class Layout(NamedTuple):
    """Blocks of a sequence, blocks from one kept account to the next, and those of a span."""

    blocks: int
    every: int
    span: int

    @property
    def kept(self) -> int:
        """How many accounts are kept."""
        return -(-self.blocks // self.every)

    def spans(self) -> list[tuple[int, int]]:
        """The first block of every span, and the one behind its last; last ones first."""
        firsts = range(0, self.blocks, self.span)
        return [(low, min(low + self.span, self.blocks)) for low in reversed(firsts)]


def layout_of(n: int, block: int) -> Layout:
    """Which accounts are kept for the backward.

    >>> layout_of(2048, 64)
    Layout(blocks=32, every=1, span=32)
    >>> layout_of(4096, 64), layout_of(65536, 64).kept
    (Layout(blocks=64, every=16, span=16), 32)
    """
    blocks = -(-n // block)
    if blocks <= ALL:
        return Layout(blocks, 1, max(blocks, 1))
    span = max(SHORTEST, -(-blocks // KEPT))
    return Layout(blocks, span, span)
