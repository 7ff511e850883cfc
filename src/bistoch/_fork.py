"""The OpenMP team of torch, and what becomes of it when the process forks.

A forked child inherits the record of a team whose threads live in the parent alone. GNU's runtime
waits for them for ever: in the first torch operation, matrix product or kernel that uses a team. So
the team is ended before a fork, and parent and child each start a new one when they next need it.
Where that cannot be done, the child computes with one thread, which needs no team.
"""

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

# omp_pause_soft of the OpenMP specification: end the threads, keep the settings
_SOFT = 1
# a flag of Linux in /proc/self/stat: forked, and no program started since
_FORKED = 0x40


class _State:
    """What is known about the team: whose it is, and whether its threads are alive or ended."""

    process = os.getpid()
    # False in a child whose record of a team cannot be trusted
    usable = True
    # whether the team was ended for the fork that is under way
    ended = False


@cache
def openmp_library() -> Any:
    """GNU's OpenMP runtime, if that is what torch runs on; or None."""
    folder = Path(sys.modules["torch"].__file__ or "").parent / "lib"
    for candidate in (*map(str, sorted(folder.glob("libgomp*"))), "libgomp.so.1"):
        try:
            library = ctypes.CDLL(candidate)
            if library.GOMP_parallel and library.omp_get_thread_num:
                return library
        except (OSError, AttributeError):
            continue
    return None


def use_one_thread_after_a_lost_team() -> None:
    """Notice a fork by code that is not Python's, which calls no hooks."""
    if os.getpid() != _State.process:
        _State.ended = False
        _in_child()


def _before() -> None:
    # without torch there is no team; other runtimes than GNU's take care of forks themselves
    library = openmp_library() if "torch" in sys.modules else None
    if library is None:
        _State.ended = True
    elif not _State.usable or os.getpid() != _State.process:
        _State.ended = False
    else:
        pause = getattr(library, "omp_pause_resource_all", None)
        _State.ended = pause is not None and pause(_SOFT) == 0


def _in_child() -> None:
    _State.process = os.getpid()
    if not _State.ended:
        _State.usable = False
        _use_one_thread()


def _use_one_thread() -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _has_lost_its_team() -> bool:
    """Whether this process is, on Linux, the fork of one that had loaded torch before us."""
    try:
        flags = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[6])
        parent = Path(f"/proc/{os.getppid()}/maps")
        return bool(flags & _FORKED) and "libtorch_cpu" in parent.read_text()
    except (OSError, ValueError, IndexError):
        return False


def watch_forks() -> None:
    """Be there when this process forks, and repair what a fork before now has left."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before, after_in_child=_in_child)
        if "torch" in sys.modules and _has_lost_its_team():
            _State.usable = False
            _use_one_thread()
