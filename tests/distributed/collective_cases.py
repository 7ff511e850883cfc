"""What ranks do in test_collectives."""

import os
import time

import torch

import bistoch.distributed as bd

SIZES = (3, 1, 0, 4)


def whole(shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def shard(x, sizes, rank, dim):
    return x.split(list(sizes), dim)[rank].clone().requires_grad_()


def gather_and_logsumexp(ranks):
    """Differences from one process that holds everything: values, then gradients."""
    sizes = SIZES[: ranks.size]
    everything = whole((2, sum(sizes), 5)).requires_grad_()
    own = shard(everything.detach(), sizes, ranks.rank, 1)
    gathered = ranks.gather(own, 1, sizes)
    weights = whole((ranks.size, *gathered.shape))
    (gathered.square() * weights[ranks.rank]).sum().backward()
    (everything.square() * weights.sum(0)).sum().backward()
    expected = everything.grad.split(list(sizes), 1)[ranks.rank]
    found = [gathered - everything, own.grad - expected]

    logs = (whole((ranks.size, 7)) * 400).requires_grad_()
    with torch.no_grad():
        logs[:, 2] = -torch.inf
        logs[0, 3] = -torch.inf
    mine = logs.detach()[ranks.rank].clone().requires_grad_()
    total = ranks.logsumexp(mine)
    total[total > -torch.inf].square().sum().backward()
    # every rank has a loss of its own, and all of them are equal
    whole_total = torch.logsumexp(logs[:, [0, 1, 3, 4, 5, 6]], 0)
    (whole_total.square().sum() * ranks.size).backward()
    if ranks.size == 1:
        logs.grad[0, 3] = 0.0
        whole_total = whole_total.nan_to_num(neginf=0.0)
        total = total.nan_to_num(neginf=0.0)
    found += [total[[0, 1, 3, 4, 5, 6]] - whole_total]
    found += [mine.grad - logs.grad.nan_to_num()[ranks.rank]]
    found += [mine.grad.isnan().double()]
    return [x.abs().max().item() if x.numel() else 0.0 for x in found]


def replicated_and_share(ranks):
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    (ranks.replicated(x) * (ranks.rank + 1)).sum().backward()
    total, x.grad = x.grad, None
    (ranks.replicated(ranks.share(x)) * (ranks.rank + 1)).sum().backward()
    return total.tolist(), x.grad.tolist()


def second_derivatives(ranks):
    def function(x):
        return ranks.logsumexp(x).square().sum() + ranks.gather(x, 0, [2] * ranks.size).exp().sum()

    x = whole((2,)).requires_grad_()
    (grad,) = torch.autograd.grad(function(x), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    return second.tolist()


def disagree(ranks):
    ranks.agree({"iters": 3 if ranks.rank == 1 else 5, "tol": None})


def one_fails(ranks):
    error = ValueError("elastic_attention: expected q") if ranks.rank == 0 else None
    ranks.agree({"iters": 5}, [ranks.rank], error)


def agree(ranks):
    return ranks.agree({"iters": 5, "lam": 0.5}, [ranks.rank, 7])


def one_dies(ranks, seconds):
    if ranks.rank == 1:
        os._exit(1)
    start = time.monotonic()
    try:
        ranks.sum(torch.ones(3))
    finally:
        if time.monotonic() - start > seconds:
            raise TimeoutError("it took longer than the timeout")


def one_is_absent(ranks):
    if ranks.rank != 1:
        ranks.agree({"iters": 5})


def outside(ranks):
    try:
        bd.rank_group("elastic_attention", mesh=object(), group=ranks.group)
    except ValueError as error:
        return str(error)
