"""A process for one outside library: `Worker` starts it, `main` is what runs inside.

Thread pools of several libraries in one process disturb each other, so each library is timed beside
the baseline in a process that loads nothing else.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bistoch.lab.bench.cases import Case, Direction, Setting
from bistoch.lab.bench.contenders import attention_contenders
from bistoch.lab.bench.expected import ExpectedResults
from bistoch.lab.bench.heat import heat_contenders
from bistoch.lab.bench.measure import Cell, Entry, TimeLimits, measure, new_cell
from bistoch.lab.bench.peers import peer_contenders

# seconds that the contenders of a package may take over one case: one that hangs is ended
TIMEOUT = 1800.0


class Worker:
    """A child process that verifies and times the contenders of one package.

    Args:
        threads: how many threads it may use.
        limits: how long to measure.
        folder: of the expected results that the run shares.
    """

    def __init__(self, threads: int, limits: TimeLimits, folder: Path):
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        threaded = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bistoch.lab.bench.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env={**os.environ, **threaded},
        )  # fmt: skip
        self._start = {"threads": threads, "limits": list(limits), "folder": str(folder)}

    def measure(self, case: Case, direction: Direction, entries: Sequence[Entry]) -> list[Cell]:
        """The cells of all entries but the first, the baseline; if it dies, cells that say so."""
        names = [[entry.contender.name, *asdict(entry.setting).values()] for entry in entries]
        request = {"case": asdict(case), "direction": direction, "entries": names, **self._start}
        try:
            cells = [Cell(**cell) for cell in json.loads(self._send(json.dumps(request)))]
        except (BrokenPipeError, json.JSONDecodeError):
            cells = [new_cell(case, direction, entry) for entry in entries[1:]]
            for cell in cells:
                cell.status, cell.reason = "failed", f"its process died: {self._reason()}"
        return cells

    def _send(self, line: str) -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise BrokenPipeError
        stdin.write(line + "\n")
        stdin.flush()
        # when the process is gone, there is nothing more to read, and reading ends
        ending = threading.Timer(TIMEOUT, self._process.kill)
        ending.start()
        try:
            return stdout.readline()
        finally:
            ending.cancel()

    @property
    def alive(self) -> bool:
        """Whether it can be asked again."""
        return self._process.poll() is None

    def close(self) -> None:
        """Let the process end."""
        try:
            self._process.communicate(timeout=30)
        except (subprocess.TimeoutExpired, BrokenPipeError, ValueError):
            self._process.kill()
            self._process.wait(30)
        self._errors.close()

    def _reason(self) -> str:
        code = self._process.wait(30)
        if code == -signal.SIGKILL:
            return f"killed, or ended after {TIMEOUT:g} s without a result"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else f"exit code {code}"


def main() -> None:
    """Read requests line by line, and write the results of each as a line."""
    # libraries may print; what they print must not end up between the results
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        results.write(json.dumps(_measure(json.loads(line))) + "\n")


def _measure(request: dict[str, Any]) -> list[dict[str, Any]]:
    import torch

    _limit_cores(request["threads"])
    torch.set_num_threads(request["threads"])
    case = Case(**{**request["case"], "shape": tuple(request["case"]["shape"])})
    known = attention_contenders() | heat_contenders() | peer_contenders()
    entries = [Entry(known[name], Setting(*setting)) for name, *setting in request["entries"]]
    limits, expected = TimeLimits(*request["limits"]), ExpectedResults(Path(request["folder"]))
    cells = measure(case, request["direction"], entries, limits, expected)
    return [asdict(cell) for cell in cells[1:]]


def _limit_cores(count: int) -> None:
    """Some libraries take every core they see: show them as many as they may use."""
    if hasattr(os, "sched_setaffinity"):
        seen = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, seen[:count])


if __name__ == "__main__":
    main()
