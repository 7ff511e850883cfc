"""How much memory a call takes beyond its inputs: by torch's allocator, and by the process."""

import ctypes
import gc
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bistoch.functional.kernels.workspace import release

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
# a process also grows for reasons of its own: threads, packed operands, pages it does not give back
NOISE = 64 << 20


def allocated_by(call: Callable[[], Any]) -> tuple[Any, int]:
    """The result of a call, and the most bytes torch's allocator had handed out at one time.

    >>> import torch
    >>> allocated_by(lambda: torch.ones(1000))[1]
    4000
    """
    result, changes = _allocations(call)
    alive = peak = 0
    for change in changes:
        alive += change
        peak = max(peak, alive)
    return result, peak


def largest_allocation(call: Callable[[], Any]) -> int:
    """The most bytes that a call asked torch's allocator for at once, for one tensor.

    >>> import torch
    >>> largest_allocation(lambda: torch.ones(1000).exp())
    4000
    """
    return max(_allocations(call)[1], default=0)


def _allocations(call: Callable[[], Any]) -> tuple[Any, list[int]]:
    """The result of a call, and the bytes that were taken, or given back, in their order."""
    # what kernels keep from an earlier call is a part of what this one needs
    release()
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_initialized():
        activities.append(ProfilerActivity.CUDA)
    with _quiet(), profile(activities=activities, profile_memory=True) as recorded:
        result = call()
    events = recorded.profiler.kineto_results.events()
    in_order = sorted(events, key=lambda event: event.start_ns())
    return result, [event.nbytes() for event in in_order if event.name() == "[memory]"]


def resident_growth(call: Callable[[], Any]) -> int | None:
    """How far the resident memory of this process rose during a call; None if it cannot be told.

    >>> import torch
    >>> growth = resident_growth(lambda: torch.ones(10_000_000))
    >>> growth is None or growth > 30_000_000
    True
    """
    import psutil  # type: ignore[import-untyped]

    gc.collect(1)
    release()
    _return_free_memory()
    before = psutil.Process().memory_info().rss
    peak_before = _peak()
    was_reset = _reset_peak()
    call()
    after = _peak()
    if was_reset:
        return max(0, after - before)
    # without a reset the old peak hides what stays below it
    return after - peak_before if after > peak_before else None


def choose_memory(allocated: int | None, resident: int | None) -> int | None:
    """Which number to show: the allocator's is exact, but counts torch's memory only.

    >>> choose_memory(1_000_000, 9_000_000), choose_memory(1_000_000, 90_000_000)
    (1000000, 90000000)
    """
    if allocated is None or resident is None:
        return resident if allocated is None else allocated
    return resident if resident > 2 * allocated + NOISE else allocated


def _peak() -> int:
    # Linux counts in kilobytes, macOS in bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _peak_of_status() or (peak if sys.platform == "darwin" else peak * 1024)


def _peak_of_status() -> int | None:
    """What the kernel counts, which can be reset; in bytes."""
    if not STATUS.exists():
        return None
    lines = (line.split() for line in STATUS.read_text().splitlines())
    return next((int(line[1]) * 1024 for line in lines if line[0] == "VmHWM:"), None)


def _reset_peak() -> bool:
    try:
        RESET.write_text("5")
    except OSError:
        return False
    return True


def _return_free_memory() -> None:
    """Give freed pages back, so that using them again is seen."""
    # other C libraries than GNU's do not offer it: growth is then a lower bound
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what the profiler's C++ code writes on the terminal."""
    kept, hidden = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(hidden, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(hidden)
