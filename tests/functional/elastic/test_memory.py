"""Memory is counted, not timed: what the allocator hands out, also inside custom operators."""

import pytest
import torch

import bistoch
from bistoch.lab.bench.memory import allocated_by
from functional.quick_backends import BACKENDS

MIB = 1 << 20
LINEAR = [backend for backend in BACKENDS if backend != "reference"]


def train(backend, n, batch=(), **options):
    q, k, v = (torch.randn(*batch, n, 4, requires_grad=True) for _ in range(3))

    def step():
        bistoch.elastic_attention(q, k, v, iters=2, backend=backend, **options).sum().backward()

    peak = allocated_by(step)[1]
    assert peak > 0
    return peak


@pytest.mark.parametrize("backend", LINEAR)
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_memory_grows_at_most_linearly(backend, masked):
    def measure(n):
        real = torch.arange(n) < n - 5
        options = {"query_mask": real, "key_mask": real, "lam": 0.5} if masked else {}
        return train(backend, n, **options)

    small, large = measure(2048), measure(8192)
    assert large <= 4 * small
    # one float32 matrix of all scores would be 256 MiB
    assert large < 100 * MIB


def test_the_reference_grows_quadratically():
    small, large = train("reference", 256), train("reference", 1024)
    assert 14 * small < large < 18 * small


@pytest.mark.parametrize("backend", LINEAR)
def test_batch_and_heads_share_the_budget(backend):
    # the scores of all heads would be 128 MiB, of which several would be alive
    assert train(backend, 256, batch=(64, 8)) < 128 * MIB


@pytest.mark.parametrize("backend", LINEAR)
def test_a_shared_mask_is_not_copied_for_every_problem(backend):
    mask = torch.ones(1024, 1024, dtype=torch.bool).tril()
    # 64 copies of the mask would be 64 MiB, and as floats 256 MiB
    extra = train(backend, 1024, batch=(64,), mask=mask) - train(backend, 1024, batch=(64,))
    assert extra < 24 * MIB
