"""Balanced attention over ranks: equality, memory, time here, and a model of larger machines.

    $ python benchmarks/distributed.py equality     # differences from one process, by ranks
    $ python benchmarks/distributed.py memory       # peak memory of a rank, by length and ranks
    $ python benchmarks/distributed.py time         # seconds of 1, 2 and 4 processes here
    $ python benchmarks/distributed.py model        # share of communication on 8 to 1024 GPUs

All print the tables of docs/distributed.md. Processes are started here, over gloo, one thread each.
"""

import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import bistoch
import bistoch.distributed as bd
from bistoch.distributed.traffic import Call, gathered_messages, ring_messages
from bistoch.functional.elastic import tiles
from bistoch.lab.bench.memory import allocated_by

PATIENCE = 900
WAYS = {
    "reference, gather": {"backend": "reference"},
    "streaming, gather": {"backend": "streaming"},
    "streaming, ring": {"backend": "streaming", "keys": "ring"},
}


def run(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What a function returns on each of so many ranks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "bistoch.distributed"])
    results = context.Queue()
    store = tempfile.mktemp(prefix="ranks-")
    processes = [
        context.Process(
            target=_work, args=(results, rank, size, store, function, arguments), daemon=True
        )
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        found = dict(results.get(timeout=PATIENCE) for _ in processes)
    finally:
        for process in processes:
            process.join(timeout=10)
            process.kill()
    return [found[rank] for rank in range(size)]


def _work(results: Any, rank: int, size: int, store: str, function: Any, arguments: Any) -> None:
    torch.set_num_threads(1)
    limit = timedelta(seconds=PATIENCE)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit
    )
    results.put((rank, function(*arguments)))
    results.close()
    results.join_thread()
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


def draw(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> torch.Tensor:
    """The same numbers on every rank."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def shards(length: int, size: int) -> list[int]:
    """Uneven shards that make up a length."""
    bounds = [round(length * (rank / size) ** 1.2) for rank in range(size + 1)]
    return [last - first for first, last in pairwise(bounds)]


def differences(way: str, dtype: torch.dtype) -> dict[str, float]:
    """The largest difference from one process in float64, over the largest number, by name."""
    size, rank = dist.get_world_size(), dist.get_rank()
    names, axes = ("query", "key", "value", "column mass"), (-2, -2, -2, -1)
    whole = [draw((2, 3, 61, 16), seed, torch.float64) for seed in range(3)]
    whole.append(draw((3, 61), 3, torch.float64).exp())
    options = [torch.linspace(0.2, 1.0, 3), torch.linspace(0.3, 1.5, 3)]
    weight = draw((2, 3, 61, 16), 5, torch.float64)

    def leaves(of: torch.dtype, own: bool) -> list[torch.Tensor]:
        tokens = [
            x.split(shards(61, size), axis)[rank] if own else x
            for x, axis in zip(whole, axes, strict=True)
        ]
        return [x.to(of).clone().requires_grad_() for x in (*tokens, *options)]

    single, shared = leaves(torch.float64, False), leaves(dtype, True)
    q, k, v, mass, lam, eps = single
    expected = bistoch.elastic_attention(
        q, k, v, column_mass=mass, lam=lam, eps=eps, backend="reference"
    )
    (expected * weight).sum().backward()
    q, k, v, mass, lam, eps = shared
    found = bd.elastic_attention(q, k, v, column_mass=mass, lam=lam, eps=eps, **WAYS[way])
    (found * weight.split(shards(61, size), -2)[rank].to(dtype)).sum().backward()

    def apart(x: torch.Tensor, y: torch.Tensor, axis: int | None, top: float) -> float:
        own = y if axis is None else y.split(shards(61, size), axis)[rank]
        return (x.double() - own).detach().abs().max().item() / top if own.numel() else 0.0

    result = {"result": apart(found, expected, -2, expected.detach().abs().max().item())}
    for name, x, y, axis in zip(
        (*names, "lam", "eps"), shared, single, (*axes, None, None), strict=True
    ):
        result[f"d {name}"] = apart(x.grad, y.grad, axis, float(y.grad.abs().max()))
    return result


def equality() -> None:
    """The largest difference over all ranks."""
    print("| precision | ways | ranks | result | query | key | value | mass | lam | eps |")
    print("| --- " * 10 + "|")
    for dtype in (torch.float64, torch.float32):
        for way in WAYS:
            for size in (1, 2, 3, 4):
                found = run(size, differences, way, dtype)
                cells = [f"{max(one[name] for one in found):.0e}" for name in found[0]]
                word = str(dtype).removeprefix("torch.")
                print("|", " | ".join([word, way, str(size), *cells]), "|", flush=True)


def peak(length: int, way: str) -> int:
    """The most bytes of a rank, with tiles of scores so small that they hardly matter."""
    tiles.TILE_ELEMENTS = 1 << 16
    own = length // dist.get_world_size()
    tokens = [draw((1, own, 256), seed, torch.float32).requires_grad_() for seed in range(3)]

    def call() -> None:
        bd.elastic_attention(*tokens, iters=2, **WAYS[way]).sum().backward()

    return allocated_by(call)[1]


def memory() -> None:
    """Forward and backward of one head with 256 features, T = 2, in MiB."""
    lengths = (1024, 2048, 4096)
    print("| keys | ranks | " + " | ".join(f"n = {n}" for n in lengths) + " |")
    print("| --- " * 5 + "|")
    for way in ("streaming, gather", "streaming, ring"):
        for size in (1, 2, 4):
            cells = [f"{max(run(size, peak, n, way)) / 2**20:.1f}" for n in lengths]
            print("|", " | ".join([way.split(", ")[1], str(size), *cells]), "|", flush=True)


def seconds(length: int, way: str) -> tuple[float, float]:
    """The best time of three calls, forward and backward, and the time of the processor."""
    own = length // dist.get_world_size()
    tokens = [draw((2, own, 64), seed, torch.float32).requires_grad_() for seed in range(3)]
    best, work = math.inf, math.inf
    for _ in range(3):
        dist.barrier()
        start, start_work = time.perf_counter(), time.process_time()
        bd.elastic_attention(*tokens, iters=5, **WAYS[way]).sum().backward()
        best = min(best, time.perf_counter() - start)
        work = min(work, time.process_time() - start_work)
    return best, work


def timed() -> None:
    """Two heads with 64 features, T = 5, forward and backward."""
    print("| keys | ranks | n = 512: seconds | of the processor | n = 1024 | of the processor |")
    print("| --- " * 6 + "|")
    for way in ("streaming, gather", "streaming, ring"):
        for size in (1, 2, 4):
            cells = []
            for length in (512, 1024):
                found = run(size, seconds, length, way)
                cells += [f"{max(x[0] for x in found):.2f}", f"{max(x[1] for x in found):.2f}"]
            print("|", " | ".join([way.split(", ")[1], str(size), *cells]), "|", flush=True)


class Machine(NamedTuple):
    """Public figures of H100 SXM GPUs, eight to a node; docs/distributed.md has the sources."""

    # half of the dense TF32 peak of 495 TFLOPS
    flops: float = 0.5 * 495e12
    # 132 multiprocessors, 16 exponentials a clock each, 1.755 GHz
    exponentials: float = 132 * 16 * 1.755e9
    # bytes per second and direction: NVLink 4, and one NDR card for each GPU, as measured
    inside: float = 0.8 * 450e9
    card: float = 47e9
    # seconds for the smallest collective on two nodes, for each doubling of nodes, and for a send
    collective: float = 20e-6
    doubling: float = 5e-6
    send: float = 10e-6


def pass_time(machine: Machine, pairs: float, products: float, exponentials: float) -> float:
    """Seconds of a pass over pairs, with so many operations and exponentials for each."""
    return pairs * max(products / machine.flops, exponentials / machine.exponentials)


def model_of(machine: Machine, ranks: int, n: int, iters: int, ring: bool) -> tuple[float, float]:
    """Seconds of computing and of communication that it does not hide, forward and backward."""
    heads, d = 16, 64
    call = Call(ranks, heads, n, d, d, iters)
    pairs, product = heads * n * n / ranks, 2 * d
    rounds = 4 * iters if ring else 2 * iters
    each = pass_time(machine, pairs, product, 1 if ring else 2)
    computing = rounds * each
    # the result, its gradient with respect to columns, and the tokens at the end
    computing += pass_time(machine, pairs, 2 * product, 2)
    computing += pass_time(machine, pairs, 2 * product, 1)
    computing += pass_time(machine, pairs, 5 * product, 2 * iters + 1)
    # collectives use all cards of a node at once, and a ring only that of the rank at its border
    together = machine.inside if ranks <= 8 else min(machine.inside, 8 * machine.card)
    alone = machine.inside if ranks <= 8 else machine.card
    latency = machine.collective + machine.doubling * max(0.0, math.log2(ranks / 8))
    messages = (ring_messages if ring else gathered_messages)(call, backward=True)
    collectives = sends = 0.0
    for (kind, size), count in messages.items():
        if kind == "send":
            sends += count * (machine.send + size / alone)
            continue
        factor = {"all_reduce": 2 * (ranks - 1) / ranks, "all_gather": ranks - 1.0}
        share = factor.get(kind, (ranks - 1) / ranks)
        collectives += count * (latency + share * size / together)
    # what goes round travels while ranks compute
    return computing, collectives + max(0.0, sends - computing)


def model() -> None:
    """The share of communication, in percent, for T = 3 / 5 / 10."""
    machine, sizes = Machine(), (8, 64, 256, 1024)
    for ring in (False, True):
        print(f"\nkeys={'ring' if ring else 'gather'!r}\n")
        heads = " | ".join(f"{ranks} GPUs" for ranks in sizes)
        print(f"| n | {heads} |\n" + "| --- " * 5 + "|")
        for n in (8192, 65536, 262144, 1048576):
            cells = []
            for ranks in sizes:
                shares = []
                for iters in (3, 5, 10):
                    computing, waiting = model_of(machine, ranks, n, iters, ring)
                    shares.append(f"{100 * waiting / (computing + waiting):.0f}")
                total = sum(model_of(machine, ranks, n, 5, ring))
                cells.append(f"{' / '.join(shares)} ({total * 1e3:.3g} ms)")
            print("|", " | ".join([str(n), *cells]), "|")


if __name__ == "__main__":
    commands = {"equality": equality, "memory": memory, "time": timed, "model": model}
    if sys.argv[1:2] and sys.argv[1] in commands:
        commands[sys.argv[1]]()
    else:
        print(__doc__)
