"""The compiled kernels: C functions of one pointer, each compiled when it is first wanted."""

from functools import cache

import torch

from bistoch.functional.elastic.cpu.kernels import address
from bistoch.functional.monarch.cpu.backward import attend_backward
from bistoch.functional.monarch.cpu.forward import attend


@cache
def kernel(backward: bool, dtype: torch.dtype) -> int:
    """Where the kernel of one direction and precision is."""
    return address(attend_backward if backward else attend, dtype)
