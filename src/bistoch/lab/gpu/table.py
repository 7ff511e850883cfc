"""The table behind `bistoch bench --compile-table`: every kernel, every width, every GPU."""

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import bistoch
from bistoch.functional import backends
from bistoch.functional.elastic.triton.blocks import SPACE
from bistoch.functional.kernels.gpu import HAS_TRITON, Launch, is_interpreted, record_launches
from bistoch.functional.kernels.tuning import use_blocks
from bistoch.functional.matching import slack
from bistoch.lab.files import write_whole
from bistoch.lab.gpu import causal
from bistoch.lab.gpu.compiled import (
    DEVICES,
    DTYPES,
    MASKS,
    TOKENS,
    WIDTHS,
    Compiled,
    Configuration,
    Specialised,
    compile_kernel,
    distinct,
    masks_of,
    specialise,
)
from bistoch.lab.progress import progress

MODULE = "bistoch.functional.elastic.triton.backend"
# tokens of the smallest tile that a head is filled up to; larger ones are powers of two
SMALLEST = 16
# sizes of given scores: many small matrices, those whose columns fit a tile, and a large one
SCORES = (2, 4, 8, 16, 32, 64, 128, 256, 1024)

# kernels after which those that are compiled are written down
SAVE_EVERY = 20

# what compilers said, by fingerprint of kernel and target
Rows = dict[str, dict[str, Any]]


def run_compile_table(out: Path, console: Console, targets: tuple[str, ...] = ()) -> Rows:
    """Compile all kernels for all GPUs, print what they need, and write it as JSON.

    What the file of an earlier run knows is not compiled again unless the kernel has changed.
    Raises an error if a kernel spills registers, or needs more shared memory than there is.
    """
    if not HAS_TRITON or is_interpreted():
        raise ValueError(
            "bench: --compile-table needs Triton (pip install 'bistoch[gpu]'), and cannot use its "
            "interpreter; unset TRITON_INTERPRET"
        )
    path, targets = out / "compile-table.json", targets or tuple(DEVICES)
    asked = [
        (what, [specialise(launch, target) for target, launch in launches.items()])
        for what, launches in _by_target(targets)
    ]
    rows = compile_all(((what, kernel) for what, kernels in asked for kernel in kernels), path,
                       console)  # fmt: skip
    shown = Table("kernel", "tokens", *(f"{name} ({DEVICES[name].name})" for name in targets))
    for what, kernels in asked:
        cells = (_cell(_known(rows, kernel.fingerprint)) for kernel in kernels)
        shown.add_row(kernels[0].name, str(what), *cells)
    console.print(shown)
    console.print("registers of a thread, shared memory in KiB, occupancy; bytes spilled if any")
    bad = [row for row in rows.values() if not row["fits"]]
    if bad:
        named = (f"{row['kernel']} of {row['tokens']}, {row['mask']} on {row['target']}"
                 for row in bad)  # fmt: skip
        raise ValueError(f"bench: these kernels do not fit: {'; '.join(named)}")
    return rows


def compile_all(
    kernels: Iterable[tuple[Configuration, Specialised]], path: Path, console: Console
) -> Rows:
    """Compile what the file does not know yet, on all cores, and write it; all rows that count."""
    known = _read(path)
    asked: dict[str, tuple[Configuration, Specialised]] = {}
    for what, kernel in kernels:
        # configurations may share a kernel: it stands at the first of them
        asked.setdefault(kernel.fingerprint, (what, kernel))
    missing = [key for key in asked if key not in known]

    def compiled(key: str) -> tuple[str, Compiled]:
        return key, compile_kernel(asked[key][1])

    with ThreadPoolExecutor(os.cpu_count()) as pool, progress(console, len(missing)) as shown:
        for place, (key, one) in enumerate(pool.map(compiled, missing)):
            known[key] = asked[key][0]._asdict() | one._asdict() | {"fits": one.fits, "key": key}
            shown.finish(f"{one.kernel} of {asked[key][0]} for {one.target}", _cell(one))
            # an interrupted run forgets no more than these
            if place % SAVE_EVERY == 0:
                write_whole(path, _json(known))
    rows = {
        key: known[key] | what._asdict() | {"key": key} for key, (what, _) in asked.items()
    }  # fmt: skip
    write_whole(path, _json(rows))
    return rows


def _by_target(targets: tuple[str, ...]) -> Iterator[tuple[Configuration, dict[str, Launch]]]:
    """Launches of all kernels on each GPU; those of causal balance have other tiles on some."""
    for what, launch in configurations():
        yield what, dict.fromkeys(targets, launch)
    for row in zip(*(causal.configurations(target) for target in targets), strict=True):
        yield row[0][0], dict(zip(targets, (launch for _, launch in row), strict=True))


def _read(path: Path) -> Rows:
    return {row["key"]: row for row in json.loads(path.read_text())} if path.exists() else {}


def _json(rows: Rows) -> bytes:
    # a line each
    return ("[\n" + ",\n".join(map(json.dumps, rows.values())) + "\n]\n").encode()


def _known(rows: Rows, key: str) -> Compiled:
    """What a compiler said."""
    return Compiled(*(rows[key][x] for x in Compiled._fields))


def configurations() -> Iterator[tuple[Configuration, Launch]]:
    """Launches of all kernels, each with the widths, dtypes and masks that it is compiled for."""
    for mask in MASKS:
        for name, dtype in DTYPES.items():
            if mask not in TOKENS[name]:
                continue
            for d in WIDTHS:
                yield from _of(f"{name}, d = {d}", mask, long_launches(dtype, d, mask))
            for d in WIDTHS:
                for m, launches in _while_any(partial(fused_launches, dtype, d=d, mask=mask)):
                    yield from _of(f"{name}, {m} keys, d = {d}", mask, launches)
            for d in WIDTHS:
                for n, launches in _while_any(partial(short_launches, dtype, d=d, mask=mask)):
                    yield from _of(f"{name}, {n} x {n}, d = {d}", mask, launches)
        for n in SCORES:
            yield from _of(f"scores {n} x {n}", mask, plan_launches(n, mask))
        for family, candidates in SPACE.items():
            # the first is that of the table
            for sizes in candidates[1:]:
                with use_blocks({family: sizes}):
                    launches = long_launches(torch.bfloat16, 64, mask)
                title = f"bf16, d = 64, {'x'.join(map(str, sizes))}"
                yield from _of(title, mask, _family(family, launches))
    yield from _of("bf16, d = 64, tolerance", "no mask", tolerance_launches())
    yield from _of("scores with prices", "no mask", price_launches())


def _while_any(
    launches: Callable[[int], list[Launch]],
) -> Iterator[tuple[int, list[Launch]]]:
    """The launches of a form for tiles of all sizes that it takes."""
    size = SMALLEST
    while found := launches(size):
        yield size, found
        size *= 2


# whose blocks the families of kernels are
KERNELS = {
    "steps": ("row_step_kernel", "column_step_kernel"), "output": ("output_kernel",),
    "vectors": ("row_grad_kernel", "column_grad_kernel"),
}  # fmt: skip


def _family(family: str, launches: list[Launch]) -> list[Launch]:
    return [launch for launch in launches if launch.kernel.__name__ in KERNELS[family]]


def _of(tokens: str, mask: str, launches: list[Launch]) -> Iterator[tuple[Configuration, Launch]]:
    for launch in distinct(launches):
        yield Configuration(tokens, mask), launch


def long_launches(dtype: torch.dtype, d: int, mask: str = "bias") -> list[Launch]:
    """All launches of a head of 1024 tokens, forward and backward."""
    tokens = torch.zeros(1, 1024, d, dtype=dtype, requires_grad=True)
    return _launches(
        lambda: bistoch.elastic_attention(
            tokens, tokens, tokens, iters=2, backend="triton", **masks_of(mask, 1024, 1024)
        )
    )


def fused_launches(dtype: torch.dtype, m: int, d: int, mask: str = "no mask") -> list[Launch]:
    """The launches that only heads have whose keys fit one tile; none if these do not."""
    query = torch.zeros(1, 1024, d, dtype=dtype, requires_grad=True)
    key = torch.zeros(1, m, d, dtype=dtype, requires_grad=True)
    launches = _launches(
        lambda: bistoch.elastic_attention(
            query, key, key, iters=3, lam=0.5, backend="triton", **masks_of(mask, 1024, m)
        )
    )
    names = ("strip_kernel", "strip_grad_kernel", "join_kernel", "join_grad_kernel")
    return [x for x in launches if x.kernel.__name__ in names]


def tolerance_launches() -> list[Launch]:
    """The launches that a tolerance adds."""
    tokens = torch.zeros(1, 1024, 64, dtype=torch.bfloat16)
    with record_launches(run=False) as launches, on_this_device(), warnings.catch_warnings():
        # nothing is computed, so nothing converges
        warnings.simplefilter("ignore")
        bistoch.elastic_potentials(tokens, tokens, iters=2, tol=0.1, backend="triton")
    names = ("decide_kernel", "error_kernel")
    return [x for x in launches if x.kernel.__name__ in names]


def short_launches(dtype: torch.dtype, n: int, d: int, mask: str = "no mask") -> list[Launch]:
    """The launches of a head that fits one program; none if it does not."""
    tokens = torch.zeros(1, n, d, dtype=dtype, requires_grad=True)
    launches = _launches(
        lambda: bistoch.elastic_attention(
            tokens, tokens, tokens, iters=2, backend="triton", **masks_of(mask, n, n)
        )
    )
    return launches if any(x.kernel.__name__ == "heads_kernel" for x in launches) else []


def plan_launches(n: int, mask: str = "no mask") -> list[Launch]:
    """All launches of given scores; those of small matrices are two."""
    scores = torch.zeros(5, n, n, requires_grad=True)
    return _launches(
        lambda: bistoch.balance(scores, iters=2, backend="triton", **masks_of(mask, n, n))
    )


def price_launches() -> list[Launch]:
    """The launches of a matching with prices."""
    scores = torch.zeros(2, 300, 200, requires_grad=True)
    return _launches(
        lambda: (
            bistoch.match(scores, row_price=0.1, column_price=0.1, iters=2, backend="triton").plan
        )
    )


def _launches(call: Callable[[], Tensor]) -> list[Launch]:
    """What a call and its gradient would launch on a GPU; nothing is computed."""
    with record_launches(run=False) as launches, on_this_device():
        call().sum().backward()
    return launches


@contextmanager
def on_this_device() -> Iterator[None]:
    """As if the tensors were on a GPU."""
    backends._load(MODULE)
    here = backends._LOADED[MODULE]
    backends._LOADED[MODULE], asked = here._replace(device="cpu"), slack.device_type
    slack.device_type = lambda: "cpu"
    try:
        yield
    finally:
        backends._LOADED[MODULE], slack.device_type = here, asked


def _cell(one: Compiled) -> str:
    spilled = f", {one.spills} spilled" if one.spills else ""
    return f"{one.registers}, {one.shared / 1024:.0f}, {one.occupancy:.0%}{spilled}"
