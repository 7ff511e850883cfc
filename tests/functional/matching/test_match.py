"""Matching with slack against independent float64 code of both published forms."""

import math

import pytest
import torch
from torch.nn.functional import pad

import bistoch
from bistoch.functional.elastic.api import BACKENDS
from bistoch.functional.matching.slack import BACKENDS as SLACK_BACKENDS

N, M = 7, 11
FORMS = {
    **{f"bins-{backend}": (backend, {"bin_score": 0.6}) for backend in BACKENDS},
    **{
        f"prices-{backend}": (backend, {"row_price": 0.4, "column_price": -0.3})
        for backend in SLACK_BACKENDS
    },
}
every_form = pytest.mark.parametrize(("backend", "slack"), FORMS.values(), ids=FORMS.keys())
every_end = pytest.mark.parametrize("end", ["rows", "columns"])


def normal(*shape, seed=0, scale=1.0):
    made = torch.Generator().manual_seed(seed + sum(shape))
    return scale * torch.randn(shape, generator=made, dtype=torch.float64)


def dustbins(scores, alpha, iters, end):
    """As SuperGlue describes it: masses of total one, both potentials from zero, in logs."""
    b, n, m = scores.shape
    alpha = alpha.reshape(-1, 1, 1)
    z = torch.cat([scores, alpha.expand(b, n, 1)], 2)
    z = torch.cat([z, alpha.expand(b, 1, m + 1)], 1)
    rows = torch.tensor([1.0] * n + [m], dtype=torch.float64).log() - math.log(n + m)
    columns = torch.tensor([1.0] * m + [n], dtype=torch.float64).log() - math.log(n + m)
    u, v = z.new_zeros(b, n + 1), z.new_zeros(b, m + 1)
    for _ in range(iters):
        u = rows - torch.logsumexp(z + v[:, None, :], 2)
        v = columns - torch.logsumexp(z + u[:, :, None], 1)
    if end == "rows":
        u = rows - torch.logsumexp(z + v[:, None, :], 2)
    z = z + u[:, :, None] + v[:, None, :] + math.log(n + m)
    return z[:, :-1, :-1], z[:, :-1, -1], z[:, -1, :-1]


def free_slack(scores, row_score, column_score, iters, end):
    """As RPM-Net describes it: the slack row and column take part, and are never normalised."""
    z = pad(scores, (0, 1, 0, 1))
    z = torch.cat([z[:, :, :-1], pad(row_score, (0, 1))[:, :, None]], 2)
    z = torch.cat([z[:, :-1], pad(column_score, (0, 1))[:, None, :]], 1)

    def row_step(z):
        return torch.cat([z[:, :-1].log_softmax(2), z[:, -1:]], 1)

    def column_step(z):
        return torch.cat([z[:, :, :-1].log_softmax(1), z[:, :, -1:]], 2)

    for _ in range(iters):
        z = column_step(row_step(z))
    z = row_step(z) if end == "rows" else z
    return z[:, :-1, :-1], z[:, :-1, -1], z[:, -1, :-1]


def logs(found):
    return found.log_plan, found.log_rows, found.log_columns


def with_grads(function, *leaves):
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    results = function(*leaves)
    loss = sum((x * torch.linspace(1, 9, x.numel()).cos().reshape(x.shape)).sum() for x in results)
    grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return [x.detach() for x in results] + list(grads)


def assert_same(ours, theirs, **tolerance):
    tolerance = tolerance or {"atol": 1e-10, "rtol": 1e-9}
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


@every_end
@pytest.mark.parametrize("iters", [1, 2, 7, 100])
@pytest.mark.parametrize("scale", [1.0, 20.0])
class TestPublishedForms:
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_dustbins(self, backend, scale, iters, end):
        scores, alpha, eps = normal(3, N, M, scale=scale), normal(3), 0.7

        def ours(scores, alpha):
            options = {"eps": eps, "iters": iters, "end": end, "backend": backend}
            return logs(bistoch.match(scores, bin_score=alpha, **options))

        def theirs(scores, alpha):
            return dustbins(scores / eps, alpha / eps, iters, end)

        assert_same(with_grads(ours, scores, alpha), with_grads(theirs, scores, alpha))

    @pytest.mark.parametrize("backend", SLACK_BACKENDS)
    def test_free_slack(self, backend, scale, iters, end):
        leaves = normal(3, N, M, scale=scale), normal(3, N, seed=1), normal(3, M, seed=2)
        eps = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)

        def ours(scores, rows, columns):
            options = {"eps": eps, "iters": iters, "end": end, "backend": backend}
            return logs(bistoch.match(scores, row_price=rows, column_price=columns, **options))

        def theirs(scores, rows, columns):
            cold = eps[:, None]
            return free_slack(scores / cold[..., None], -rows / cold, -columns / cold, iters, end)

        assert_same(with_grads(ours, *leaves), with_grads(theirs, *leaves))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("scale", "least", "most"), [(2.0, 1e-9, 1e-5), (8.0, 1e-3, 1e-1)])
def test_hyperconnections_end_on_columns(backend, scale, least, most):
    """The form of mHC, (row, column) x 20, is balance of the transposed scores from a row step."""
    scores = normal(500, 4, 4, scale=scale)
    wanted = scores.exp()
    for _ in range(20):
        wanted = wanted / wanted.sum(-1, keepdim=True)
        wanted = wanted / wanted.sum(-2, keepdim=True)
    start = -scores.logsumexp(-1)
    found = bistoch.balance(scores.mT, start=start, iters=19, backend=backend).mT
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-10)
    logs = bistoch.log_balance(scores.mT, start=start, iters=19, backend=backend).mT
    torch.testing.assert_close(logs.exp(), wanted, atol=1e-12, rtol=1e-10)
    # what the last row step changes, at the median and at the worst of the matrices
    change = bistoch.balance(scores, iters=20, backend=backend).sub(wanted).abs().amax((-1, -2))
    assert change.max() > least
    assert change.median() < most


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


@every_form
def test_numbers_are_not_rounded_to_single_precision(backend, slack):
    scores = normal(N, M)
    exact = {name: torch.tensor(x, dtype=torch.float64) for name, x in slack.items()}
    found, wanted = (bistoch.match(scores, backend=backend, **given) for given in (slack, exact))
    torch.testing.assert_close(found.log_plan, wanted.log_plan, rtol=0, atol=1e-13)


@every_form
def test_plans_in_half_precision_are_rounded_once(backend, slack):
    scores = normal(N, M, scale=3.0).bfloat16()
    found = bistoch.match(scores, backend=backend, **slack)
    wanted = bistoch.match(scores.double(), backend=backend, **slack)
    for name in ("plan", "rows", "columns"):
        torch.testing.assert_close(
            getattr(found, name).double(), getattr(wanted, name), rtol=5e-3, atol=1e-30
        )


@every_form
@every_end
@pytest.mark.parametrize("low", [-6e3, -1e9, torch.finfo(torch.float32).min])
def test_a_bias_that_forbids_a_whole_row_leaves_it_single(backend, slack, end, low):
    scores, bias = normal(N, M).float(), torch.zeros(N, M)
    bias[2], bias[4, 3] = low, low
    found = bistoch.match(scores, mask=bias, end=end, backend=backend, **slack)
    wanted = bistoch.match(scores, mask=bias == 0, end=end, backend=backend, **slack)
    for name in ("log_plan", "log_rows", "log_columns", "pairs"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name))


def test_a_low_bias_is_a_bias_where_scores_make_up_for_it_or_nothing_else_is_left():
    scores, bias = normal(N, M), torch.zeros(N, M, dtype=torch.float64)
    bias[2] = -6e3
    high = scores - bias
    found = bistoch.match(high, mask=bias, row_price=0.4, column_price=0.1)
    wanted = bistoch.match(scores, row_price=0.4, column_price=0.1)
    torch.testing.assert_close(found.log_plan, wanted.log_plan, rtol=0, atol=1e-9)
    # without a price a row may not stay single, and only differences count
    found, wanted = (bistoch.match(scores, mask=x, column_price=0.1) for x in (bias, None))
    torch.testing.assert_close(found.log_plan, wanted.log_plan, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["bin_score", "row_price"])
def test_numbers_are_as_exact_as_the_scores(name):
    scores = torch.randn(5, 3, dtype=torch.float64)
    number, tensor = (
        bistoch.match(scores, **{name: x}).plan
        for x in (0.1, torch.tensor(0.1, dtype=torch.float64))
    )
    torch.testing.assert_close(number, tensor, rtol=1e-14, atol=0)


@pytest.mark.parametrize("slack", [{"bin_score": 0.0}, {"row_price": 0.0, "column_price": 0.0}])
@pytest.mark.parametrize("low", [-1e4, -1e9, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("end", ["rows", "columns"])
def test_a_row_of_low_biases_stays_single(slack, low, end):
    scores = torch.randn(3, 4)
    bias = torch.zeros(3, 4).index_fill(0, torch.tensor(1), low)
    found = bistoch.match(scores, mask=bias, end=end, iters=200, **slack)
    hidden = bistoch.match(scores, mask=bias == 0, end=end, iters=200, **slack)
    torch.testing.assert_close(found.plan, hidden.plan)
    torch.testing.assert_close(found.rows, hidden.rows)


@pytest.mark.parametrize("backend", SLACK_BACKENDS)
def test_a_tolerance_does_not_hide_a_nan(backend):
    scores = torch.randn(5, 4)
    scores[2, 1] = torch.nan
    found = bistoch.match(scores, row_price=0.0, column_price=0.0, tol=0.1, backend=backend)
    assert found.plan.isnan().all()
