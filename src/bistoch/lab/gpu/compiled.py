"""Every kernel compiled for GPUs that are not here: registers, spills, shared memory, occupancy."""

import hashlib
import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bistoch.functional.kernels.gpu import Launch, products


class Device(NamedTuple):
    """A GPU that kernels are compiled for, and what one of its multiprocessors holds."""

    name: str
    backend: str
    arch: Any
    warp: int
    registers: int  # of 32 bits, of a multiprocessor, or of one lane of a SIMD
    shared: int  # bytes that one program may have
    shared_all: int  # bytes that all programs of a multiprocessor share
    warps: int  # of a multiprocessor


DEVICES = {
    "sm_80": Device("A100", "cuda", 80, 32, 65536, 166912, 167936, 64),
    "sm_90": Device("H100", "cuda", 90, 32, 65536, 232448, 233472, 64),
    "sm_100": Device("B200", "cuda", 100, 32, 65536, 232448, 233472, 64),
    "gfx942": Device("MI300X", "hip", "gfx942", 64, 512, 65536, 65536, 32),
}


class Configuration(NamedTuple):
    """What a kernel is compiled for: tokens with their sizes, and one of `MASKS`."""

    tokens: str
    mask: str

    def __str__(self) -> str:
        return f"{self.tokens}, {self.mask}"


class Compiled(NamedTuple):
    """What one kernel of one launch needs on a device."""

    kernel: str
    target: str
    registers: int
    spills: int
    shared: int
    warps: int
    occupancy: float

    @property
    def fits(self) -> bool:
        """Whether nothing is spilled, and a multiprocessor has room for a program."""
        is_small = self.shared <= DEVICES[self.target].shared
        return self.spills == 0 and is_small and self.occupancy > 0


class Specialised(NamedTuple):
    """A kernel with what Triton makes of the arguments of a launch: types, constants and facts."""

    kernel: Any
    name: str
    target: str
    signature: dict[str, str]
    constants: dict[Any, Any]
    attributes: dict[Any, Any]
    options: dict[str, Any]

    def __str__(self) -> str:
        # where libraries lie on this machine says nothing of them
        options = {name: x for name, x in self.options.items() if name != "extern_libs"}
        parts = (self.kernel.__name__, self.signature, self.constants, self.attributes, options)
        return " ".join(map(str, parts))

    @property
    def fingerprint(self) -> str:
        """What a compiler's answer depends on: sources, arguments, target, its own version."""
        import triton

        sources: dict[str, str] = {}
        _collect(self.kernel, sources)
        parts = [triton.__version__, self.target, str(self), *sources.values()]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def specialise(launch: Launch, target: str) -> Specialised:
    """As Triton itself does at a launch: integers of one are constants, pointers are aligned."""
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    device, kernel, given = DEVICES[target], launch.kernel, dict(launch.arguments)
    if device.backend == "hip":
        # AMD's compiler knows no bound of registers
        given.pop("maxnreg", None)
    for name in ("PRECISION", "FACTOR_PRECISION"):
        if name in given:
            # makers differ; what was recorded here tells how many bits numbers have
            is_half = given[name] == products(torch.float16)
            kind = torch.float16 if is_half else torch.float32
            given[name] = products(kind, device.arch if device.backend == "hip" else "")
    backend = make_backend(_target(device))
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, facts, options = bind(**given)
    parsed, signature, constants, attributes = kernel._pack_args(
        backend, options, bound, facts, options
    )
    return Specialised(
        kernel, name_of(launch), target, signature, constants, attributes, parsed.__dict__
    )


def compile_kernel(kernel: Specialised) -> Compiled:
    """Compile a kernel, and read what it needs."""
    import triton
    from triton.compiler import ASTSource

    device = DEVICES[kernel.target]
    source = ASTSource(kernel.kernel, kernel.signature, kernel.constants, kernel.attributes)
    made = triton.compile(source, target=_target(device), options=kernel.options)
    read = _read_nvidia if device.backend == "cuda" else _read_amd
    registers, spills = read(made, kernel.target)
    warps, shared = made.metadata.num_warps, made.metadata.shared
    occupancy = _occupancy(device, registers, shared, warps)
    return Compiled(kernel.name, kernel.target, registers, spills, shared, warps, occupancy)


def _target(device: Device) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget(device.backend, device.arch, device.warp)


# what kernels are compiled for; a mask may need other registers, and so may padding beside it
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
WIDTHS = (64, 128, 256)
MASKS = ("no mask", "boolean mask", "bias", "padding", "boolean mask, padding", "bias, padding")
# float16 differs from bfloat16 in conversions alone, so it is compiled without a mask only
TOKENS = {"bf16": MASKS, "fp16": MASKS[:1], "fp32": MASKS}


def masks_of(kind: str, n: int, m: int) -> dict[str, Tensor]:
    """One of `MASKS` for a head of n queries and m keys, as arguments of an operator.

    >>> masks_of("no mask", 2, 3), masks_of("boolean mask", 2, 3)["mask"].dtype
    ({}, torch.bool)
    >>> found = masks_of("bias, padding", 2, 3)
    >>> found["mask"].requires_grad, found["query_mask"].shape, found["key_mask"].shape
    (True, torch.Size([1, 2]), torch.Size([1, 3]))
    """
    found: dict[str, Tensor] = {}
    if "boolean mask" in kind:
        found["mask"] = torch.ones(1, n, m, dtype=torch.bool)
    if "bias" in kind:
        found["mask"] = torch.zeros(1, n, m, requires_grad=True)
    if "padding" in kind:
        found["query_mask"] = torch.ones(1, n, dtype=torch.bool)
        found["key_mask"] = torch.ones(1, m, dtype=torch.bool)
    return found


def distinct(launches: Iterable[Launch]) -> list[Launch]:
    """Launches of different kernels, or of one that is specialised differently."""
    found: dict[str, Launch] = {}
    for launch in launches:
        found.setdefault(str(specialise(launch, "sm_80")), launch)
    return list(found.values())


def name_of(launch: Launch) -> str:
    """The name of a kernel, with the switches that are on in this launch."""
    given = launch.arguments
    switches = [x.name for x in launch.kernel.params if x.is_constexpr and given[x.name] is True]
    return " ".join([launch.kernel.__name__, *switches])


def _collect(function: Any, sources: dict[str, str]) -> None:
    """The sources of a kernel and of all device functions that it calls."""
    name = function.fn.__qualname__
    if name in sources:
        return
    sources[name] = function.src
    for used in function.fn.__code__.co_names:
        other = function.fn.__globals__.get(used)
        if hasattr(other, "src") and hasattr(other, "fn"):
            _collect(other, sources)


def _read_nvidia(made: Any, target: str) -> tuple[int, int]:
    """Registers of a thread, and bytes that it spills, from the assembler's own report.

    Its options are those with which Triton calls it.
    """
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

    arch = DEVICES[target].arch
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(made.asm["ptx"])
        command = [
            get_ptxas(arch).path, "-v", "-lineinfo", "--regAllocOptLevel=2",
            f"--gpu-name={sm_arch_from_capability(arch)}", str(path),
            "-o", str(Path(folder) / "kernel.cubin"),
        ]  # fmt: skip
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    report = done.stderr
    registers = int(re.findall(r"Used (\d+) registers", report)[0])
    return registers, sum(int(bytes_) for bytes_ in re.findall(r"(\d+) bytes spill", report))


def _read_amd(made: Any, target: str) -> tuple[int, int]:
    """Vector registers of a lane, and how many are spilled, from the metadata of the assembly."""
    text = made.asm["amdgcn"]
    counts = {
        name: sum(int(x) for x in re.findall(rf"\.{name}:\s*(\d+)", text))
        for name in ("vgpr_count", "agpr_count", "vgpr_spill_count")
    }
    return counts["vgpr_count"], counts["vgpr_spill_count"]


def _occupancy(device: Device, registers: int, shared: int, warps: int) -> float:
    """The share of the warps of a multiprocessor that run at once."""
    if device.backend == "cuda":
        # a warp gets its registers in lots of 256, and so many programs fit side by side
        lot = -(-registers * device.warp // 256) * 256
        programs = min(device.registers // (lot * warps), device.warps // warps)
    else:
        # of the 512 registers of a lane of each of four SIMDs, in lots of 8; at most 8 waves each
        waves = min(device.registers // max(-(-registers // 8) * 8, 1), device.warps // 4)
        programs = 4 * waves // warps
    if shared:
        programs = min(programs, device.shared_all // shared)
    return programs * warps / device.warps
