"""The compiled kernels: C functions of one pointer, each compiled when it is first wanted."""

from functools import cache

import numpy as np
import torch

from bistoch.functional.causal.cpu_backward import go_back
from bistoch.functional.causal.cpu_forward import attend
from bistoch.functional.elastic.cpu_runtime import body


@cache
def kernel(backward: bool, dtype: torch.dtype) -> int:
    """Where the kernel of one direction and precision is."""
    return body(_KERNELS[backward, dtype]).address


# each written out: the disk cache knows a function by its name and its line


def _attend_32(pointer):
    attend(pointer, np.float32)


def _attend_64(pointer):
    attend(pointer, np.float64)


def _go_back_32(pointer):
    go_back(pointer, np.float32)


def _go_back_64(pointer):
    go_back(pointer, np.float64)


_KERNELS = {
    (False, torch.float32): _attend_32,
    (False, torch.float64): _attend_64,
    (True, torch.float32): _go_back_32,
    (True, torch.float64): _go_back_64,
}
