"""One heat step of a cloud: our passes against POT, GeomLoss and dense code, to one accuracy.

Everybody takes as many iterations as bring the largest error of the step below a share of its
largest displacement; that many are then timed, in turn, best of several rounds.
"""

import json
import math
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from bistoch.flows import heat_step, two_bumps
from bistoch.functional import ConvergenceWarning
from bistoch.lab.bench.memory import allocated_by, choose_memory, resident_growth
from bistoch.lab.bench.peers import EXTRA
from bistoch.lab.bench.table import Marks
from bistoch.lab.files import write_whole
from bistoch.lab.machine import busy_warning, describe_machine, load_average, total_memory
from bistoch.lab.timing import stopwatch

ACCURACY = 1e-3
EFFORTS = tuple(2**power for power in range(1, 15))
SIZES, QUICK_SIZES = (500, 2000, 8000, 20000), (200, 500)
MIB = 1 << 20
# a float32 matrix of all pairs that code keeps, times this many, must fit into half the memory
KEPT = 6

Solve = Callable[[Tensor, float, int], Tensor]


class FlowPace(NamedTuple):
    """Rounds of timing, and the seconds beyond which more iterations are not tried."""

    rounds: int = 3
    patience: float = 60.0


@dataclass(frozen=True)
class FlowCase:
    """A cloud and its temperature; `law` is "line", "plane" or "pixels"."""

    law: str
    n: int
    eps: float

    def particles(self) -> Tensor:
        """The cloud in float64, always the same."""
        generator = torch.Generator().manual_seed(0)
        if self.law == "line":
            return two_bumps().sample(self.n, generator=generator)
        if self.law == "plane":
            return torch.randn(self.n, 2, dtype=torch.float64, generator=generator)
        # as many dimensions as FashionMNIST, with variances that fall as those of pictures do
        scale = torch.arange(1, 785, dtype=torch.float64) ** -0.5
        noise = torch.randn(self.n, 784, dtype=torch.float64, generator=generator)
        return noise * scale * math.sqrt(68 / scale.square().sum())


@dataclass
class FlowCell:
    """One time of the benchmark with what is known about it."""

    case: str
    n: int
    eps: float
    contender: str
    status: str = "measured"
    reason: str | None = None
    iterations: int | None = None
    error: float | None = None
    seconds: float | None = None
    memory: int | None = None
    samples: list[float] = field(default_factory=list)


def cases(sizes: Sequence[int]) -> list[FlowCase]:
    """The published mixture, a Gaussian in the plane, and 784 dimensions, at every size.

    >>> [case.law for case in cases([100])]
    ['line', 'plane', 'pixels']
    """
    kinds = (("line", 0.01), ("plane", 0.05), ("pixels", 100.0))
    return [FlowCase(law, n, eps) for law, eps in kinds for n in sizes]


def contenders() -> dict[str, tuple[Solve, bool, str | None]]:
    """Who takes the step, whether they keep all pairs, and the package they need."""
    return {
        "bistoch": (_ours, False, None),
        "dense averaged": (_dense, True, None),
        "POT log": (_pot("sinkhorn_log"), True, "ot"),
        "POT knopp": (_pot("sinkhorn_knopp"), True, "ot"),
        "GeomLoss": (_geomloss, True, "geomloss"),
    }


def run_flow_bench(
    sizes: Sequence[int],
    *,
    rounds: int | None,
    threads: int | None,
    quick: bool,
    out: Path,
    console: Console,
) -> Path:
    """Prove and time one step of every case by everybody; write JSON and print a table."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    load = load_average()
    pace = FlowPace(rounds or 1, 1.0) if quick else FlowPace(rounds or 3)
    cells: list[FlowCell] = []
    try:
        wanted = cases(sizes or (QUICK_SIZES if quick else SIZES))
        for case in track(wanted, "flows", console=console, transient=True):
            cells += measure_case(case, pace)
    finally:
        torch.set_num_threads(before)
    notes = [note for note in (busy_warning(load, 0, "at the start"),) if note]
    _print(cells, notes, console)
    machine = {**describe_machine(), "threads": threads or before, "load_average_at_start": load}
    content = {
        "schema": 1, "accuracy": ACCURACY, "machine": machine, "notes": notes,
        "cells": [asdict(cell) for cell in cells],
    }  # fmt: skip
    path = out / "flows.json"
    write_whole(path, json.dumps(content, indent=1).encode())
    console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    return path


def measure_case(case: FlowCase, pace: FlowPace) -> list[FlowCell]:
    """All contenders on one cloud."""
    exact = case.particles()
    right = heat_step(exact, case.eps, tol=1e-8)
    # ours is exact enough in float32 wherever squared distances over eps are not huge
    x = exact if case.law == "line" else exact.float()
    cells, running = [], []
    for name, (solve, keeps, package) in contenders().items():
        cell = FlowCell(case.law, case.n, case.eps, name)
        cells.append(cell)
        if package is not None and find_spec(package) is None:
            cell.status, cell.reason = "skipped", f"{package} is not installed: {EXTRA}"
        elif keeps and KEPT * x.element_size() * case.n**2 > total_memory() / 2:
            cell.status, cell.reason = "skipped", "all pairs do not fit into memory"
        else:
            call = _prove(cell, solve, (x, case.eps), right, pace)
            if call is not None:
                running.append((cell, call))
    for _ in range(pace.rounds):
        for cell, call in running:
            cell.samples.append(stopwatch(call, 1))
    for cell, _ in running:
        cell.seconds = min(cell.samples)
    return cells


def _prove(
    cell: FlowCell, solve: Solve, task: tuple[Tensor, float], right: Tensor, pace: FlowPace
) -> Callable[[], Tensor] | None:
    """The call with the fewest iterations that is right enough, or None with the reason."""
    x, eps = task
    moved = (right - x).norm(dim=-1).max().item()
    with suppress(Exception), warnings.catch_warnings():
        # imports and compilation are not to try anybody's patience
        warnings.simplefilter("ignore")
        solve(x[:8], eps, 1)
    for iterations in EFFORTS:
        call = partial(solve, x, eps, iterations)
        try:
            with warnings.catch_warnings():
                # libraries warn where they stop short; here the error is measured
                warnings.simplefilter("ignore")
                start = time.perf_counter()
                result = call()
                seconds = time.perf_counter() - start
        # whatever happens inside a contender is a result of the benchmark, not its end
        except Exception as mistake:
            cell.status = "failed"
            cell.reason = f"{type(mistake).__name__}: {str(mistake).splitlines()[0][:120]}"
            return None
        cell.iterations = iterations
        cell.error = (result.double() - right).norm(dim=-1).max().item() / max(moved, 1e-300)
        if cell.error <= ACCURACY:
            del result
            cell.memory = choose_memory(allocated_by(call)[1], resident_growth(call))
            return call
        if 2 * seconds > pace.patience:
            break
    cell.status = "inaccurate"
    cell.reason = f"error {cell.error:.1g} after {cell.iterations} iterations"
    return None


def _ours(x: Tensor, eps: float, iterations: int) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return heat_step(x, eps, tol=1e-30, iters=iterations)


# what follows is written as people write it, on purpose without a line of ours


def _dense(x: Tensor, eps: float, iterations: int) -> Tensor:
    scores = -torch.cdist(x, x).square() / (2 * eps) - math.log(len(x))
    g = x.new_zeros(len(x))
    for _ in range(iterations):
        g = (g - torch.logsumexp(scores + g, -1)) / 2
    return 2 * x - (scores + g).softmax(-1) @ x


def _pot(solver: str) -> Solve:
    def solve(x: Tensor, eps: float, iterations: int) -> Tensor:
        plan = getattr(import_module("ot.bregman"), solver)(
            x.new_full((len(x),), 1 / len(x)), x.new_full((len(x),), 1 / len(x)),
            torch.cdist(x, x).square() / 2, eps, numItermax=iterations, stopThr=0, warn=False,
        )  # fmt: skip
        return 2 * x - len(x) * plan @ x

    return solve


def _geomloss(x: Tensor, eps: float, iterations: int) -> Tensor:
    geomloss = import_module("geomloss")
    # it cools from the diameter to the blur: a diameter a hair above keeps eps where it is
    hair, blur = 1e-6, math.sqrt(eps)
    solve = geomloss.SamplesLoss(
        "sinkhorn", p=2, blur=blur, diameter=blur * math.exp(iterations * hair),
        scaling=math.exp(-hair), debias=False, potentials=True, backend="tensorized",
    )  # fmt: skip
    weights = x.new_full((1, len(x)), 1 / len(x))
    row, column = (p.reshape(-1) for p in solve(weights, x[None], weights, x[None]))
    cost = torch.cdist(x, x).square() / 2
    plan = ((row[:, None] + column - cost) / eps).softmax(-1)
    return 2 * x - plan @ x


def _print(cells: Sequence[FlowCell], notes: Sequence[str], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("cloud", "n", "eps", "contender", "seconds", "over ours", "steps", "error", "MiB"):
        table.add_column(
            name, justify="left" if name in ("cloud", "contender") else "right", overflow="fold"
        )
    base = {(c.case, c.n): c.seconds for c in cells if c.contender == "bistoch"}
    marks = Marks()
    for cell in cells:
        words = [cell.case, str(cell.n), f"{cell.eps:g}", cell.contender]
        if cell.seconds is None:
            table.add_row(*words, rf"- \[{marks.number(f'{cell.contender}: {cell.reason}')}]")
            continue
        ours = base.get((cell.case, cell.n))
        table.add_row(
            *words, f"{cell.seconds:.3g}", f"{cell.seconds / ours:.2f}" if ours else "",
            str(cell.iterations), f"{cell.error:.1e}", f"{(cell.memory or 0) / MIB:.3g}",
        )  # fmt: skip
    console.print(table)
    told = (
        f"one heat step, largest error at most {ACCURACY:g} of the largest displacement; best of "
        "interleaved rounds; memory beyond the inputs",
    )
    for line in (*told, *marks.lines(), *notes):
        console.print(line, highlight=False, markup=False)
