"""A flow run that is watched: progress on the terminal, snapshots, and a file to go on from."""

import hashlib
import io
import time as clock
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from bistoch.flows import FlowState, heat_flow
from bistoch.lab.files import write_whole

# seconds between two files to go on from
SAVE_EVERY = 20.0


@dataclass
class Track:
    """What a run left: a number or more for every step, and the particles of some of them."""

    times: list[float] = field(default_factory=list)
    rows: list[dict[str, float]] = field(default_factory=list)
    snapshots: dict[float, Tensor] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def curve(self, name: str) -> list[float]:
        """One measured number over all steps."""
        return [row[name] for row in self.rows]

    def some(self, count: int) -> dict[float, Tensor]:
        """At most so many snapshots, evenly spread, the start and the end among them.

        >>> track = Track(snapshots={float(k): torch.zeros(1) for k in range(9)})
        >>> list(track.some(3))
        [0.0, 4.0, 8.0]
        """
        items = list(self.snapshots.items())
        places = sorted({round(k * (len(items) - 1) / (count - 1)) for k in range(count)})
        return dict(items[place] for place in places)

    @property
    def last(self) -> Tensor:
        """The particles at the end."""
        return self.snapshots[max(self.snapshots)]


def follow(
    name: str,
    particles: Tensor,
    time: float,
    eps: float,
    *,
    measure: Callable[[FlowState], dict[str, float]],
    keep: Sequence[float],
    console: Console,
    folder: Path | None = None,
    **options: Any,
) -> Track:
    """Run `heat_flow`, measure every step, and keep the particles nearest to some times.

    Args:
        name: what the progress bar says.
        particles, time, eps, options: those of `heat_flow`.
        measure: numbers of a state; `passes`, `error` and `self_weight` are added.
        keep: times whose particles to keep; the start and the end always are.
        console: where to show progress.
        folder: where to keep a file from which a killed run goes on; it is removed at the end.

    >>> from rich.console import Console
    >>> x = torch.linspace(-1, 1, 9)[:, None]
    >>> track = follow("line", x, 1.0, 0.5, measure=lambda s: {"top": s.particles.max().item()},
    ...     keep=(), console=Console(quiet=True))
    >>> track.times, list(track.snapshots), track.curve("top")[0]
    ([0.0, 0.5, 1.0], [0.0, 1.0], 1.0)
    """
    place = None if folder is None else folder / f".{_digest(name, particles, time, eps, options)}"
    track, done, state = _restore(place)
    if state is None:
        states = heat_flow(particles, time, eps, **options)
    else:
        rest = state.eps * (state.steps - state.step)
        warm = {**options, "potential": state.potential}
        states = heat_flow(state.particles, rest, state.eps, **warm)
    steps = state.steps if state is not None else None
    saved = clock.monotonic()
    with _bar(console, name) as advance, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for now in states:
            if done and now.step == 0:
                continue
            now = now._replace(
                step=now.step + done, steps=steps or now.steps, time=(now.step + done) * now.eps
            )
            _take(track, now, measure(now), keep)
            advance(now.step, now.steps)
            if place is not None and clock.monotonic() - saved > SAVE_EVERY:
                track.warnings = _sentences(track, caught)
                _save(place, track, now)
                saved = clock.monotonic()
    track.warnings = _sentences(track, caught)
    if place is not None:
        place.unlink(missing_ok=True)
    return track


def _take(track: Track, state: FlowState, numbers: dict[str, float], keep: Sequence[float]) -> None:
    track.times.append(state.time)
    track.rows.append(
        {
            **numbers,
            "passes": state.iterations.double().mean().item(),
            "error": state.error.max().item(),
            "self_weight": state.self_weight.mean().item(),
        }
    )
    # half open, so that a time between two steps is kept once
    near = any(-0.499999 < (state.time - wanted) / state.eps <= 0.500001 for wanted in keep)
    if state.step in (0, state.steps) or near:
        track.snapshots[state.time] = state.particles.cpu()


def _digest(name: str, particles: Tensor, time: float, eps: float, options: Any) -> str:
    plain = (name, tuple(particles.shape), time, eps, sorted(options.items(), key=str))
    content = particles.contiguous().view(torch.uint8).numpy().tobytes()
    said = repr(plain).encode()
    return f"{name}-{hashlib.sha256(said + content).hexdigest()[:16]}.pt"


def _save(place: Path, track: Track, state: FlowState) -> None:
    content = io.BytesIO()
    torch.save({"track": vars(track), "state": tuple(state)}, content)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_whole(place, content.getvalue())


def _restore(place: Path | None) -> tuple[Track, int, FlowState | None]:
    if place is None or not place.exists():
        return Track(), 0, None
    kept = torch.load(place)
    state = FlowState(*kept["state"])
    return Track(**kept["track"]), state.step, state


def _sentences(track: Track, caught: Sequence[Any]) -> list[str]:
    return list(dict.fromkeys([*track.warnings, *(str(warning.message) for warning in caught)]))


@contextmanager
def _bar(console: Console, name: str) -> Iterator[Callable[[int, int], None]]:
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(name, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
