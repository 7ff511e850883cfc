"""A drawn call as lines of Python: what is run is what is printed."""

import contextlib
import importlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bistoch

DTYPES = ("float16", "bfloat16", "float32", "float64")

# limits of the kernels, and where they stand: small ones make small sizes take every strategy
LIMITS = {
    "WORKSPACE_BYTES": "elastic.cpu.launch",
    "OWN_HEAD_BYTES": "elastic.cpu.launch",
    "BLOCK_BYTES": "elastic.cpu.launch",
    "SMALL_HEAD": "elastic.cpu.launch",
    "LARGEST": "elastic.cpu.lanes",
    "TILE_ELEMENTS": "elastic.tiles",
    "FEW": "_recompute",
}


class Found(Exception):  # noqa: N818
    """A promise that was not kept."""


def normal(seed: int, shape: tuple[int, ...], dtype: str = "float32", size: float = 1.0) -> Tensor:
    """Normal numbers; the same ones, rounded, in every dtype."""
    numbers = torch.randn(shape, generator=_generator(seed), dtype=torch.float64)
    return (size * numbers).to(getattr(torch, dtype))


def between(
    seed: int, shape: tuple[int, ...], low: float, high: float, dtype: str = "float32"
) -> Tensor:
    """Numbers strictly inside an interval; if it is positive, even in their logarithm."""
    part = 0.02 + 0.96 * torch.rand(shape, generator=_generator(seed), dtype=torch.float64)
    numbers = low * (high / low) ** part if low > 0 else low + (high - low) * part
    return numbers.to(getattr(torch, dtype))


def coins(seed: int, shape: tuple[int, ...], share: float) -> Tensor:
    """Booleans, of which about this share is True."""
    return torch.rand(shape, generator=_generator(seed)) < share


def spaced(tensor: Tensor) -> Tensor:
    """The same numbers, neither contiguous nor in the order of their axes."""
    if tensor.ndim < 2:
        return tensor
    return tensor.mT.repeat_interleave(2, -1)[..., ::2].mT


def put(tensor: Tensor, place: int, number: float) -> Tensor:
    """The same numbers but one, counted through all axes."""
    tensor = tensor.clone(memory_format=torch.contiguous_format)
    tensor.view(-1)[place] = number
    return tensor


def layer(seed: int, text: str, dtype: str = "float32") -> torch.nn.Module:
    """A layer of `bistoch.nn` in evaluation mode, with the weights of a seed."""
    torch.manual_seed(seed)
    return eval(f"bistoch.nn.{text}").to(getattr(torch, dtype)).eval()


@contextlib.contextmanager
def limits(threads: int = 1, **values: int):
    """Other limits of the kernels, and so many threads, for a while."""
    modules = {n: importlib.import_module(f"bistoch.functional.{LIMITS[n]}") for n in values}
    before = {name: getattr(module, name) for name, module in modules.items()}
    usual = torch.get_num_threads()
    try:
        if threads != usual:
            torch.set_num_threads(threads)
        for name, module in modules.items():
            setattr(module, name, values[name])
        yield
    finally:
        if threads != usual:
            torch.set_num_threads(usual)
        for name, module in modules.items():
            setattr(module, name, before[name])


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


NAMES = {
    "torch": torch, "np": np, "bistoch": bistoch, "nan": float("nan"), "inf": float("inf"),
    "normal": normal, "between": between, "coins": coins, "spaced": spaced, "put": put,
    "layer": layer,
}  # fmt: skip
IMPORTS = """\
from math import inf, nan
import numpy as np, torch, bistoch
from fuzz.call import between, coins, layer, limits, normal, put, spaced
"""


def evaluate(text: str) -> Any:
    return eval(text, dict(NAMES))


@dataclass
class Call:
    """One call: what is called, and every argument as a Python expression."""

    function: str
    arguments: dict[str, str]
    # limits of the kernels and the number of threads
    limits: dict[str, int] = field(default_factory=dict)
    # what a check may want to know, for example which argument was made illegal
    notes: dict[str, Any] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """The arguments, made anew."""
        return {name: evaluate(text) for name, text in self.arguments.items()}

    def lines(self) -> str:
        """A program that makes this call."""
        made = [f"{name} = {text}" for name, text in self.arguments.items()]
        names = ", ".join(f"{name}={name}" for name in self.arguments)
        limits = ", ".join(f"{name}={value}" for name, value in self.limits.items())
        call = [f"with limits({limits}):", f"    result = {self.function}({names})"]
        return IMPORTS + "\n".join(made + call)
