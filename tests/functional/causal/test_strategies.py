"""Every way in which the kernels cut their work is the reference, at sizes where it really runs.

What a case is meant to exercise is read back from the jobs that were run: their layout, how many
workers took part, and how many heads they shared.
"""

import ctypes
from typing import NamedTuple

import pytest
import torch

import bistoch
from bistoch.functional.causal.cpu import job as cpu_job
from bistoch.functional.causal.cpu import launch as cpu
from bistoch.functional.kernels import runtime

D, E = 5, 3


class Taken(NamedTuple):
    """What the kernels were told, and what they did."""

    tile: int
    tiles: int
    span: int
    block: int
    workers: int
    heads: int

    @property
    def tiling(self):
        if self.tile > self.block:
            return "several blocks"
        return "one block" if self.tile == self.block else "part of a block"


@pytest.fixture
def taken(monkeypatch):
    """The jobs that were run, in their order."""
    jobs = []

    def run(body, job, team):
        call, arguments = original(body, job, team)
        call(*arguments)
        read = ctypes.c_int64 * len(cpu_job.FIELDS)
        fields = dict(zip(cpu_job.FIELDS, read.from_address(job), strict=True))
        # every member of the team has taken a number, and one of them a head that was not there
        members = ctypes.c_int64.from_address(fields["next_worker"]).value
        heads = ctypes.c_int64.from_address(fields["next_head"]).value - members
        names = ("tile", "tiles", "span", "block")
        jobs.append(Taken(*(fields[name] for name in names), members, heads))

    def entry(body, job, team):
        return (lambda: run(body, job, team)), ()

    original = runtime.entry
    monkeypatch.setattr(runtime, "entry", entry)
    return jobs


@pytest.fixture
def threads():
    """Set the number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def run(backend, leaves, arriving, **options):
    """The result and the gradients of all floating-point inputs."""
    leaves = [x.clone().requires_grad_() for x in leaves]
    for name, option in options.items():
        if isinstance(option, torch.Tensor) and option.is_floating_point():
            options[name] = option.clone().requires_grad_()
            leaves.append(options[name])
    result = bistoch.causal_elastic_attention(*leaves[:3], backend=backend, **options)
    grads = torch.autograd.grad(result, leaves, arriving)
    return result.detach(), *grads


def tokens(batch, n, dtype=torch.float64):
    q, k = 2 * torch.randn(2, batch, n, D, dtype=dtype)
    return q, k, torch.randn(batch, n, E, dtype=dtype)


def mask_of(kind, batch, n):
    mask = torch.randn(batch, n, n, dtype=torch.float64)
    if kind == "boolean":
        return {"mask": mask > -1}
    if kind == "bias":
        return {"mask": mask.masked_fill(mask < -1.5, -torch.inf)}
    # heads share one bias, and every worker has a gradient of its own
    return {"mask": mask[:1]} if kind == "shared bias" else {}


def padding_of(kind, batch, n):
    if kind == "none":
        return {}
    place, some = torch.arange(n), torch.arange(batch)[:, None]
    # between the tokens, at the end, and one head without any
    real = torch.where(some % 2 == 0, place % 7 != 3, place < n - 17 * some)
    return {"key_mask": real & (some != batch - 1)}


# the block, the wished tiling, and with how many accounts kept, so that some are made again
TILINGS = [
    (1, "several blocks", 128, 1),
    (1, "several blocks", 2, 64),
    (16, "several blocks", 128, 1),
    (16, "several blocks", 3, 4),
    (67, "one block", 128, 1),
    (67, "one block", 2, 2),
    (197, "part of a block", 128, 1),
    (139, "part of a block", 2, 2),
]


@pytest.mark.parametrize(("block", "tiling", "kept", "least_span"), TILINGS)
@pytest.mark.parametrize(
    ("batch", "workers", "masked", "padded"),
    [
        (1, 1, "none", "none"),
        (2, 2, "bias", "none"),
        (5, 3, "none", "padded"),
        (3, 2, "boolean", "padded"),
        (5, 2, "shared bias", "none"),
    ],
)
def test_every_strategy_is_the_reference(
    block, tiling, kept, least_span, batch, workers, masked, padded, taken, threads, monkeypatch
):
    monkeypatch.setattr(cpu_job, "KEPT", kept)
    cpu._layout.cache_clear()
    n = {1: 71, 16: 157, 67: 157}.get(block, 307)
    options = {"lam": torch.linspace(0.5, 1, batch).double(), "eps": torch.ones(batch).double()}
    options |= {"block": block, "prior": 0.05}
    options |= mask_of(masked, batch, n) | padding_of(padded, batch, n)
    leaves, arriving = tokens(batch, n), torch.randn(batch, n, E, dtype=torch.float64)
    threads(workers)
    try:
        found = run("cpu", leaves, arriving, **options)
    finally:
        cpu._layout.cache_clear()
    wanted = run("reference", leaves, arriving, **options)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-9)
    # forward and backward
    assert len(taken) == 2
    for job in taken:
        assert job.tiling == tiling
        assert job.tiles > 1
        assert (job.workers, job.heads) == (workers, batch)
        assert job.span >= least_span
        assert (job.span > 1) == (least_span > 1)


N_LONG = 8311


def long_tokens():
    leaves = tokens(2, N_LONG, torch.float64)
    return leaves, torch.arange(N_LONG) < torch.tensor([N_LONG, N_LONG - 29])[:, None]


def assert_made_again(jobs):
    """So long that with the default block some accounts are made again, without any help."""
    strategy = ("one block", 2, 2, 2)
    assert jobs
    assert all((job.tiling, job.span, job.workers, job.heads) == strategy for job in jobs)
    assert jobs[0].tiles > 100


def test_a_long_sequence_is_the_reference(taken, threads):
    leaves, real = long_tokens()
    rows = torch.arange(0, N_LONG, 173)
    arriving = torch.zeros(2, N_LONG, E, dtype=torch.float64)
    arriving[:, rows] = torch.randn(2, len(rows), E, dtype=torch.float64)

    def attend(*leaves, lam=1.0, backend="cpu", key_mask=real):
        return bistoch.causal_elastic_attention(
            *leaves, lam=lam, backend=backend, key_mask=key_mask
        )

    threads(2)
    short = [x.float() for x in leaves]
    found, *grads = run("cpu", short, arriving.float(), key_mask=real)
    assert_made_again(taken)
    # the head with padding, without its padding
    alone = [x[1:, : N_LONG - 29] for x in leaves]
    exact = attend(*alone, backend="streaming", key_mask=None)[0]
    rows = rows[rows < N_LONG - 29]
    torch.testing.assert_close(found[1, rows], exact[rows].float(), atol=1e-5, rtol=1e-4)
    softmax = attend(*alone, lam=0.0, key_mask=None)[0]
    assert (exact - softmax).norm() > 0.1 * softmax.norm()
    assert not found[1, N_LONG - 29 :].any()
    # gradients: the slope of the result along a line
    for place, grad in enumerate(grads):
        along = torch.randn_like(leaves[place])
        step = 1e-5 * along
        up, down = (
            attend(*leaves[:place], leaves[place] + x, *leaves[place + 1 :]) for x in (step, -step)
        )
        slope = (arriving * (up - down)).sum() / 2e-5
        error = (grad.double() * along).sum() - slope
        assert error.abs() < 1e-4 * grad.double().norm() * along.norm() / along.numel() ** 0.5


@pytest.mark.slow
def test_gradients_of_a_long_sequence_are_those_of_streaming(taken, threads):
    leaves, real = long_tokens()
    arriving = torch.randn(2, N_LONG, E, dtype=torch.float64)
    threads(2)
    found = run("cpu", leaves, arriving, key_mask=real)
    assert_made_again(taken)
    wanted = run("streaming", leaves, arriving, key_mask=real)
    with torch.no_grad():
        exact = bistoch.causal_elastic_attention(*leaves, key_mask=real, backend="reference")
    for one, other in zip((found[0], *found), (exact, *wanted), strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-8)
