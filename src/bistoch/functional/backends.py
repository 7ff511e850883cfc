"""Who computes an operator: a name is one backend and never falls back to another."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from bistoch.functional.inputs import check_choice

# found, but not imported: that is left to the first call of a kernel
HAS_NUMBA = find_spec("numba") is not None


class BackendUnavailableError(RuntimeError):
    """A backend was asked for by name and cannot run here."""


def choose_backend(operator: str, backend: str, offered: Sequence[str], *, auto: str) -> str:
    """Turn the user's word into an offered backend; `auto` is what "auto" stands for."""
    check_choice(operator, "backend", backend, ("auto", *offered))
    return auto if backend == "auto" else backend


def assume_constant_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """Tell compilers that equal arguments give an equal result: there is nothing to trace inside.

    `torch.compiler.assume_constant_result` sets the same attribute, but first imports the whole
    compiler, which takes as long as torch itself.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
