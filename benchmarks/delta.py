"""Time of delta attention over causal scaled_dot_product_attention, forward and with the backward.

    python benchmarks/delta.py --out benchmarks/delta.json

Two heads of 64 features, window 256, sink 16, stride 16, one thread unless OMP_NUM_THREADS says
otherwise. Results are compared with the reference before they are timed; both take turns, and the
best of all rounds counts. Close other programs first.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

import bistoch
from bistoch.lab.machine import describe_machine

OPTIONS = {"window": 256, "sink": 16, "stride": 16}


def seconds(call):
    """Of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main():
    """Print one line for every length, and write them if a file is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="*", default=[512, 1024, 2048, 4096, 16384])
    parser.add_argument("--longest-backward", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {}
    for n in options.lengths:
        q, k, v = (torch.randn(1, 2, n, 64, requires_grad=True) for _ in range(3))
        calls = {
            "softmax": lambda t=(q, k, v): scaled_dot_product_attention(*t, is_causal=True),
            "delta": lambda t=(q, k, v): bistoch.delta_attention(*t, **OPTIONS),
        }
        if n <= 4096:
            exact = bistoch.delta_attention(q, k, v, backend="reference", **OPTIONS)
            torch.testing.assert_close(calls["delta"](), exact, atol=1e-5, rtol=1e-5)

        def backward(call, t=(q, k, v)):
            torch.autograd.grad(call().sum(), t)

        rounds = max(options.rounds, 16384 // n)
        best = {name: [float("inf")] * 2 for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                with torch.no_grad():
                    best[name][0] = min(best[name][0], seconds(call))
                if n <= options.longest_backward:
                    both = seconds(lambda call=call, backward=backward: backward(call))
                    best[name][1] = min(best[name][1], both)
        ratios = [best["delta"][i] / best["softmax"][i] for i in range(2)]
        found[n] = {"seconds": best, "forward": ratios[0]}
        if n <= options.longest_backward:
            found[n]["with backward"] = ratios[1]
        found[n]["seconds"] = {name: [x for x in b if x < 1e9] for name, b in best.items()}
        print(n, {name: x for name, x in found[n].items() if name != "seconds"}, flush=True)
    if options.out:
        record = {"lengths": found, "threads": torch.get_num_threads()}
        options.out.write_text(
            json.dumps(record | {"machine": describe_machine()}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
