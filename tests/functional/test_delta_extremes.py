"""Delta attention of huge tokens: a score that no row uses breaks no row."""

import pytest
import torch

import bistoch
from bistoch.functional import _nonfinite

N, WINDOW, SINK, STRIDE = 97, 8, 2, 16
HUGE = 1e25
RULE = {"window": WINDOW, "sink": SINK, "stride": STRIDE}
# a huge query, and a huge key that it does not see: before its window, in rows that are computed
# together with it and far from them, or later
UNSEEN = [(60, 3), (60, 40), (95, 12), (3, 60), (60, 61)]
# beside them the rows that a dense row sees and those that it corrects
SEEN = [(60, 59), (60, 1), (64, 40), (90, 90)]
BACKENDS = ["reference", "cpu"]


def huge_tokens(query_at, key_at, sign=1.0):
    """Finite tokens, two of which have a dot product beyond the largest number of float32."""
    q, k, v = (torch.randn(2, N, 5) for _ in range(3))
    q[0, query_at] = HUGE
    # sums over features are infinite, or infinite minus infinite
    k[0, key_at] = HUGE * torch.tensor([1.0, sign, 1.0, sign, 1.0])
    return [x.requires_grad_() for x in (q, k, v)]


def rows_that_use(query_at, key_at, correction, tail):
    """Which rows of the result depend on the score of a pair."""
    i, j = torch.arange(N), key_at
    near = (j > query_at - WINDOW) or j < SINK
    sees = j <= query_at
    rows = (i == query_at) & (sees and near)
    if sees and query_at % STRIDE == 0 and correction == "delta":
        rows |= (i >= query_at) & (i < query_at + STRIDE)
    if sees and query_at % STRIDE == 0 and correction == "recompute":
        rows |= i == query_at
    is_tail = i >= N - tail
    return torch.where(is_tail, (i == query_at) & sees, rows)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("correction", ["none", "recompute", "delta"])
@pytest.mark.parametrize("pair", UNSEEN + SEEN, ids=str)
def test_only_rows_that_use_a_score_too_large_are_broken(pair, correction, backend, sign):
    tokens = huge_tokens(*pair, sign)
    long = [x.detach().double().requires_grad_() for x in tokens]
    for tail in (0, 11):
        options = RULE | {"correction": correction, "tail": tail}
        broken = rows_that_use(*pair, correction, tail)
        found = bistoch.delta_attention(*tokens, **options, backend=backend)
        wanted = bistoch.delta_attention(*long, **options, backend="reference")
        assert torch.equal(found[0].isnan().all(-1), broken)
        torch.testing.assert_close(found[0, ~broken], wanted[0, ~broken].float())
        torch.testing.assert_close(found[1], wanted[1].float())
        plan = bistoch.delta_plan(*tokens[:2], **options)
        assert torch.equal(plan[0].isnan().all(-1), broken)
        if not broken.any():
            torch.testing.assert_close(plan @ tokens[2], found)
            grads = torch.autograd.grad(found.square().sum(), tokens)
            exact = torch.autograd.grad(wanted.square().sum(), long)
            for one, other in zip(grads, exact, strict=True):
                torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bias_beside_a_score_too_large_breaks_nothing(backend):
    q, k, v = huge_tokens(60, 40)
    bias = torch.randn(2, 1, N)
    bias[1, 0, 30:33] = -torch.inf
    found = bistoch.delta_attention(q, k, v, mask=bias, **RULE, backend=backend)
    wanted = bistoch.delta_attention(*(x.double() for x in (q, k, v)), mask=bias.double(), **RULE)
    torch.testing.assert_close(found, wanted.float())
    found.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_mass_uses_all_earlier_keys():
    # a row compares its query with the mean of the keys that its dense row sees elsewhere
    q, k, v = huge_tokens(60, 40)
    found = bistoch.delta_attention(q, k, v, **RULE, correction="mass")
    assert torch.equal(found[0].isnan().all(-1), torch.arange(N) == 60)
    q, k, v = huge_tokens(3, 60)
    assert bistoch.delta_attention(q, k, v, **RULE, correction="mass").isfinite().all()


def test_kernels_know_the_rows_where_values_cannot_be_read(monkeypatch):
    monkeypatch.setattr(_nonfinite, "_is_at_hand", lambda tensors: False)
    monkeypatch.setattr("bistoch.functional.delta.tokens._is_at_hand", lambda tensors: False)
    for pair in UNSEEN + SEEN:
        found = bistoch.delta_attention(*huge_tokens(*pair), **RULE, backend="cpu")
        assert torch.equal(found[0].isnan().all(-1), rows_that_use(*pair, "delta", 0))
