"""The machine a benchmark ran on: what it is, what runs on it, and whether it was busy."""

import hashlib
import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import bistoch
from bistoch.lab.bench.memory import total_memory

PACKAGES = ("torch", "numba", "numpy", "POT", "ott-jax", "jax", "geomloss")
# a load of other programs above this share of the cores makes timings doubtful
BUSY = 0.25
# and so does what they really used while a case was measured
DISTURBED = 0.05


def describe_machine() -> dict[str, Any]:
    """Processor, caches, memory and versions; nothing that names the machine or its user.

    >>> sorted(describe_machine())
    ['caches', 'cores', 'memory', 'processor', 'python', 'system', 'versions']
    """
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "caches": _caches(),
        "memory": total_memory(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in (*PACKAGES, "bistoch")},
    }


def source_digest() -> str:
    """A fingerprint of the code that is measured: other code has other times.

    >>> len(source_digest())
    16
    """
    root, digest = Path(bistoch.__file__).parent, hashlib.sha256()
    for room in ("functional", "lab/bench"):
        for path in sorted((root / room).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def load_average() -> float | None:
    """How many programs wanted a core during the last minute; None where nobody counts."""
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return None


def busy_warning(load: float | None, own: int, when: str) -> str | None:
    """A sentence if the load shows other programs at work; `own` threads are ours.

    >>> busy_warning(0.1, own=0, when="at the start") is None
    True
    >>> busy_warning(9999.0, own=0, when="at the start")
    'the machine was busy at the start (load average 9999.00 on ... cores): ...'
    """
    cores = os.cpu_count() or 1
    if load is None or load - own <= BUSY * cores:
        return None
    return (
        f"the machine was busy {when} (load average {load:.2f} on {cores} cores): "
        "measure again when quiet"
    )


class Neighbours:
    """A watch on other programs: the share of all cores they used since it was made.

    >>> share = Neighbours().share()
    >>> share is None or 0 <= share <= 1
    True
    """

    def __init__(self) -> None:
        self._start = self._used()

    def share(self) -> float | None:
        """Between 0 and 1; None where the system does not tell."""
        now = self._used()
        if self._start is None or now is None:
            return None
        wall, everyone, own = (b - a for a, b in zip(self._start, now, strict=True))
        cores = os.cpu_count() or 1
        # clocks that tick a hundred times a second say nothing about less than that
        return round(min(1.0, max(0.0, (everyone - own - 0.02) / (max(wall, 0.05) * cores))), 3)

    @staticmethod
    def _used() -> tuple[float, float, float] | None:
        """Seconds on the wall, of all programs together, and of this one."""
        try:
            with open("/proc/stat") as file:
                user, nice, system, _, _, irq, softirq, *_ = map(int, file.readline().split()[1:])
        except (OSError, ValueError):
            return None
        everyone = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), everyone, time.process_time()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _caches() -> list[str]:
    """The caches that the first core can use, such as "L2 1280K"."""
    found = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = (
                (index / name).read_text().strip() for name in ("level", "type", "size")
            )
        except OSError:
            continue
        if kind != "Instruction":
            found.append(f"L{level} {size}")
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
