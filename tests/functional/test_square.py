"""What square plans share: padding, and the walk that is watched on real tokens only."""

import pytest
import torch

import bistoch
from bistoch.functional.square import stochastic_complement

SQUARE = [row for row in bistoch.OPERATORS.values() if row.square and row.columns == "exact"]
square_operators = pytest.mark.parametrize("operator", SQUARE, ids=lambda row: row.name)


def doubly_stochastic(*shape):
    return bistoch.balance(torch.randn(*shape, dtype=torch.float64), iters=500)


def test_the_complement_is_doubly_stochastic_and_zero_elsewhere():
    plan = doubly_stochastic(3, 7, 7)
    real = torch.rand(3, 7) > 0.4
    found = stochastic_complement(plan, real)
    torch.testing.assert_close(found.sum(-1), real.double())
    torch.testing.assert_close(found.sum(-2), real.double())


def test_the_complement_is_where_a_walk_returns():
    plan = doubly_stochastic(1, 5, 5)
    real = torch.tensor([[True, False, True, True, False]])
    # follow the walk step by step: what is on padding walks on
    found, away = plan * real[..., None, :], plan * ~real[..., None, :]
    for _ in range(400):
        away = away @ plan
        found, away = found + away * real[..., None, :], away * ~real[..., None, :]
    wanted = found * real[..., None]
    torch.testing.assert_close(stochastic_complement(plan, real), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("leak", [0.0, 1e-30, 1e-12, 1e-7, 1e-3])
def test_a_walk_may_stay_on_the_padding(dtype, leak):
    # two tokens that exchange all they have with each other, nearly
    rest = 1 - 2 * leak
    plan = torch.full((1, 4, 4), leak, dtype=torch.float64)
    plan[0, :2, :2] = torch.tensor([[0.25, rest - 0.25], [rest - 0.25, 0.25]], dtype=torch.float64)
    plan[0, 2:, 2:] = torch.tensor([[0.0, rest], [rest, 0.0]], dtype=torch.float64)
    plan = plan.to(dtype).requires_grad_()
    found = stochastic_complement(plan, torch.tensor([[True, True, False, False]]))
    atol = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(found.sum(-1)[0, :2], torch.ones(2, dtype=dtype), atol=atol, rtol=0)
    torch.testing.assert_close(found.sum(-2)[0, :2], torch.ones(2, dtype=dtype), atol=atol, rtol=0)
    found.square().sum().backward()
    assert plan.grad.abs().max() < 10


def test_the_gradient_of_the_complement():
    plan = doubly_stochastic(2, 5, 5).requires_grad_()
    real = torch.tensor([[True, True, False, True, False], [True, True, True, True, True]])
    assert torch.autograd.gradcheck(lambda p: stochastic_complement(p, real), (plan,))


@square_operators
@pytest.mark.parametrize("options", [{}, {"ancilla": 3}], ids=["plain", "ancilla"])
def test_padding_is_invisible(operator, options):
    # as many queries as keys are real, but not the same places
    query_mask = torch.tensor([[1, 0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1, 1]]).bool()
    key_mask = torch.tensor([[1, 1, 1, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1]]).bool()
    q, k, v = (torch.randn(2, 7, 5, dtype=torch.float64, requires_grad=True) for _ in range(3))
    padded = operator.attention(q, k, v, query_mask=query_mask, key_mask=key_mask, **options)
    slopes = torch.autograd.grad(padded[0].sin().sum(), (q, k, v))
    if operator.name == "quantum":
        # the circuit of seven places
        options = options | {"qubits": 3}
    alone = operator.attention(q[0, query_mask[0]], k[0, key_mask[0]], v[0, key_mask[0]], **options)
    torch.testing.assert_close(padded[0, query_mask[0]], alone)
    assert not padded[0, ~query_mask[0]].any()
    for found, wanted in zip(
        slopes, torch.autograd.grad(alone.sin().sum(), (q, k, v)), strict=True
    ):
        torch.testing.assert_close(found, wanted)


@square_operators
def test_a_problem_without_real_tokens_returns_zeros(operator):
    q, k, v = (torch.randn(2, 3, 4, requires_grad=True) for _ in range(3))
    real = torch.tensor([[True, True, True], [False, False, False]])
    result = operator.attention(q, k, v, query_mask=real, key_mask=real)
    result.sum().backward()
    assert not result[1].any()
    assert all(t.grad.isfinite().all() and not t.grad[1].any() for t in (q, k, v))


@square_operators
@pytest.mark.parametrize("size", [1e-30, 1e4, 1e20, 3e38])
def test_no_finite_score_gives_nan(operator, size):
    q, k = (torch.randn(2, 7, 4).clamp(-1, 1) * size for _ in range(2))
    plan = operator.plan(q.requires_grad_(), k)
    plan.square().sum().backward()
    for axis in (-1, -2):
        torch.testing.assert_close(plan.sum(axis), torch.ones(2, 7), atol=2e-6, rtol=0)
    assert q.grad.isfinite().all()


@square_operators
def test_what_cannot_be_is_refused_in_words(operator):
    q, k = torch.randn(2, 2, 5, 3).unbind()
    with pytest.raises(ValueError, match=r"as many queries as keys.*5 queries and 4 keys"):
        operator.plan(q, k[:, :4])
    with pytest.raises(NotImplementedError, match=r"mask must be None.*query_mask and key_mask"):
        operator.plan(q, k, mask=torch.ones(5, 5, dtype=torch.bool))
    real = torch.arange(5) < torch.tensor([[5], [3]])
    with pytest.raises(ValueError, match=r"problem 1 has 5 real queries and 3 real keys"):
        operator.plan(q, k, key_mask=real)
    with pytest.raises(ValueError, match=r"problem 1 has 3 real queries and 5 real keys"):
        operator.plan(q, k, query_mask=real)
    with pytest.raises(TypeError, match="key_mask must be a boolean tensor"):
        operator.plan(q, k, key_mask=real.float())
    with pytest.raises(ValueError, match="eps must be positive"):
        operator.plan(q, k, eps=0.0)
