"""The compiled kernels: C functions of one pointer, each compiled when it is first wanted."""

from functools import cache

import numpy as np
import torch

from bistoch.functional.elastic import cpu_backward, cpu_forward
from bistoch.functional.elastic.cpu_runtime import body

build, iterate, finish, solve = (
    cpu_forward.build, cpu_forward.iterate, cpu_forward.finish, cpu_forward.solve
)  # fmt: skip
prepare, step, scatter, differentiate = (
    cpu_backward.prepare, cpu_backward.step, cpu_backward.scatter, cpu_backward.differentiate
)  # fmt: skip

FORWARD = ("build", "iterate", "finish")
BACKWARD = ("prepare", "step", "scatter")


@cache
def compiled(name: str, dtype: torch.dtype):
    """One kernel in one precision. Written out, so that the disk cache can tell them apart."""
    bits = 64 if dtype == torch.float64 else 32
    return body(globals()[f"{name}_{bits}"])


def build_32(pointer):
    build(pointer, np.float32)


def build_64(pointer):
    build(pointer, np.float64)


def iterate_32(pointer):
    iterate(pointer, np.float32)


def iterate_64(pointer):
    iterate(pointer, np.float64)


def finish_32(pointer):
    finish(pointer, np.float32)


def finish_64(pointer):
    finish(pointer, np.float64)


def solve_32(pointer):
    solve(pointer, np.float32)


def solve_64(pointer):
    solve(pointer, np.float64)


def prepare_32(pointer):
    prepare(pointer, np.float32)


def prepare_64(pointer):
    prepare(pointer, np.float64)


def step_32(pointer):
    step(pointer, np.float32)


def step_64(pointer):
    step(pointer, np.float64)


def scatter_32(pointer):
    scatter(pointer, np.float32)


def scatter_64(pointer):
    scatter(pointer, np.float64)


def differentiate_32(pointer):
    differentiate(pointer, np.float32)


def differentiate_64(pointer):
    differentiate(pointer, np.float64)
