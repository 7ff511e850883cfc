"""What matching with slack means: masses, masks, prices, pairs, and what is refused."""

import math

import pytest
import torch

import bistoch
from functional.matching.match_cases import (
    SLACK_BACKENDS,
    M,
    N,
    assert_same,
    every_end,
    every_form,
    logs,
    normal,
)


@every_form
@every_end
class TestMeaning:
    def test_rows_and_columns_with_their_single_shares(self, backend, slack, end):
        found = bistoch.match(normal(3, N, M), iters=300, end=end, backend=backend, **slack)
        for plan, single in ((found.plan, found.rows), (found.plan.mT, found.columns)):
            total = plan.sum(-1) + single
            torch.testing.assert_close(total, torch.ones_like(total), atol=1e-6, rtol=0)
        assert (found.error < 1e-6).all()

    def test_logs_are_those_of_the_plan(self, backend, slack, end):
        found = bistoch.match(normal(3, N, M), end=end, backend=backend, **slack)
        assert_same([x.exp() for x in logs(found)], found[:3])

    def test_gradients_are_exact(self, backend, slack, end):
        scores = normal(2, 3, 4).requires_grad_()
        slack = {name: torch.tensor(x, dtype=torch.float64, requires_grad=True)
                 for name, x in slack.items()}  # fmt: skip
        eps = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)

        def run(scores, eps, *given):
            given = dict(zip(slack, given, strict=True))
            return logs(bistoch.match(scores, eps=eps, iters=3, end=end, backend=backend, **given))

        assert torch.autograd.gradcheck(run, (scores, eps, *slack.values()))

    def test_padding_is_invisible(self, backend, slack, end):
        n, m = [N, 4, 1], [M, 3, 6]
        scores = normal(3, N, M)
        query_mask = torch.arange(N) < torch.tensor(n)[:, None]
        key_mask = torch.arange(M) < torch.tensor(m)[:, None]
        for at in range(3):
            # whatever stands there
            scores[at, n[at] :], scores[at, :, m[at] :] = torch.nan, torch.inf
        options = {"iters": 6, "end": end, "backend": backend, **slack}
        given = scores.clone().requires_grad_()
        found = bistoch.match(given, query_mask=query_mask, key_mask=key_mask, **options)
        loss = (found.log_plan[query_mask[..., None] & key_mask[:, None]].sum()
                + 2 * found.log_rows[query_mask].sum() + 3 * found.columns.sum())  # fmt: skip
        loss.backward()
        for at in range(3):
            rows, columns = slice(n[at]), slice(m[at])
            alone = scores[at, rows, columns].clone().requires_grad_()
            one = bistoch.match(alone, **options)
            (one.log_plan.sum() + 2 * one.log_rows.sum() + 3 * one.columns.sum()).backward()
            wanted = one.plan, one.rows, one.columns, one.pairs, alone.grad
            ours = (found.plan[at, rows, columns], found.rows[at, rows], found.columns[at, columns],
                    found.pairs[at, rows], given.grad[at, rows, columns])  # fmt: skip
            assert_same(ours, wanted)
            assert found.rows[at, n[at] :].eq(0).all()
            assert found.columns[at, m[at] :].eq(0).all()
            assert found.pairs[at, n[at] :].eq(-1).all()
            for inside in (given.grad[at], found.plan[at]):
                outside = inside.detach().clone()
                outside[rows, columns] = 0
                assert outside.eq(0).all()

    def test_without_anybody_on_a_side_all_stay_single(self, backend, slack, end):
        options = {"end": end, "backend": backend, **slack}
        for n, m in ((0, 3), (3, 0), (0, 0)):
            for found in (
                bistoch.match(torch.zeros(2, n, m), **options),
                bistoch.match(torch.randn(2, N, M), query_mask=torch.arange(N) < n,
                              key_mask=torch.arange(M) < m, **options),
            ):  # fmt: skip
                torch.testing.assert_close(found.rows[:, :n], torch.ones(2, n))
                torch.testing.assert_close(found.columns[:, :m], torch.ones(2, m))
                assert found.plan.eq(0).all()
                assert found.pairs.eq(-1).all()
                assert not any(x.isnan().any() for x in found)

    def test_a_forbidden_pair_has_no_mass_and_a_forbidden_row_stays_single(
        self, backend, slack, end
    ):
        allowed = torch.rand(N, M, generator=torch.Generator().manual_seed(3)) > 0.4
        allowed[2], allowed[:, 5] = False, False
        scores = normal(3, N, M).requires_grad_()
        found = bistoch.match(scores, mask=allowed, iters=100, end=end, backend=backend, **slack)
        assert found.plan[:, ~allowed].eq(0).all()
        assert_same(
            [found.rows[:, 2], found.columns[:, 5]], [torch.ones(3).double()] * 2, atol=1e-6, rtol=0
        )
        sum(x[x > -torch.inf].sum() for x in logs(found)).backward()
        assert scores.grad.isfinite().all()
        assert scores.grad[:, ~allowed].eq(0).all()
        bias = torch.where(allowed, 0.0, -torch.inf)
        biased = bistoch.match(scores, mask=bias, iters=100, end=end, backend=backend, **slack)
        assert_same(found, biased)

    @pytest.mark.filterwarnings("ignore::bistoch.ConvergenceWarning")
    def test_a_tolerance_stops_every_problem_for_itself(self, backend, slack, end):
        scores = normal(3, N, M, scale=3.0)
        options = {"tol": 1e-3, "end": end, "backend": backend, **slack}
        found = bistoch.match(scores, iters=1000, **options)
        assert (found.error <= 1e-3).all()
        assert (found.error > 0).all()
        for at in range(3):
            alone = bistoch.match(scores[at], iters=1000, **options)
            assert_same([x[at] for x in found], alone)

        def run(scores):
            return logs(bistoch.match(scores, iters=6, **options))

        # steps that were chosen are constants to a gradient
        if "row_price" in slack:
            assert torch.autograd.gradcheck(run, scores[:, :3, :4].clone().requires_grad_())
        with pytest.warns(bistoch.ConvergenceWarning, match="match: the column error is"):
            bistoch.match(scores, iters=2, **options)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_precision(self, backend, slack, end, dtype):
        scores = normal(2, N, M).to(dtype)
        options = {"iters": 20, "end": end, "backend": backend, **slack}
        found = bistoch.match(scores, **options)
        exact = bistoch.match(scores.double(), **options)
        step = torch.finfo(dtype).eps
        for one, other in zip(found[:3], exact[:3], strict=True):
            assert one.dtype == dtype
            torch.testing.assert_close(one.double(), other, atol=16 * step, rtol=16 * step)

    @pytest.mark.parametrize("scale", [1e2, 1e4])
    def test_scores_beyond_the_range_of_exponentials(self, backend, slack, end, scale):
        scores = normal(2, N, M, scale=scale)
        single = scores.float().requires_grad_()
        found = bistoch.match(single, iters=20, end=end, backend=backend, **slack)
        assert not any(x.isnan().any() for x in found)
        assert found.log_plan.isfinite().all()
        (grad,) = torch.autograd.grad(found.log_plan.mean(), single)
        assert grad.isfinite().all()
        exact = bistoch.match(single.detach().double(), iters=20, end=end, backend=backend, **slack)
        error = (found.log_plan.double() - exact.log_plan).abs().max()
        assert error <= 40 * torch.finfo(torch.float32).eps * scale * 4

    def test_a_nan_shows_in_its_problem_only(self, backend, slack, end):
        scores = normal(2, N, M)
        scores[1, 2, 3] = torch.nan
        found = bistoch.match(scores, iters=5, end=end, backend=backend, **slack)
        assert found.plan[1].isnan().all()
        assert found.plan[0].isfinite().all()
        assert found.pairs[1].eq(-1).all()

    def test_layout(self, backend, slack, end):
        scores = normal(2, 3, M, N)
        one = bistoch.match(scores.mT, end=end, backend=backend, **slack)
        other = bistoch.match(scores.mT.contiguous(), end=end, backend=backend, **slack)
        assert_same(one[:3], other[:3])
        assert one.plan.shape == (2, 3, N, M)
        assert one.pairs.shape == (2, 3, N)


class TestSlack:
    def test_ends_are_the_same_in_the_limit(self):
        scores = normal(2, N, M)
        for slack in ({"bin_score": 0.5}, {"row_price": 1.0, "column_price": 0.0}):
            found = (bistoch.match(scores, iters=500, end=end, **slack)
                     for end in ("rows", "columns"))  # fmt: skip
            assert_same(*found, atol=1e-9, rtol=1e-9)

    def test_a_high_price_leaves_nobody_single_and_a_low_one_everybody(self):
        scores = normal(N, N)
        dear = bistoch.match(scores, row_price=30.0, column_price=30.0, iters=500)
        torch.testing.assert_close(dear.plan, bistoch.balance(scores, iters=500), atol=1e-6, rtol=0)
        cheap = bistoch.match(scores, row_price=-30.0, column_price=-30.0)
        assert cheap.plan.max() < 1e-10

    @pytest.mark.parametrize("backend", SLACK_BACKENDS)
    def test_a_side_without_a_price_has_no_single(self, backend):
        scores = normal(2, M, N)
        found = bistoch.match(scores, row_price=0.5, iters=500, end="columns", backend=backend)
        torch.testing.assert_close(found.plan.sum(-2), torch.ones(2, N).double())
        assert found.columns.eq(0).all()
        torch.testing.assert_close(found.plan.sum(-1) + found.rows, torch.ones(2, M).double(),
                                   atol=1e-6, rtol=0)  # fmt: skip

    def test_the_mass_of_a_pair_follows_from_what_is_left_single(self):
        """As docs/matching.md says it: the corner of the dustbins is the mass of all pairs."""
        scores = normal(2, N, M)
        found = bistoch.match(scores, bin_score=0.7, iters=500)
        odds = found.rows[..., None] * found.columns[:, None] * (scores - 0.7).exp()
        torch.testing.assert_close(found.plan, odds / found.plan.sum((-1, -2), keepdim=True))
        found = bistoch.match(scores, row_price=0.2, column_price=-0.5, iters=500)
        odds = found.rows[..., None] * found.columns[:, None] * (scores - 0.3).exp()
        torch.testing.assert_close(found.plan, odds)

    def test_a_price_for_each(self):
        price = torch.tensor([-20.0, 0.0, 20.0])
        found = bistoch.match(torch.zeros(3, 3), row_price=price, column_price=0.0, iters=200)
        assert found.rows[0] > 0.99
        assert found.rows[2] < 0.01

    @pytest.mark.parametrize("backend", ["streaming", "cpu"])
    def test_nothing_is_kept_but_potentials(self, backend):
        """What backward needs does not grow with iterations by n x m."""

        def kept(iters):
            sizes = {}
            with torch.autograd.graph.saved_tensors_hooks(
                lambda x: (sizes.__setitem__(x.data_ptr(), x.numel()), x)[1], lambda x: x
            ):
                scores = normal(31, 37).requires_grad_()
                result = bistoch.match(
                    scores, row_price=0.0, column_price=0.0, iters=iters, backend=backend
                )
                result.log_plan.sum()
            return sum(sizes.values())

        assert kept(40) - kept(20) <= 20 * (31 + 37)


class TestPairs:
    def test_they_are_mutual(self):
        scores = torch.tensor([[5.0, 4.0, 0.0], [4.5, 0.0, 0.0], [0.0, 0.0, 3.0]])
        found = bistoch.match(scores, bin_score=0.0, iters=100)
        assert found.pairs.tolist() == [1, 0, 2]

    def test_a_threshold(self):
        scores = torch.tensor([[9.0, 0.0], [0.0, 1.0]])
        found = bistoch.match(scores, bin_score=2.0)
        assert found.pairs.tolist() == [0, 1]
        assert found.plan[1, 1] < 0.4
        assert bistoch.match(scores, bin_score=2.0, threshold=0.4).pairs.tolist() == [0, -1]


def test_what_is_refused():
    scores = torch.randn(2, 3, 4)
    price = {"row_price": 0.0}
    for message, options in {
        "bin_score, row_price or column_price must say": {},
        "bin_score and prices are two forms of slack": {"bin_score": 1.0, **price},
        "row_price must be finite everywhere, but one entry is nan": {
            "row_price": torch.full((3,), torch.nan)
        },
        "row_price must be finite, but it is nan": {"row_price": math.nan},
        r"column_price must broadcast to \(\*b, m\) = \(2, 4\)": {"column_price": torch.ones(3)},
        "bin_score must broadcast to the leading axes": {"bin_score": torch.ones(3)},
        "every entry of bin_score must be finite": {"bin_score": torch.tensor([1.0, math.nan])},
        "iters must be at least 1": {"iters": 0, "end": "columns", **price},
        "end must be one of 'rows', 'columns'": {"end": "both", **price},
        "backend must be one of 'auto', 'reference', 'streaming', 'cpu'": {
            "backend": "gpu",
            **price,
        },
        "threshold must be a number in": {"threshold": 2.0, **price},
    }.items():
        with pytest.raises(ValueError, match=f"match: .*{message}"):
            bistoch.match(scores, **options)


# the compiler makes an instance of every autograd.Function, and says that nobody should
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    "slack", [{"row_price": 0.3, "column_price": 0.1}, {"bin_score": 0.5}], ids=["prices", "bins"]
)
def test_compiles_into_one_graph(slack):
    torch._dynamo.reset()
    scores = torch.randn(2, N, M, requires_grad=True)

    def loss(scores):
        found = bistoch.match(scores, iters=4, end="columns", **slack)
        return found.log_plan.square().mean() + found.rows.sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    grads = [torch.autograd.grad(run(scores), scores)[0] for run in (loss, compiled)]
    torch.testing.assert_close(*grads)
