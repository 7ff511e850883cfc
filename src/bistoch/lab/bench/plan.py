"""What a run will measure: options of the command turned into groups of cells."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from bistoch.lab.bench import cases, contenders
from bistoch.lab.bench.cases import Case, Direction, Scores, Setting
from bistoch.lab.bench.contenders import SDPA, Contender
from bistoch.lab.bench.gpu_peers import installed_gpu_peers
from bistoch.lab.bench.half import causal_half_contenders, half_contenders
from bistoch.lab.bench.heat import FEWEST, heat_contenders
from bistoch.lab.bench.measure import Cell, Entry, TimeLimits
from bistoch.lab.bench.peers import PACKAGES, missing_packages, peer_contenders
from bistoch.lab.device import read_device
from bistoch.lab.store import plain

# lengths by what is measured, in a full run and in a quick one
SIZES = {
    "bench": (64, 256, 1024, 2048, 4096, 8192, 16384), "operators": (64, 256, 1024),
    "causal": (512, 1024, 2048, 4096), "flows": (500, 2000, 8000, 20000),
    "long": (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536),
}  # fmt: skip
KINDS = ("operators", "causal", "flows", "long")
QUICK_SIZES, QUICK_CLOUDS = (256, 1024), (200, 500)
SETTINGS = (Setting(1.0, 10), Setting(0.5, 5))
# beyond this length one head by default, and none that keep whole matrices
LONG = 8192
# heads of a run about long sequences
LONG_HEADS = 2
LIMITS = TimeLimits(rounds=7, sample=0.05, limit=20.0, budget=30.0, never=80.0)
LONG_LIMITS = TimeLimits(rounds=5, sample=0.05, limit=5.0, budget=12.0, never=40.0)
QUICK_LIMITS = TimeLimits(rounds=3, sample=0.02, limit=0.6, budget=1.0, never=8.0)
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
    flows: bool = False
    long: bool = False
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
        if self.operators + self.causal + self.flows + self.long > 1:
            raise ValueError(
                "bench: operators, causal, flows and long are separate runs; choose one"
            )
        if self.flows and self.device != "cpu":
            raise ValueError("bench: --flows runs on the CPU; leave --device out")
        read_device(self.device, "bench")

    @property
    def kind(self) -> str:
        """What is measured, which is also the name of the file of results."""
        return next((kind for kind in KINDS if getattr(self, kind)), "bench")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The lengths, from short to long: what is too slow at one is not tried at the next."""
        quick = QUICK_CLOUDS if self.flows else QUICK_SIZES
        sizes = tuple(sorted(set(self.n))) or (quick if self.quick else SIZES[self.kind])
        shortest = SIZES["operators"][0]
        if self.operators and sizes[0] > shortest:
            # nothing is known of what an operator takes: a short sequence predicts the long ones
            return (shortest, *sizes)
        return sizes

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The first is measured for all contenders, the others for our backends only."""
        if self.lam is None and self.iters is None:
            return SETTINGS
        lam = SETTINGS[0].lam if self.lam is None else self.lam
        return (Setting(lam, SETTINGS[0].iters if self.iters is None else self.iters),)

    @property
    def used_threads(self) -> int:
        """How many threads each contender may use."""
        return self.threads or torch.get_num_threads()

    @property
    def limits(self) -> TimeLimits:
        """How long to measure."""
        limits = QUICK_LIMITS if self.quick else LONG_LIMITS if self.long else LIMITS
        return limits if self.rounds is None else limits._replace(rounds=self.rounds)

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Forward, and forward with backward unless it is not wanted."""
        both = self.backward and not self.flows
        return ("forward", "forward+backward") if both else ("forward",)

    def command(self) -> str:
        """The command of this run, without the folder of its results.

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
        words += [f"--{name}" for name in ("quick", *KINDS) if getattr(self, name)]
        return " ".join(words)

    def configuration(self) -> dict[str, Any]:
        """All that changes numbers, as plain data."""
        chosen = {"threads": self.used_threads, "limits": self.limits, "settings": self.settings}
        return plain({**asdict(self), **chosen, "sizes": self.sizes, "kind": self.kind})


class Group(NamedTuple):
    """Contenders that take turns in one process on one case; the first is the baseline."""

    package: str | None
    case: Case
    direction: Direction
    entries: tuple[Entry, ...]
    # a baseline that would take too long, predicted from shorter sequences
    predicted: Cell | None = None


def plan(options: Options) -> list[Group]:
    """Every group of a run in order: this process first, then one package after the other.

    >>> groups = plan(Options(n=(64,), backward=False))
    >>> groups[0].case.name, groups[0].entries[0].contender.name
    ('n=64', 'sdpa')
    """
    if options.flows:
        return _heat_groups(options)
    if options.long:
        return _long_groups(options)
    if options.kind != "bench":
        rows = contenders.operator_contenders()
        if options.causal:
            rows = contenders.causal_contenders(options.device)
            rows |= {} if options.device == "cpu" else causal_half_contenders()
        everyone = tuple(Entry(row, Setting()) for row in rows.values())
        some = [case for case in _sequences(options) if case.scores == "random"]
        return [Group(None, case, way, everyone) for case in some for way in options.directions]
    groups = [
        Group(None, case, way, _torch_entries(case, options))
        for case in _sequences(options)
        for way in options.directions
    ]
    # these libraries are compared on the CPU
    peers = _peer_groups(options) if options.device == "cpu" else ()
    return [*groups, *_other_shapes(options), *peers]


def _heat_groups(options: Options) -> list[Group]:
    ours, *others = heat_contenders().values()
    groups = []
    for package, rows in {None: others[:1], **_by_package(others)}.items():
        entries = tuple(Entry(row, FEWEST) for row in (ours, *rows))
        for n in options.sizes:
            for law in cases.EPS:
                groups.append(Group(package, cases.cloud(n, law), "forward", entries))
    return groups


def _long_groups(options: Options) -> list[Group]:
    groups = []
    for n in options.sizes:
        case = cases.long_sequence(n, options.heads or LONG_HEADS, options.dim)
        for way in options.directions:
            for rows in (contenders.long_contenders(), contenders.long_causal_contenders()):
                entries = tuple(Entry(row, options.settings[0]) for row in rows.values())
                groups.append(Group(None, case, way, entries))
    return groups


def _sequences(options: Options) -> Iterator[Case]:
    for n in options.sizes:
        # the second kind at every size would cost a quick run half of its time
        both = not options.quick or n == min(options.sizes)
        kinds: tuple[Scores, ...] = ("random", "peaked") if both else ("random",)
        for scores in kinds:
            yield cases.sequence(n, options.heads or (8 if n <= LONG else 1), options.dim, scores)


def _other_shapes(options: Options) -> Iterator[Group]:
    # shapes that do not follow the options are left out when sizes are chosen by hand
    if options.n:
        return
    images, matrices = cases.vit_batch(), cases.small_matrices(MATRICES)
    small = tuple(
        Entry(row, cases.BALANCE) for row in contenders.balance_contenders(options.device).values()
    )
    for way in options.directions[-1:] if options.quick else options.directions:
        yield Group(None, images, way, _torch_entries(images, options))
        yield Group(None, matrices, way, small)


def _torch_entries(case: Case, options: Options) -> tuple[Entry, ...]:
    sdpa, *others = contenders.attention_contenders(options.device).values()
    if options.device != "cpu":
        others += (half_contenders() | installed_gpu_peers()).values()
    entries = [Entry(sdpa, Setting())]
    for row in others:
        if not row.takes_setting:
            entries.append(Entry(row, Setting()))
        elif case.n <= LONG or not row.dense:
            one = row.dense or not row.any_lam
            wanted = options.settings[:1] if one else options.settings
            entries += [Entry(row, setting) for setting in wanted]
    return tuple(entries)


def _peer_groups(options: Options) -> Iterator[Group]:
    baseline = Entry(contenders.attention_contenders()[SDPA], Setting())
    for package, rows in _by_package(peer_contenders().values()).items():
        entries = tuple(Entry(row, options.settings[0]) for row in rows)
        for case in _sequences(options):
            # their speed does not depend on the scores, and a quick run has no time to show it
            if case.n <= LONG and not (options.quick and case.scores != "random"):
                for way in options.directions:
                    yield Group(package, case, way, (baseline, *entries))


def _by_package(rows: Iterable[Contender]) -> dict[str | None, list[Contender]]:
    """The contenders of every package that is installed."""
    missing, everyone = missing_packages(), list(rows)
    return {
        package: some
        for package, name in PACKAGES.items()
        if name not in missing and (some := [row for row in everyone if row.package == package])
    }


def entries_ratio(measured: Sequence[int], wanted: Sequence[int]) -> float:
    """How many times as many entries the plans of one shape have as those of another.

    >>> entries_ratio((1, 8, 256, 64), (1, 8, 512, 64))
    4.0
    """
    few, many = (math.prod(shape[:-2]) * shape[-2] ** 2 for shape in (measured, wanted))
    return many / few
