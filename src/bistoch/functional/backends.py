"""Who computes an operator: a name is one backend and never falls back to another.

A new backend is one file, which holds its `BACKEND`, and one row in the table of its operator.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from bistoch.functional.inputs import check_choice

# found, but not imported: that is left to the first call of a kernel
HAS_NUMBA = find_spec("numba") is not None


class BackendUnavailableError(RuntimeError):
    """A backend was asked for by name and cannot run here."""


class Backend(NamedTuple):
    """One who computes an operator."""

    name: str
    # the device that it works on, "" for any
    device: str
    # from a checked problem, and what the operator hands on with it, to its solution
    solve: Callable[..., Any]
    # makes a plan of scores that are given, if it has a quicker way to it, else None
    plan: Callable[[Any], Any] = lambda _: None
    # whether it finds a NaN or an infinity by itself; others get numbers only
    looks: bool = False

    def runs_on(self, device: torch.device) -> bool:
        """Whether it works on tensors that are there."""
        return self.device in ("", device.type)


def choose_backend(
    operator: str, backend: str, offered: Mapping[str, str], device: torch.device, auto: str
) -> Backend:
    """Turn the user's word into a backend, which is imported when it is chosen for the first time.

    Args:
        operator: who asks.
        backend: a name, or "auto".
        offered: the module of every backend, by name.
        device: where the tensors are.
        auto: the name that "auto" stands for.
    """
    check_choice(operator, "backend", backend, ("auto", *offered))
    module = offered[auto if backend == "auto" else backend]
    _load(module)
    chosen = _LOADED[module]
    if not chosen.runs_on(device):
        raise BackendUnavailableError(
            f'{operator}: the backend "{chosen.name}" works on {chosen.device} tensors, but these '
            f'are on {device}; move them, or choose backend="streaming"'
        )
    return chosen


def assume_constant_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """Tell compilers that equal arguments give an equal result: there is nothing to trace inside.

    `torch.compiler.assume_constant_result` sets the same attribute, but first imports the whole
    compiler, which takes as long as torch itself.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


# by their modules; a compiler must find its functions in a place that it knows
_LOADED: dict[str, Backend] = {}


# an import is nothing for a compiler to trace
@assume_constant_result
def _load(module: str) -> bool:
    if module not in _LOADED:
        _LOADED[module] = import_module(module).BACKEND
    return True
