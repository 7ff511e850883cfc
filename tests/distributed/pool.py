"""Four processes that stay, over gloo; cases run on the first 1, 2, 3 or 4 of them.

A function runs in a `Pool` as `function(ranks, *arguments)` on every rank of a group. It must be
importable by name: write it in a module of this folder, and import that as `distributed.module`.
Nothing outlives a pool: ranks end with their pipe, and those that hang are killed.
"""

import multiprocessing
import os
import tempfile
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import wait
from typing import Any

import torch
import torch.distributed as dist

from bistoch.distributed import RankGroup, rank_group

# seconds for a collective, and for one case
TIMEOUT, PATIENCE = 20, 120


class RankFailureError(Exception):
    """What the ranks of a case raised, by rank."""

    def __init__(self, errors: dict[int, str]):
        self.errors = errors
        super().__init__("\n".join(f"rank {rank}: {text}" for rank, text in errors.items()))


def work(pipe: Any, rank: int, size: int, store: str, timeout: float) -> None:
    torch.set_num_threads(1)
    limit = timedelta(seconds=timeout)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit
    )
    groups = {k: dist.new_group(list(range(k)), timeout=limit) for k in range(1, size + 1)}
    pipe.send(("ready", None))
    while True:
        try:
            asked = pipe.recv()
        # the pool is gone
        except EOFError:
            os._exit(0)
        if asked is None:
            dist.destroy_process_group()
            return
        k, function, arguments = asked
        torch.manual_seed(0)
        try:
            pipe.send(("done", function(rank_group("test", groups[k]), *arguments)))
        except Exception as error:
            where = traceback.format_exc()
            pipe.send(("failed", (f"{type(error).__name__}: {error}", where)))


class Pool:
    """Processes that run functions together.

    >>> with Pool(2) as pool:
    ...     pool.run(2, rank_of)
    [0, 1]
    """

    def __init__(self, size: int = 4, timeout: float = TIMEOUT):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed", "bistoch.distributed"])
        handle, self.store = tempfile.mkstemp(prefix="ranks-")
        os.close(handle)
        os.remove(self.store)
        self.pipes, self.processes = [], []
        for rank in range(size):
            pipe, other = context.Pipe()
            process = context.Process(
                target=work, args=(other, rank, size, self.store, timeout), daemon=True
            )
            process.start()
            other.close()
            self.pipes.append(pipe)
            self.processes.append(process)
        try:
            self._answers(range(size))
        except BaseException:
            self.close()
            raise

    def run(self, size: int, function: Any, *arguments: Any) -> list[Any]:
        """What the function returns on each of the first ranks; all errors together, if any."""
        for pipe in self.pipes[:size]:
            pipe.send((size, function, arguments))
        return self._answers(range(size))

    def _answers(self, ranks: range) -> list[Any]:
        waiting, end = dict(zip(self.pipes, ranks, strict=False)), time.monotonic() + PATIENCE
        found: dict[int, Any] = {}
        errors: dict[int, str] = {}
        traces = []
        while waiting:
            ready = wait(list(waiting), timeout=max(0, end - time.monotonic()))
            if not ready:
                self.close()
                raise TimeoutError(f"ranks {sorted(waiting.values())} did not answer")
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    word, content = pipe.recv()
                except (EOFError, ConnectionResetError):
                    errors[rank] = "ended"
                    continue
                if word == "failed":
                    errors[rank], trace = content
                    traces.append(trace)
                else:
                    found[rank] = content
        if errors:
            failure = RankFailureError(errors)
            for trace in traces[:1]:
                failure.add_note(trace)
            raise failure
        return [found[rank] for rank in ranks]

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if process.is_alive():
                try:
                    pipe.send(None)
                except OSError:
                    process.kill()
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join(timeout=5)
            pipe.close()
        if os.path.exists(self.store):
            os.remove(self.store)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def rank_of(ranks: RankGroup) -> int:
    return ranks.rank
