"""Results on disk: one JSON file, always whole, from which a stopped run goes on."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from bistoch.lab.bench.growth import growth_rows
from bistoch.lab.bench.measure import Cell
from bistoch.lab.files import write_whole

SCHEMA = 1
# these are asked again when a run goes on: what is missing today may fit or be installed tomorrow
UNFINISHED = ("skipped", "failed")


class Store:
    """The cells of one configuration; every change is written at once, as a whole file.

    Args:
        path: the JSON file. If it holds cells of the same configuration, they are kept; if of
            another, the file is set aside with the suffix `.previous.json`.
        head: what the file says besides its cells: configuration, machine, command and notes.
    """

    def __init__(self, path: Path, head: dict[str, Any]):
        self.path, self.head = path, head
        self.cells: list[Cell] = []
        self.set_aside: Path | None = None
        path.parent.mkdir(parents=True, exist_ok=True)
        old = read_results(path)
        if old is None:
            return
        if old.get("configuration") == head["configuration"]:
            known = {field.name for field in fields(Cell)}
            cells = [Cell(**{k: v for k, v in c.items() if k in known}) for c in old["cells"]]
            self.cells = [cell for cell in cells if cell.status not in UNFINISHED]
        else:
            self.set_aside = path.with_suffix(".previous.json")
            os.replace(path, self.set_aside)

    def has(self, cell: Cell) -> bool:
        """Whether this question is answered."""
        return any(known.key == cell.key for known in self.cells)

    def add(self, cells: Sequence[Cell], *, finished: bool = False) -> None:
        """Take cells in and write the file."""
        fresh = {cell.key for cell in cells}
        self.cells = [cell for cell in self.cells if cell.key not in fresh] + list(cells)
        self.write(finished=finished)

    def write(self, *, finished: bool) -> None:
        """Write the file under another name and then rename it, so that no reader sees a part."""
        write_whole(self.path, json.dumps(self.results(finished=finished), indent=1).encode())

    def results(self, *, finished: bool) -> dict[str, Any]:
        """All that the file says."""
        return {
            "schema": SCHEMA,
            "finished": finished,
            **self.head,
            "growth": growth_rows(self.cells),
            "cells": [asdict(cell) for cell in self.cells],
        }


def read_results(path: Path) -> dict[str, Any] | None:
    """What a file says, or None if there is none or it was written by something else."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    is_ours = isinstance(results, dict) and results.get("schema") == SCHEMA
    return results if is_ours else None
