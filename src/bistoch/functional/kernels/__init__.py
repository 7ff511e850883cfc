"""Numba plumbing that knows no formula: arrays, vectors, exponentials, threads.

The kernels of an operator are in its folder `cpu/`. Nothing here imports Numba before a kernel is
needed: modules that do are asked for by `kernel_module`.
"""

from functools import cache
from importlib import import_module
from typing import Any

from bistoch.functional.backends import BackendUnavailableError


@cache
def kernel_module(name: str) -> Any:
    """A module of `functional` that needs Numba, imported when first used.

    >>> kernel_module("kernels.runtime").threads() > 0
    True
    """
    try:
        return import_module(f"bistoch.functional.{name}")
    except ImportError as error:
        raise BackendUnavailableError(
            'the backend "cpu" needs Numba, which cannot be imported here; install it with '
            'pip install numba, or choose backend="streaming"'
        ) from error
