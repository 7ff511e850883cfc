"""Batches of calls in several processes, of which none can hang or crash the others."""

import multiprocessing
import time
from collections import Counter
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from fuzz.run import Finding, name_of, run

# calls that a worker makes for one request
BATCH = 200
# seconds for a call: kernels may have to compile first
PATIENCE = 300


def work(pipe: Connection, current: Any) -> None:
    """Take batches until there are no more; tell the number before every call."""
    torch.set_num_threads(1)
    while (batch := pipe.recv()) is not None:
        pipe.send(run(range(*batch), current))


class Worker:
    """A process, its pipe, and what it was last seen doing."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.current = context.Value("q", -1)
        self.process = context.Process(target=work, args=(other, self.current), daemon=True)
        self.process.start()
        other.close()
        self.seen = (-1, time.monotonic())

    def take(self, batch: tuple[int, int] | None) -> None:
        self.pipe.send(batch)
        self.seen = (-1, time.monotonic())

    def lost(self) -> str | None:
        """Why nothing more will come from it, if so."""
        if not self.process.is_alive():
            return f"the process ended with the exit code {self.process.exitcode}"
        number, since = self.seen
        if number != self.current.value:
            self.seen = (self.current.value, time.monotonic())
            return None
        return f"no end within {PATIENCE} s" if time.monotonic() > since + PATIENCE else None


def campaign(first: int, calls: int, minutes: float, size: int) -> tuple[Counter, list[Finding]]:
    """Hand out batches until time or calls are over; replace workers that crash or hang."""
    end, number, last = time.monotonic() + 60 * minutes, first, first + calls
    counts: Counter = Counter()
    findings: list[Finding] = []
    workers = [Worker() for _ in range(size)]
    busy: list[Worker] = []
    while True:
        for worker in [w for w in workers if w not in busy]:
            if number < last and time.monotonic() < end:
                worker.take((number, min(number + BATCH, last)))
                number += BATCH
                busy.append(worker)
        if not busy:
            break
        for pipe in wait([worker.pipe for worker in busy], timeout=1):
            worker = next(w for w in busy if w.pipe is pipe)
            try:
                some, found = worker.pipe.recv()
            except (EOFError, ConnectionError):
                continue
            counts += some
            for finding in found:
                print(finding, flush=True)
            findings += found
            busy.remove(worker)
        for worker in [w for w in busy if w.lost()]:
            at = worker.current.value
            findings.append(Finding(at, name_of(at), f"{worker.lost()}", ""))
            print(findings[-1], flush=True)
            worker.process.kill()
            busy.remove(worker)
            workers[workers.index(worker)] = Worker()
    for worker in workers:
        worker.take(None)
        worker.process.join(PATIENCE)
    return counts, findings
