"""A run from start to end: measure what is missing, keep it on disk, print it and draw it."""

import hashlib
import io
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

import bistoch
from bistoch.lab.bench.answers import TOLERANCE, Answers
from bistoch.lab.bench.cases import SCORES
from bistoch.lab.bench.contenders import SDPA
from bistoch.lab.bench.growth import exponent
from bistoch.lab.bench.measure import MEMORY_SHARE, Cell, Entry, Pace, measure, new_cell
from bistoch.lab.bench.peers import missing_packages
from bistoch.lab.bench.plan import Group, Options, entries_ratio, plan
from bistoch.lab.bench.plot import draw_bench
from bistoch.lab.bench.store import Store
from bistoch.lab.bench.table import print_results
from bistoch.lab.bench.worker import Worker
from bistoch.lab.files import write_whole
from bistoch.lab.machine import busy_warning, describe_machine, load_average, total_memory


def run_bench(options: Options, out: Path, console: Console) -> Path:
    """Run a benchmark, print its tables, write JSON and a picture, and return the JSON's path.

    Cells that a stopped run of the same configuration left in `out` are kept.

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
    store = _open_store(options, out)
    groups = plan(options)
    wanted = [new_cell(g.case, g.direction, e) for g in groups for e in _own(g)]
    kept = sum(store.has(cell) for cell in wanted)
    notes = store.head["notes"]
    if store.set_aside is not None:
        notes.append(f"results of another configuration were set aside as {store.set_aside.name}")
    if kept:
        notes.append(
            f"{kept} of {len(wanted)} cells were kept from an earlier run of this configuration; "
            f"remove {store.path.name} to measure them again"
        )
    answers = out / f".answers-{store.head['configuration']['source']}"
    answers.mkdir(exist_ok=True)
    try:
        with _threads(options.used_threads), _progress(console, len(wanted)) as bar:
            _measure_all(groups, options, store, answers, bar)
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on from here")
        raise
    load = load_average()
    store.head["machine"]["load_average_at_end"] = load
    warning = busy_warning(load, options.used_threads, "at the end")
    if warning and not any("busy" in note for note in notes):
        notes.append(warning)
    store.write(finished=True)
    shutil.rmtree(answers, ignore_errors=True)
    print_results(store.cells, notes, console)
    _draw(store, console)
    return store.path


def _open_store(options: Options, out: Path) -> Store:
    machine: dict[str, Any] = describe_machine()
    identity = {name: machine[name] for name in ("processor", "cores", "versions")}
    configuration = {**options.configuration(), "source": source_digest(), **identity}
    load = load_average()
    warning = busy_warning(load, 0, "at the start")
    head = {
        "command": options.command(),
        "configuration": configuration,
        "machine": {**machine, "threads": options.used_threads, "load_average_at_start": load},
        "scores": SCORES,
        "tolerance": TOLERANCE,
        "notes": [*([warning] if warning else []), *_remarks(options)],
    }
    name = "operators" if options.operators else "causal" if options.causal else "bench"
    return Store(out / f"{name}.json", head)


def source_digest() -> str:
    """A fingerprint of the code that is measured: other code has other times.

    >>> len(source_digest())
    16
    """
    root, digest = Path(bistoch.__file__).parent, hashlib.sha256()
    for room in ("functional", "lab/bench"):
        for path in sorted((root / room).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _remarks(options: Options) -> list[str]:
    """What must be said beside the tables."""
    if options.causal:
        return [f"here {SDPA} is causal: it is called with is_causal=True"]
    if options.operators or options.device != "cpu":
        return []
    return [f"{name} is not installed: {how}" for name, how in missing_packages().items()]


def _own(group: Group) -> Sequence[Entry]:
    """The entries whose cells are kept: beside a library, softmax is only its yardstick."""
    return group.entries if group.package is None else group.entries[1:]


def _measure_all(
    groups: Sequence[Group], options: Options, store: Store, answers: Path, bar: "_Bar"
) -> None:
    worker: Worker | None = None
    home: str | None = None
    try:
        for group in groups:
            if worker is not None and (group.package != home or not worker.alive):
                worker.close()
                worker = None
            home = group.package
            missing = [e for e in _own(group) if not store.has(_blank(group, e))]
            bar.step(len(_own(group)) - len(missing), group)
            hopeless = [cell for e in missing if (cell := _hopeless(group, e, options, store))]
            names = {cell.key for cell in hopeless}
            todo = [e for e in missing if _blank(group, e).key not in names]
            cells = []
            if todo and home is not None:
                worker = worker or Worker(options.used_threads, options.pace, answers)
                cells = worker.measure(group.case, group.direction, todo)
            elif todo:
                device = torch.device(options.device)
                cells = _measure_here(group, todo, options.pace, answers, device)
            if missing:
                store.add([*cells, *hopeless])
            bar.step(len(missing), group)
    finally:
        if worker is not None:
            worker.close()


def _measure_here(
    group: Group, todo: Sequence[Entry], pace: Pace, answers: Path, device: torch.device
) -> list[Cell]:
    baseline = group.entries[0]
    others = [entry for entry in todo if entry != baseline]
    entries = [baseline, *others]
    return measure(group.case, group.direction, entries, pace, Answers(answers), device=device)


def _blank(group: Group, entry: Entry) -> Cell:
    return new_cell(group.case, group.direction, entry)


def _hopeless(group: Group, entry: Entry, options: Options, store: Store) -> Cell | None:
    """A cell that says why it is not tried, if the next shorter sequence foretells trouble."""
    cell = _blank(group, entry)
    known = [other for other in store.cells if other.seconds and _same_curve(cell, other)]
    if not known:
        return None
    nearest = max(known, key=lambda other: other.shape[-2])
    growth = entries_ratio(nearest.shape, cell.shape)
    # some grow faster than their plans: two sizes show it
    power = exponent([(other.shape[-2], other.seconds) for other in known]) or 0
    longer = max(growth, (cell.shape[-2] / nearest.shape[-2]) ** power)
    if (nearest.seconds or 0) * longer > options.pace.never:
        cell.status, cell.reason = "skipped", "too slow: a shorter sequence says so"
        return cell
    # what an operator keeps is not known beforehand, as it is for the others
    if options.operators and (nearest.memory or 0) * growth > MEMORY_SHARE * total_memory():
        cell.status, cell.reason = "skipped", "too much memory: a shorter sequence says so"
        return cell
    return None


def _same_curve(cell: Cell, other: Cell) -> bool:
    """Whether two cells differ in their length only."""
    alike = ("task", "contender", "lam", "iters", "scores", "direction")
    if any(getattr(cell, name) != getattr(other, name) for name in alike):
        return False
    return cell.case.startswith("n=") and other.case.startswith("n=")


class _Bar:
    """Progress that is drawn only between measurements, never during one."""

    def __init__(self, progress: Progress, total: int):
        self._progress, self._task = progress, progress.add_task("", total=total)

    def step(self, count: int, group: Group) -> None:
        where = "" if group.package is None else f" beside {group.package}"
        now = f"{group.case.name} {group.case.scores} {group.direction}{where}"
        self._progress.update(self._task, advance=count, description=now)
        self._progress.refresh()


@contextmanager
def _progress(console: Console, total: int) -> Iterator[_Bar]:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        yield _Bar(progress, total)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _caption(configuration: dict[str, Any]) -> str:
    heads, dim, threads = (configuration[name] for name in ("heads", "dim", "threads"))
    plural = "" if threads == 1 else "s"
    return f"{heads} heads of {dim} features, float32, random scores, {threads} thread{plural}"


def _draw(store: Store, console: Console) -> None:
    """The picture beside the JSON; without the drawing library, a sentence."""
    try:
        figure = draw_bench(store.cells, _caption(store.head["configuration"]))
    except ImportError as missing:
        console.print(f"no picture: {missing}", highlight=False, markup=False)
        return
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    picture = store.path.with_suffix(".png")
    write_whole(picture, content.getvalue())
    for path in (store.path, picture):
        console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
