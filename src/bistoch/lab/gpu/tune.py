"""Which blocks are fastest on a device: a small space, timed once, and kept in a file.

`bistoch bench --device cuda --tune` prints what to put into the environment.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import bistoch
from bistoch.functional.causal.triton.blocks import SPACE as CAUSAL_SPACE
from bistoch.functional.elastic.triton.blocks import SPACE
from bistoch.functional.kernels.gpu import HAS_TRITON
from bistoch.functional.kernels.tuning import VARIABLE, Sizes, use_blocks, write_blocks
from bistoch.lab.files import write_whole

# passes of the forward, timed without a gradient, and those of the backward, timed with one
FORWARD = ("steps", "output")
LENGTH, HEADS, ITERS = 2048, 16, 5
# features of the heads that the space is for
WIDEST = 64

Clock = Callable[[Callable[[], Any]], float]


def run_tuning(
    out: Path, console: Console, device: torch.device, dim: int = 64, clock: Clock | None = None
) -> dict[str, Sizes]:
    """The best blocks of every family of kernels in bfloat16, from the file of an earlier run.

    Args:
        out: the folder of `blocks.json`.
        console: where to say what was found.
        device: whose blocks.
        dim: features of a head.
        clock: seconds of a call; by default that of Triton.
    """
    if not HAS_TRITON or (device.type == "cpu" and clock is None):
        raise ValueError(
            "bench: --tune times the Triton kernels, which needs a GPU and Triton; choose it with "
            "--device cuda"
        )
    if dim > WIDEST:
        raise ValueError(
            f"bench: --tune knows blocks for heads of up to {WIDEST} features, but --dim is {dim}; "
            f"name blocks in {VARIABLE} to try others"
        )
    name = "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)
    path, key = out / "blocks.json", f"{name}, d = {dim}, bistoch {bistoch.__version__}"
    known = json.loads(path.read_text()) if path.exists() else {}
    if key not in known:
        known[key] = tune(device, dim, clock or _triton_clock, console)
        write_whole(path, json.dumps(known, indent=1).encode())
    found = {family: tuple(sizes) for family, sizes in known[key].items()}
    console.print(f"fastest blocks on {key}: export {VARIABLE}={write_blocks(found)}")
    console.print(
        f"this is for half precision and up to {WIDEST} features of a head; unset it for others"
    )
    return found


def tune(device: torch.device, dim: int, clock: Clock, console: Console) -> dict[str, Sizes]:
    """Time all blocks of the space, one family of kernels after the other."""
    tokens = torch.randn(1, HEADS, LENGTH, dim, device=device).bfloat16()
    best: dict[str, Sizes] = {}
    for family, candidates in {**SPACE, **CAUSAL_SPACE}.items():
        attention = (
            bistoch.causal_elastic_attention if family in CAUSAL_SPACE
            else partial(bistoch.elastic_attention, iters=ITERS)
        )  # fmt: skip
        train = family not in FORWARD
        times: dict[Sizes, float] = {}
        for sizes in candidates:
            chosen: Mapping[str, Sizes] = {**best, family: sizes}
            with use_blocks(chosen):
                times[sizes] = clock(partial(_attend, attention, tokens, train))
        best[family] = min(times, key=lambda sizes: times[sizes])
        said = ", ".join(f"{'x'.join(map(str, k))} {1e3 * x:.3f} ms" for k, x in times.items())
        console.print(f"{family}: {said}", style="dim")
    return best


def _attend(attention: Callable[..., Tensor], tokens: Tensor, train: bool) -> None:
    leaf = tokens.detach().requires_grad_(train)
    result = attention(leaf, leaf, leaf, backend="triton")
    if train:
        result.sum().backward()


def _triton_clock(call: Callable[[], Any]) -> float:
    from triton.testing import do_bench

    return float(do_bench(call)) / 1e3
