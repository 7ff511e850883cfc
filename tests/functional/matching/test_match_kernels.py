"""Matching with prices by the GPU kernels, in Triton's interpreter, against the reference."""

import pytest
import torch

import bistoch
from bistoch.functional.kernels.gpu import record_launches
from functional.matching.match_cases import assert_same, logs, normal, with_grads

N, M = 19, 131


@pytest.fixture(autouse=True)
def _quick_interpreter():
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("for Triton's interpreter, without a GPU")
    from interpreter import patch_once

    patch_once()


def both(scores, *leaves, names=(), **options):
    """Results and gradients by the reference and by the kernels."""
    found = []
    for backend in ("reference", "triton"):

        def call(scores, *given, backend=backend):
            more = dict(zip(names, given, strict=True))
            return logs(bistoch.match(scores, **more, **options, backend=backend))

        found.append(with_grads(call, scores, *leaves))
    return found


@pytest.mark.parametrize("end", ["rows", "columns"])
def test_results_and_gradients(end):
    prices = normal(2, N).abs(), normal(2, M).abs()
    wanted, found = both(
        normal(2, N, M, scale=2.0), *prices, names=("row_price", "column_price"), iters=3, end=end
    )
    assert_same(found, wanted)


def test_one_price_masks_and_extreme_scores():
    mask = torch.rand(N, M) > 0.3
    mask[2] = False
    wanted, found = both(
        normal(2, N, M, scale=300.0), normal(2, N), names=("row_price",), iters=2, mask=mask,
        key_mask=torch.arange(M) < M - 4,
    )  # fmt: skip
    assert all(x.isnan().sum() == 0 for x in found)
    finite = [[x.masked_fill(x.isinf(), 0) for x in some] for some in (found, wanted)]
    assert_same(*finite)


@pytest.mark.filterwarnings("ignore::bistoch.ConvergenceWarning")
def test_problems_that_stop_at_different_times():
    scores = torch.stack([normal(N, 23), normal(N, 23, seed=1, scale=4.0)])
    wanted, found = both(
        scores, normal(2, N).abs(), names=("row_price",), column_price=0.3, iters=12, tol=1e-2
    )
    assert_same(found, wanted)


def test_every_pass_is_one_launch():
    scores = torch.randn(2, N, M, requires_grad=True)
    with record_launches() as forward:
        found = bistoch.match(scores, row_price=0.1, column_price=0.1, iters=4, backend="triton")
    with record_launches() as backward:
        found.plan.sum().backward()
    assert (len(forward), len(backward)) == (2 * 4, 2 * 4 + 1)


# the compiler makes an instance of every autograd.Function, and says that nobody should
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.slow
def test_compiled():
    def plan(scores):
        options = {"row_price": 0.1, "column_price": 0.1, "iters": 2, "backend": "triton"}
        return bistoch.match(scores, **options).plan

    scores = torch.randn(N, 23, requires_grad=True)
    results = []
    for function in (plan, torch.compile(plan, fullgraph=True, backend="aot_eager")):
        result = function(scores)
        results.append((result, *torch.autograd.grad(result.sin().sum(), scores)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_what_it_does_not_know_is_refused(monkeypatch):
    from bistoch.functional.matching import slack

    monkeypatch.setattr(slack, "is_interpreted", lambda: False)
    with pytest.raises(bistoch.BackendUnavailableError, match=r"torch\.float64 on cpu; choose"):
        bistoch.match(torch.randn(3, 4).double(), row_price=0.1, backend="triton")
