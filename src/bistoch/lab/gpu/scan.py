"""Kernels of random calls, compiled for GPUs, as a sample of those that are not in the table.

The table has every kernel for three widths and six masks. A call may have any width and length,
masks of other strides, masses, a tolerance, no gradient: each may make another kernel of Triton.
"""

import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import bistoch
from bistoch.functional.kernels.gpu import Launch, record_launches
from bistoch.lab.gpu import causal
from bistoch.lab.gpu.compiled import DEVICES, DTYPES, Configuration, Specialised, specialise
from bistoch.lab.gpu.table import Rows, compile_all, on_this_device

LENGTHS = (1, 2, 5, 16, 31, 49, 64, 77, 100, 128, 196, 197, 256, 300, 512, 577, 1000, 1021, 2048)
FEATURES = (1, 3, 8, 16, 17, 32, 40, 48, 63, 64, 64, 72, 80, 96, 100, 128, 128, 160, 192, 251, 256)
HEADS = 3

# the tokens, the mask and what is recorded of a call
Call = tuple[str, str, Callable[[], Any]]


def run_scan(count: int, table: Collection[str], path: Path, console: Console) -> Rows:
    """Compile so many kernels of random calls that are not in the table, and count those that fit.

    What spills is told, and is no error: such a kernel is slower than it could be, and right.
    """
    found: dict[str, tuple[Configuration, Specialised]] = {}
    for what, kernel in _kernels(Random(0)):
        key = kernel.fingerprint
        if key not in table:
            found.setdefault(key, (what, kernel))
        if len(found) >= count:
            break
    rows = compile_all(found.values(), path, console)
    bad = [row for row in rows.values() if not row["fits"]]
    for row in bad:
        console.print(
            f"{row['kernel']} of {row['tokens']}, {row['mask']} on {row['target']}: "
            f"{row['registers']} registers, {row['spills']} bytes spilled",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    console.print(f"of {len(rows)} kernels of random calls {len(bad)} spill")
    return rows


def _kernels(random: Random) -> Iterator[tuple[Configuration, Specialised]]:
    """The kernels of one random call after the other, each for a random GPU."""
    while True:
        target = random.choice(tuple(DEVICES))
        draw = random.choice((_attention, _attention, _potentials, _scores, _causal, _step))
        tokens, mask, call = draw(random)
        for launch in _recorded(call, target):
            yield Configuration(tokens, mask), specialise(launch, target)


def _recorded(call: Callable[[], Any], target: str) -> list[Launch]:
    """What a call would launch, and its gradient if it has one."""
    with (
        record_launches(run=False) as launches, on_this_device(), causal.as_on(target),
        warnings.catch_warnings(),
    ):  # fmt: skip
        # nothing is computed, so nothing converges, and masks of ones hide nothing
        warnings.simplefilter("ignore")
        result = call()
        if isinstance(result, Tensor) and result.requires_grad:
            result.float().sum().backward()
    return launches


def _attention(random: Random) -> Call:
    n, m = random.choice(LENGTHS), random.choice(LENGTHS)
    name, tokens, more = _tokens(random, n, m)
    mask, masks = _masks(random, n, m)
    options = {"iters": random.choice((0, 1, 3, 10)), "lam": random.choice((0.5, 1.0))}
    return (
        f"{name}, {n} x {m}{more}, iters = {options['iters']}", mask,
        lambda: bistoch.elastic_attention(*tokens, **options, **masks, backend="triton"),
    )  # fmt: skip


def _potentials(random: Random) -> Call:
    n, m = random.choice(LENGTHS), random.choice(LENGTHS)
    name, tokens, more = _tokens(random, n, m)
    mask, masks = _masks(random, n, m)
    options: dict[str, Any] = {"iters": 3}
    if random.random() < 0.5:
        options["row_mass"] = torch.ones(n)
    if random.random() < 0.5:
        options["tol"] = 0.1

    def call() -> Tensor:
        found = bistoch.elastic_potentials(*tokens[:2], **options, **masks, backend="triton")
        return found.row.masked_fill(found.row.isinf(), 0)

    given = ", ".join(x for x in options if x != "iters")
    return f"{name}, potentials, {n} x {m}{more}" + (f", {given}" if given else ""), mask, call


def _scores(random: Random) -> Call:
    n, m = random.choice(LENGTHS), random.choice(LENGTHS)
    mask, masks = _masks(random, n, m, padding_only=True)
    scores = torch.zeros(HEADS, n, m, requires_grad=random.random() < 0.7)
    if random.random() < 0.3:
        scores = scores.detach().mT.contiguous().mT.requires_grad_()
        mask += ", transposed"
    return (
        f"scores {n} x {m}", mask,
        lambda: bistoch.balance(scores, iters=3, **masks, backend="triton"),
    )  # fmt: skip


def _causal(random: Random) -> Call:
    n = random.choice((5, 64, 100, 197, 1021, 2048, 2500))
    name, tokens, more = _tokens(random, n, n)
    mask, masks = _masks(random, n, n)
    # the two are one in causal attention
    masks.pop("query_mask", None)
    return (
        f"causal, {name}, n = {n}{more}", mask,
        lambda: bistoch.causal_elastic_attention(*tokens, **masks, backend="triton"),
    )  # fmt: skip


def _step(random: Random) -> Call:
    keys = random.choice((65, 129, 1000, 1024, 4096, 9001, 40000))
    name, (_, key, value), more = _tokens(random, 1, keys, gradient=False)
    mask, masks = _masks(random, 1, keys, gradient=False)
    masks.pop("query_mask", None)
    vector = torch.zeros(HEADS, keys - 1)
    state = bistoch.CausalState(vector, vector, vector + 1, vector[:, 0], vector[:, 0].long())

    def call() -> None:
        with torch.no_grad():
            bistoch.causal_elastic_step(
                key[:, -1:], key, value, state, **masks, backend="triton"
            )  # fmt: skip

    return f"causal, {name}, step, {keys} keys{more}", mask, call


def _tokens(
    random: Random, n: int, m: int, *, gradient: bool = True
) -> tuple[str, list[Tensor], str]:
    """Queries, keys and values of a random width and dtype, with or without a gradient."""
    name = random.choice(tuple(DTYPES))
    d = random.choice(FEATURES)
    e = d if random.random() < 0.7 else random.choice(FEATURES)
    train = gradient and random.random() < 0.7
    tokens = [
        torch.zeros(HEADS, length, width, dtype=DTYPES[name], requires_grad=train)
        for length, width in ((n, d), (m, d), (m, e))
    ]
    return name, tokens, f", d = {d}" + (f", e = {e}" if e != d else "")


def _masks(
    random: Random, n: int, m: int, *, gradient: bool = True, padding_only: bool = False
) -> tuple[str, dict[str, Tensor]]:
    """A mask of any shape and strides, and padding, as arguments of an operator."""
    found: dict[str, Tensor] = {}
    words = []
    kind = "no mask" if padding_only else random.choice(("no mask", "boolean mask", "bias"))
    if kind != "no mask":
        heads, rows, columns = (random.choice((1, size)) for size in (HEADS, n, m))
        dtype = torch.bool if kind == "boolean mask" else torch.float32
        layout = random.choice(("dense", "dense", "transposed", "strided"))
        shape = (heads, rows, 2 * columns) if layout == "strided" else (heads, rows, columns)
        mask = torch.ones(shape, dtype=dtype)
        if layout == "transposed":
            mask = mask.mT.contiguous().mT
        if layout == "strided":
            mask = mask[..., ::2]
        if kind == "bias" and gradient:
            mask.requires_grad_(random.random() < 0.7)
        found["mask"] = mask
        words.append(f"{kind} {rows} x {columns}, {layout}")
    for name, length in (("query_mask", n), ("key_mask", m)):
        if random.random() < 0.25:
            found[name] = torch.ones(HEADS, length, dtype=torch.bool)
            words.append(name.replace("_", " "))
    return ", ".join(words) or "no mask", found
