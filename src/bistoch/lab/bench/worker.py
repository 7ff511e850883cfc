"""A process for one outside library: `Worker` starts it and asks, `main` is what runs inside.

Thread pools of several libraries in one process disturb each other, so each library is timed beside
softmax attention in a process that loads nothing else.
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

from bistoch.lab.bench.answers import Answers
from bistoch.lab.bench.cases import Case, Direction, Setting
from bistoch.lab.bench.contenders import SDPA, attention_contenders
from bistoch.lab.bench.measure import Cell, Entry, Pace, measure, new_cell
from bistoch.lab.bench.peers import peer_contenders

# seconds that the contenders of a package may take over one case: one that hangs is ended
PATIENCE = 1800.0


class Worker:
    """A child process that proves and times the contenders of one package.

    Args:
        threads: how many threads it may use.
        pace: how long to measure.
        answers: the folder of right answers that the run shares.
    """

    def __init__(self, threads: int, pace: Pace, answers: Path):
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        limits = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bistoch.lab.bench.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env={**os.environ, **limits},
        )  # fmt: skip
        self._start = {"threads": threads, "pace": list(pace), "answers": str(answers)}

    def measure(self, case: Case, direction: Direction, entries: Sequence[Entry]) -> list[Cell]:
        """The cells of the entries; if the process dies, cells that say so."""
        names = [[entry.contender.name, *asdict(entry.setting).values()] for entry in entries]
        question = {"case": asdict(case), "direction": direction, "entries": names, **self._start}
        try:
            cells = [Cell(**cell) for cell in json.loads(self._ask(json.dumps(question)))]
        except (BrokenPipeError, json.JSONDecodeError):
            cells = [new_cell(case, direction, entry) for entry in entries]
            for cell in cells:
                cell.status, cell.reason = "failed", f"its process died: {self._last_words()}"
        return cells

    def _ask(self, line: str) -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise BrokenPipeError
        stdin.write(line + "\n")
        stdin.flush()
        # when the process is gone, there is nothing more to read, and reading ends
        ending = threading.Timer(PATIENCE, self._process.kill)
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

    def _last_words(self) -> str:
        code = self._process.wait(30)
        if code == -signal.SIGKILL:
            return f"ended from outside, or after {PATIENCE:g} s without an answer"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else f"exit code {code}"


def main() -> None:
    """Read questions line by line, answer line by line."""
    # libraries may print; what they print must not end up between the answers
    answers_out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        answers_out.write(json.dumps(_answer(json.loads(line))) + "\n")


def _answer(question: dict[str, Any]) -> list[dict[str, Any]]:
    import torch

    _stay_on_cores(question["threads"])
    torch.set_num_threads(question["threads"])
    case = question["case"]
    case = Case(**{**case, "shape": tuple(case["shape"])})
    peers = peer_contenders()
    entries = [Entry(attention_contenders()[SDPA], Setting())]
    entries += [Entry(peers[name], Setting(*setting)) for name, *setting in question["entries"]]
    answers = Answers(Path(question["answers"]))
    cells = measure(case, question["direction"], entries, Pace(*question["pace"]), answers)
    return [asdict(cell) for cell in cells[1:]]


def _stay_on_cores(count: int) -> None:
    """Some libraries take every core they see: show them as many as they may use."""
    if hasattr(os, "sched_setaffinity"):
        seen = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, seen[:count])


if __name__ == "__main__":
    main()
