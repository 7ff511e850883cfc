"""The compiled kernels: C functions of one pointer, each compiled when it is first wanted."""

from functools import cache

import torch

from bistoch.functional.circuit.cpu.backward import differentiate_plans
from bistoch.functional.circuit.cpu.forward import draw_plans
from bistoch.functional.elastic.cpu.kernels import address


@cache
def kernel(backward: bool, dtype: torch.dtype) -> int:
    """Where the kernel of one direction and precision is."""
    return address(differentiate_plans if backward else draw_plans, dtype)
