"""The precision in which operators compute, also inside a region of autocast."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision inside: float64 stays, everything shorter becomes float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """A public function without autocast: it chooses its precision by the dtype of its inputs."""

    @wraps(function)
    def without_autocast(*args: P.args, **kwargs: P.kwargs) -> R:
        with no_autocast(device_of(*args, **kwargs)):
            return function(*args, **kwargs)

    # torch.compile counts recompilations by code, of which every function needs its own
    made: Any = without_autocast
    made.__code__ = made.__code__.replace(co_name=function.__name__)
    return without_autocast


def device_of(*args: object, **kwargs: object) -> torch.device | None:
    """Where the first tensor of a call is, None if it has none."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value.device
    return None


def no_autocast(device: torch.device | None) -> AbstractContextManager:
    """Switch autocast off, if it is on; for what is entered from elsewhere, such as a backward."""
    # tensors without numbers have no precision to lose, and autocast does not know them
    if device and device.type != "meta" and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
