"""Who computes an operator: a name is one backend and never falls back to another.

A new backend is one file, which holds its `BACKEND`, and one row in the table of its operator.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from bistoch.functional.inputs import check_choice, refuse_watcher

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
    # whether it takes tokens in the half precision that they came in; others get float32
    halves: bool = False

    def runs_on(self, device: torch.device) -> bool:
        """Whether it works on tensors that are there."""
        return self.device in ("", device.type)


def choose_backend(
    operator: str,
    backend: str,
    offered: Mapping[str, str],
    device: torch.device,
    auto: str,
    plain: Sequence[str] = ("reference",),
) -> Backend:
    """Turn the user's word into a backend, which is imported when it is chosen for the first time.

    Args:
        operator: who asks.
        backend: a name, or "auto".
        offered: the module of every backend, by name.
        device: where the tensors are.
        auto: the name that "auto" stands for.
        plain: backends made of torch's own operations: no others can be used by tools that rewrite
            a program operation by operation.
    """
    check_choice(operator, "backend", backend, ("auto", *offered))
    module = offered[choose_name(operator, backend, auto, plain)]
    _load(module)
    chosen = _LOADED[module]
    if not chosen.runs_on(device):
        raise BackendUnavailableError(
            f'{operator}: the backend "{chosen.name}" works on {chosen.device} tensors, but these '
            f'are on {device}; move them, or choose backend="streaming"'
        )
    return chosen


def choose_name(operator: str, backend: str, auto: str, plain: Sequence[str]) -> str:
    """The name of a backend from the user's word, which is one of those that are offered."""
    watcher = _watcher()
    if watcher is None:
        return auto if backend == "auto" else backend
    if backend not in ("auto", *plain):
        refuse_watcher(operator, backend, watcher)
    return "reference" if backend == "auto" else backend


def _watcher() -> str | None:
    """Which tool rewrites the operations of this call, if any."""
    if torch.compiler.is_compiling():
        # not imported for that: it is there if it is at work
        onnx = sys.modules.get("torch.onnx") if torch.compiler.is_exporting() else None
        return "torch.onnx" if onnx is not None and onnx.is_in_onnx_export() else None
    if torch._C._are_functorch_transforms_active():
        return "torch.func"
    return "torch.jit.trace" if torch.jit.is_tracing() else None


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
