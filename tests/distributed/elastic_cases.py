"""Calls over ranks beside the same call with everything on one, and how far they are apart."""

import warnings

import torch

import bistoch
import bistoch.distributed as bd

N, M, BATCH, WIDTH = 13, 11, (2, 3), 5
# rows and keys of each rank, uneven and sometimes none
ROWS = {1: (13,), 2: (6, 7), 3: (5, 0, 8), 4: (4, 1, 5, 3)}
KEYS = {1: (11,), 2: (3, 8), 3: (4, 5, 2), 4: (2, 0, 6, 3)}

# which axis is sharded, and how; what is not here is the same on all ranks
SHARDED = {
    "query": (-2, ROWS), "key": (-2, KEYS), "value": (-2, KEYS), "key_mask": (-1, KEYS),
    "query_mask": (-1, ROWS), "column_mass": (-1, KEYS), "row_mass": (-1, ROWS),
    "start": (-1, KEYS), "mask": (-2, ROWS), "scores": (-2, ROWS),
}  # fmt: skip


def numbers(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def real(length, seed):
    keep = numbers(*BATCH, length, seed=seed) > -0.8
    keep[..., 0] = True
    return keep


def bias(*, low=False):
    found = numbers(3, N, M, seed=9)
    if low:
        found[..., ::4] = -torch.inf
        found[1, 2] = -torch.inf
    return found


def options_of(name):
    """The options of a case; tensors that are floating get a gradient."""
    mass = numbers(3, M, seed=5).exp()
    known = {
        "plain": {},
        "softmax": {"lam": 0.0, "iters": 3},
        "no iterations": {"iters": 0, "lam": 0.5},
        "learned": {
            "lam": numbers(3, seed=1).sigmoid(),
            "eps": numbers(2, 1, seed=2).exp(),
            "omega": torch.tensor(1.3, dtype=torch.float64),
        },
        "padding": {"query_mask": real(N, 3), "key_mask": real(M, 4), "lam": 0.7},
        "mass": {"column_mass": mass, "lam": 0.9},
        "bias": {"mask": bias(low=True), "lam": 0.8},
        "boolean": {"mask": numbers(2, 1, N, M, seed=6) > -0.5},
        "row of bias": {"mask": numbers(3, 1, M, seed=7)},
        "vector of bias": {"mask": numbers(M, seed=8)},
        "tol": {"tol": 1e-6, "iters": 60, "lam": 0.9},
        "tol and omega": {"tol": 1e-4, "iters": 200, "omega": 1.2},
        "sharp": {"eps": 0.01, "iters": 6},
        "sharp and soft": {"eps": 0.003, "lam": 0.4, "iters": 12},
        "one iteration": {"iters": 1},
    }
    return known[name]


MORE = {
    "start": lambda: {"start": numbers(3, M, seed=11), "lam": 0.8, "iters": 4},
    "far start": lambda: {"start": 100 * numbers(3, M, seed=14), "lam": 0.9, "iters": 4},
    "row mass": lambda: {"row_mass": numbers(3, N, seed=12).exp(), "lam": 0.8, "iters": 4},
    "both masses": lambda: {
        "row_mass": (a := numbers(3, N, seed=12).exp()) / a.sum(-1, keepdim=True),
        "column_mass": (b := numbers(3, M, seed=13).exp()) / b.sum(-1, keepdim=True),
    },
}


def leaves(whole, ranks=None, sharded=SHARDED):
    """Arguments that have a gradient; those of one rank, if there are ranks."""
    found = {}
    for name, x in whole.items():
        if isinstance(x, torch.Tensor):
            axis, sizes = sharded.get(name, (None, None))
            is_row = axis == -2 and (x.ndim < 2 or x.shape[-2] == 1)
            if ranks is not None and axis is not None and not is_row:
                x = x.split(list(sizes[ranks.size]), axis)[ranks.rank]
            x = x.clone()
            if x.is_floating_point():
                x.requires_grad_()
        found[name] = x
    return found


def compare(ranks, function, whole_function, tokens, options, weights, sharded=SHARDED):
    """The largest differences of results and gradients, by name; loss is a weighted sum."""
    single = leaves({**tokens, **options})
    shared = leaves({**tokens, **options}, ranks, sharded)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = whole_function(**single)
        found = function(**shared)
    apart = {}
    total, own_total = 0.0, 0.0
    for name, (axis, sizes) in weights.items():
        whole, own = expected[name], found[name]
        weight = numbers(*whole.shape, seed=21 + len(name))
        mine, part = own_share(weight, ranks, axis, sizes), own_share(whole, ranks, axis, sizes)
        apart[name] = worst(own, part)
        # what all ranks have is in the loss of each; a potential of minus infinity is in none
        count = ranks.size if axis is None else 1
        total = total + count * (whole.masked_fill(whole == -torch.inf, 0) * weight).sum()
        own_total = own_total + (own.masked_fill(own == -torch.inf, 0) * mine).sum()
    total.backward()
    own_total.backward()
    for name, x in single.items():
        if isinstance(x, torch.Tensor) and x.requires_grad:
            axis, sizes = sharded.get(name, (None, None))
            if axis == -2 and (x.ndim < 2 or x.shape[-2] == 1):
                axis = None
            grad = torch.zeros_like(x) if x.grad is None else x.grad
            apart[f"d {name}"] = worst(shared[name].grad, own_share(grad, ranks, axis, sizes))
    return apart


def own_share(x, ranks, axis, sizes):
    return x if axis is None else x.split(list(sizes[ranks.size]), axis)[ranks.rank]


def worst(found, expected):
    """The largest difference, relative to the largest number; NaN where only one of both is."""
    if found is None:
        return 0.0 if not expected.numel() else float("inf")
    if found.shape != expected.shape:
        return float("inf")
    if not expected.numel():
        return 0.0
    found, expected = found.detach(), expected.detach()
    same = (found == expected) | (found.isnan() & expected.isnan())
    scale = expected.nan_to_num(0, 0, 0).abs().max().clamp_min(1)
    return (found - expected).masked_fill(same, 0).abs().max().item() / scale.item()


def tokens(with_value=True):
    found = {"query": numbers(*BATCH, N, WIDTH, seed=31), "key": numbers(*BATCH, M, WIDTH, seed=32)}
    if with_value:
        found["value"] = numbers(2, 1, M, 4, seed=33)
    return found


def attention(ranks, case, backend, keys="gather"):
    options = options_of(case)

    def over_ranks(**given):
        return {"result": bd.elastic_attention(
            **given, backend=backend, keys=keys, group=ranks.group)}  # fmt: skip

    def alone(**given):
        return {"result": bistoch.elastic_attention(**given, backend="reference")}

    return compare(ranks, over_ranks, alone, tokens(), options, {"result": (-2, ROWS)})


def potentials(ranks, case, backend, keys="gather"):
    options = MORE[case]() if case in MORE else options_of(case)

    def over_ranks(**given):
        return bd.elastic_potentials(
            **given, backend=backend, keys=keys, group=ranks.group)._asdict()  # fmt: skip

    def alone(**given):
        return bistoch.elastic_potentials(**given, backend="reference")._asdict()

    weights = {"row": (-1, ROWS), "column": (-1, KEYS)}
    return compare(ranks, over_ranks, alone, tokens(False), options, weights)


def given_scores(ranks, case, backend):
    """`balance` and `balance_potentials`, which have all columns on every rank."""
    options = MORE[case]() if case in MORE else options_of(case)
    scores = {"scores": numbers(*BATCH, N, M, seed=41)}
    columns = {name: SHARDED.pop(name) for name in ("key_mask", "column_mass", "start")}

    def over_ranks(**given):
        found = bd.balance_potentials(**given, backend=backend, group=ranks.group)
        return {"plan": bd.balance(**given, backend=backend, group=ranks.group), **found._asdict()}

    def alone(**given):
        found = bistoch.balance_potentials(**given, backend="reference")
        return {"plan": bistoch.balance(**given, backend="reference"), **found._asdict()}

    weights = {"plan": (-2, ROWS), "row": (-1, ROWS), "column": (None, None)}
    try:
        return compare(ranks, over_ranks, alone, scores, options, weights)
    finally:
        SHARDED.update(columns)


def causal_options(name):
    known = {
        "plain": {},
        "softmax": {"lam": 0.0},
        "learned": {"lam": numbers(3, seed=1).sigmoid(), "eps": numbers(2, 1, seed=2).exp()},
        "padding": {"key_mask": real(N, 3), "query_mask": real(N, 4)},
        "queries padded": {"query_mask": real(N, 5)},
        "bias": {"mask": numbers(3, N, N, seed=9), "lam": 0.8},
        "window": {"mask": torch.ones(N, N, dtype=torch.bool).triu(-4)},
        "row of bias": {"mask": numbers(3, 1, N, seed=7)},
        "block of one": {"block": 1},
        "long block": {"block": 64},
    }
    return {"block": 4, "prior": 0.1} | known[name]


def causal(ranks, case, backend):
    keys = {name: SHARDED[name] for name in ("key", "value", "key_mask")}
    SHARDED.update({name: (axis, ROWS) for name, (axis, _) in keys.items()})
    given = {name: numbers(*BATCH, N, WIDTH, seed=31 + i) for i, name in enumerate(
        ("query", "key", "value"))}  # fmt: skip
    given["value"] = given["value"][:, :1]

    def over_ranks(**given):
        result = bd.causal_elastic_attention(**given, backend=backend, group=ranks.group)
        return {"result": result}

    def alone(**given):
        return {"result": bistoch.causal_elastic_attention(**given, backend="reference")}

    try:
        return compare(
            ranks, over_ranks, alone, given, causal_options(case), {"result": (-2, ROWS)}
        )
    finally:
        SHARDED.update(keys)


def several(ranks, calls):
    """Many cases in one go: `(function, *arguments)` each, by a name of their own."""
    return {name: globals()[function](ranks, *rest) for name, (function, *rest) in calls.items()}
