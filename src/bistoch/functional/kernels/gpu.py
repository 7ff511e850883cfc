"""Triton plumbing that knows no formula: is it here, who runs it, how tiles are multiplied.

Nothing here imports Triton before a kernel is needed. Kernels run on CUDA and ROCm devices, or, for
tests, on CPU tensors in Triton's interpreter, if `TRITON_INTERPRET=1` was set before the first use.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bistoch.functional.backends import BackendUnavailableError, assume_constant_result


def _has_triton() -> bool:
    """Whether Triton is here, 3.4 or newer: those before, as torch 2.7 has, know no `knobs`."""
    found = find_spec("triton")
    folders = [] if found is None else found.submodule_search_locations or []
    return any((Path(folder) / "knobs.py").exists() for folder in folders)


# found, but not imported: that is left to the first call of a kernel
HAS_TRITON = _has_triton()


@cache
def triton_module(name: str) -> Any:
    """A module of `functional` that needs Triton, imported when first used."""
    try:
        if not HAS_TRITON:
            raise ImportError("there is no Triton, or one before 3.4")
        return import_module(f"bistoch.functional.{name}")
    except ImportError as error:
        raise BackendUnavailableError(
            'the backend "triton" needs Triton 3.4 or newer, which cannot be imported here; install'
            " it with pip install 'bistoch[gpu]', or choose backend=\"streaming\""
        ) from error


# nothing for a compiler to trace
@assume_constant_result
def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on CPU tensors."""
    return HAS_TRITON and bool(import_module("triton").knobs.runtime.interpret)


def device_type() -> str:
    """The type of the tensors that kernels work on here."""
    return "cpu" if is_interpreted() else "cuda"


# compute capability of the oldest GPUs of NVIDIA that kernels are made for; on those before, fused
# ones spill kilobytes of registers, and want more shared memory than there is
OLDEST = (8, 0)


# a fact of the machine: nothing for a compiler to trace
@assume_constant_result
def is_new_enough(device: torch.device) -> bool:
    """Whether kernels are made for a device; of those of AMD nothing is asked."""
    return _capability(device) >= OLDEST


def check_new_enough(operator: str, device: torch.device) -> None:
    """Refuse a GPU that kernels are not made for."""
    if not is_new_enough(device):
        found, wanted = (".".join(map(str, x)) for x in (_capability(device), OLDEST))
        raise BackendUnavailableError(
            f'{operator}: the backend "triton" works on GPUs of compute capability {wanted} or '
            f'more (Ampere and later), but {device} has {found}; choose backend="streaming"'
        )


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    # without a driver there are only tensors that compilers trace with
    if device.type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        return OLDEST
    return torch.cuda.get_device_capability(device)


class Launch(NamedTuple):
    """One launch of a kernel, as `record_launches` sees it."""

    kernel: Any
    programs: int
    arguments: dict[str, Any]


_recorders: list[tuple[list[Launch], bool]] = []


def launch(kernel: Any, programs: int, /, **arguments: Any) -> None:
    """Run so many programs of a kernel.

    A product and a sum are rounded one after the other, in all kernels alike: passes that make the
    same scores again find the same bits, and those of the interpreter.
    """
    arguments["enable_fp_fusion"] = False
    for launches, _ in _recorders:
        launches.append(Launch(kernel, programs, arguments))
    if all(run for _, run in _recorders):
        first = next((x for x in arguments.values() if isinstance(x, torch.Tensor)), None)
        # Triton launches on the current device, which need not be that of the tensors
        with nullcontext() if first is None else torch.cuda.device_of(first):
            kernel[(programs,)](**arguments)


@contextmanager
def record_launches(*, run: bool = True) -> Iterator[list[Launch]]:
    """A list of all launches while it is open, for tests, cost models and compilation.

    Without `run` nothing is computed, and no device is needed.
    """
    _recorders.append(([], run))
    try:
        yield _recorders[-1][0]
    finally:
        _recorders.pop()


def dense(tokens: torch.Tensor) -> torch.Tensor:
    """Tokens without gaps that begin at a multiple of 16 bytes, as kernels read them.

    Triton would compile kernels again for a slice that begins elsewhere.

    >>> tokens = torch.arange(12.0)
    >>> dense(tokens) is tokens, dense(tokens[1:]).data_ptr() % 16
    (True, 0)
    """
    found = tokens.contiguous()
    return found if found.data_ptr() % 16 == 0 else found.clone()


def no_finer(tensor: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Values, or what arrives at a result, as `dense`, with no more bits than tokens have.

    They come from tensors of the dtype of the tokens, but a compiler may leave out the rounding on
    the way. Products of few bits would lose what is left of it, and other sums would not.

    >>> tokens, values = torch.ones(2, dtype=torch.float16), torch.tensor([1.0, 1.0001])
    >>> no_finer(values, tokens), no_finer(values, values) is values
    (tensor([1., 1.]), True)
    """
    if tokens.dtype.itemsize < tensor.dtype.itemsize:
        tensor = tensor.to(tokens.dtype).to(tensor.dtype)
    return dense(tensor)


def products(dtype: torch.dtype, amd: str = "") -> str:
    """How `tl.dot` multiplies the numbers of a dtype, so that their precision is kept.

    Tensor cores of NVIDIA have no float32: three products of parts of 11 bits make one of 22. Half
    precision tokens have at most 11 bits to begin with. AMD's matrix cores have float32, and those
    of the architecture gfx942 products of 11 bits too.

    >>> [products(torch.bfloat16, amd) for amd in ("", "gfx942", "gfx90a")]
    ['tf32', 'tf32', 'ieee']
    """
    if dtype in (torch.float16, torch.bfloat16):
        return "tf32" if not amd or amd.startswith("gfx942") else "ieee"
    return "ieee" if amd or dtype == torch.float64 or is_interpreted() else "tf32x3"


def products_of(tokens: torch.Tensor) -> str:
    """How `tl.dot` multiplies tokens, by their dtype and device."""
    return products(tokens.dtype, amd_architecture(tokens.device))


def amd_architecture(device: torch.device) -> str:
    """The architecture of a device of AMD, as gfx942; empty for others."""
    if torch.version.hip is None or device.type != "cuda":
        return ""
    # features of the device follow behind a colon
    return torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]


# of a thread, and of all threads of a multiprocessor, on every GPU of NVIDIA
ALL_REGISTERS = 255
REGISTER_FILE = 65536


def register_options(most: int, warps: int) -> dict[str, int]:
    """The launch option that lets a thread of so many warps have registers; none if 0, or on AMD.

    Left to itself, NVIDIA's assembler may spill a few registers of a thread, often at 168 or 128 of
    them, where another program fits beside it.

    >>> register_options(255, 8), register_options(255, 16), register_options(0, 4)
    ({'maxnreg': 255}, {'maxnreg': 128}, {})
    """
    if not most or torch.version.hip is not None:
        return {}
    return {"maxnreg": min(most, REGISTER_FILE // (32 * warps))}


def power_of_two(number: int) -> int:
    """The smallest one that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()


def width(features: int) -> int:
    """The power of two that a tile of so many features takes; matrix units want 16 at least."""
    return max(16, power_of_two(features))


def chunk(features: int, dtype: torch.dtype) -> int:
    """How many features of a tile are multiplied at a time, so that registers hold their parts.

    Those of float32 are split in two for tensor cores, and take four times as many.
    """
    return min(width(features), 128 if dtype.itemsize == 2 else 32)
