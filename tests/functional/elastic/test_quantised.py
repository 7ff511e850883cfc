"""Heads whose kernel matrix does not fit keep it in bytes, and lose nothing by it."""

import pytest
import torch

import bistoch
from bistoch.functional.elastic.cpu import launch as cpu

# flat scores over many keys, as long sequences have them; rows fill neither groups nor vectors
N, M, D, E = 1031, 1021, 8, 4


@pytest.fixture
def layouts(layouts, monkeypatch):
    """The layouts that were taken; there is room for the codes of K, and not for K."""
    monkeypatch.setattr(cpu, "WORKSPACE_BYTES", 2 << 20)
    monkeypatch.setattr(cpu, "BLOCK_BYTES", 1)
    return layouts


def tokens(size):
    torch.manual_seed(0)
    q, k, v = torch.randn(1, N, D), torch.randn(1, M, D), torch.randn(1, M, E)
    return [size * q, k, v]


def run(backend, inputs, **options):
    """The result, and the gradients of a fixed loss."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    result = bistoch.elastic_attention(*leaves, backend=backend, **options)
    weights = torch.linspace(-1, 9, result.numel(), dtype=result.dtype).reshape(result.shape).cos()
    return [result.detach(), *torch.autograd.grad((result * weights).sum(), leaves)]


def error(found, exact):
    return max(
        ((a.double() - b).abs().max() / b.abs().max()).item()
        for a, b in zip(found, exact, strict=True)
    )


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("lam", [1.0, 0.7])
def test_a_head_in_bytes_is_as_exact_as_the_reference(layouts, monkeypatch, threads, lam):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        inputs = tokens(0.25)
        exact = run("reference", [x.double() for x in inputs], lam=lam)
        found = run("cpu", inputs, lam=lam)
        assert layouts[0].coded_rows == N
        monkeypatch.setattr(cpu, "FEWEST_CODED", 100)
        without = run("cpu", inputs, lam=lam)
        assert layouts[2].coded_rows == 0
    finally:
        torch.set_num_threads(before)
    # the codes were used: the numbers are others
    assert not torch.equal(found[0], without[0])
    allowed = 2 * error(run("streaming", inputs, lam=lam), exact) + 1e-6
    assert error(found, exact) < allowed
    assert error(without, exact) < allowed


def assert_exact(found, inputs, **options):
    """No more than twice the error of float32 without kernels."""
    exact = run("streaming", [x.double() for x in inputs], **options)
    assert error(found, exact) < 2 * error(run("streaming", inputs, **options), exact) + 1e-6


def test_rows_without_room_are_made_again(layouts, monkeypatch):
    monkeypatch.setattr(cpu, "WORKSPACE_BYTES", 1100 << 10)
    inputs, before = tokens(0.25), torch.get_num_threads()
    # every thread would take some of the room
    torch.set_num_threads(1)
    try:
        found = run("cpu", inputs)
    finally:
        torch.set_num_threads(before)
    assert N / 2 < layouts[0].coded_rows < N
    assert layouts[0].coded_rows % 8 == 0
    assert_exact(found, inputs)


def test_padding_and_masses_are_kept(layouts):
    inputs = tokens(0.25)
    real = torch.arange(M)[None] < M - 130
    queries = torch.arange(N)[None] < N - 77
    options = {"key_mask": real, "query_mask": queries}
    found = run("cpu", inputs, **options)
    assert layouts[0].coded_rows == N
    assert_exact(found, inputs, **options)
    assert found[0][0, -77:].abs().max() == 0


@pytest.mark.parametrize("size", [4.0, 30.0])
def test_peaked_scores_are_computed_exactly(layouts, monkeypatch, size):
    # they do not come to rest: codes are made and put aside
    inputs = tokens(size)
    found = run("cpu", inputs)
    assert layouts[0].coded_rows == N
    monkeypatch.setattr(cpu, "FEWEST_CODED", 100)
    without = run("cpu", inputs)
    assert all(torch.equal(a, b) for a, b in zip(found, without, strict=True))


def test_equal_tokens_are_computed_exactly(layouts):
    # equal entries of K, for which rounding without a dither would err alike everywhere
    inputs = [x[:, torch.randint(0, 13, (x.shape[1],))] for x in tokens(0.25)]
    found = run("cpu", inputs)
    assert_exact(found, inputs)


def test_only_plain_steps_of_float32_use_codes(layouts):
    inputs = tokens(0.25)
    bistoch.elastic_attention(*inputs, iters=3)
    bistoch.elastic_attention(*inputs, tol=1e-3)
    bistoch.elastic_attention(*(x.double() for x in inputs))
    bistoch.elastic_potentials(*inputs[:2])
    assert [layout.coded_rows for layout in layouts] == [0] * 4


@pytest.mark.slow
def test_sixteen_thousand_tokens_against_float64():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 16384, 64).unbind()
    options = {"iters": 5}
    exact = bistoch.elastic_attention(
        q.double(), k.double(), v.double(), backend="streaming", **options
    )
    found = bistoch.elastic_attention(q, k, v, backend="cpu", **options)
    own = error([bistoch.elastic_attention(q, k, v, backend="streaming", **options)], [exact])
    assert error([found], [exact]) < 2 * own + 1e-6


def test_potentials_moved_by_codes_are_not_continued_exactly(monkeypatch):
    # documents of two tokens, some of them peaked: codes serve the first iterations only
    n, found = 512, {}
    torch.manual_seed(1992)
    q, k, v = torch.randn(3, 1, 1, n, D).unbind()
    flat, peaked = float(torch.rand(()) * 0.5 + 0.3), float(torch.rand(()) + 1.3)
    document = torch.arange(n) // 2
    size = torch.where(document < int(torch.randint(1, 4, ())), peaked, flat)[:, None]
    mask = document[:, None] == document[None]
    monkeypatch.setattr(cpu, "SMALL_HEAD", 0)
    monkeypatch.setattr(cpu, "WORKSPACE_BYTES", 900 << 10)
    for fewest in (4, 1 << 30):
        monkeypatch.setattr(cpu, "FEWEST_CODED", fewest)
        found[fewest] = bistoch.elastic_attention(
            size * q, size * k, v, backend="cpu", iters=7, mask=mask
        )
    torch.testing.assert_close(found[4], found[1 << 30], atol=2e-6, rtol=0)
