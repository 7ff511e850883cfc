"""Attention and assignment with controlled column sums.

One elastic operator slides from softmax (`lam = 0`) to doubly stochastic (`lam = 1`) to hard
assignment (`eps -> 0`), with rows that always sum to one.
"""

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bistoch._fork import watch_forks

if TYPE_CHECKING:
    from bistoch import analysis as analysis
    from bistoch import distributed as distributed
    from bistoch import flows as flows
    from bistoch import functional as functional
    from bistoch import models as models
    from bistoch import nn as nn
    from bistoch import retrieval as retrieval
    from bistoch import testing as testing
    from bistoch._public import *  # noqa: F403
    from bistoch.convert import CallableModule
    from bistoch.convert import restore as restore

    convert: CallableModule

__version__ = "0.1.0"

# packages that are loaded when they are named, as `bistoch.nn.Attention`
_PACKAGES = (
    "analysis", "convert", "distributed", "flows", "functional", "models", "nn", "retrieval",
    "testing",
)  # fmt: skip

watch_forks()


def _load(module: str) -> Any:
    collects = gc.isenabled()
    # nothing that is imported becomes garbage, and one look at all that torch has made takes as
    # long as half of these imports
    gc.disable()
    try:
        return import_module(f"bistoch.{module}")
    finally:
        if collects:
            gc.enable()


def __getattr__(name: str) -> Any:
    # `bistoch --help` imports this file, and should not have to wait for torch
    if name in _PACKAGES:
        return _load(name)
    if name == "restore":
        # no other name needs these packages, which take a while to load
        return _load("convert").restore
    if not name.startswith("_"):
        public = vars(_load("_public"))
        if name in public:
            # from now on it is found without asking
            globals()[name] = public[name]
            return public[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    public = (name for name in vars(_load("_public")) if not name.startswith("_"))
    return sorted({*globals(), *_PACKAGES, "restore", *public})
