"""Random shapes and options: the invariants that hold for all of them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bistoch
from functional.quick_backends import BACKENDS

# padding of keys alone is drawn on purpose
pytestmark = pytest.mark.filterwarnings("ignore::bistoch.PaddingWarning")

sizes = st.integers(0, 6)
batches = st.lists(st.integers(0, 3), max_size=2).map(tuple)
slow_machine = settings(deadline=None, max_examples=60)


@st.composite
def problems(draw):
    batch, n, m, d = draw(batches), draw(sizes), draw(sizes), draw(st.integers(1, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    size = draw(st.sampled_from([0.0, 1.0, 30.0, 1e4]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))

    def tokens(length):
        return size * torch.randn(*batch, length, d, generator=generator, dtype=dtype)

    def some(*shape):
        keep = draw(st.sampled_from([0.0, 0.5, 0.9]))
        return torch.rand(*shape, generator=generator) < keep

    options = {
        "lam": draw(st.floats(0, 1)),
        "eps": draw(st.sampled_from([1e-3, 0.1, 1.0, 1e3])),
        "omega": draw(st.floats(0.05, 1.95)),
        "iters": draw(st.integers(0, 6)),
        "backend": draw(st.sampled_from(BACKENDS)),
    }
    if draw(st.booleans()):
        options["mask"] = some(*batch, n, m)
    if draw(st.booleans()):
        options["query_mask"] = some(*batch, n)
    if draw(st.booleans()):
        options["key_mask"] = some(m)
    if draw(st.booleans()):
        options["column_mass"] = torch.rand(m, generator=generator, dtype=dtype) + 0.01
    return tokens(n), tokens(m), options


def allowed_pairs(q, k, options):
    shape = (*q.shape[:-1], k.shape[-2])
    allowed = options.get("mask", torch.ones(shape, dtype=torch.bool))
    if "query_mask" in options:
        allowed = allowed & options["query_mask"][..., None]
    if "key_mask" in options:
        allowed = allowed & options["key_mask"][..., None, :]
    return allowed.expand(shape)


@slow_machine
@given(problems())
def test_rows_sum_to_one_or_are_empty(problem):
    q, k, options = problem
    plan = bistoch.elastic_plan(q, k, **options)
    allowed = allowed_pairs(q, k, options)
    assert plan.isfinite().all()
    assert (plan >= 0).all()
    assert not plan[~allowed].any()
    torch.testing.assert_close(plan.sum(-1), allowed.any(-1).to(plan.dtype), atol=1e-5, rtol=0)


@slow_machine
@given(problems())
def test_attention_is_plan_times_values_with_finite_gradients(problem):
    q, k, options = problem
    v = torch.randn(*k.shape[:-1], 2, dtype=k.dtype)
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    result = bistoch.elastic_attention(*leaves, **options)
    plan = bistoch.elastic_plan(q, k, **options)
    torch.testing.assert_close(result, plan @ v, atol=1e-5, rtol=1e-5)
    result.sum().backward()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)


@slow_machine
@given(problems())
def test_potentials_are_infinite_exactly_where_nothing_is_allowed(problem):
    q, k, options = problem
    found = bistoch.elastic_potentials(q, k, **options)
    allowed = allowed_pairs(q, k, options)
    assert torch.equal(found.row == -torch.inf, ~allowed.any(-1))
    assert torch.equal(found.column == -torch.inf, ~allowed.any(-2))
    assert not found.row.isnan().any()
    assert (found.error >= 0).all()
    assert (found.iterations == options["iters"]).all()


@slow_machine
@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**31))
def test_hard_plans_are_even_assignments_no_worse_than_any_other(n, m, seed):
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(size, 3, generator=generator, dtype=torch.float64) for size in (n, m))
    plan = bistoch.hard_plan(q, k)
    assert torch.equal(plan.sum(-1), torch.ones(n, dtype=plan.dtype))
    assert plan.sum(-2).max() <= -(-n // m)
    scores = q @ k.T
    for _ in range(20):
        seats = torch.arange(m).repeat(-(-n // m))[
            torch.randperm(m * -(-n // m), generator=generator)
        ]
        assert (plan * scores).sum() >= scores[torch.arange(n), seats[:n]].sum() - 1e-9
