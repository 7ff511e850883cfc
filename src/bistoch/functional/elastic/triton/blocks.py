"""How many tokens a program owns and walks over at a time, by kernel and width of the tokens."""

from typing import Any, NamedTuple

from bistoch.functional.kernels.gpu import ALL_REGISTERS, power_of_two, register_options, width
from bistoch.functional.kernels.tuning import Sizes, chosen_blocks
from bistoch.functional.problem import Problem, Scores


class Blocks(NamedTuple):
    """Tokens that a program owns, tokens of a step of its walk, warps and pipeline stages.

    `registers` are the most that a thread may have before it spills; 0 leaves that to the compiler.
    """

    x: int
    y: int
    warps: int
    stages: int
    registers: int = 0

    def count(self, length: int) -> int:
        """How many programs share out so many tokens."""
        return -(-length // self.x)

    def unless(self, chosen: Sizes | None) -> "Blocks":
        """Those that somebody chose, with registers as the compiler likes; else these.

        >>> blocks = free(64, 32, 4, 2)
        >>> blocks.unless(None) == blocks.unless((64, 32, 4, 2)) == blocks
        True
        >>> blocks.unless((64, 64, 4, 2))
        Blocks(x=64, y=64, warps=4, stages=2, registers=0)
        """
        return self if chosen is None or chosen == self[:4] else Blocks(*chosen)

    def arguments(self) -> dict[str, Any]:
        """As a kernel takes them."""
        return {
            "BLOCK_X": self.x, "BLOCK_Y": self.y, "num_warps": self.warps,
            "num_stages": self.stages, **register_options(self.registers, self.warps),
        }  # fmt: skip


def free(x: int, y: int, warps: int, stages: int) -> Blocks:
    """Blocks of a kernel whose threads may have all registers.

    >>> free(64, 32, 4, 2).arguments()["maxnreg"]
    255
    """
    return Blocks(x, y, warps, stages, ALL_REGISTERS)


# by kernel and whether tokens are of half precision, for widths up to 64, 128 and 256: the largest
# that spill no register on any GPU, with any mask and padding, that docs/gpu.md lists
TABLE = {
    ("steps", True): (Blocks(64, 64, 4, 2), Blocks(64, 32, 4, 2), free(128, 32, 8, 2)),
    ("vectors", True): (free(64, 64, 4, 2), Blocks(64, 64, 8, 2), free(64, 32, 8, 2)),
    ("output", True): (Blocks(64, 64, 4, 2), Blocks(64, 32, 8, 2), free(32, 32, 8, 2)),
    ("values", True): (Blocks(64, 32, 4, 2), free(32, 16, 4, 1), free(32, 16, 8, 1)),
    ("tokens", True): (free(32, 16, 8, 1), Blocks(32, 16, 8, 1), free(32, 16, 8, 1)),
    ("bias", True): (Blocks(32, 16, 8, 1), Blocks(32, 16, 8, 1), Blocks(16, 16, 1, 1)),
    ("steps", False): (free(64, 32, 4, 2), free(64, 32, 4, 2), free(32, 32, 4, 2)),
    ("vectors", False): (free(32, 32, 4, 2), free(32, 32, 4, 2), free(32, 32, 4, 2)),
    ("output", False): (free(64, 32, 4, 2), free(32, 32, 4, 1), free(16, 16, 4, 1)),
    ("values", False): (free(32, 32, 4, 1), free(32, 16, 8, 1), free(16, 16, 4, 1)),
    ("tokens", False): (free(32, 16, 4, 1), free(32, 16, 8, 1), free(16, 16, 4, 1)),
    ("bias", False): (free(32, 16, 4, 1), free(32, 16, 8, 1), free(16, 16, 4, 1)),
}
# where a bias needs other tiles
BIAS_TABLE = {
    ("output", True): (Blocks(64, 64, 4, 1), Blocks(64, 32, 8, 2), free(32, 32, 8, 2)),
    ("vectors", True): (free(64, 64, 8, 2), Blocks(64, 64, 8, 2), free(64, 32, 8, 2)),
}


# what is worth trying on a device, for half precision tokens of 64 features: a pass that owns twice
# as many tokens reads half as much from the cache, and leaves room for fewer programs
SPACE: dict[str, tuple[Sizes, ...]] = {
    "steps": ((64, 64, 4, 2), (128, 32, 8, 2)),
    "output": ((64, 64, 4, 2), (128, 32, 8, 1)),
    "vectors": ((64, 64, 4, 2), (128, 64, 8, 1)),
}


def blocks_of(kernel: str, arguments: dict[str, Any]) -> Blocks:
    """The blocks of a kernel for tokens and values of a width, and for the dtype of tokens.

    Those that a user chose, else those of the table.
    """
    half = arguments["query"].dtype.itemsize == 2
    widest = max(arguments["WIDTH"], width(arguments.get("VALUES", 0)))
    has_bias = arguments["MASK"] and arguments["mask"].dtype.is_floating_point
    row = (BIAS_TABLE if has_bias else TABLE).get((kernel, half), TABLE[kernel, half])
    found = row[0 if widest <= 64 else 1 if widest <= 128 else 2].unless(chosen_blocks(kernel))
    padded = arguments["query_real"] is not None or arguments["key_real"] is not None
    if padded or (arguments["FEATURES"] and arguments["MASK"]) or kernel == "bias":
        # left to itself, the compiler would spill some, where other programs fit beside it
        found = found._replace(registers=ALL_REGISTERS)
    elif not arguments["FEATURES"]:
        # without products of tokens its own choice spills nothing
        found = found._replace(registers=0)
    return found


# programs that keep a GPU busy; a head is shared by so many that there are at least these
BUSY = 256
# queries of a tile of the fused form, without a mask or padding and with one; more would spill
# registers on a B200
STRIP = (32, 16)
# columns of a head, times width of its tokens, that stay on chip beside it, by whether they are of
# half precision; half as many columns if there is a mask or padding
STRIP_TOKENS = {True: 512 * 64, False: 128 * 64}


class Strip(NamedTuple):
    """Queries of a tile that holds all keys of a head, and programs that share out its queries."""

    blocks: Blocks
    parts: int

    def arguments(self) -> dict[str, Any]:
        """As a kernel takes them."""
        return self.blocks.arguments()


def strip_of(problem: Problem) -> Strip | None:
    """The tile of the fused form; None if there are too many keys for one."""
    size, n, m = problem.scores.shape
    columns, tokens = max(power_of_two(m), 16), _token_width(problem)
    given = not isinstance(problem.scores, Scores)
    masked = given or problem.scores.mask is not None or _is_padded(problem)
    room = STRIP_TOKENS[tokens == 0 or _is_half(problem)] // (2 if masked else 1)
    if columns * max(tokens, 64) > room:
        return None
    rows = STRIP[masked]
    parts = max(1, min(-(-BUSY // size), -(-n // rows), 16))
    registers = ALL_REGISTERS if masked or not _is_half(problem) or tokens > 64 else 0
    return Strip(Blocks(rows, columns, 8 if columns > 128 else 4, 2, registers), parts)


# entries of the scores of a head, in powers of two, that 8 warps hold in 16 registers each; fewer
# if it is made of float32 tokens, whose products take most registers
LARGEST_HEAD = 64 * 64
LARGEST_SINGLE_HEAD = 32 * 32
# numbers of a tile of tokens, one per feature, that fit shared memory beside another one
LARGEST_TOKENS = 64 * 64
# entries that the small heads of one program have together
GROUPED = 1024


class Heads(NamedTuple):
    """Heads that one program holds side by side, their sizes in powers of two, and its warps."""

    group: int
    n: int
    m: int
    warps: int
    registers: int

    def programs(self, batch: int) -> int:
        """How many programs share out a batch."""
        return -(-batch // self.group)

    def arguments(self) -> dict[str, Any]:
        """As a kernel takes them."""
        return {
            "GROUP": self.group, "N": self.n, "M": self.m, "num_warps": self.warps,
            "num_stages": 1, **register_options(self.registers, self.warps),
        }  # fmt: skip

    @staticmethod
    def fits(problem: Problem, features: int) -> bool:
        """Whether a whole head of these sizes stays on chip, with its tokens and values."""
        heads, widest = heads_of(problem, features), _widest(problem, features)
        is_single = widest > 0 and not _is_half(problem)
        largest = LARGEST_SINGLE_HEAD if is_single else LARGEST_HEAD
        return heads.n * heads.m <= largest and max(heads.n, heads.m) * widest <= LARGEST_TOKENS


def heads_of(problem: Problem, features: int) -> Heads:
    """How many heads one program holds; one, if it multiplies their matrices."""
    _, n, m = problem.scores.shape
    widest = _widest(problem, features)
    multiplies = widest > 0
    n, m = (max(power_of_two(length), 16 if multiplies else 2) for length in (n, m))
    group = 1 if multiplies else max(1, GROUPED // (n * m))
    padded = _is_padded(problem)
    # where matrices share a program, or are padded, vectors beside them take registers too
    entries = 256 if not multiplies and (group > 1 or padded) else 512
    # and so does the largest tile of tokens
    tile = max(n, m) * widest // (512 if padded else 1024)
    warps = max(group * n * m // entries, tile, 2 if multiplies else 1)
    return Heads(group, n, m, warps, ALL_REGISTERS if multiplies or padded else 0)


def _widest(problem: Problem, features: int) -> int:
    """Features of a tile of tokens or values, in a power of two; 0 without either."""
    return max(_token_width(problem), width(features) if features else 0)


def _is_half(problem: Problem) -> bool:
    scores = problem.scores
    return isinstance(scores, Scores) and scores.query.dtype.itemsize == 2


def _is_padded(problem: Problem) -> bool:
    scores = problem.scores
    return scores.query_mask is not None or scores.key_mask is not None


def _token_width(problem: Problem) -> int:
    scores = problem.scores
    return width(scores.query.shape[2]) if isinstance(scores, Scores) else 0
