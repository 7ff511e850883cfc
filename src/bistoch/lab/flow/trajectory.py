"""A recorded flow: numbers of every step, snapshots, progress, and a file to resume from."""

import hashlib
import io
import time as clock
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from bistoch.flows import FlowState, heat_flow
from bistoch.lab.device import CPU
from bistoch.lab.files import write_whole
from bistoch.lab.progress import progress

# seconds between two files to resume from
SAVE_EVERY = 20.0


@dataclass
class Trajectory:
    """Numbers of every step, and the particles of some of them."""

    times: list[float] = field(default_factory=list)
    rows: list[dict[str, float]] = field(default_factory=list)
    snapshots: dict[float, Tensor] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def curve(self, name: str) -> list[float]:
        """One measured number over all steps."""
        return [row[name] for row in self.rows]

    def some(self, count: int) -> dict[float, Tensor]:
        """At most so many snapshots, evenly spread, the start and the end among them.

        >>> found = Trajectory(snapshots={float(k): torch.zeros(1) for k in range(9)})
        >>> list(found.some(3))
        [0.0, 4.0, 8.0]
        """
        items = list(self.snapshots.items())
        places = sorted({round(k * (len(items) - 1) / (count - 1)) for k in range(count)})
        return dict(items[place] for place in places)

    @property
    def last(self) -> Tensor:
        """The particles at the end."""
        return self.snapshots[max(self.snapshots)]

    def add(self, state: FlowState, numbers: dict[str, float], keep: Sequence[float]) -> None:
        """Take a step in, with its particles if it is the nearest to a time to keep."""
        self.times.append(state.time)
        self.rows.append({
            **numbers,
            "passes": state.iterations.double().mean().item(),
            "error": state.error.max().item(),
            "self_weight": state.self_weight.mean().item(),
        })  # fmt: skip
        # half open, so that a time between two steps is kept once
        near = any(-0.499999 < (state.time - wanted) / state.eps <= 0.500001 for wanted in keep)
        if state.step in (0, state.steps) or near:
            self.snapshots[state.time] = state.particles

    def warn(self, caught: Sequence[Any]) -> None:
        """Keep the sentences of warnings, each once."""
        sentences = (str(warning.message) for warning in caught)
        self.warnings = list(dict.fromkeys([*self.warnings, *sentences]))


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
    device: torch.device = CPU,
    **options: Any,
) -> Trajectory:
    """Run `heat_flow`, measure every step, and keep the particles nearest to some times.

    Args:
        name: what the progress display says.
        particles, time, eps, options: those of `heat_flow`.
        measure: numbers of a state; `passes`, `error` and `self_weight` are added.
        keep: times whose particles to keep; the start and the end always are.
        console: where to show progress.
        folder: of a file from which a killed run resumes; it is removed at the end.
        device: where the particles move; they are measured on the CPU.

    >>> from rich.console import Console
    >>> x = torch.linspace(-1, 1, 9)[:, None]
    >>> found = follow("line", x, 1.0, 0.5, measure=lambda s: {"top": s.particles.max().item()},
    ...     keep=(), console=Console(quiet=True))
    >>> found.times, list(found.snapshots), found.curve("top")[0]
    ([0.0, 0.5, 1.0], [0.0, 1.0], 1.0)
    """
    found, done, steps, path = Trajectory(), 0, None, None
    if folder is not None:
        path = folder / f".{_digest(name, particles, time, eps, options)}"
    if path is not None and path.exists():
        kept = torch.load(path)
        found, state = Trajectory(**kept["trajectory"]), FlowState(*kept["state"])
        done, steps = state.step, state.steps
        particles, time, eps = state.particles, state.eps * (steps - done), state.eps
        options = {**options, "potential": state.potential.to(device)}
    saved = clock.monotonic()
    with progress(console, 1) as shown, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shown.start(name)
        for moved in heat_flow(particles.to(device), time, eps, **options):
            now = FlowState._make(x.cpu() if isinstance(x, Tensor) else x for x in moved)
            if done and now.step == 0:
                continue
            step = now.step + done
            now = now._replace(step=step, steps=steps or now.steps, time=step * now.eps)
            found.add(now, measure(now), keep)
            shown.step(now.step, now.steps)
            if path is not None and clock.monotonic() - saved > SAVE_EVERY:
                found.warn(caught)
                _save(path, found, now)
                saved = clock.monotonic()
        shown.finish(name)
    found.warn(caught)
    if path is not None:
        path.unlink(missing_ok=True)
    return found


def _digest(name: str, particles: Tensor, time: float, eps: float, options: Any) -> str:
    facts = (name, tuple(particles.shape), time, eps, sorted(options.items(), key=str))
    content = particles.contiguous().view(torch.uint8).numpy().tobytes()
    return f"{name}-{hashlib.sha256(repr(facts).encode() + content).hexdigest()[:16]}.pt"


def _save(path: Path, found: Trajectory, state: FlowState) -> None:
    content = io.BytesIO()
    torch.save({"trajectory": vars(found), "state": tuple(state)}, content)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content.getvalue())
