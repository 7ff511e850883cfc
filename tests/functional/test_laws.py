"""The laws of DESIGN, run over every row of OPERATORS and every backend of it at prime sizes."""

import pytest
import torch

import bistoch
from bistoch.functional.kernels.gpu import is_interpreted
from bistoch.lab.bench.memory import largest_allocation
from functional.law_cases import (
    BATCH,
    D,
    E,
    M,
    N,
    allowed_pairs,
    by_backend,
    every_backend,
    every_backend_always,
    every_operator,
    keys_for,
    masks,
    tokens,
)
from interpreter import patch_once


@pytest.fixture(autouse=True)
def _quick_interpreter(request):
    if "-triton" not in request.node.name:
        return
    pytest.importorskip("triton")
    if not is_interpreted():
        pytest.skip("for Triton's interpreter: set TRITON_INTERPRET=1")
    patch_once()


def test_the_table_is_keyed_by_name():
    assert all(name == row.name for name, row in bistoch.OPERATORS.items())
    assert all(getattr(bistoch, f"{name}_attention") is row.attention
               and getattr(bistoch, f"{name}_plan") is row.plan
               for name, row in bistoch.OPERATORS.items())  # fmt: skip


@every_backend
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_attention_is_plan_times_values(operator, masked):
    m = keys_for(operator)
    q, k, v = tokens(m=m)
    options = masks(operator, m=m) if masked else {}
    plan = operator.plan(q, k, **options)
    torch.testing.assert_close(operator.attention(q, k, v, **options), plan @ v)


@every_backend
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_plan_is_nonnegative_with_rows_of_one(operator, masked):
    m = keys_for(operator)
    q, k, _ = tokens(m=m)
    options = masks(operator, m=m) if masked else {}
    plan = operator.plan(q, k, **options)
    assert plan.shape == (*BATCH, N, m)
    assert (plan >= 0).all() == operator.nonnegative
    allowed = allowed_pairs(options, N, m)
    assert not plan[~allowed].any()
    wanted = allowed.any(-1).to(plan.dtype)
    rows = plan.sum(-1)
    if operator.rows_exact:
        torch.testing.assert_close(rows, wanted)
    else:
        # a promise that is not made is one that is not kept
        assert (rows - wanted).abs().max() > 1e-6
        assert not rows[wanted == 0].any()


@every_backend
def test_columns_are_what_the_table_promises(operator):
    q, k, _ = tokens(m=N)
    enough = {"iters": 2000} if operator.columns == "limit" else {}
    error = (operator.plan(q, k, **enough).sum(-2) - 1).abs().max()
    if operator.columns in ("limit", "exact"):
        assert error < (0.01 if operator.name == "anneal" else 1e-6)
    elif operator.columns == "elastic":
        loose, tight = (operator.plan(q, k, lam=lam, iters=50).sum(-2) for lam in (0.2, 0.8))
        assert (tight - 1).abs().max() < (loose - 1).abs().max()
    elif operator.columns == "streamed":
        q, k, _ = tokens(61, 61)
        fair = (1 / torch.arange(1.0, 62, dtype=q.dtype)).flip(0).cumsum(0).flip(0)
        free, loose, tight = (
            (operator.plan(q, k, lam=lam).sum(-2) / fair - 1).abs().mean()
            for lam in (0.0, 0.5, 1.0)
        )
        assert tight < loose < free
    else:
        assert error > 0.1


MOVE_COLUMNS = ("elastic", "limit", "streamed")
backends_that_move_columns = pytest.mark.parametrize(
    "operator", [row for row in by_backend() if row.values[0].columns in MOVE_COLUMNS]
)


@backends_that_move_columns
def test_columns_move(operator):
    """Rows of one and `attention == plan @ v` hold for softmax too: columns tell them apart.

    With values of one, the result is the plan, made by those who never write it down.
    """
    size = 61
    q, k, _ = tokens(size, size)
    values = torch.eye(size, dtype=q.dtype).expand(*BATCH, size, size)
    fair, hidden = torch.ones(size, dtype=q.dtype), None
    if operator.columns == "streamed":
        fair = (1 / torch.arange(1.0, size + 1, dtype=q.dtype)).flip(0).cumsum(0).flip(0)
        hidden = torch.ones(size, size, dtype=torch.bool).tril()
    softmax = bistoch.softmax_plan(q, k, mask=hidden)
    found = operator.attention(q, k, values)
    before, after = ((plan.sum(-2) / fair - 1).abs().mean() for plan in (softmax, found))
    # earlier rows know little of the columns of later ones
    assert after < (0.95 if operator.columns == "streamed" else 0.5) * before


@every_backend
def test_constants_pass_through(operator):
    q, k, v = tokens(m=keys_for(operator))
    rows = operator.plan(q, k).sum(-1, keepdim=True)
    if operator.rows_exact:
        rows = torch.ones_like(rows)
    result = operator.attention(q, k, torch.ones_like(v))
    torch.testing.assert_close(result, rows.expand(*BATCH, N, E))


@every_backend
def test_order_of_tokens_does_not_matter(operator):
    m = keys_for(operator)
    q, k, v = tokens(m=m)
    keys, queries = torch.randperm(m), torch.randperm(N)
    result = operator.attention(q, k, v)
    other_keys = operator.attention(q, k[..., keys, :], v[..., keys, :])
    other_queries = operator.attention(q[..., queries, :], k, v)
    if operator.order_free:
        torch.testing.assert_close(other_keys, result)
        torch.testing.assert_close(other_queries, result[..., queries, :])
    else:
        # a promise that is not made is one that is not kept
        same = torch.allclose(other_keys, result)
        assert not (same and torch.allclose(other_queries, result[..., queries, :]))


@every_backend
def test_a_batch_slot_does_not_feel_its_neighbours(operator):
    m = keys_for(operator)
    q, k, v = tokens(m=m)
    options = masks(operator, m=m)
    together = operator.attention(q, k, v, **options)
    q[1], k[1], v[1] = 1e3, -1e3, torch.nan
    torch.testing.assert_close(operator.attention(q, k, v, **options)[0, 0], together[0, 0])


@every_backend
def test_padding_is_invisible(operator):
    if operator.masks == "none":
        pytest.skip("it takes no padding")
    m = keys_for(operator)
    queries, keys = 4, m - 3
    q, k, v = tokens(m=m)
    q[..., queries:, :], k[..., keys:, :], v[..., keys:, :] = 1e3, -1e3, 1e3
    padded = [t.requires_grad_() for t in (q, k, v)]
    alone = [t.detach()[..., :size, :].clone().requires_grad_()
             for t, size in zip(padded, (queries, keys, keys), strict=True)]  # fmt: skip
    real = {"query_mask": torch.arange(N) < queries, "key_mask": torch.arange(m) < keys}
    together, wanted = (
        operator.attention(*t, **hidden) for t, hidden in ((padded, real), (alone, {}))
    )
    assert not together[..., queries:, :].any()
    torch.testing.assert_close(together[..., :queries, :], wanted)
    for result in (together, wanted):
        result.square().sum().backward()
    for one, other in zip(padded, alone, strict=True):
        if other.grad is not None:
            size = other.shape[-2]
            torch.testing.assert_close(one.grad[..., :size, :], other.grad)
            assert not one.grad[..., size:, :].any()


@every_backend
def test_a_causal_promise_is_kept(operator):
    # an operator that cannot hide pairs is causal by itself, or not at all
    causal = torch.ones(N, N, dtype=torch.bool).tril()
    hidden = {"mask": causal} if operator.masks == "any" else {}
    q, k, v = tokens(m=N)
    before = operator.attention(q, k, v, **hidden)
    q, k, v = q.clone(), k.clone(), v.clone()
    for tensor in (q, k, v):
        tensor[..., 4:, :] += 1
    after = operator.attention(q, k, v, **hidden)
    seen = torch.equal(before[..., :4, :], after[..., :4, :])
    # hard: a causal mask leaves the identity as the only even assignment, so nothing can leak
    assert seen == (operator.causal or operator.name == "hard")


@every_backend
def test_an_operator_is_causal_without_a_mask_if_it_says_so(operator):
    q, k, _ = tokens(m=N)
    seen = operator.plan(q, k).triu(1).any()
    assert not seen if operator.always_causal else seen


@every_backend
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_is_kept(operator, dtype):
    for n, m in ((N, keys_for(operator)), (0, 0)):
        q, k, v = tokens(n, m, dtype=dtype)
        assert operator.attention(q, k, v).dtype == dtype
        assert operator.plan(q, k).dtype == dtype


@every_backend
def test_autocast_changes_nothing(operator):
    q, k, v = tokens(m=keys_for(operator), dtype=torch.float32)
    plan, result = operator.plan(q, k), operator.attention(q, k, v)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(operator.plan(q, k), plan)
        torch.testing.assert_close(operator.attention(q, k, v), result)


@every_backend
def test_tokens_without_features_have_a_plan(operator):
    q, k, v = tokens(m=keys_for(operator))
    q, k = q[..., :0], k[..., :0]
    plan = operator.plan(q, k)
    assert plan.isfinite().all()
    torch.testing.assert_close(operator.attention(q, k, v), plan @ v)
    assert operator.attention(q, k, v[..., :0]).shape == (*BATCH, N, 0)


@every_backend_always
def test_any_layout_is_accepted(operator):
    q, k, v = tokens(m=keys_for(operator))
    wanted = operator.attention(q, k, v)
    strided = [t.mT.contiguous().mT for t in (q, k, v)]
    torch.testing.assert_close(operator.attention(*strided), wanted)
    expanded = [t[:1, :1].expand(*BATCH, -1, -1) for t in (q, k, v)]
    one = operator.attention(q[:1, :1], k[:1, :1], v[:1, :1])
    torch.testing.assert_close(operator.attention(*expanded), one.expand(*BATCH, -1, -1))
    # leading axes broadcast
    torch.testing.assert_close(
        operator.attention(q, k[:1], v[:, :1]),
        operator.attention(q, k[:1].expand_as(k), v[:, :1].expand_as(v)),
    )
    torch.testing.assert_close(operator.attention(q[0, 0], k[0, 0], v[0, 0]), wanted[0, 0])


@every_backend
@pytest.mark.parametrize(("n", "m"), [(0, 0), (1, 1), (1, 5), (5, 1), (0, 3), (3, 0)])
def test_smallest_shapes(operator, n, m):
    q, k, v = tokens(n=n, m=m)
    if operator.square and n != m:
        with pytest.raises(ValueError, match="as many queries as keys"):
            operator.attention(q, k, v)
        return
    result = operator.attention(q, k, v)
    assert result.shape == (*BATCH, n, E)
    if m == 1 and operator.rows_exact:
        torch.testing.assert_close(result, v.expand(*BATCH, n, E))
    if m == 0:
        assert not result.any()


@every_backend
def test_empty_batch(operator):
    m = keys_for(operator)
    q, k, v = tokens(m=m, batch=(0, 3))
    assert operator.attention(q, k, v).shape == (0, 3, N, E)
    assert operator.plan(q, k).shape == (0, 3, N, m)


@every_backend
def test_gradients(operator):
    q, k, v = (t.requires_grad_() for t in tokens(3, keys_for(operator, 3, 5), batch=(2,)))
    few = {"iters": 3} if "iters" in operator.options() else {}
    if operator.differentiable:
        assert torch.autograd.gradcheck(lambda *t: operator.attention(*t, **few), (q, k, v))
    else:
        assert torch.autograd.gradcheck(lambda t: operator.attention(q, k, t), (v,))


@every_backend
def test_masked_rows_have_zero_gradient(operator):
    m = keys_for(operator)
    q, k, v = (t.requires_grad_() for t in tokens(m=m))
    options = masks(operator, m=m)
    operator.attention(q, k, v, **options).square().sum().backward()
    assert all(t.grad.isfinite().all() for t in (q, k, v) if t.grad is not None)
    allowed = allowed_pairs(options, N, m)
    seeing, seen = allowed.any(-1), allowed.any(-2)
    assert not v.grad[~seen].any()
    if operator.static:
        # the plan is made of positions: there is nothing to tell the tokens that asked
        assert q.grad is None
        assert k.grad is None
    elif operator.differentiable:
        assert not k.grad[~seen].any()
        assert not q.grad[~seeing].any()
        assert q.grad[0, 1, 3].any()


@every_operator
def test_memory_is_what_the_table_promises(operator):
    # the defaults, since a window of two tokens is never a matrix
    attention = bistoch.OPERATORS[operator.name].attention
    n = 2048 if operator.matrix_free else 32
    q, k, v = (t.requires_grad_() for t in tokens(n, n, dtype=torch.float32, batch=()))
    few = {"iters": 3} if "iters" in operator.options() else {}
    largest = largest_allocation(lambda: attention(q, k, v, **few).sum().backward())
    # a promise that is not made is one that is not kept
    assert largest < n * n * 4 / 8 if operator.matrix_free else largest >= n * n * 4


def skip_exception(operator, answer):
    if answer in operator.exceptions:
        pytest.skip(operator.exceptions[answer])


@every_backend
def test_permutation_scores_give_the_permutation(operator):
    skip_exception(operator, "permutation")
    order = torch.randperm(N)
    x = 40 * torch.eye(N, dtype=torch.float64)
    plan = operator.plan(x[order], x)
    torch.testing.assert_close(plan, torch.eye(N, dtype=torch.float64)[order], atol=1e-8, rtol=0)


@every_backend
def test_identical_keys_share_equally(operator):
    skip_exception(operator, "identical keys")
    q = torch.randn(N, D, dtype=torch.float64)
    k = torch.randn(1, D, dtype=torch.float64).expand(M, D)
    torch.testing.assert_close(operator.plan(q, k), torch.full((N, M), 1 / M, dtype=torch.float64))
