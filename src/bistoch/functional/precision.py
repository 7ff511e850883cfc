"""The precision in which operators compute, also inside a region of autocast."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from bistoch.functional.inputs.torch_names import REMEDIES, without_torch_names

P = ParamSpec("P")
R = TypeVar("R")


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision inside: float64 stays, everything shorter becomes float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """A public function without autocast: it chooses its precision by the dtype of its inputs.

    It also answers arguments that users bring from torch, so that a call has one frame for both.
    """

    @wraps(function)
    def without_autocast(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs.keys() & REMEDIES.keys():
            kwargs = without_torch_names(function.__name__, kwargs)  # type: ignore[assignment]
        with no_autocast(device_of(*args, **kwargs)):
            return function(*args, **kwargs)

    return with_own_code(without_autocast)


def with_own_code(made: Callable[P, R]) -> Callable[P, R]:
    """A wrapper with code of its own, by which torch.compile counts recompilations."""
    wrapper: Any = made
    wrapper.__code__ = wrapper.__code__.replace(co_name=wrapper.__name__)
    return made


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
