"""What must hold over ranks whatever the numbers, what is sent, and what goes wrong."""

import os
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import bistoch
import bistoch.distributed as bd
from bistoch.distributed import traffic
from distributed.elastic_cases import BATCH, KEYS, ROWS, WIDTH, M, N, numbers

WAYS = ({"backend": "reference"}, {"backend": "streaming"}, {"keys": "ring"})


def mine(x, sizes, ranks, axis=-2):
    return x.split(list(sizes[ranks.size]), axis)[ranks.rank]


def whole_of(x, sizes, ranks):
    return ranks.gather(x, -2, sizes[ranks.size])


def laws(ranks):
    """Names of laws that do not hold."""
    broken = []

    def check(name, holds, way):
        if not bool(holds):
            broken.append(f"{name} {way}")

    q, k = numbers(*BATCH, N, WIDTH, seed=1), numbers(*BATCH, M, WIDTH, seed=2)
    v = numbers(*BATCH, M, 3, seed=3)
    own = [mine(q, ROWS, ranks), mine(k, KEYS, ranks), mine(v, KEYS, ranks)]
    for way in WAYS:
        way = way | {"group": ranks.group}
        ones = bd.elastic_attention(*own[:2], torch.ones_like(own[2]), lam=0.6, **way)
        check("rows sum to one", (ones - 1).abs().max() < 1e-12 if ones.numel() else True, way)
        found = bd.elastic_attention(*own, lam=0.0, **way)
        plain = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        check("lam = 0 is softmax", torch.allclose(found, mine(plain, ROWS, ranks)), way)
        # columns sum to n / m at lam = 1: the mean of the results is the mean of the values
        found = bd.sinkhorn_attention(*own, iters=40, **way)
        mean = ranks.sum(found.sum(-2)) / N
        check("columns are balanced", torch.allclose(mean, v.mean(-2), atol=1e-6), way)
        # a permutation of all tokens, so that most of them change their rank
        rows, keys = torch.randperm(N), torch.randperm(M)
        found = whole_of(bd.elastic_attention(*own, lam=0.7, **way), ROWS, ranks)
        moved = [mine(q[..., rows, :], ROWS, ranks), mine(k[..., keys, :], KEYS, ranks)]
        moved.append(mine(v[..., keys, :], KEYS, ranks))
        other = whole_of(bd.elastic_attention(*moved, lam=0.7, **way), ROWS, ranks)
        check("order does not matter", torch.allclose(found[..., rows, :], other), way)
        again = whole_of(bd.elastic_attention(*own, lam=0.7, **way), ROWS, ranks)
        check("a second call is equal bit by bit", torch.equal(found, again), way)
        # one head does not feel the others
        poisoned = [x.clone() for x in own]
        for x in poisoned:
            x[1] *= 100
        other = bd.elastic_attention(*poisoned, lam=0.7, **way)
        same = torch.allclose(other[0], mine(found, ROWS, ranks)[0])
        check("heads are alone", same, way)
        half = bd.elastic_attention(*(x.bfloat16() for x in own), **way)
        check("precision is kept", half.dtype == torch.bfloat16, way)
        single = bistoch.elastic_attention(*(x.float() for x in (q, k, v)), backend="reference")
        found = bd.elastic_attention(*(x.float() for x in own), **way)
        near = torch.allclose(found, mine(single, ROWS, ranks), atol=1e-5)
        check("float32 is near", near, way)
    return broken


def not_finite(ranks, where, value):
    """Whether NaN is where one process would have it."""
    tokens = {
        "query": numbers(2, N, WIDTH, seed=1),
        "key": numbers(2, M, WIDTH, seed=2),
        "value": numbers(2, M, 3, seed=3),
    }
    tokens[where][0, 4, 1] = value
    query_mask = torch.ones(2, N, dtype=torch.bool)
    query_mask[:, 2] = False
    expected = bistoch.elastic_attention(**tokens, query_mask=query_mask, backend="reference")
    expected = mine(expected, ROWS, ranks)
    own = {x: mine(t, ROWS if x == "query" else KEYS, ranks) for x, t in tokens.items()}
    options = {"query_mask": mine(query_mask, ROWS, ranks, -1), "group": ranks.group}
    return [
        torch.allclose(bd.elastic_attention(**own, **options, **way), expected, equal_nan=True)
        for way in WAYS
    ]


def over_a_mesh(ranks):
    mesh = DeviceMesh("cpu", list(range(ranks.size)))
    x = numbers(2, 4, 5, seed=ranks.rank)
    with_mesh = bd.elastic_attention(x, x, x, mesh=mesh)
    return torch.equal(with_mesh, bd.elastic_attention(x, x, x, group=ranks.group))


def counted(ranks, keys, iters):
    """The messages of a forward and of a backward, and those of the formulas."""
    call = traffic.Call(ranks.size, 6, 4 * ranks.size, 5, 3, iters, bytes_per_number=8)
    formula = traffic.ring_messages if keys == "ring" else traffic.gathered_messages
    tokens = [numbers(2, 3, 4, width, seed=ranks.rank).requires_grad_() for width in (5, 5, 3)]
    with traffic.count_messages() as sent:
        result = bd.elastic_attention(*tokens, iters=iters, keys=keys, group=ranks.group)
    forward = sent == formula(call)
    with traffic.count_messages() as returned:
        result.sum().backward()
    both = sent + returned == formula(call, backward=True)
    return forward, both


def sums_of_columns(ranks, size):
    """How many sums over columns a forward takes, from a start of a size."""
    q, k = (numbers(2, 4, 5, seed=ranks.rank + 10 * i) for i in range(2))
    start = size * numbers(4, seed=ranks.rank + 30)
    with traffic.count_messages() as sent:
        bd.elastic_potentials(q, k, start=start, lam=0.9, iters=4, group=ranks.group)
    return sent[traffic.Message("all_reduce", 2 * 4 * ranks.size * 8)]


def saved(ranks, length, keys):
    """The numbers that the largest tensor and all saved tensors have, for a sequence on ranks."""
    own = length // ranks.size
    tokens = [numbers(1, own, 8, seed=ranks.rank).requires_grad_() for _ in range(3)]
    sizes = []

    def pack(x):
        sizes.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        bd.elastic_attention(*tokens, iters=4, keys=keys, group=ranks.group).sum().backward()
    return sum(sizes)


def with_other(ranks, name, value, rank=1):
    """A call in which one rank passes something else."""
    options = {"lam": 0.5, "iters": 3, "group": ranks.group}
    tokens = {name: numbers(2, 4, 5, seed=ranks.rank) for name in ("query", "key", "value")}
    if ranks.rank == rank:
        (tokens if name in tokens else options)[name] = value
    bd.elastic_attention(**tokens, **options)


def with_other_mask(ranks):
    x = numbers(2, 4, 5)
    width = 4 * ranks.size + (ranks.rank == 1)
    bd.elastic_attention(x, x, x, mask=torch.zeros(4, width), group=ranks.group)


def dies_in_the_middle(ranks, keys):
    """One rank ends while the others iterate."""
    x = numbers(1, 64, 16, seed=ranks.rank)
    if ranks.rank == 1:
        name = "all_reduce" if keys == "gather" else "batch_isend_irecv"
        real, count = getattr(dist, name), [0]

        def counting(*arguments, **options):
            count[0] += 1
            if count[0] == 6:
                os._exit(1)
            return real(*arguments, **options)

        setattr(dist, name, counting)
    bd.elastic_attention(x, x, x, iters=50, keys=keys, group=ranks.group)


def warns(ranks):
    x = numbers(2, 4, 5, seed=ranks.rank)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        bd.elastic_attention(x, x, x, iters=2, tol=1e-12, group=ranks.group)
    return [str(one.message) for one in found]
