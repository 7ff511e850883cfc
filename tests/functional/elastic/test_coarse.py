"""All iterations but the last from a sample of the queries: definition, padding, gradients."""

import pytest
import torch

import bistoch
from bistoch.functional.problem import Scores

BACKENDS = [name for name in bistoch.OPERATORS["elastic"].backends if name != "triton"]
N, M, D, E = 23, 19, 5, 3


def tokens(batch=(2,), dtype=torch.float64):
    torch.manual_seed(0)
    shapes = ((*batch, N, D), (*batch, M, D), (*batch, M, E))
    return [2 * torch.randn(shape, dtype=dtype) for shape in shapes]


def grads(inputs, **options):
    leaves = [x.clone().requires_grad_() for x in inputs]
    lam = torch.full((), 0.8, dtype=inputs[0].dtype, requires_grad=True)
    result = bistoch.elastic_attention(*leaves, lam=lam, **options)
    weights = torch.linspace(-1, 9, result.numel(), dtype=result.dtype).reshape(result.shape).cos()
    return [result.detach(), *torch.autograd.grad((result * weights).sum(), [*leaves, lam])]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stride", [2, 5, 40])
def test_it_is_two_solutions_one_after_the_other(backend, stride):
    q, k, v = tokens()
    options = {"lam": 0.8, "omega": 1.1}
    sample = bistoch.elastic_potentials(q[:, ::stride], k, iters=6, backend="reference", **options)
    scores = q @ k.mT / D**0.5
    plan = bistoch.balance(scores, iters=1, start=sample.column, **options)
    found = bistoch.elastic_plan(q, k, iters=7, coarse=stride, backend=backend, **options)
    assert torch.allclose(found, plan, rtol=0, atol=1e-12)
    attended = bistoch.elastic_attention(
        q, k, v, iters=7, coarse=stride, backend=backend, **options
    )
    assert torch.allclose(attended, plan @ v, rtol=0, atol=1e-12)
    potentials = bistoch.elastic_potentials(
        q, k, iters=7, coarse=stride, backend=backend, **options
    )
    assert potentials.iterations.tolist() == [7, 7]
    whole = (scores + potentials.row[..., None] + potentials.column[:, None]).exp()
    assert torch.allclose(whole, plan, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_gradients_are_those_of_what_ran(backend):
    inputs = tokens()
    real = torch.arange(N) < torch.tensor([[N], [N - 6]])
    mask = torch.randn(N, M, dtype=torch.float64)
    for options in ({}, {"query_mask": real}, {"query_mask": real, "mask": mask}):
        options = {"iters": 4, "coarse": 3, **options}
        right = grads(inputs, backend="reference", **options)
        for a, b in zip(grads(inputs, backend=backend, **options), right, strict=True):
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-11)


def test_gradcheck():
    inputs = [x[0, :7].requires_grad_() for x in tokens()]
    assert torch.autograd.gradcheck(
        lambda *x: bistoch.elastic_attention(*x, iters=3, coarse=2, backend="reference"), inputs
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("side", ["left", "right", "between"])
def test_padding_is_not_counted_wherever_it_stands(backend, side):
    q, k, v = (x[0] for x in tokens())
    real = {
        "left": torch.arange(N) >= 6, "right": torch.arange(N) < N - 6,
        "between": torch.arange(N) % 4 != 1,
    }[side]  # fmt: skip
    mask = torch.rand(N, M) < 0.8
    for given in (None, mask, torch.randn(N, M, dtype=torch.float64)):
        options = {"iters": 5, "coarse": 3, "backend": backend}
        padded = bistoch.elastic_attention(q, k, v, query_mask=real, mask=given, **options)
        own = None if given is None else given[real]
        alone = bistoch.elastic_attention(q[real], k, v, mask=own, **options)
        assert torch.allclose(padded[real], alone, rtol=0, atol=1e-12)
        assert padded[~real].abs().max() == 0


def test_problems_of_a_batch_do_not_depend_on_each_other():
    q, k, v = tokens((3, 2))
    real = torch.rand(3, 2, N) < 0.6
    both = bistoch.elastic_attention(q, k, v, query_mask=real, coarse=4)
    one = bistoch.elastic_attention(q[1, 1], k[1, 1], v[1, 1], query_mask=real[1, 1], coarse=4)
    assert torch.allclose(both[1, 1], one, rtol=0, atol=1e-12)
    nobody = torch.zeros(3, 2, N, dtype=torch.bool)
    assert bistoch.elastic_attention(q, k, v, query_mask=nobody, coarse=4).abs().max() == 0


def test_masses_of_rows_and_columns_are_those_of_the_sample():
    q, k, _ = tokens()
    masses = torch.rand(2, N, dtype=torch.float64) + 0.5
    columns = torch.rand(2, M, dtype=torch.float64) + 0.5
    columns = columns * (masses.sum(-1) / columns.sum(-1))[:, None]
    near = bistoch.elastic_potentials(
        q, k, iters=400, coarse=3, tol=1e-10, row_mass=masses, column_mass=columns
    )
    # with a tolerance it ends at the solution of all queries
    assert bool(near.converged.all())
    scores = q @ k.mT / D**0.5
    plan = (scores + near.row[..., None] + near.column[:, None]).exp()
    assert torch.allclose(plan.sum(-2), columns, atol=1e-8)
    assert torch.allclose(plan.sum(-1), masses, atol=1e-8)


def test_it_does_nothing_where_there_is_nothing_to_save():
    q, k, v = tokens()
    plain = bistoch.elastic_attention(q, k, v, iters=4)
    assert torch.equal(bistoch.elastic_attention(q, k, v, iters=4, coarse=1), plain)
    for iters in (0, 1):
        plain = bistoch.elastic_attention(q, k, v, iters=iters)
        assert torch.equal(bistoch.elastic_attention(q, k, v, iters=iters, coarse=8), plain)
    assert bistoch.elastic_attention(q[:, :0], k, v, coarse=8).shape == (2, 0, E)


def test_a_nan_shows_whether_or_not_it_is_in_the_sample():
    for place in (0, 1):
        q, k, v = tokens()
        q[0, place, 0] = torch.nan
        found = bistoch.elastic_attention(q, k, v, coarse=4)
        assert found[0].isnan().all()
        assert found[1].isfinite().all()


def test_a_sink_is_balanced_at_the_price_of_one_iteration():
    torch.manual_seed(0)
    n = 512
    q, k = torch.randn(2, n, 16, dtype=torch.float64).unbind()
    q[:, 0], k[n // 3, 0] = 4.0, 12.0
    columns = [
        bistoch.elastic_plan(q, k, **options).sum(-2)
        for options in ({"iters": 0}, {"iters": 1}, {"coarse": 16})
    ]
    softmax, one, coarse = (abs(c[n // 3] - 1).item() for c in columns)
    assert softmax > 100
    assert coarse < 0.05 < one


@pytest.mark.parametrize(
    ("coarse", "error", "sentence"),
    [
        (0, ValueError, "elastic_attention: coarse must be at least 1, but it is 0"),
        (2.5, TypeError, "elastic_attention: coarse must be a whole number"),
        (True, TypeError, "elastic_attention: coarse must be a whole number"),
    ],
)
def test_bad_strides_are_refused(coarse, error, sentence):
    q, k, v = tokens()
    with pytest.raises(error, match=sentence):
        bistoch.elastic_attention(q, k, v, coarse=coarse)


def test_the_work_is_that_of_the_sample_and_one_iteration(monkeypatch):
    from bistoch.functional.elastic import api

    q, k, v = tokens()
    solved, choose = [], api.choose

    def recorded(operator, scores, *rest):
        assert isinstance(scores, Scores)
        chosen = choose(operator, scores, *rest)

        def solve(problem, value):
            solved.append((problem.scores.shape[1], problem.balance.iters))
            return chosen.solve(problem, value)

        return chosen._replace(solve=solve)

    monkeypatch.setattr(api, "choose", recorded)
    bistoch.elastic_attention(q, k, v, iters=6, coarse=4)
    assert solved == [(6, 5), (N, 1)]


def test_the_text_of_an_operator_has_it():
    q, k, v = tokens()
    module = bistoch.nn.build_operator("elastic(coarse=4, iters=5)", 2)
    assert repr(module) == "elastic(iters=5, coarse=4)"
    expected = bistoch.elastic_attention(q, k, v, iters=5, coarse=4)
    assert torch.equal(module(q, k, v), expected)
    module.mesh = object()
    with pytest.raises(NotImplementedError, match="coarse must be None with a mesh"):
        module(q, k, v)
