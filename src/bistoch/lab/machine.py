"""The machine that a record was made on: what it is, what is installed, and how busy it was."""

import os
import platform
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "numba", "numpy", "POT", "ott-jax", "jax", "geomloss", "bistoch")
# what computes on a GPU beside torch, each with the names under which it is distributed: torch
# brings a Triton of its own along for AMD, and for nightly builds
GPU_PACKAGES = {
    "triton": ("triton", "pytorch-triton-rocm", "triton-rocm", "pytorch-triton"),
    "flash-sinkhorn": ("flash-sinkhorn",),
}
# a load of other programs above this share of the cores makes timings doubtful
BUSY = 0.25
# and so does what they really used while something was timed
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
        "versions": {name: _version(name) for name in PACKAGES},
    }


def describe_gpu(device: "torch.device") -> dict[str, Any]:
    """A GPU by its model, never by its number: architecture, memory, and versions.

    Args:
        device: a CUDA or ROCm device that is here.
    """
    import torch

    found = torch.cuda.get_device_properties(device)
    amd = torch.version.hip is not None
    return {
        "name": found.name,
        "memory": found.total_memory,
        "architecture": found.gcnArchName if amd else f"{found.major}.{found.minor}",
        "platform": f"ROCm {torch.version.hip}" if amd else f"CUDA {torch.version.cuda}",
        "versions": {
            name: next(filter(None, map(_version, known)), None)
            for name, known in GPU_PACKAGES.items()
        },
    }


def provenance(command: str) -> dict[str, Any]:
    """What every record begins with: the command that makes it, the day, and the machine.

    >>> list(provenance("bistoch bench"))
    ['command', 'date', 'machine']
    """
    today = datetime.now(UTC).date().isoformat()
    return {"command": command, "date": today, "machine": describe_machine()}


def total_memory(device: "torch.device | None" = None) -> int:
    """The bytes of memory of a device: those of the GPU, or those of this machine."""
    if device is not None and device.type == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory)
    import psutil  # type: ignore[import-untyped]

    return int(psutil.virtual_memory().total)


def load_average() -> float | None:
    """How many programs wanted a core during the last minute; None where that is not counted."""
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


class OtherLoad:
    """The share of all cores that other programs have used since this was made.

    >>> 0 <= OtherLoad().share() <= 1
    True
    """

    def __init__(self) -> None:
        self._start = self._used()

    def share(self) -> float:
        """Between 0 and 1."""
        wall, everyone, own = (b - a for a, b in zip(self._start, self._used(), strict=True))
        cores = os.cpu_count() or 1
        # clocks that tick a hundred times a second say nothing about less than that
        return round(min(1.0, max(0.0, (everyone - own - 0.02) / (max(wall, 0.05) * cores))), 3)

    @staticmethod
    def _used() -> tuple[float, float, float]:
        """Seconds of wall time, of processor time of all programs, and of this one."""
        import psutil

        times = psutil.cpu_times()._asdict()
        fields = ("user", "nice", "system", "irq", "softirq")
        everyone = sum(times.get(name, 0.0) for name in fields)
        return time.perf_counter(), everyone, time.process_time()


def _processor() -> str:
    # psutil does not know the name, and platform gives only the architecture on Linux
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
