"""Where the time of the CPU kernels goes: what the machine can do, and what a head needs.

    $ python benchmarks/roofline.py [threads]

Prints the table of docs/cpu.md. Close other programs first.
"""

import sys
import time
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

import bistoch

HEADS, FEATURES = 8, 64


def best(function: Callable[[], object], seconds: float = 0.4) -> float:
    """The shortest of several calls, in seconds."""
    function()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def product_speed() -> float:
    """Multiplications and additions a second, in products that stay in the second-level cache."""
    left, right = torch.randn(HEADS, 256, FEATURES), torch.randn(HEADS, FEATURES, 512)
    room = torch.empty(HEADS, 256, 512)
    return 2 * HEADS * 256 * 512 * FEATURES / best(lambda: torch.bmm(left, right, out=room))


def reading_speed(numbers: int) -> float:
    """Bytes a second, reading so many float32 again and again."""
    vector = torch.ones(numbers)
    return 4 * numbers / best(lambda: vector.sum())


def attention(n: int, iters: int) -> Callable[[], object]:
    """Elastic attention with scores that stay alive: every iteration is computed."""
    query, key, value = torch.randn(3, 1, HEADS, n, FEATURES).unbind()
    return lambda: bistoch.elastic_attention(4 * query, key, value, iters=iters, backend="cpu")


def main() -> None:
    """Print one line for every length."""
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    torch.manual_seed(0)
    speed = product_speed()
    print(f"{torch.get_num_threads()} threads, {HEADS} heads of {FEATURES} features, float32")
    print("| n | sdpa | no iteration | products at full speed | an iteration | bytes of K | GB/s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with torch.no_grad():
        for n in (256, 512, 1024, 2048, 4096):
            query, key, value = torch.randn(3, 1, HEADS, n, FEATURES).unbind()
            softmax = best(lambda q=query, k=key, v=value: scaled_dot_product_attention(q, k, v))
            none, some, more = (best(attention(n, iters)) for iters in (0, 1, 7))
            step = (more - some) / 6
            size = 4 * n * n
            products = 4 * HEADS * n * n * FEATURES / speed
            cells = [f"{1e3 * x:.2f} ms" for x in (softmax, none, products, step)]
            cells += [f"{size / 2**20:.2f} MiB", f"{HEADS * size / step / 1e9:.0f}"]
            print(f"| {n} | " + " | ".join(cells) + " |")
    small, large = reading_speed(1 << 18), reading_speed(1 << 26)
    print(f"reading: {small / 1e9:.0f} GB/s from 1 MiB, {large / 1e9:.0f} GB/s from 256 MiB")
    print(f"products: {speed / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
