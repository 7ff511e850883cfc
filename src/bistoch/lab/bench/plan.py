"""What a run will measure: options of the command turned into groups of cells."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from bistoch.lab.bench.cases import (
    BALANCE,
    SEED,
    Case,
    Direction,
    Scores,
    Setting,
    sequence,
    small_matrices,
    vit_batch,
)
from bistoch.lab.bench.contenders import (
    SDPA,
    attention_contenders,
    balance_contenders,
    causal_contenders,
    operator_contenders,
)
from bistoch.lab.bench.measure import Entry, Pace
from bistoch.lab.bench.peers import PACKAGES, missing_packages, peer_contenders
from bistoch.lab.device import read_device

SIZES = (64, 256, 1024, 2048, 4096, 8192, 16384)
QUICK_SIZES, OPERATOR_SIZES = (256, 1024), (64, 256, 1024)
CAUSAL_SIZES = (512, 1024, 2048, 4096)
SETTINGS = (Setting(1.0, 10), Setting(0.5, 5))
SCOUT = OPERATOR_SIZES[0]
# beyond this length one head by default, and nobody who keeps whole matrices
LONG = 8192
PACE = Pace(rounds=7, sample=0.05, limit=20.0, budget=30.0, never=80.0)
QUICK_PACE = Pace(rounds=3, sample=0.02, limit=0.6, budget=1.0, never=8.0)
MATRICES = 100_000


@dataclass(frozen=True)
class Options:
    """What the user asked for; None means the default, which may depend on the rest.

    >>> Options(quick=True).sizes, Options(n=(64,)).sizes, Options(lam=0.5).settings
    ((256, 1024), (64,), (Setting(lam=0.5, iters=10),))
    """

    n: tuple[int, ...] = ()
    heads: int | None = None
    dim: int = 64
    lam: float | None = None
    iters: int | None = None
    threads: int | None = None
    rounds: int | None = None
    backward: bool = True
    quick: bool = False
    operators: bool = False
    causal: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        numbers = {
            "n": min(self.n, default=1), "heads": self.heads, "dim": self.dim,
            "threads": self.threads, "rounds": self.rounds,
        }  # fmt: skip
        for name, value in numbers.items():
            if value is not None and value < 1:
                raise ValueError(f"bench: {name} must be at least 1, but it is {value}")
        if self.iters is not None and self.iters < 0:
            raise ValueError(f"bench: iters must not be negative, but it is {self.iters}")
        if self.lam is not None and not 0 <= self.lam <= 1:
            raise ValueError(f"bench: lam must be in [0, 1], but it is {self.lam}")
        if self.operators and self.causal:
            raise ValueError("bench: operators and causal are two runs; choose one of them")
        read_device(self.device, "bench")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The lengths, from short to long: what is too slow at one is not tried at the next."""
        usual = OPERATOR_SIZES if self.operators else CAUSAL_SIZES if self.causal else SIZES
        sizes = tuple(sorted(set(self.n))) or (QUICK_SIZES if self.quick else usual)
        if self.operators and sizes[0] > SCOUT:
            # nothing is known of what an operator takes: a short sequence foretells the long ones
            return (SCOUT, *sizes)
        return sizes

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The first is asked of everybody, the others of our backends only."""
        if self.lam is None and self.iters is None:
            return SETTINGS
        lam = SETTINGS[0].lam if self.lam is None else self.lam
        return (Setting(lam, SETTINGS[0].iters if self.iters is None else self.iters),)

    @property
    def used_threads(self) -> int:
        """How many threads everybody may use."""
        return self.threads or torch.get_num_threads()

    @property
    def pace(self) -> Pace:
        """How long to measure."""
        pace = QUICK_PACE if self.quick else PACE
        return pace if self.rounds is None else pace._replace(rounds=self.rounds)

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Forward, and forward with backward unless it is not wanted."""
        return ("forward", "forward+backward") if self.backward else ("forward",)

    def command(self) -> str:
        """The words that ask for this run, without the place of its results.

        >>> Options(n=(64, 256), quick=True, backward=False).command()
        'bistoch bench --n 64 --n 256 --no-backward --quick'
        """
        words = ["bistoch bench", *(f"--n {n}" for n in self.n)]
        words += [f"--device {self.device}"] if self.device != Options.device else []
        words += [f"--dim {self.dim}"] if self.dim != Options.dim else []
        for name in ("heads", "lam", "iters", "threads", "rounds"):
            value = getattr(self, name)
            words += [] if value is None else [f"--{name} {value:g}"]
        words += [] if self.backward else ["--no-backward"]
        words += [f"--{name}" for name in ("quick", "operators", "causal") if getattr(self, name)]
        return " ".join(words)

    def configuration(self) -> dict[str, Any]:
        """All options that change numbers, as plain data."""
        # results of the CPU that were recorded before there was a choice stay valid
        device = {} if self.device == Options.device else {"device": self.device}
        return {
            **device, "sizes": list(self.sizes), "heads": self.heads or 8, "dim": self.dim,
            "settings": [str(setting) for setting in self.settings],
            "threads": self.used_threads, "pace": list(self.pace), "backward": self.backward,
            "quick": self.quick, "operators": self.operators, "causal": self.causal,
            "dtype": "float32", "seed": SEED, "heads given": self.heads is not None,
        }  # fmt: skip


class Group(NamedTuple):
    """Contenders that take turns in one process on one case; the first is the baseline."""

    package: str | None
    case: Case
    direction: Direction
    entries: tuple[Entry, ...]


def plan(options: Options) -> list[Group]:
    """Every group of a run in order: this process first, then one package after the other.

    >>> groups = plan(Options(n=(64,), backward=False))
    >>> groups[0].case.name, groups[0].entries[0].contender.name
    ('n=64', 'sdpa')
    """
    if options.operators or options.causal:
        rows = operator_contenders() if options.operators else causal_contenders()
        everyone = tuple(Entry(row, Setting()) for row in rows.values())
        cases = [case for case in _sequences(options) if case.scores == "random"]
        return [Group(None, c, way, everyone) for c in cases for way in options.directions]
    groups = [
        Group(None, case, way, _torch_entries(case, options))
        for case in _sequences(options)
        for way in options.directions
    ]
    # other libraries are compared on the CPU
    peers = _peer_groups(options) if options.device == "cpu" else ()
    return [*groups, *_other_shapes(options), *peers]


def _sequences(options: Options) -> Iterator[Case]:
    for n in options.sizes:
        for scores in _scores(n, options):
            yield sequence(n, options.heads or (8 if n <= LONG else 1), options.dim, scores)


def _scores(n: int, options: Options) -> tuple[Scores, ...]:
    # the second kind at every size would cost a quick run half of its time
    return ("random", "peaked") if not options.quick or n == min(options.sizes) else ("random",)


def _other_shapes(options: Options) -> Iterator[Group]:
    # shapes that do not follow the options are left out when sizes are chosen by hand
    if options.n:
        return
    small = tuple(Entry(row, BALANCE) for row in balance_contenders().values())
    for way in options.directions[-1:] if options.quick else options.directions:
        yield Group(None, vit_batch(), way, _torch_entries(vit_batch(), options))
        yield Group(None, small_matrices(MATRICES), way, small)


def _torch_entries(case: Case, options: Options) -> tuple[Entry, ...]:
    sdpa, *others = attention_contenders().values()
    entries = [Entry(sdpa, Setting())]
    for row in others:
        if case.n <= LONG or not row.dense:
            wanted = options.settings[:1] if row.dense else options.settings
            entries += [Entry(row, setting) for setting in wanted]
    return tuple(entries)


def _peer_groups(options: Options) -> Iterator[Group]:
    missing = missing_packages()
    for package, name in PACKAGES.items():
        if name in missing:
            continue
        rows = [row for row in peer_contenders().values() if row.package == package]
        entries = tuple(Entry(row, options.settings[0]) for row in rows)
        baseline = Entry(attention_contenders()[SDPA], Setting())
        for case in _sequences(options):
            # their speed does not depend on the scores, and a quick run has no time to show it
            if case.n <= LONG and not (options.quick and case.scores != "random"):
                for way in options.directions:
                    yield Group(package, case, way, (baseline, *entries))


def entries_ratio(measured: Sequence[int], wanted: Sequence[int]) -> float:
    """How many times as many entries the plans of one shape have as those of another.

    >>> entries_ratio((1, 8, 256, 64), (1, 8, 512, 64))
    4.0
    """
    few, many = (math.prod(shape[:-2]) * shape[-2] ** 2 for shape in (measured, wanted))
    return many / few
