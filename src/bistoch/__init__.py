"""Attention and assignment with controlled column sums.

One elastic operator slides from softmax (`lam = 0`) to doubly stochastic (`lam = 1`) to hard
assignment (`eps -> 0`), with rows that always sum to one.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bistoch._fork import watch_forks

if TYPE_CHECKING:
    from bistoch._public import *  # noqa: F403

__version__ = "0.1.0"

watch_forks()


def __getattr__(name: str) -> Any:
    # `bistoch --help` imports this file, and should not have to wait for torch
    if not name.startswith("_"):
        public = vars(import_module("bistoch._public"))
        if name in public:
            # from now on it is found without asking
            globals()[name] = public[name]
            return public[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    public = vars(import_module("bistoch._public"))
    return sorted({*globals(), *(name for name in public if not name.startswith("_"))})
