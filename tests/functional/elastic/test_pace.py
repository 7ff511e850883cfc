"""Steps that are chosen from what the last one did: fewer passes, the same limit, its gradient."""

import pytest
import torch

import bistoch
from bistoch.functional.elastic import pace, streaming
from bistoch.functional.elastic.cpu.solve import SHORTEST
from bistoch.functional.elastic.pace import LONGEST
from bistoch.functional.pose import BalanceOptions, ScoreOptions, pose
from bistoch.functional.problem import dense_scores
from functional.quick_backends import BACKENDS

every_backend = pytest.mark.parametrize("backend", BACKENDS)
every_fast_backend = pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "reference"])

N, M = 23, 19
EYE = torch.eye(61, dtype=torch.float64)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def choose(residual, live, error, lam, before):
    """The next step, of a problem whose scores are small."""
    return pace.choose(residual, live, error, lam, torch.zeros_like(residual), before)


def passes(scores, *, omega=None, backend="streaming", iters=2000, **options):
    """Iterations of every score matrix until its tolerance."""
    key = EYE[: scores.shape[-1], : scores.shape[-1]]
    found = bistoch.elastic_potentials(
        scores, key, scale=1.0, omega=omega, iters=iters, backend=backend, **options
    )
    assert found.converged.all()
    return found.iterations


# of one problem after another: what a plain step did to the residual, and the step it asks for
@pytest.mark.parametrize(
    ("kept", "lam", "wanted"),
    [(0.5, 1.0, 2.0), (0.75, 1.0, 4.0), (0.999, 1.0, LONGEST), (0.75, 0.6, 2.5), (-0.5, 1.0, 1.0)],
)
def test_one_eigenvalue_is_answered_by_its_own_step(kept, lam, wanted):
    first = draw(1, M)
    live = torch.ones(1, M, dtype=torch.bool)
    lam = torch.tensor([lam], dtype=torch.float64)
    # what all columns share is invisible, and must not matter
    before = choose(first + 3, live, torch.ones(1), lam, None)
    now = choose(kept * first - 5, live, torch.full((1,), abs(kept)), lam, before)
    assert before.omega.item() == 1
    assert now.omega.item() == pytest.approx(wanted)


def test_a_longer_step_is_judged_by_its_length():
    first, live, lam = draw(1, M), torch.ones(1, M, dtype=torch.bool), torch.ones(1).double()
    known = choose(first, live, torch.ones(1), lam, None)._replace(omega=torch.full((1,), 3.0))
    # a step of 3 that keeps 0.4 belongs to the eigenvalue 0.2, which asks for 5
    assert choose(0.4 * first, live, torch.ones(1), lam, known).omega.item() == pytest.approx(5)


def test_an_error_that_grew_draws_the_step_back():
    first, live, lam = draw(1, M), torch.ones(1, M, dtype=torch.bool), torch.ones(1).double()
    known = choose(first, live, torch.ones(1), lam, None)
    for error, wanted in ((0.9, 5), (1.0, 5), (1.5, 3), (2.0, 1), (50.0, 1)):
        found = choose(0.8 * first, live, torch.full((1,), error), lam, known).omega
        assert found.item() == pytest.approx(wanted)


def test_dead_columns_have_no_say():
    first, live = draw(2, M), torch.arange(M).expand(2, M) > 4
    lam, one = torch.ones(2).double(), torch.ones(2)
    wild = first.masked_fill(~live, 1e6)
    alone = choose(0.6 * first[:, 5:], live[:, 5:], one, lam,
                   choose(first[:, 5:], live[:, 5:], one, lam, None))  # fmt: skip
    among = choose(0.6 * wild, live, one, lam, choose(wild, live, one, lam, None))
    torch.testing.assert_close(among.omega, alone.omega)


def test_nothing_to_go_by_is_a_plain_step():
    live, zero, lam = torch.ones(1, M, dtype=torch.bool), torch.zeros(1), torch.ones(1)
    known = choose(torch.zeros(1, M), live, zero, lam, None)
    assert choose(torch.zeros(1, M), live, zero, lam, known).omega.item() == 1
    assert choose(torch.ones(1, M), ~live, zero, lam, known).omega.item() == 1


def test_kernels_know_the_longest_step():
    assert SHORTEST * LONGEST == 1


# some of these matrices stand still but for rounding, which a step of 100 would blow up
@pytest.mark.filterwarnings("ignore::bistoch.ConvergenceWarning")
@every_fast_backend
def test_rounding_is_no_reason_for_a_long_step(backend):
    scores = 1e4 * draw(64, 13, 5)
    wanted, found = (
        bistoch.balance(scores, iters=3, tol=1e-3, backend=name) for name in ("reference", backend)
    )
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)
    # potentials come from other kernels than plans
    wanted, found = (
        bistoch.elastic_potentials(
            scores, EYE[:5, :5], scale=1.0, iters=3, tol=1e-3, backend=name
        ).column.softmax(-1)
        for name in ("reference", backend)
    )
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


# scores, tolerance, and how many times fewer passes than plain steps at least
FASTER = {
    "moderate": (3 * draw(8, 61, 61), 1e-2, 1.7),
    "sharp": (6 * draw(8, 61, 61), 1e-2, 2.5),
    "sharp and close": (6 * draw(8, 61, 61), 1e-3, 3.5),
    "near a permutation": (draw(8, 31, 31) + 9 * EYE[:31, :31], 1e-3, 10.0),
}


@every_fast_backend
@pytest.mark.parametrize("case", FASTER)
def test_fewer_passes_than_plain_steps(backend, case):
    scores, tol, factor = FASTER[case]
    plain = passes(scores, omega=1.0, tol=tol, backend=backend).sum()
    assert factor * passes(scores, tol=tol, backend=backend).sum() <= plain


def hard_scores():
    """Scores of many kinds, of which some are made to mislead."""
    places = torch.rand(8, 31, 1, generator=seeded(1), dtype=torch.float64)
    others = torch.rand(8, 1, 31, generator=seeded(2), dtype=torch.float64) ** 2
    yield "flat", 0.3 * draw(8, 29, 31)
    yield "wide", 3 * draw(8, 7, 41)
    yield "tall", 3 * draw(8, 41, 7)
    yield "tiny", 3 * draw(64, 4, 4)
    yield "two", 4 * draw(64, 2, 2)
    yield "sorting", -((places - others) ** 2) / 0.02
    heavy = draw(8, 23, 23) / draw(8, 23, 23, seed=3)
    yield "heavy tails", heavy.clamp(-12, 12)
    sink = draw(8, 31, 31)
    sink[..., 0] += 20
    yield "one sink", sink
    blocks = draw(8, 24, 24) - 5
    blocks[:, :11, :11] += 5
    blocks[:, 11:, 11:] += 5
    yield "two blocks", blocks


HARD = dict(hard_scores())


@pytest.mark.parametrize("lam", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("name", HARD)
def test_never_worse_than_plain_steps(name, lam):
    scores = HARD[name]
    for tol in (1e-1, 1e-2, 1e-3):
        plain = passes(scores, omega=1.0, lam=lam, tol=tol, iters=20_000)
        ours = passes(scores, lam=lam, tol=tol, iters=20_000)
        assert (ours <= plain + 1).all()
        assert ours.sum() <= plain.sum()


@every_backend
@pytest.mark.parametrize("lam", [0.7, 1.0])
def test_the_limit_is_that_of_plain_steps(backend, lam):
    scores = 4 * draw(3, N, M)
    ours, plain = (
        bistoch.balance(scores, lam=lam, omega=omega, tol=1e-11, iters=5000, backend=backend)
        for omega in (None, 1.0)
    )
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-10)


@every_backend
def test_without_a_tolerance_steps_are_plain(backend):
    q, k, v = draw(3, 2, N, 5).unbind()
    ours, plain = (
        bistoch.elastic_attention(3 * q, k, v, iters=7, backend=backend, **omega)
        for omega in ({}, {"omega": 1.0})
    )
    assert torch.equal(ours, plain)


MASKS = {
    "none": {},
    "padding": {
        "query_mask": torch.arange(N) < torch.tensor([[N], [11], [0]]),
        "key_mask": torch.arange(M) < torch.tensor([[M], [13], [5]]),
    },
    "holes": {"mask": (torch.rand(3, N, M, generator=seeded(4)) > 0.2)
              & (torch.arange(N) != 3)[:, None] & (torch.arange(M) != 2)},
}  # fmt: skip


def differentiate(backend, q, k, v, lam, **options):
    leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v, lam)]
    q, k, v, lam = leaves
    result = bistoch.elastic_attention(q, k, v, lam=lam, backend=backend, **options)
    weights = torch.linspace(-1, 8, result.numel(), dtype=result.dtype).reshape(result.shape).cos()
    return (result.detach(), *torch.autograd.grad((result * weights).sum(), leaves))


@every_fast_backend
@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("size", [1.0, 3.0, 60.0])
def test_backends_agree(backend, options, size):
    # at a size of 60 the factors of the kernels leave their range
    q, k, v = size * draw(3, N, 5), draw(3, M, 5, seed=1), draw(3, M, 4, seed=2)
    lam = torch.tensor([0.4, 0.8, 1.0 if size < 4 else 0.9], dtype=torch.float64)
    options = options | {"iters": 200, "tol": 1e-3}
    wanted = differentiate("reference", q, k, v, lam, **options)
    for ours, theirs in zip(differentiate(backend, q, k, v, lam, **options), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("shape", [(37, 4, 4), (5, 13, 7)], ids=str)
def test_small_matrices_choose_their_own_steps(shape):
    scores, weights = 2 * draw(*shape), draw(*shape, seed=1)
    scores[0, :, 0] = -torch.inf
    found = []
    for backend in ("reference", "cpu"):
        leaves = [scores.clone().requires_grad_(), draw(len(scores)).sigmoid().requires_grad_()]
        plan = bistoch.balance(leaves[0], lam=leaves[1], iters=99, tol=1e-3, backend=backend)
        found.append((plan.detach(), *torch.autograd.grad((plan * weights).sum(), leaves)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


@every_backend
def test_the_gradient_takes_the_steps_as_numbers(backend):
    q, k, v = 3 * draw(3, N, 5), draw(3, M, 5, seed=1), draw(3, M, 4, seed=2)
    lam = torch.tensor([0.6, 0.9, 1.0], dtype=torch.float64)
    found = differentiate(backend, q, k, v, lam, iters=100, tol=1e-2)
    pairs, balance = ScoreOptions(1.0, None, None, None, None), BalanceOptions(lam, None, 100, 1e-2)
    posed = pose("test", q.shape[:1], q, k, pairs, balance)
    solution, history = streaming.replay(posed, v)
    assert (history.omega[:, 1] > 1.1).all()

    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v, lam)]
    scores = dense_scores(posed.scores._replace(query=leaves[0], key=leaves[1]))
    rows = []
    for i in range(3):
        g = torch.zeros(M, dtype=torch.float64)
        for t in range(int(solution.iterations[i])):
            f = -(scores[i] + g).logsumexp(1)
            h = posed.balance.log_mass[i] - (scores[i] + f[:, None]).logsumexp(0)
            g = g + history.omega[i, t] * (leaves[3][i] * h - g)
        rows.append((scores[i] + g).softmax(1) @ leaves[2][i])
    result = torch.stack(rows)
    weights = torch.linspace(-1, 8, result.numel(), dtype=result.dtype).reshape(result.shape).cos()
    wanted = (result.detach(), *torch.autograd.grad((result * weights).sum(), leaves))
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@every_fast_backend
@pytest.mark.parametrize("lam", [0.7, 1.0])
def test_the_gradient_tends_to_that_of_the_limit(backend, lam):
    scores, weight = 3 * draw(N, M), draw(N, M, seed=1)
    limit = bistoch.balance(scores, lam=lam, tol=1e-12, iters=5000, backend="streaming")
    softmax_grad = limit * (weight - (limit * weight).sum(1, keepdim=True))
    back = limit.T / limit.sum(0)[:, None]
    system = (torch.eye(M) - lam * back @ limit).T
    w = torch.linalg.lstsq(system, softmax_grad.sum(0)[:, None], driver="gelsd").solution[:, 0]
    wanted = softmax_grad - lam * (back.T * w - (back.T @ w)[:, None] * limit)
    gaps = []
    for tol in (1e-1, 1e-3, 1e-5):
        leaf = scores.clone().requires_grad_()
        plan = bistoch.balance(leaf, lam=lam, tol=tol, iters=5000, backend=backend)
        (grad,) = torch.autograd.grad((plan * weight).sum(), leaf)
        gaps.append(((grad - wanted).norm() / wanted.norm()).item())
    for gap, most in zip(gaps, (0.3, 3e-3, 3e-5), strict=True):
        assert gap < most


# a problem may also come to stand still exactly, and say nothing
@pytest.mark.filterwarnings("ignore::bistoch.ConvergenceWarning")
@every_backend
def test_a_tolerance_below_rounding_is_survived(backend):
    scores = 4 * draw(3, N, M).float()
    found = bistoch.elastic_potentials(
        scores, EYE[:M, :M].float(), scale=1.0, iters=300, tol=1e-12, backend=backend
    )
    assert found.column.isfinite().all()
    assert (found.error < 1e-5).all()
