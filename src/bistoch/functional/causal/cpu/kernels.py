"""The compiled kernels: C functions of one pointer, each compiled when it is first wanted."""

from functools import cache

import torch

from bistoch.functional.causal.cpu.backward import attend_backward
from bistoch.functional.causal.cpu.forward import attend
from bistoch.functional.causal.cpu.step import advance
from bistoch.functional.elastic.cpu.kernels import address


@cache
def kernel(backward: bool, dtype: torch.dtype) -> int:
    """Where the kernel of one direction and precision is."""
    return address(attend_backward if backward else attend, dtype)


@cache
def step_kernel(dtype: torch.dtype) -> int:
    """Where the kernel for one new token is."""
    return address(advance, dtype)
