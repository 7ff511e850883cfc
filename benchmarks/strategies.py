"""How far the CPU kernels are from the reference: strategies x sizes x threads, float32.

    python benchmarks/strategies.py

prints a Markdown table: the largest error of the result and of the gradients of query, key and
value, relative to the largest number there, against the float64 reference. The strategy is read
back from the layout that the kernels took. At n = 8300 every token is a copy of one of 83, in a
random order, so that the reference has the whole answer though it could not hold the matrices.
"""

import sys

import torch
from rich.progress import track

import bistoch
from bistoch.functional.elastic.cpu import launch

D, E, ITERS, LAM = 16, 8, 5, 0.9
KINDS = 83
# heads, queries, keys
SIZES = [(4, 433, 419), (3, 1031, 1021), (2, 2053, 2039), (2, 8300, 8300)]
THREADS = (2, 1, 3)
LIMITS = {
    "as shipped": {},
    "own heads": {"OWN_HEAD_BYTES": 1 << 60},
    "shared heads": {"OWN_HEAD_BYTES": 0},
    "own heads, nothing stored": {"OWN_HEAD_BYTES": 1 << 60, "WORKSPACE_BYTES": 1 << 19},
    "shared heads, nothing stored": {"OWN_HEAD_BYTES": 0, "WORKSPACE_BYTES": 1 << 19},
}
SHIPPED = {name: getattr(launch, name) for name in ("OWN_HEAD_BYTES", "WORKSPACE_BYTES")}


def run(backend, tokens, weights):
    """The result and the gradients of a fixed loss."""
    leaves = [t.clone().requires_grad_() for t in tokens]
    result = bistoch.elastic_attention(*leaves, iters=ITERS, lam=LAM, backend=backend)
    return [result.detach(), *torch.autograd.grad((result * weights).sum(), leaves)]


def problem(heads, n, m):
    """Tokens, weights of the loss, and what the float64 reference makes of them."""
    draw = torch.Generator().manual_seed(n)
    copied = n > 8192
    count = (KINDS, KINDS) if copied else (n, m)
    q, k, v = (
        scale * torch.randn(heads, length, width, generator=draw)
        for scale, length, width in ((2, count[0], D), (1, count[1], D), (1, count[1], E))
    )
    weights = torch.randn(heads, count[0], E, generator=draw)
    exact = run("reference", [t.double() for t in (q, k, v)], weights.double())
    if not copied:
        return (q, k, v), weights, exact
    rows, columns = (torch.randperm(size, generator=draw) % KINDS for size in (n, m))
    # a copy's share of the gradient of a query is its own loss, of a key one of n / KINDS parts
    exact = [
        exact[0][:, rows],
        exact[1][:, rows],
        *(grad[:, columns] for grad in exact[2:]),
    ]
    return (q[:, rows], k[:, columns], v[:, columns]), weights[:, rows], exact


def layouts_taken():
    """Record the layouts that the kernels take from now on."""
    taken, form = [], launch.job_form

    def recorded(*arguments):
        found = form(*arguments)
        taken.append(found.layout)
        return found

    launch.job_form = recorded
    return taken


def describe(layout, n):
    """A layout in words: who works on a head, and whether its matrix is stored."""
    workers = "shared head" if layout.slots > 1 else f"{layout.workers} at a time"
    return f"{workers}, {'stored' if layout.stored_rows >= n else 'not stored'}"


def errors_of(found, exact):
    """The largest error of each tensor, relative to the largest number in it."""
    pairs = zip(found, exact, strict=True)
    return [((a.double() - b).abs().max() / b.abs().max()).item() for a, b in pairs]


def main() -> int:
    """Print one row for each size and strategy, with a column for each number of threads."""
    taken, worst, known = layouts_taken(), 0.0, {}
    print("| heads x n x m | limits | forward; backward with two threads |", end="")
    print("".join(f" {count} threads: result, gradients |" for count in THREADS))
    print("| --- " * (3 + len(THREADS)) + "|")
    cases = [(size, name) for size in SIZES for name in LIMITS]
    for size, name in track(cases, transient=True, disable=not sys.stderr.isatty()):
        if size not in known:
            known = {size: problem(*size)}
        tokens, weights, exact = known[size]
        for limit, bytes_ in (SHIPPED | LIMITS[name]).items():
            setattr(launch, limit, bytes_)
        cells = []
        for threads in THREADS:
            torch.set_num_threads(threads)
            taken.clear()
            errors = errors_of(run("cpu", tokens, weights), exact)
            worst = max(worst, *errors)
            cells.append(f"{errors[0]:.1e}, {max(errors[1:]):.1e}")
            if threads == 2:
                cells.insert(0, "; ".join(describe(layout, size[1]) for layout in taken))
        print(f"| {' x '.join(map(str, size))} | {name} | {' | '.join(cells)} |", flush=True)
    print(f"\nlargest error: {worst:.1e}")
    return int(worst > 1e-4)


if __name__ == "__main__":
    sys.exit(main())
