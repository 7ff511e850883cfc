"""Time and memory of a fit of HubCorrection, by the number of documents.

    $ python benchmarks/retrieval.py [threads] [iterations] [queries] [documents ...]

Vectors of 384 features around 2000 centres, with a direction that all share. Every size runs in a
process of its own, for its peak of memory. Seconds of the processor are those of all threads; on a
machine that others use they say more than those of the clock. A fit passes over all scores once
more than it iterates; where there is no time for all of it, a few iterations tell what one costs.
"""

import json
import resource
import subprocess
import sys
import time

import torch

from bistoch.retrieval import HubCorrection, correction, perplexity_eps

FEATURES, CENTRES = 384, 2000


def draw(count: int, seed: int) -> torch.Tensor:
    """Unit vectors."""
    both, own = (torch.Generator().manual_seed(one) for one in (0, seed))
    centres = torch.randn(CENTRES, FEATURES, generator=both)
    shared = 0.5 * torch.randn(FEATURES, generator=both)
    found = centres[torch.randint(0, CENTRES, (count,), generator=own)]
    found = found + 0.8 * torch.randn(count, FEATURES, generator=own) + shared
    return torch.nn.functional.normalize(found)


def measure(threads: int, iters: int, queries: int, documents: int) -> dict[str, float]:
    """One fit with the defaults: seconds, iterations and the peak of memory in MiB."""
    torch.set_num_threads(threads)
    asked, found = draw(queries, 1), draw(documents, 2)
    seen = {}
    solve = correction.solve

    def count(*args: object, **options: object) -> object:
        # the class does not keep how many iterations it took
        seen["solved"] = solve(*args, **options)  # type: ignore[arg-type]
        return seen["solved"]

    correction.solve = count  # type: ignore[assignment]
    before = _peak()
    work = time.process_time()
    eps = perplexity_eps(asked, found)
    choosing = time.process_time() - work
    clock, work = time.perf_counter(), time.process_time()
    HubCorrection(eps, iters=iters).fit(asked, found)
    return {
        "threads": threads, "queries": queries, "documents": documents,
        "iterations": seen["solved"].iterations, "error": seen["solved"].error,
        "seconds": time.perf_counter() - clock, "processor_seconds": time.process_time() - work,
        "choosing_eps": choosing, "vectors_mib": (queries + documents) * FEATURES * 4 / 2**20,
        "memory_before_mib": before, "peak_mib": _peak(),
    }  # fmt: skip


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print a line of JSON for every size."""
    words = [int(word) for word in sys.argv[1:]] or [2, 200, 10000, 25000, 50000, 100000]
    if len(words) == 4:
        print(json.dumps(measure(*words)), flush=True)
        return
    for documents in words[3:]:
        subprocess.run([sys.executable, __file__, *map(str, (*words[:3], documents))])


if __name__ == "__main__":
    main()
