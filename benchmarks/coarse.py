"""What balance from a sample of the queries costs, and how even it leaves the columns.

    python benchmarks/coarse.py [n] [rounds]

prints a Markdown table: for queries that all like one key (a sink), queries that like near keys
only (local), and scores of standard deviation 3 (peaked), the mean deviation of the column sums
from one, their largest one, and the time over softmax attention; one thread, two heads.
"""

import math
import sys

import torch
from torch.nn.functional import scaled_dot_product_attention

import bistoch
from bistoch.lab.timing import time_in_turns

D, HEADS = 64, 2
WAYS = {
    "softmax": {"iters": 0},
    "1 iteration": {"iters": 1},
    "3 iterations": {"iters": 3},
    "10 iterations": {"iters": 10},
    "`coarse=64`": {"coarse": 64},
    "`coarse=32`": {"coarse": 32},
    "`coarse=16`": {"coarse": 16},
    "`coarse=8`": {"coarse": 8},
}


def tokens(kind: str, n: int) -> tuple[torch.Tensor, ...]:
    """Query, key and value of a kind."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, HEADS, n, D, generator=draw).unbind()
    if kind == "sink":
        q[..., 0], k[..., 0], k[..., n // 3, 0] = 1, 0, 14 * math.sqrt(D)
    elif kind == "peaked":
        q, k = q * math.sqrt(3), k * math.sqrt(3)
    else:
        # places on a line, in random order and crowded near its middle; a query likes 32 keys
        places = torch.randn(2, 1, HEADS, n, generator=draw).mul(0.25).tanh()
        width = 16 / n
        x, y = places / width
        q = torch.zeros(1, HEADS, n, D)
        k = torch.zeros(1, HEADS, n, D)
        q[..., 0], q[..., 1], k[..., 0], k[..., 1] = x, 1, y, -y.square() / 2
        q = q * math.sqrt(D)
    return q.contiguous(), k.contiguous(), v.contiguous()


def columns(q: torch.Tensor, k: torch.Tensor, options: dict[str, int]) -> torch.Tensor:
    """The column sums of a plan that is never held whole."""
    found = bistoch.elastic_potentials(q, k, **options)
    sums = torch.zeros(1, HEADS, k.shape[-2], dtype=torch.float64)
    for rows in torch.arange(q.shape[-2]).split(512):
        scores = q[..., rows, :].double() @ k.double().mT / math.sqrt(D)
        sums += (scores + found.column[..., None, :].double()).softmax(-1).sum(-2)
    return sums


def main() -> None:
    """Print one row for each kind and way."""
    given = [int(word) for word in sys.argv[1:]]
    n, rounds = (*given, *(4096, 3)[len(given) :])
    torch.set_num_threads(1)
    print("| scores | balance | mean deviation | largest column | time over softmax |")
    print("| --- | --- | --- | --- | --- |")
    with torch.no_grad():
        for kind in ("sink", "local", "peaked"):
            q, k, v = tokens(kind, n)
            calls = {"sdpa": lambda q=q, k=k, v=v: scaled_dot_product_attention(q, k, v)}
            for name, options in WAYS.items():
                calls[name] = lambda o=options, q=q, k=k, v=v: bistoch.elastic_attention(
                    q, k, v, **o
                )
            taken = {name: min(x) for name, x in time_in_turns(calls, rounds, warmup=1).items()}
            for name, options in WAYS.items():
                sums = columns(q, k, options)
                print(
                    f"| {kind} | {name} | {(sums - 1).abs().mean():.2g} | {sums.max():.4g} | "
                    f"{taken[name] / taken['sdpa']:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
