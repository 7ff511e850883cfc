"""The compiled kernels: C functions of one pointer, each compiled when it is first wanted."""

from functools import cache

import torch
from numba import types

from bistoch.functional.elastic.cpu.backward import prepare, scatter, step
from bistoch.functional.elastic.cpu.differentiate import differentiate
from bistoch.functional.elastic.cpu.forward import build, finish, iterate
from bistoch.functional.elastic.cpu.lanes_backward import differentiate_plans
from bistoch.functional.elastic.cpu.lanes_forward import make_plans
from bistoch.functional.elastic.cpu.quantised import iterate_codes
from bistoch.functional.elastic.cpu.small import solve_small
from bistoch.functional.elastic.cpu.solve import solve
from bistoch.functional.kernels.runtime import body

FORWARD = (build, iterate, finish)
BACKWARD = (prepare, step, scatter)
KINDS = {torch.float32: types.float32, torch.float64: types.float64}


@cache
def phases(backward: bool, dtype: torch.dtype, coded: bool = False) -> dict[str, int]:
    """Where the kernels of the phases are, by the names that a job has for them."""
    kernels = BACKWARD if backward else (*FORWARD, iterate_codes) if coded else FORWARD
    return {f"{kernel.__name__}_body": _compiled(kernel, dtype) for kernel in kernels}


@cache
def _compiled(kernel, dtype: torch.dtype) -> int:
    return address(kernel, dtype)


@cache
def leader(backward: bool, dtype: torch.dtype) -> int:
    """Where the kernel is that leads heads through their phases."""
    return address(differentiate if backward else solve, dtype)


@cache
def alone(dtype: torch.dtype) -> int:
    """Where the kernel is that solves small heads without phases."""
    return address(solve_small, dtype)


@cache
def plans(backward: bool, dtype: torch.dtype) -> int:
    """Where the kernel is for many small matrices."""
    return address(differentiate_plans if backward else make_plans, dtype)


# compiled code lives as long as the object that made it
_COMPILED: list = []


def address(kernel, dtype: torch.dtype) -> int:
    """Compile a kernel for one kind of float; where it is."""
    _COMPILED.append(body(kernel, KINDS[dtype]))
    return _COMPILED[-1].address
