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

# blocks of every family of kernels that are worth trying
ALL_SPACE = {**SPACE, **CAUSAL_SPACE}

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
    import triton

    name = "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)
    versions = f"bistoch {bistoch.__version__}, Triton {triton.__version__}"
    path, key = out / "blocks.json", f"{name}, d = {dim}, {versions}"
    known = _read(path)
    # what an earlier version searched among other blocks is searched again
    found = {
        family: tuple(sizes) for family, sizes in known.get(key, {}).items()
        if tuple(sizes) in ALL_SPACE.get(family, ())
    }  # fmt: skip
    for family in ALL_SPACE:
        if family not in found:
            found[family] = fastest(family, found, device, dim, clock or _triton_clock, console)
            # an interrupted run forgets no more than one family
            write_whole(path, json.dumps(known | {key: found}, indent=1).encode())
    # the first of a space is that of the table, which has others for some masks
    better = {family: sizes for family, sizes in found.items() if sizes != ALL_SPACE[family][0]}
    if not better:
        console.print(f"fastest blocks on {key}: those that kernels have without {VARIABLE}")
        return found
    console.print(f"fastest blocks on {key}: export {VARIABLE}={write_blocks(better)}")
    console.print(
        f"this is for half precision and up to {WIDEST} features of a head; unset it for others"
    )
    return found


def _read(path: Path) -> dict[str, Any]:
    """What earlier runs found, by GPU."""
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text()))
    except ValueError as error:
        raise ValueError(
            f"bench: {path} must hold what --tune wrote, but it cannot be read ({error}); remove it"
        ) from error


def fastest(
    family: str, others: Mapping[str, Sizes], device: torch.device, dim: int, clock: Clock,
    console: Console,
) -> Sizes:  # fmt: skip
    """The fastest blocks of a family of kernels, beside those found for other families.

    Blocks that a device has no room for, or that do not compile, are left out.
    """
    from triton import TritonError

    tokens = torch.randn(1, HEADS, LENGTH, dim, device=device).bfloat16()
    attention = (
        bistoch.causal_elastic_attention if family in CAUSAL_SPACE
        else partial(bistoch.elastic_attention, iters=ITERS)
    )  # fmt: skip
    train = family not in FORWARD
    times: dict[Sizes, float] = {}
    for sizes in ALL_SPACE[family]:
        try:
            with use_blocks({**others, family: sizes}):
                times[sizes] = clock(partial(_attend, attention, tokens, train))
        except (TritonError, torch.OutOfMemoryError) as error:
            refused = f"{family}: not {'x'.join(map(str, sizes))} on this device: {error}"
            console.print(refused, style="dim")
    if not times:
        # those of the table, as if nothing were chosen
        return ALL_SPACE[family][0]
    said = ", ".join(f"{'x'.join(map(str, k))} {1e3 * x:.3f} ms" for k, x in times.items())
    console.print(f"{family}: {said}", style="dim")
    return min(times, key=lambda sizes: times[sizes])


def _attend(attention: Callable[..., Tensor], tokens: Tensor, train: bool) -> None:
    leaf = tokens.detach().requires_grad_(train)
    result = attention(leaf, leaf, leaf, backend="triton")
    if train:
        result.sum().backward()


def _triton_clock(call: Callable[[], Any]) -> float:
    from triton.testing import do_bench

    return float(do_bench(call)) / 1e3
