"""Looking at the input: what is ordinary is passed on as it is, pairs are looked at in parts."""

import pytest
import torch

from bistoch.functional import _nonfinite
from bistoch.functional._nonfinite import Pairs, clean, show
from bistoch.lab.bench.memory import largest_allocation

N, M, D = 7, 11, 5


def tokens(dtype=torch.float32):
    return [torch.randn(3, size, D, dtype=dtype) for size in (N, M, M)]


def test_ordinary_input_is_not_touched():
    q, k, v = tokens()
    mask = torch.full((1, N, M), torch.finfo(torch.float32).min)
    mask[0, 2] = -torch.inf
    found = clean(q, k, v, Pairs(mask), torch.ones(3), "row")
    assert found.query is q
    assert found.key is k
    assert found.value is v
    assert found.mask is mask
    assert found.broken is None


def test_large_scores_that_fit_break_nothing():
    # the sums by which a look begins overflow, what is compared then does not
    q, k, v = tokens()
    found = clean(1e25 * q, 1e-10 * k, 1e38 * v.abs().clamp_max(3), Pairs(), torch.ones(3), "row")
    assert not found.broken.any()
    q[0, 3], k[0, 3] = 1e25, 0.0
    q[0, 3, 0], k[0, 3, 1] = 0.0, 1e25
    # every feature is compared with the keys that a row may see
    assert clean(q, k, v, Pairs(), torch.ones(3), "row").broken[0].tolist() == [
        i == 3 for i in range(N)
    ]
    hidden = torch.arange(M) != 3
    assert not clean(q, k, v, Pairs(key_mask=hidden), torch.ones(3), "row").broken.any()


@pytest.mark.parametrize("reach", ["row", "problem", "later"])
@pytest.mark.parametrize("kind", ["boolean", "bias", "none"])
def test_pairs_are_looked_at_in_parts(reach, kind, monkeypatch):
    q, k, v = tokens()
    q = torch.cat([q, q], 1)[:, : M - 2]
    n = q.shape[1]
    mask = torch.rand(2, n, M) > 0.5
    if kind == "bias":
        mask = torch.zeros(2, n, M).masked_fill(~mask, -torch.inf)
        mask[0, 3, 4] = torch.nan
    k[1, 5] = torch.nan
    q[2, 4] = torch.inf
    real = torch.rand(3, M) > 0.2
    index = torch.tensor([0, 1, 1])
    pairs = Pairs(None if kind == "none" else mask, index, real[:, M - n :], real)
    whole = clean(q, k, v, pairs, torch.ones(3), reach).broken
    monkeypatch.setattr(_nonfinite, "PAIRS", 3 * M * 2)
    assert torch.equal(clean(q, k, v, pairs, torch.ones(3), reach).broken, whole)
    assert torch.equal(whole, by_hand(q, k, v, pairs, reach))


def by_hand(q, k, v, pairs, reach):
    n = q.shape[1]
    allowed = pairs.query_mask[:, :, None] & pairs.key_mask[:, None, :]
    bad = torch.zeros_like(allowed)
    if pairs.mask is not None:
        mask = pairs.mask[pairs.mask_index]
        bad = mask.isnan()
        allowed = allowed & (mask if mask.dtype == torch.bool else mask != -torch.inf)
    if reach == "later":
        allowed = allowed & torch.ones(n, M, dtype=torch.bool).tril(M - n)
    bad = bad | ~(q.sum(-1)[:, :, None] + (k + v).sum(-1)[:, None, :]).isfinite()
    broken = (allowed & bad).any(-1)
    if reach != "row":
        broken = broken.cummax(-1).values if reach == "later" else broken.any(-1, keepdim=True)
    return broken & allowed.any(-1)


def test_a_broken_long_sequence_takes_no_matrix():
    n = 4096
    q, k, v = torch.randn(3, 1, n, 4).unbind()
    k[0, 9] = torch.nan
    mask = torch.ones(1, n, n, dtype=torch.bool)
    pairs = Pairs(mask, torch.zeros(1, dtype=torch.int64))
    step = lambda: clean(q, k, v, pairs, torch.ones(1), "later")  # noqa: E731
    assert largest_allocation(step) < n * n / 2


def test_broken_rows_pass_a_broken_gradient():
    x = torch.ones(2, 3, requires_grad=True)
    show(x[None], torch.tensor([[False, True]])).sum().backward()
    assert torch.equal(x.grad.isnan().any(-1), torch.tensor([False, True]))
