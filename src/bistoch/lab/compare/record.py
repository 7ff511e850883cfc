"""What a comparison found, as one JSON file that can be kept and read again."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bistoch.lab.compare.cells import Cell
from bistoch.lab.compare.page import Found
from bistoch.lab.compare.verdict import verdict
from bistoch.lab.files import write_whole
from bistoch.lab.machine import describe_machine

RECORD = "report.json"
# seconds of a training say what else the machine did, see `time_steps` for those that compare
KEPT = ("test", "watched", "epoch", "steps", "parameters", "curve", "attention", "diverged")


def write_record(found: Found, folder: Path) -> Path:
    """Write report.json: command, day, machine, protocol, times of a step, and every run."""
    path = folder / RECORD
    write_whole(path, json.dumps(record_of(found), indent=1, ensure_ascii=False).encode())
    return path


def record_of(found: Found) -> dict[str, Any]:
    """All numbers of a report, as JSON."""
    task = found.task
    return {
        "command": found.command,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": describe_machine(),
        "comparison": asdict(found.comparison),
        "length": task.facts.get("length"),
        "samples": {split: task.count(split) for split in ("train", "valid", "test")},
        "score": task.score_name,
        "larger_is_better": task.larger_is_better,
        "times": dict(found.times),
        "notes": list(found.notes),
        "verdict": verdict(found.rows, task),
        "runs": [_run(cell) for row in found.rows for cell in (*row.cells, *row.diverged)],
    }


def _run(cell: Cell) -> dict[str, Any]:
    facts = {"operator": cell.setup.operator, "seed": cell.setup.seed}
    facts["rate"] = cell.setup.recipe.lr
    return facts | {name: cell.result[name] for name in KEPT if name in cell.result}
