"""Run a study: every cell with every seed, resumed where it was stopped, and a page at the end."""

import functools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bistoch.lab.machine import provenance
from bistoch.lab.progress import Display, duration, progress
from bistoch.lab.report import SMOKE, Report
from bistoch.lab.stats import INCONCLUSIVE, Verdict
from bistoch.lab.store import Result, Run, Store, plain
from bistoch.lab.study.definition import Cell, Context, Settings, Study
from bistoch.lab.study.results import Results, Row
from bistoch.lab.train import DivergedError


def run_study(study: Study, settings: Settings, console: Console) -> Path:
    """Run the cells that are missing, and write page and record; the path of the page."""
    runner = Runner(study, settings, console)
    rows, seconds = runner.run()
    results = Results(rows, plain(runner.sizes), settings.smoke)
    return write_page(runner, results, seconds)


class Runner:
    """The cells of a study with their results on disk.

    Args:
        study, settings: what is run and how.
        console: for progress, and for sentences about what is missing or damaged.
    """

    def __init__(self, study: Study, settings: Settings, console: Console):
        self.study, self.settings, self.console = study, settings, console
        self.sizes = study.sizes(settings)
        self.cells = {cell.name: cell for cell in study.cells(settings.smoke)}
        self.display: Display | None = None
        self.store = Store(settings.out / study.name / "cells", self.say)

    def run(self) -> tuple[list[Row], float]:
        """All rows, seed by seed, and the seconds that they took in all."""
        seeds = self.settings.seeds
        jobs = [(cell, seed) for seed in seeds for cell in self.cells.values() if cell.seeded]
        jobs += [(cell, 0) for cell in self.cells.values() if not cell.seeded]
        rows, seconds = [], 0.0
        with progress(self.console, len(jobs)) as self.display:
            for cell, seed in jobs:
                name = f"{cell.name}, seed {seed}" if cell.seeded else cell.name
                self.display.start(name)
                is_new = self.place(cell, seed).read() is None
                kept = self.value(cell, seed)
                self.display.finish(name, kept=not is_new)
                rows.append(Row(cell.name, seed, cell.options, kept["result"]))
                seconds += kept["seconds"]
        return rows, seconds

    def place(self, cell: Cell, seed: int) -> Run:
        """Where the result of a cell is kept."""
        configuration = {"sizes": self.sizes, "options": cell.options, "seed": seed}
        return self.store.run(f"{cell.name}, seed {seed}", configuration)

    def value(self, cell: Cell, seed: int) -> Result:
        """The result of a cell and its seconds; measured now if it is missing."""
        return self.place(cell, seed).once(lambda: self._measure(cell, seed))

    def _measure(self, cell: Cell, seed: int) -> Result:
        start = time.perf_counter()
        try:
            result = self.study.run(cell, seed, Context(self, cell, seed))
        except DivergedError as reason:
            result = {"diverged": str(reason)}
        return {"result": result, "seconds": round(time.perf_counter() - start, 3)}

    def say(self, sentence: str) -> None:
        """A sentence on the terminal."""
        self.console.print(sentence, highlight=False, markup=False, soft_wrap=True)


def write_page(runner: Runner, results: Results, seconds: float) -> Path:
    """Print verdicts and tables, and write report.html and report.json; the path of the first."""
    study, settings = runner.study, runner.settings
    command = settings.command(study.name)
    report = Report(study.title, command, runner.console)
    verdicts = study.checks(results)
    draw = None if study.figure is None else functools.partial(study.figure, results)
    sentence = " ".join([found_by(verdicts) or study.question, *([SMOKE] * settings.smoke)])
    report.finding(sentence, draw, study.caption, study.name)
    report.text(f"{study.question} Claimed or published by: {study.source}.")
    report.text(study.about)
    report.verdicts(verdicts, printed=True)
    for place, table in enumerate(study.tables(results)):
        report.table(*table, printed=place == 0)
    for row in results.rows:
        if "diverged" in row.result:
            report.text(f"{row.name}, seed {row.seed}: {row.result['diverged']}", printed=True)
    if study.sections is not None:
        study.sections(results, report, runner)
    record = provenance(command) | {
        "study": study.name,
        "smoke": settings.smoke,
        "seeds": settings.seeds,
        "sizes": results.sizes,
        "seconds": round(seconds, 1),
        "verdicts": [verdict._asdict() for verdict in verdicts],
        "cells": [row._asdict() for row in results.rows],
    }
    report.heading("Protocol")
    report.table(("what", "value"), _protocol(record))
    return report.write(settings.out / study.name / "report.html", record=record)


def found_by(verdicts: Sequence[Verdict]) -> str:
    """How many claims hold, and what was measured for the first that is decided.

    >>> found_by([Verdict("Less loss", "-0.5 [-0.6, -0.4]", "yes"), Verdict("a", "0", "no")])
    '1 of 2 claims holds here, 1 does not. Less loss: yes, measured -0.5 [-0.6, -0.4].'
    """
    if not verdicts:
        return ""
    answers = [verdict.holds.split(",")[0] for verdict in verdicts]
    yes, no, open_ = (answers.count(word) for word in ("yes", "no", INCONCLUSIVE))
    parts = [f"{yes} of {len(verdicts)} claims {'holds' if yes == 1 else 'hold'} here"]
    parts += [f"{no} {'does' if no == 1 else 'do'} not"] if no else []
    parts += [f"{open_} {'is' if open_ == 1 else 'are'} inconclusive"] if open_ else []
    decided = [one for one in verdicts if not one.holds.startswith(INCONCLUSIVE)]
    first = (decided or verdicts)[0]
    claim = first.claim[:1].upper() + first.claim[1:]
    return f"{', '.join(parts)}. {claim.rstrip('.')}: {first.holds}, measured {first.measured}."


def read_record(path: Path) -> Results:
    """The results of a recorded run: its report.json."""
    record = json.loads(path.read_text(encoding="utf-8"))
    return Results([Row(**cell) for cell in record["cells"]], record["sizes"], record["smoke"])


def _protocol(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    machine = record["machine"]
    facts = {
        "seeds": ", ".join(map(str, record["seeds"])),
        **(record["sizes"] if isinstance(record["sizes"], dict) else {}),
        "date": record["date"],
        "machine": f"{machine['processor']}, {machine['cores']} cores",
        "torch": machine["versions"]["torch"],
        "time of all cells": duration(record["seconds"]),
    }
    return [(name.replace("_", " "), _words(value)) for name, value in facts.items()]


def _words(value: object) -> str:
    """A value of the protocol as text.

    >>> _words({"batch_size": 100, "milestones": [6, 9], "clip": None})
    'batch size 100, milestones 6 9, clip none'
    """
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_words(x)}" for name, x in value.items())
    if isinstance(value, list):
        return " ".join(map(_words, value)) or "none"
    return "none" if value is None else str(value)
