"""Run random calls in one process per core for some minutes, and print what they found."""

import argparse
import sys
from collections import Counter

import torch

from fuzz.campaign import campaign
from fuzz.run import Finding, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="another seed, other calls")
    parser.add_argument("--calls", type=int, default=10**9, help="stop after so many draws")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int, nargs="+", help="repeat the calls of these numbers")
    chosen = parser.parse_args()
    if chosen.only is not None:
        torch.set_num_threads(1)
        counts, findings = run(chosen.only)
        print(*findings, sep="\n")
        report(counts, findings)
        return bool(findings)
    # numbers of one seed never meet those of another
    first = chosen.seed * 10**9
    print(f"seed {chosen.seed}: calls from number {first} on, {chosen.workers} processes")
    counts, findings = campaign(first, chosen.calls, chosen.minutes, chosen.workers)
    report(counts, findings)
    return bool(findings)


def report(counts: Counter, findings: list[Finding]) -> None:
    """Exact counts, and findings by what they are."""
    for name, count in sorted(counts.items()):
        print(f"{count:10,} {name}")
    for (kind, sentence), count in Counter(
        (f.kind, f.sentence[:60]) for f in findings
    ).most_common():
        print(f"{count:10,} findings: {kind}: {sentence}")
    print(f"{len(findings):10,} findings")


if __name__ == "__main__":
    sys.exit(main())
