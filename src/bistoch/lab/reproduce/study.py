"""What a study is, what a run of it is told, and how its measurements are kept on disk."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from bistoch.lab.files import digest as digest
from bistoch.lab.files import write_whole

Measurement = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """How to run a study.

    `smoke` is a run of seconds that shows that everything works and nothing else. `seeds` are the
    seeds of networks and draws. `epochs` are those of a training; None is as many as the study has.
    Results go to a folder of `out` with the name of the study, trained networks to `out/networks`,
    where all studies find them.
    """

    out: Path
    seeds: tuple[int, ...] = (0, 1)
    smoke: bool = False
    epochs: int | None = None

    def command(self, study: str) -> str:
        """The words of the terminal that run a study with these settings.

        >>> Settings(Path("here"), seeds=(3,), smoke=True).command("sinks")
        'bistoch reproduce sinks --smoke --seed 3'
        """
        seeds = "".join(f" --seed {seed}" for seed in self.seeds)
        epochs = "" if self.epochs is None else f" --epochs {self.epochs}"
        return f"bistoch reproduce {study}{' --smoke' * self.smoke}{seeds}{epochs}"

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"reproduce: seeds must be different, but they are {self.seeds}")
        if self.epochs is not None and self.smoke:
            raise ValueError(
                f"reproduce: a smoke run has epochs of its own, but epochs={self.epochs}; leave "
                "one of --smoke and --epochs out"
            )


@dataclass(frozen=True)
class Study:
    """One row of the table: a question, who asked it first, and the function that asks again.

    `seeds` are those of a run that names none. `epochs` are as many as it trains for; None if it
    does not count in epochs.
    """

    name: str
    question: str
    source: str
    run: Callable[[Settings, Console], Path]
    seeds: tuple[int, ...] = (0, 1)
    epochs: int | None = None


class Verdict(NamedTuple):
    """A claim beside what was measured, and whether that agrees."""

    claim: str
    measured: str
    holds: str


class Cells:
    """Measurements by name in one JSON file, written as a whole after each, so that a run goes on.

    Args:
        path: the file. Measurements of another configuration in it are dropped.
        configuration: all that the measurements depend on.
    """

    def __init__(self, path: Path, configuration: dict[str, Any]):
        self.path = path
        self.configuration = json.loads(json.dumps(configuration))
        self.found: dict[str, Measurement] = {}
        try:
            old = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
            return
        if isinstance(old, dict) and old.get("configuration") == self.configuration:
            self.found = old["cells"]

    def add(self, name: str, measurement: Measurement) -> None:
        """Take one in and write the file."""
        self.found[name] = measurement
        content = {"configuration": self.configuration, "cells": self.found}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, json.dumps(content, indent=1).encode())


def measure_all(
    jobs: Sequence[tuple[str, Callable[[], Measurement]]], cells: Cells, console: Console
) -> None:
    """Do every job that has no measurement yet, with a bar; a stopped run goes on from here."""
    try:
        with _bar(console, len(jobs)) as step:
            for name, job in jobs:
                step(name, 0)
                if name not in cells.found:
                    cells.add(name, job())
                step(name, 1)
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on from here")
        raise


@contextmanager
def _bar(console: Console, total: int) -> Iterator[Callable[[str, int], None]]:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda name, advance: progress.update(task, description=name, advance=advance)
