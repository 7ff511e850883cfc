"""Metrics from potentials: those of the plan, without the plan."""

import pytest
import torch

import bistoch
from bistoch.analysis import metrics
from bistoch.lab.bench.memory import allocated_by


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_they_are_those_of_the_plan(lam, masked):
    q, k = torch.randn(2, 3, 2, 11, 4, dtype=torch.float64).unbind()
    options = {"eps": torch.tensor([0.5, 1.0], dtype=torch.float64)}
    if masked:
        real = torch.arange(11) < torch.tensor([11, 7, 0])[:, None]
        options |= {
            "mask": torch.rand(11, 11) < 0.8,
            "query_mask": real[:, None],
            "key_mask": real[:, None],
        }
    plan = bistoch.elastic_plan(q, k, lam=lam, **options)
    column = bistoch.elastic_potentials(q, k, lam=lam, **options).column
    found = metrics.stream_plan(q, k, column=column, **options)
    torch.testing.assert_close(found.entropy, metrics.row_entropy(plan))
    torch.testing.assert_close(found.sums, metrics.column_sums(plan))
    torch.testing.assert_close(found.diagonal, plan.diagonal(dim1=-2, dim2=-1))
    load = metrics.load_of(found.sums)
    torch.testing.assert_close(load, metrics.column_load(plan))
    if lam == 0:
        plain = metrics.stream_plan(q, k, **options)
        torch.testing.assert_close(plain.sums, found.sums)


def test_rectangular_and_empty_plans():
    q, k = torch.randn(5, 4), torch.randn(7, 4)
    found = metrics.stream_plan(q, k)
    plan = bistoch.softmax_plan(q, k)
    torch.testing.assert_close(found.sums, plan.sum(-2))
    assert found.diagonal.shape == (0,)
    for n, m in ((0, 3), (3, 0), (0, 0)):
        found = metrics.stream_plan(torch.ones(2, n, 4), torch.ones(2, m, 4))
        assert [tuple(x.shape) for x in found] == [(2, n), (2, m), (2, 0)]
        assert all(x.isfinite().all() for x in found)


def test_a_column_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="stream_plan: column must broadcast to"):
        metrics.stream_plan(torch.randn(5, 4), torch.randn(7, 4), column=torch.zeros(5))


def test_sixteen_thousand_tokens_fit_in_megabytes():
    n = 16384
    q, k = torch.randn(2, n, 4).unbind()
    # a planted sink, seen without a matrix of 1 GiB
    k[5] = 0
    q, k = torch.cat([q, torch.ones(n, 1)], -1), torch.cat([k, torch.zeros(n, 1)], -1)
    k[5, -1] = 40
    found, peak = allocated_by(lambda: metrics.stream_plan(q, k, scale=1.0))
    assert 0 < peak < 32 << 20
    score = found.sums / n
    assert score.argmax() == 5
    assert metrics.sink_rate(score) == 1
    assert metrics.load_peak(metrics.load_of(found.sums)) > 0.9 * n
