"""Row masses and column potentials to start from: every backend against the reference."""

import pytest
import torch

import bistoch
from bistoch.functional.elastic import tiles
from bistoch.functional.elastic.cpu import launch
from functional.quick_backends import BACKENDS

FAST = [backend for backend in BACKENDS if backend != "reference"]
N, M, D = 13, 17, 5


def tokens(n=N, m=M, spread=1.0):
    made = torch.Generator().manual_seed(n * m)

    def normal(*shape):
        return torch.randn(shape, generator=made, dtype=torch.float64)

    row_mass, column_mass = normal(2, 1, n).exp(), normal(m).exp()
    column_mass = column_mass * (row_mass.sum(-1, keepdim=True) / column_mass.sum())
    return {
        "query": normal(2, 3, n, D),
        "key": normal(2, 3, m, D),
        "lam": torch.tensor([0.3, 0.8, 1.0], dtype=torch.float64),
        "row_mass": row_mass,
        "column_mass": column_mass,
        "start": spread * normal(3, m),
    }


def run(function, leaves, dtype=torch.float64, **options):
    """What a function of tokens returns, and the gradients of a fixed loss."""
    leaves = {name: x.to(dtype).detach().requires_grad_() for name, x in leaves.items()}
    results = function(leaves, **options)
    loss = sum((x * torch.linspace(1, 9, x.numel()).cos().reshape(x.shape)).sum() for x in results)
    grads = torch.autograd.grad(
        loss, list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    return [x.detach() for x in results] + list(grads)


def by_name(leaves, **options):
    leaves = dict(leaves)
    found = bistoch.elastic_potentials(leaves.pop("query"), leaves.pop("key"), **leaves, **options)
    return [x.masked_fill(x.isinf(), 0) for x in (found.row, found.column)]


OPTIONS = {
    "no iteration": {"iters": 0},
    "one": {"iters": 1},
    "several": {"iters": 7, "omega": 1.3},
    "many": {"iters": 60},
    "chosen steps": {"iters": 40, "tol": 1e-6},
    "padding": {
        "iters": 5,
        "query_mask": torch.arange(N) < torch.tensor([[N], [4], [9]]),
        "key_mask": torch.arange(M) < torch.tensor([[M], [6], [11]]),
    },
    "mask": {"mask": torch.rand(N, M, generator=torch.Generator().manual_seed(1)) > 0.3},
}


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.filterwarnings("ignore::bistoch.ConvergenceWarning")
def test_equal_to_the_reference(backend, options, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_ELEMENTS", 5 * M)
    leaves = tokens()
    if "query_mask" in options:
        # totals of real tokens differ from problem to problem
        del leaves["column_mass"]
    wanted = run(by_name, leaves, backend="reference", **options)
    for ours, theirs in zip(run(by_name, leaves, backend=backend, **options), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-8)


@pytest.mark.parametrize("spread", [1.0, 100.0])
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "made again"])
def test_kernels_over_many_blocks(stored, spread, monkeypatch):
    """Heads that threads share, matrices that do not fit, and starts beyond the safe range."""
    monkeypatch.setattr(launch, "OWN_HEAD_BYTES", 0)
    if not stored:
        monkeypatch.setattr(launch, "WORKSPACE_BYTES", 300 << 10)
    leaves = tokens(151, 89, spread)
    wanted = run(by_name, leaves, backend="reference", iters=3)
    for ours, theirs in zip(
        run(by_name, leaves, backend="cpu", iters=3), wanted, strict=True
    ):  # fmt: skip
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-8)


def plans(leaves, **options):
    leaves = dict(leaves)
    return [bistoch.balance(leaves.pop("scores"), **leaves, **options)]


@pytest.mark.parametrize("shape", [(37, 4, 4), (35, 3, 5), (2, 11, 61), (2, 71, 67)], ids=str)
@pytest.mark.parametrize("spread", [1.0, 100.0])
@pytest.mark.parametrize(
    "options", [{"iters": 0}, {"iters": 7, "lam": 0.6}, {"iters": 30}], ids=str
)
def test_plans_of_scores(shape, spread, options):
    """In lanes, in a head, and by logarithms where factors leave the range of floats."""
    made = torch.Generator().manual_seed(shape[-1])
    scores = 2 * torch.randn(shape, generator=made, dtype=torch.float64)
    mass = torch.rand(shape[:-1], generator=made, dtype=torch.float64) + 0.2
    start = spread * torch.randn(shape[-1], generator=made, dtype=torch.float64)
    leaves = {"scores": scores, "row_mass": mass, "start": start}
    exact = run(plans, leaves, backend="reference", **options)
    for backend in FAST:
        found = run(plans, leaves, backend=backend, **options)
        for ours, theirs in zip(found, exact, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-9)
        if backend == "cpu":
            rounded = run(plans, leaves, torch.float32, backend="reference", **options)
            found = run(plans, leaves, torch.float32, backend=backend, **options)
            for ours, theirs, truth in zip(found, rounded, exact, strict=True):
                error, allowed = (x.double().sub(truth).abs().max() for x in (ours, theirs))
                # potentials are as large as the start, and so is their rounding
                rounding = torch.finfo(torch.float32).eps * (sum(shape[1:]) + spread)
                assert error <= 2 * allowed + rounding * truth.abs().max().clamp_min(1)


def test_gradients_of_masses_and_start_are_exact():
    scores, mass, start = (
        torch.randn(5, 3, 4, dtype=torch.float64, requires_grad=True),
        (torch.rand(5, 3, dtype=torch.float64) + 0.5).requires_grad_(),
        torch.randn(5, 4, dtype=torch.float64, requires_grad=True),
    )
    for backend in BACKENDS:
        assert torch.autograd.gradcheck(
            lambda s, a, g, backend=backend: bistoch.balance(
                s, lam=0.7, row_mass=a, start=g, iters=3, backend=backend
            ),
            (scores, mass, start),
        )


@pytest.mark.parametrize("backend", BACKENDS)
class TestMeaning:
    def test_rows_and_columns_reach_their_masses(self, backend):
        rows, columns = torch.tensor([1.0, 1, 1, 4]), torch.tensor([2.0, 2, 3])
        plan = bistoch.balance(
            torch.randn(9, 4, 3), row_mass=rows, column_mass=columns, iters=200, backend=backend
        )
        torch.testing.assert_close(plan.sum(-1), rows.expand(9, 4))
        torch.testing.assert_close(plan.sum(-2), columns.expand(9, 3), atol=1e-4, rtol=1e-4)

    def test_a_query_of_mass_two_is_two_queries(self, backend):
        scores = torch.randn(5, 7, dtype=torch.float64)
        twice = torch.cat([scores, scores[2:3]])
        options = {"iters": 6, "lam": 0.8, "backend": backend}
        mass = torch.ones(5, dtype=torch.float64).index_fill(0, torch.tensor([2]), 2)
        one, two = bistoch.balance(scores, row_mass=mass, **options), bistoch.balance(
            twice, **options
        )  # fmt: skip
        torch.testing.assert_close(one[2], two[2] + two[5])
        torch.testing.assert_close(one[:2], two[:2])

    def test_mass_zero_is_padding(self, backend):
        scores = torch.randn(5, 7, dtype=torch.float64)
        real = torch.tensor([True, True, False, True, True])
        plan = bistoch.balance(scores, row_mass=real.double(), backend=backend)
        wanted = bistoch.balance(scores, query_mask=real, backend=backend)
        torch.testing.assert_close(plan, wanted)
        assert plan[2].eq(0).all()

    def test_iterations_can_be_continued(self, backend):
        q, k = torch.randn(2, 3, 11, 4, dtype=torch.float64).unbind()
        key_mask = torch.arange(11) < 8
        options = {"lam": 0.8, "key_mask": key_mask, "query_mask": key_mask, "backend": backend}
        half = bistoch.elastic_potentials(q, k, iters=4, **options)
        both = bistoch.elastic_potentials(q, k, iters=5, start=half.column, **options)
        whole = bistoch.elastic_potentials(q, k, iters=9, **options)
        torch.testing.assert_close(both.column, whole.column)
        torch.testing.assert_close(both.row, whole.row)

    def test_potentials_make_the_plan(self, backend):
        q, k = torch.randn(2, 3, 7, 4, dtype=torch.float64).unbind()
        mass = torch.rand(7, dtype=torch.float64) + 0.5
        found = bistoch.elastic_potentials(q, k, row_mass=mass, backend=backend)
        plan = (q @ k.mT / 2 + found.row[..., None] + found.column[..., None, :]).exp()
        torch.testing.assert_close(plan.sum(-1), mass.expand(3, 7))


def test_bad_masses_and_starts_are_refused():
    scores = torch.randn(2, 3, 4)
    for message, options in {
        r"row_mass must broadcast to \(\*b, n\) = \(2, 3\)": {"row_mass": torch.ones(4)},
        r"not negative everywhere, but one entry is -1": {"row_mass": -torch.ones(3)},
        r"one entry is nan": {"row_mass": torch.full((3,), torch.nan)},
        r"in problem 0 the rows sum to 3 and the columns to 8": {
            "row_mass": torch.ones(3),
            "column_mass": torch.full((4,), 2.0),
        },
        r"start must broadcast to \(\*b, m\) = \(2, 4\)": {"start": torch.zeros(3)},
        r"4 of them are NaN or infinite": {"start": torch.full((4,), torch.nan)},
    }.items():
        with pytest.raises(ValueError, match=f"balance: .*{message}"):
            bistoch.balance(scores, **options)


def test_lanes_take_starts_that_differ_by_a_constant():
    """What all columns share is invisible: it must not push factors out of their range."""
    scores, start = torch.randn(40, 4, 5), torch.randn(5)
    plans = [
        bistoch.balance(scores, start=start + far, backend="cpu") for far in (0.0, 500.0)
    ]  # fmt: skip
    torch.testing.assert_close(*plans, atol=1e-4, rtol=1e-4)
