"""A run from start to end: measure what is missing, keep it on disk, print it and draw it."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import bistoch
from bistoch.functional.kernels.tuning import VARIABLE
from bistoch.lab.bench.cases import DISTINCT, SCORES
from bistoch.lab.bench.contenders import SDPA
from bistoch.lab.bench.expected import TOLERANCE, ExpectedResults
from bistoch.lab.bench.gpu_peers import missing_gpu_peers
from bistoch.lab.bench.half import HALF
from bistoch.lab.bench.heat import heat_contenders
from bistoch.lab.bench.measure import (
    MEMORY_SHARE,
    Cell,
    CrashError,
    Entry,
    TimeLimits,
    measure,
    new_cell,
)
from bistoch.lab.bench.peers import PACKAGES, missing_packages, peer_contenders
from bistoch.lab.bench.plan import LONG_HEADS, Group, Options, entries_ratio, plan
from bistoch.lab.bench.plot import draw_bench
from bistoch.lab.bench.table import exponent, growth_rows, print_results
from bistoch.lab.bench.worker import Worker
from bistoch.lab.drawing import to_png
from bistoch.lab.files import write_whole
from bistoch.lab.machine import (
    busy_warning,
    describe_gpu,
    describe_machine,
    load_average,
    total_memory,
)
from bistoch.lab.progress import Display, progress
from bistoch.lab.store import Run, Store

SCHEMA = 1
LONG_REMARK = (
    f"delta is compared with causal {SDPA}, all others with {SDPA}; beyond {DISTINCT} tokens the "
    "first ones repeat, which leaves softmax attention and balanced plans as they are"
)
# these are measured again when a run is resumed: what is missing today may fit tomorrow
UNFINISHED = ("skipped", "failed", "extrapolated")


def run_bench(options: Options, out: Path, console: Console) -> Path:
    """Run a benchmark, print its tables, write JSON and a picture, and return the JSON's path.

    Cells that an interrupted run of the same configuration left in `out` are kept. If a contender
    crashes the GPU, the run ends with `CrashError` after all this, and the next one leaves it out.

    Args:
        options: what to measure.
        out: the folder for results.
        console: where to print.

    >>> import tempfile
    >>> options = Options(n=(8,), rounds=1, heads=1, dim=4, backward=False, operators=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = run_bench(options, Path(folder), Console(quiet=True))
    >>> path.name
    'operators.json'
    """
    path, groups = out / f"{options.kind}.json", plan(options)
    head = _head(options)
    notes, configuration = head["notes"], head["configuration"]
    cells = Cells(Store(out / ".cells", console.print), configuration)
    wanted = [new_cell(g.case, g.direction, e) for g in groups for e in _own(g)]
    kept = sum(cells.load(cell) for cell in wanted)
    if kept:
        notes.append(
            f"{kept} of {len(wanted)} cells were kept from an earlier run of this configuration; "
            "remove the folder .cells to measure them again"
        )
    if aside := _set_aside(path, configuration):
        notes.append(f"results of another configuration were set aside as {aside.name}")
    expected = out / f".expected-{configuration['source']}"
    expected.mkdir(parents=True, exist_ok=True)
    crash: CrashError | None = None
    # drawn between measurements only, never during one
    with _threads(options.used_threads), progress(console, len(groups), animated=False) as shown:
        try:
            _measure_all(groups, options, cells, expected, shown)
        except CrashError as error:
            crash = error
            cells.add([crash.cell])
            notes.append("this run ended early: a contender crashed, and the GPU with it")
    shutil.rmtree(expected, ignore_errors=True)
    load = load_average()
    head["machine"]["load_average_at_end"] = load
    warning = busy_warning(load, options.used_threads, "at the end")
    if warning and not any("busy" in note for note in notes):
        notes.append(warning)
    content = {
        "schema": SCHEMA, **head, "growth": growth_rows(cells.cells),
        "cells": [asdict(cell) for cell in cells.cells],
    }  # fmt: skip
    write_whole(path, json.dumps(content, indent=1).encode())
    print_results(cells.cells, notes, console)
    _draw(path, cells.cells, configuration, console)
    if crash is not None:
        raise crash
    return path


class Cells:
    """The cells of a run, and those that earlier runs of the same configuration finished."""

    def __init__(self, store: Store, configuration: dict[str, Any]):
        self._store, self._configuration = store, configuration
        self.cells: list[Cell] = []

    def load(self, cell: Cell) -> bool:
        """Take a cell from the store, if it was finished."""
        known = self._run(cell).read()
        if known is not None:
            self.cells.append(Cell(**known))
        return known is not None

    def has(self, cell: Cell) -> bool:
        """Whether a cell was measured."""
        return any(known.key == cell.key for known in self.cells)

    def add(self, cells: Sequence[Cell]) -> None:
        """Take cells in; those that are finished are kept for other runs."""
        self.cells += cells
        for cell in cells:
            if cell.status not in UNFINISHED:
                self._run(cell).write(asdict(cell))

    def _run(self, cell: Cell) -> Run:
        name = f"{cell.contender} {cell.case} {cell.scores} {cell.direction}"
        return self._store.run(name, {"cell": cell.key, "configuration": self._configuration})


def _set_aside(path: Path, configuration: dict[str, Any]) -> Path | None:
    """Rename results of another configuration; the new name, if there were any."""
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
        if old["schema"] != SCHEMA or old["configuration"] == configuration:
            return None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    aside = path.with_suffix(".previous.json")
    os.replace(path, aside)
    return aside


def _head(options: Options) -> dict[str, Any]:
    """What the file of results says besides its cells."""
    machine: dict[str, Any] = describe_machine()
    identity = {name: machine[name] for name in ("processor", "cores", "versions")}
    device = torch.device(options.device)
    if device.type == "cuda":
        machine["gpu"] = gpu = describe_gpu(device)
        # times of another GPU, or of other blocks, are not those of this run
        identity["gpu"] = {name: gpu[name] for name in ("name", "versions")}
        identity["blocks"] = os.environ.get(VARIABLE, "")
    load = load_average()
    warning = busy_warning(load, 0, "at the start")
    return {
        "command": options.command(),
        "configuration": {**options.configuration(), "source": source_digest(), **identity},
        "machine": {**machine, "threads": options.used_threads, "load_average_at_start": load},
        "scores": SCORES,
        "tolerance": TOLERANCE,
        "notes": [*([warning] if warning else []), *_remarks(options)],
    }


def source_digest() -> str:
    """A fingerprint of the code that is measured: other code has other times.

    >>> len(source_digest())
    16
    """
    root, digest = Path(bistoch.__file__).parent, hashlib.sha256()
    for room in ("functional", "flows", "lab/bench"):
        for path in sorted((root / room).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _remarks(options: Options) -> list[str]:
    """What must be said beside the tables."""
    if options.causal:
        return [f"here {SDPA} is causal: it is called with is_causal=True"]
    if options.long:
        return [LONG_REMARK]
    if options.operators:
        return []
    if options.device != "cpu":
        absent = missing_gpu_peers().items()
        return [f"{name} is not installed: {how}" for name, how in absent]
    rows = heat_contenders() if options.flows else peer_contenders()
    used = {PACKAGES[row.package] for row in rows.values() if row.package}
    missing = missing_packages().items()
    return [f"{name} is not installed: {how}" for name, how in missing if name in used]


def _own(group: Group) -> Sequence[Entry]:
    """The entries whose cells are kept: beside a library, the baseline is only for its ratios."""
    return group.entries if group.package is None else group.entries[1:]


def _measure_all(
    groups: Sequence[Group], options: Options, cells: Cells, expected: Path, shown: Display
) -> None:
    worker: Worker | None = None
    package: str | None = None
    try:
        for group in groups:
            if worker is not None and (group.package != package or not worker.alive):
                worker.close()
                worker = None
            package = group.package
            missing = [e for e in _own(group) if not cells.has(_blank(group, e))]
            unable = _without_baseline(group, missing, cells) or [
                cell for e in missing if (cell := _too_large(group, e, options, cells))
            ]
            names = {cell.key for cell in unable}
            todo = [e for e in missing if _blank(group, e).key not in names]
            if options.long:
                group = _with_prediction(group, unable, cells)
            beside = f" beside {package}" if package else ""
            where = f"{group.case.name} {group.case.scores} {group.direction}{beside}"
            shown.start(where)
            found = []
            if todo and package is not None:
                worker = worker or Worker(options.used_threads, options.limits, expected)
                found = worker.measure(group.case, group.direction, [group.entries[0], *todo])
            elif todo:
                device = torch.device(options.device)
                found = _measure_here(group, todo, options.limits, expected, device)
            cells.add([*found, *unable])
            shown.finish(where, kept=not todo)
    finally:
        if worker is not None:
            worker.close()


def _measure_here(
    group: Group, todo: Sequence[Entry], limits: TimeLimits, expected: Path, device: torch.device
) -> list[Cell]:
    """The cells of some entries, timed beside the baseline in this process."""
    baseline = group.entries[0]
    if group.predicted is not None:
        return measure(
            group.case, group.direction, todo, limits, ExpectedResults(expected), device=device,
            known=group.predicted,
        )  # fmt: skip
    entries = [baseline, *(entry for entry in todo if entry != baseline)]
    cells = measure(
        group.case, group.direction, entries, limits, ExpectedResults(expected), device=device
    )
    return cells if baseline in todo else cells[1:]


def _with_prediction(group: Group, unable: Sequence[Cell], cells: Cells) -> Group:
    """The group with a baseline that is predicted from shorter sequences, if it is too slow."""
    key = _blank(group, group.entries[0]).key
    cell = next((cell for cell in unable if cell.key == key), None)
    if cell is None:
        return group
    timed = [other for other in cells.cells if other.status == "measured"]
    known = [other for other in timed if _same_curve(cell, other)]
    nearest = max(known, key=lambda other: other.shape[-2])
    cell.status = "extrapolated"
    cell.seconds = (nearest.seconds or 0) * entries_ratio(nearest.shape, cell.shape)
    cell.reason = f"extrapolated from {nearest.case} by the number of pairs"
    cell.baseline, cell.ratio = cell.contender, 1.0
    return group._replace(predicted=cell)


def _blank(group: Group, entry: Entry) -> Cell:
    return new_cell(group.case, group.direction, entry)


def _too_large(group: Group, entry: Entry, options: Options, cells: Cells) -> Cell | None:
    """A cell that says why it is not tried, if shorter sequences predict that it takes too much."""
    cell = _blank(group, entry)
    known = [other for other in cells.cells if other.seconds and _same_curve(cell, other)]
    if not known:
        return None
    nearest = max(known, key=lambda other: other.shape[-2])
    growth = entries_ratio(nearest.shape, cell.shape)
    # some grow faster than their plans: two sizes show it
    power = exponent([(other.shape[-2], other.seconds) for other in known]) or 0
    longer = max(growth, (cell.shape[-2] / nearest.shape[-2]) ** power)
    if (nearest.seconds or 0) * longer > options.limits.never:
        cell.status, cell.reason = "skipped", "too slow, by the time of a shorter sequence"
        return cell
    # what an operator keeps is not known beforehand, as it is for the others
    room = MEMORY_SHARE * total_memory(torch.device(options.device))
    if options.operators and (nearest.memory or 0) * growth > room:
        cell.status, cell.reason = "skipped", "too much memory, by that of a shorter sequence"
        return cell
    return None


def _without_baseline(group: Group, missing: Sequence[Entry], cells: Cells) -> list[Cell]:
    """Cells that say why they are not timed, if the baseline of their group crashed the GPU."""
    key = _blank(group, group.entries[0]).key
    crashed = [cell for cell in cells.cells if cell.key == key and cell.status == "crashed"]
    found = [_blank(group, entry) for entry in missing if crashed]
    for cell in found:
        cell.status, cell.reason = "failed", f"nothing to compare with: {crashed[0].reason}"
    return found


def _same_curve(cell: Cell, other: Cell) -> bool:
    """Whether two cells differ in their length only."""
    alike = ("task", "contender", "lam", "iters", "scores", "direction")
    if any(getattr(cell, name) != getattr(other, name) for name in alike):
        return False
    return cell.case.startswith("n=") and other.case.startswith("n=")


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _caption(configuration: dict[str, Any], cells: Sequence[Cell]) -> str:
    if configuration["kind"] == "flows":
        return "one heat step of a cloud on the line"
    heads, dim, threads = (configuration[name] for name in ("heads", "dim", "threads"))
    heads = heads or (LONG_HEADS if configuration["kind"] == "long" else 8)
    half = any(cell.contender.endswith(HALF) for cell in cells)
    dtypes = f"bfloat16 where the name ends in{HALF}, else float32" if half else "float32"
    where = f"{threads} thread{'' if threads == 1 else 's'}"
    if "gpu" in configuration:
        where = configuration["gpu"]["name"]
    return f"{heads} heads of {dim} features, {dtypes}, random scores, {where}"


def _draw(
    path: Path, cells: Sequence[Cell], configuration: dict[str, Any], console: Console
) -> None:
    """The picture beside the JSON; without the drawing library, a sentence."""
    written, picture = [path], path.with_suffix(".png")
    try:
        growth = configuration["kind"] == "long"
        caption = _caption(configuration, cells)
        write_whole(picture, to_png(draw_bench(cells, caption, growth=growth)))
        written.append(picture)
    except ImportError as missing:
        console.print(f"no picture: {missing}", highlight=False, markup=False)
    for file in written:
        console.print(f"wrote {file}", highlight=False, markup=False, soft_wrap=True)
