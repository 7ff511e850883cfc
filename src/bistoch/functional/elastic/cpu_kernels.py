"""The compiled kernels: C functions of one pointer, each compiled when it is first wanted."""

from functools import cache

import numpy as np
import torch

from bistoch.functional.elastic.cpu_backward import prepare, scatter, step
from bistoch.functional.elastic.cpu_differentiate import differentiate
from bistoch.functional.elastic.cpu_forward import build, finish, iterate
from bistoch.functional.elastic.cpu_lanes_backward import differentiate_plans
from bistoch.functional.elastic.cpu_lanes_forward import make_plans
from bistoch.functional.elastic.cpu_runtime import body
from bistoch.functional.elastic.cpu_solve import solve

FORWARD = ("build", "iterate", "finish")
BACKWARD = ("prepare", "step", "scatter")


@cache
def addresses(backward: bool, dtype: torch.dtype) -> dict[str, int]:
    """Where the kernels of the phases are, by the names that a job has for them."""
    names = BACKWARD if backward else FORWARD
    return {f"{name}_body": compiled(name, dtype).address for name in names}


@cache
def leader(backward: bool, dtype: torch.dtype) -> int:
    """Where the kernel is that leads heads through their phases."""
    return compiled("differentiate" if backward else "solve", dtype).address


@cache
def compiled(name: str, dtype: torch.dtype):
    """One kernel in one precision."""
    return body(_KERNELS[name, dtype])


# each written out: the disk cache knows a function by its name and its line


def _build_32(pointer):
    build(pointer, np.float32)


def _build_64(pointer):
    build(pointer, np.float64)


def _iterate_32(pointer):
    iterate(pointer, np.float32)


def _iterate_64(pointer):
    iterate(pointer, np.float64)


def _finish_32(pointer):
    finish(pointer, np.float32)


def _finish_64(pointer):
    finish(pointer, np.float64)


def _solve_32(pointer):
    solve(pointer, np.float32)


def _solve_64(pointer):
    solve(pointer, np.float64)


def _prepare_32(pointer):
    prepare(pointer, np.float32)


def _prepare_64(pointer):
    prepare(pointer, np.float64)


def _step_32(pointer):
    step(pointer, np.float32)


def _step_64(pointer):
    step(pointer, np.float64)


def _scatter_32(pointer):
    scatter(pointer, np.float32)


def _scatter_64(pointer):
    scatter(pointer, np.float64)


def _differentiate_32(pointer):
    differentiate(pointer, np.float32)


def _differentiate_64(pointer):
    differentiate(pointer, np.float64)


def _make_plans_32(pointer):
    make_plans(pointer, np.float32)


def _make_plans_64(pointer):
    make_plans(pointer, np.float64)


def _differentiate_plans_32(pointer):
    differentiate_plans(pointer, np.float32)


def _differentiate_plans_64(pointer):
    differentiate_plans(pointer, np.float64)


_KERNELS = {
    ("build", torch.float32): _build_32,
    ("build", torch.float64): _build_64,
    ("iterate", torch.float32): _iterate_32,
    ("iterate", torch.float64): _iterate_64,
    ("finish", torch.float32): _finish_32,
    ("finish", torch.float64): _finish_64,
    ("solve", torch.float32): _solve_32,
    ("solve", torch.float64): _solve_64,
    ("prepare", torch.float32): _prepare_32,
    ("prepare", torch.float64): _prepare_64,
    ("step", torch.float32): _step_32,
    ("step", torch.float64): _step_64,
    ("scatter", torch.float32): _scatter_32,
    ("scatter", torch.float64): _scatter_64,
    ("differentiate", torch.float32): _differentiate_32,
    ("differentiate", torch.float64): _differentiate_64,
    ("make_plans", torch.float32): _make_plans_32,
    ("make_plans", torch.float64): _make_plans_64,
    ("differentiate_plans", torch.float32): _differentiate_plans_32,
    ("differentiate_plans", torch.float64): _differentiate_plans_64,
}
