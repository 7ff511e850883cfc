"""Verify, then time: all contenders of a case in turn, round after round, best of several."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from bistoch.functional import BackendUnavailableError
from bistoch.lab.bench.cases import Case, Direction, Setting
from bistoch.lab.bench.contenders import Contender, Task
from bistoch.lab.bench.expected import (
    PLAN,
    Check,
    ExpectedResults,
    check_results,
    verification_bytes,
)
from bistoch.lab.bench.half import TOLERANCE as HALF_TOLERANCE
from bistoch.lab.bench.memory import allocated_by, choose_memory, resident_growth
from bistoch.lab.device import CPU, DeviceLostError, check_device, first_line
from bistoch.lab.machine import OtherLoad, total_memory
from bistoch.lab.timing import Rounds, Timer, stopwatch, time_in_turns

# code that keeps matrices may fill this share of the machine
MEMORY_SHARE = 0.5


class TimeLimits(NamedTuple):
    """How long to measure.

    Args:
        rounds: samples of each contender.
        sample: seconds that a sample should last at least, by repeating short calls.
        limit: a call longer than this is timed once.
        budget: seconds for all samples of one contender; fewer rounds if they would take longer.
        never: a call that is expected to last longer than this is not made.
    """

    rounds: int = 7
    sample: float = 0.05
    limit: float = 20.0
    budget: float = 30.0
    never: float = 80.0


class CrashError(DeviceLostError):
    """A contender after which the GPU no longer works in this process; `cell` says which."""

    def __init__(self, cell: "Cell", cause: DeviceLostError):
        super().__init__(
            f"bench: {cell.contender} on {cell.case}, {cell.scores} scores, {cell.direction}, "
            f"ended with {cause}, after which nothing works on this GPU in the same process; what "
            "was measured is kept, and the same command measures the rest without it"
        )
        self.cell = cell
        cell.status, cell.reason = "crashed", str(cause)


class Entry(NamedTuple):
    """A contender with its options."""

    contender: Contender
    setting: Setting


@dataclass
class Cell:
    """One number of the benchmark with all that is known about it; plain data, ready for JSON."""

    case: str
    task: str
    shape: list[int]
    scores: str
    direction: str
    contender: str
    # None for contenders that do not iterate, or that keep their own defaults
    lam: float | None
    iters: int | None
    package: str | None
    # measured, wrong, skipped, failed, crashed: it ended the run with the GPU, or extrapolated: not
    # timed, but predicted
    status: str = "measured"
    reason: str | None = None
    errors: dict[str, float] = field(default_factory=dict)
    tolerance: float | None = None
    verified_by: str | None = None
    problems_verified: int | None = None
    iterations_taken: int | None = None
    seconds: float | None = None
    samples: list[float] = field(default_factory=list)
    calls_per_sample: int | None = None
    timed_once: bool = False
    baseline: str | None = None
    baseline_seconds: float | None = None
    baseline_extrapolated: bool = False
    ratio: float | None = None
    memory: int | None = None
    memory_allocated: int | None = None
    memory_resident: int | None = None
    # the share of all cores that other programs used while this was measured
    others: float | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two cells the same question."""
        shape = tuple(self.shape)
        return (
            self.case, shape, self.scores, self.direction, self.contender, self.lam, self.iters
        )  # fmt: skip


def new_cell(case: Case, direction: Direction, entry: Entry) -> Cell:
    """An empty cell for an entry."""
    contender, setting = entry
    lam, iters = (setting.lam, setting.iters) if contender.takes_setting else (None, None)
    return Cell(
        case.name, case.task, list(case.shape), case.scores, direction, contender.name, lam, iters,
        contender.package,
    )  # fmt: skip


def measure(
    case: Case,
    direction: Direction,
    entries: Sequence[Entry],
    limits: TimeLimits,
    expected: ExpectedResults,
    timer: Timer = stopwatch,
    *,
    device: torch.device = CPU,
    known: Cell | None = None,
) -> list[Cell]:
    """Verify and time all entries, the first of which is the baseline of the ratios.

    Args:
        case: the problem.
        direction: "forward" or "forward+backward".
        entries: contenders with their options; one that is wrong, does not fit or fails gets a
            cell that says so and no time. On a GPU a baseline that is no further off than half
            precision may be is timed: without it there would be no ratio.
        limits: how long to measure.
        expected: the expected results.
        timer: the clock; tests bring their own.
        device: where all contenders compute; by default the CPU.
        known: a baseline that is not timed here; then it is none of the entries.
    """
    cells = [new_cell(case, direction, entry) for entry in entries]
    running = []
    load = OtherLoad()
    for cell, entry in zip(cells, entries, strict=True):
        reason = refusal(case, direction, entry, device)
        if reason is not None:
            cell.status, cell.reason = "skipped", reason
            continue
        try:
            # all ratios depend on the baseline: it is never timed only once
            leads = known is None and cell is cells[0]
            own = limits._replace(limit=math.inf) if leads else limits
            call = _verify(cell, case, direction, entry, expected, own, device, leads)
            if call is not None:
                running.append(_start(cell, call, own, timer, device))
        except BackendUnavailableError as missing:
            cell.status, cell.reason = "skipped", str(missing)
        # whatever happens inside a contender is a result of the benchmark, not its end
        except Exception as mistake:
            cell.status, cell.reason = "failed", first_line(mistake)
            _end_if_lost(cell, device)
    _run_rounds(running, timer, device)
    others = load.share()
    baseline = known or cells[0]
    least = baseline.seconds or min(baseline.samples, default=None)
    for cell in cells:
        cell.others = others
        cell.baseline = baseline.contender
        if cell.status == "measured" and not least:
            cell.status, cell.reason = "failed", f"nothing to compare with: {baseline.reason}"
        elif cell.samples and least:
            cell.seconds, cell.baseline_seconds = min(cell.samples), least
            cell.ratio = cell.seconds / least
            cell.baseline_extrapolated = known is not None
    return cells


def refusal(
    case: Case, direction: Direction, entry: Entry, device: torch.device = CPU
) -> str | None:
    """Why an entry cannot run a case on a device, or None."""
    contender, setting = entry
    if contender.longest is not None and case.n > contender.longest:
        if contender.expected == "limit":
            return f"verifying it in float64 takes too long beyond {contender.longest} tokens"
        return (
            f"its cost grows too fast beyond {contender.longest} tokens, by the table of operators"
        )
    if direction != "forward" and not contender.has_gradient:
        return "no gradient through the plan"
    if setting.lam != 1 and not contender.any_lam:
        return "balances fully only (lam = 1)"
    need = 4 * case.problems * case.n**2 * contender.matrices(direction, setting.iters)
    if need > MEMORY_SHARE * total_memory(device):
        return f"would need about {need / 2**30:.0f} GiB"
    if contender.expected.endswith(PLAN):
        # the expected result is computed on the CPU, whatever the device
        need = verification_bytes(case, contender.expected, setting, direction)
        if need > MEMORY_SHARE * total_memory():
            return f"verifying its plan in float64 would need about {need / 2**30:.0f} GiB"
    return None


def _verify(
    cell: Cell,
    case: Case,
    direction: Direction,
    entry: Entry,
    expected: ExpectedResults,
    limits: TimeLimits,
    device: torch.device,
    leads: bool,
) -> Callable[[], Any] | None:
    """The call to be timed, or None if its results are wrong."""
    contender, setting = entry
    right = expected.get(case, contender.expected, setting, direction)
    cell.verified_by, cell.problems_verified = right.verified_by, len(right.problems)
    inputs, cotangent = tuple(x.to(device) for x in case.inputs()), case.cotangent().to(device)
    check, several = Check({}, 0.0), len(contender.efforts) > 1
    for effort in contender.efforts:
        taken = replace(setting, iters=setting.iters * effort)
        calls = contender.prepare(Task(inputs, cotangent, taken, case.scores))
        call = calls.forward if direction == "forward" else calls.train
        if device.type == "cuda" and not several:
            # the first call compiles, and tries blocks out: that is not what it needs
            call()
        began = time.perf_counter()
        # what may need several attempts is profiled once it is right
        result, cell.memory_allocated = (call(), None) if several else allocated_by(call)
        seconds = time.perf_counter() - began
        check = check_results(right, tuple(x.cpu() for x in calls.read(result)))
        check = check._replace(allowed=max(check.allowed, contender.tolerance))
        del result
        cell.errors, cell.tolerance = check.errors, check.allowed
        cell.iterations_taken = taken.iters if contender.takes_setting else None
        if check.passed:
            if several:
                cell.memory_allocated = allocated_by(call)[1]
            # jax does not ask torch for memory
            cell.memory_allocated = cell.memory_allocated or None
            return call
        # the first call also compiles
        if effort > contender.efforts[0] and 2 * seconds > limits.limit:
            break
    name, error = max(check.errors.items(), key=lambda item: (item[1] != item[1], item[1]))
    off = f"{name} off by {error:.1g}, {check.allowed:.1g} allowed"
    if leads and device.type == "cuda" and error <= HALF_TOLERANCE:
        # GPUs may multiply float32 in fewer bits; what users call is what ratios are over
        cell.reason = f"{off}, but timed as the baseline"
        return call
    cell.status, cell.reason = "wrong", f"wrong: {off}"
    return None


class _Running(NamedTuple):
    cell: Cell
    call: Callable[[], Any]
    repeats: int
    rounds: int


def _start(
    cell: Cell, call: Callable[[], Any], limits: TimeLimits, timer: Timer, device: torch.device
) -> _Running:
    """Take the second call, which finds everything compiled, for memory and for the limits."""
    seconds = 0.0

    def timed() -> None:
        nonlocal seconds
        seconds = timer(call, 1)

    if device.type == "cuda":
        # the memory of the process is not that of the GPU
        timed()
    else:
        cell.memory_resident = resident_growth(timed)
    cell.memory = choose_memory(cell.memory_allocated, cell.memory_resident)
    cell.timed_once = seconds > limits.limit
    count = max(1, min(1000, round(limits.sample / max(seconds, 1e-9))))
    rounds = min(limits.rounds, max(1, int(limits.budget / max(seconds * count, 1e-9))))
    cell.calls_per_sample = count
    if cell.timed_once:
        cell.samples, rounds = [seconds], 0
    return _Running(cell, call, count, rounds)


def _end_if_lost(cell: Cell, device: torch.device) -> None:
    """Raise `CrashError` if the GPU no longer works: all later cells would fail too."""
    try:
        check_device(device)
    except DeviceLostError as lost:
        raise CrashError(cell, lost) from lost


def _run_rounds(running: Sequence[_Running], timer: Timer, device: torch.device) -> None:
    """Take turns, so that a slow moment of the machine hits everyone."""
    numbered = {str(place): one for place, one in enumerate(running)}
    owners = {id(one.call): one.cell for one in running}
    last: Callable[[], Any] | None = None

    def noting(call: Callable[[], Any], count: int) -> float:
        nonlocal last
        last = call
        return timer(call, count)

    try:
        samples = time_in_turns(
            {name: one.call for name, one in numbered.items()},
            {name: Rounds(one.rounds, one.repeats) for name, one in numbered.items()},
            timer=noting,
        )
    except Exception:
        if last is not None:
            _end_if_lost(owners[id(last)], device)
        raise
    for name, one in numbered.items():
        one.cell.samples += samples[name]
