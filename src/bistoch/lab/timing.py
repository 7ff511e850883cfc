"""The time of calls that are compared: in one process, in turns, the best of several rounds."""

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from bistoch.lab.machine import OtherLoad

Timer = Callable[[Callable[[], Any], int], float]


def stopwatch(call: Callable[[], Any], count: int = 1) -> float:
    """Seconds of one call, the mean of `count` calls in a row.

    >>> stopwatch(lambda: None, 3) >= 0
    True
    """
    start = time.perf_counter()
    for _ in range(count):
        call()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


class Rounds(NamedTuple):
    """How one call is sampled: in how many rounds, and how often in a row within each."""

    rounds: int
    repeats: int = 1


def time_in_turns(
    calls: Mapping[str, Callable[[], Any]],
    rounds: int | Mapping[str, Rounds],
    *,
    warmup: int = 0,
    timer: Timer = stopwatch,
) -> dict[str, list[float]]:
    """Seconds of every call, one sample per round; all take turns within a round.

    Taking turns, what else the machine does slows all of them alike; compare the best samples.

    Args:
        calls: by name.
        rounds: samples of each, or for every name its own number and repeats.
        warmup: rounds before those that count, for compilers and caches.
        timer: the clock; tests bring their own.

    >>> samples = time_in_turns({"a": lambda: None, "b": lambda: None}, 3, warmup=1)
    >>> {name: len(some) for name, some in samples.items()}
    {'a': 3, 'b': 3}
    """
    plan = rounds if isinstance(rounds, Mapping) else dict.fromkeys(calls, Rounds(rounds))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect(1)
    gc.disable()
    try:
        for turn in range(-warmup, max((one.rounds for one in plan.values()), default=0)):
            for name, call in calls.items():
                if turn < plan[name].rounds:
                    seconds = timer(call, plan[name].repeats)
                    if turn >= 0:
                        samples[name].append(seconds)
    finally:
        gc.enable()
    return samples


def best_times(
    calls: Mapping[str, Callable[[], Any]], rounds: int, *, warmup: int = 1
) -> dict[str, Any]:
    """The best time of every call as a record: seconds by name, threads, and load of others.

    >>> sorted(best_times({"a": lambda: None}, rounds=2))
    ['others', 'seconds', 'threads']
    """
    load = OtherLoad()
    with torch.random.fork_rng(devices=()):
        samples = time_in_turns(calls, rounds, warmup=warmup)
    return {
        "seconds": {name: min(some) for name, some in samples.items()},
        "threads": torch.get_num_threads(),
        "others": load.share(),
    }
