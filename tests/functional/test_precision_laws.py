"""Laws of precision, over every row of OPERATORS: masks, options, results and gradients.

Half precision is computed in float32. A mask means the same in every dtype: a very low finite
number hides a pair from every operator, as it does in `scaled_dot_product_attention`.
"""

import inspect

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import bistoch
from bistoch.functional.quantum import theta_length

N, M, D, E = 7, 11, 5, 3
HALVES = (torch.float16, torch.bfloat16)
DTYPES = (*HALVES, torch.float32, torch.float64)
# what programs write for "may not attend", and what may be added to it
LOW = (-1e4 + 3, -1e5, -1e9, *(torch.finfo(dtype).min for dtype in DTYPES))

every_operator = pytest.mark.parametrize(
    "operator", bistoch.OPERATORS.values(), ids=lambda row: row.name
)
every_operator_with_a_bias = pytest.mark.parametrize(
    "operator",
    [row for row in bistoch.OPERATORS.values() if row.masks in ("any", "keys")],
    ids=lambda row: row.name,
)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
every_half = pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: str(dtype)[6:])


def tokens(operator, dtype, batch=(2, 3)):
    m = N if operator.square else M
    return [torch.randn(*batch, length, size).to(dtype)
            for length, size in ((N, D), (m, D), (m, E))]  # fmt: skip


def hidden_pairs(operator, m):
    """Keys, and pairs if the operator can hide them, so that every row keeps its first key."""
    hidden = (torch.arange(m) % 4 == 3)[None]
    if operator.masks == "any":
        hidden = hidden | (torch.rand(N, m) < 0.3)
        hidden[:, 0] = False
    return hidden


def biases(hidden, dtype):
    """The pairs hidden by every low number that the dtype has, along a new first axis."""
    lows = torch.tensor(LOW, dtype=torch.float64)
    lows = lows[lows >= torch.finfo(dtype).min][:, None, None]
    return torch.where(hidden, lows, 0).to(dtype)


@every_operator_with_a_bias
@every_dtype
def test_a_very_low_bias_hides_a_pair(operator, dtype):
    q, k, v = tokens(operator, dtype, batch=())
    options = dict(operator.small) | {"query_mask": torch.ones(N, dtype=torch.bool)}
    hidden = hidden_pairs(operator, k.shape[-2])
    plan = operator.plan(q, k, mask=~hidden, **options)
    result = operator.attention(q, k, v, mask=~hidden, **options)
    assert not plan[hidden.expand_as(plan)].any()
    for written_in in {dtype, torch.float32, torch.float64}:
        bias = biases(hidden, written_in)
        many = [x.expand(len(bias), *x.shape) for x in (q, k, v)]
        torch.testing.assert_close(
            operator.plan(*many[:2], mask=bias, **options), plan.expand(len(bias), *plan.shape)
        )
        torch.testing.assert_close(
            operator.attention(*many, mask=bias, **options), result.expand(len(bias), *result.shape)
        )


@every_dtype
def test_softmax_reads_masks_as_torch_does(dtype):
    q, k, v = tokens(bistoch.OPERATORS["softmax"], dtype, batch=())
    work = torch.promote_types(dtype, torch.float32)
    # also rows in which all keys are as low: torch then shares them equally, and nobody drops them
    hidden = torch.rand(N, M) < 0.4
    hidden[2], hidden[3] = True, torch.arange(M) < M - 1
    for written_in in {dtype, torch.float32, torch.float64}:
        bias = biases(hidden, written_in)
        added = bias.double().clamp_min(torch.finfo(work).min).to(work)
        many = [x.expand(len(bias), *x.shape) for x in (q, k, v)]
        wanted = scaled_dot_product_attention(*(x.to(work) for x in many), attn_mask=added)
        torch.testing.assert_close(bistoch.softmax_attention(*many, mask=bias), wanted.to(dtype))
        plan = bistoch.softmax_plan(*many[:2], mask=bias)
        # a row of -1e5 rounds its scores, and not all programs in the same way
        coarse = {"atol": 0.02, "rtol": 0.02}
        torch.testing.assert_close(plan.to(work) @ v.to(work), wanted, **coarse)
        assert (plan.to(work).sum(-1) - 1).abs().max() < 0.01


@every_operator_with_a_bias
@every_dtype
def test_a_row_of_very_low_biases_is_no_row_of_nan(operator, dtype):
    m = N if operator.square else M
    q, k, v = (t.requires_grad_() for t in tokens(operator, dtype, batch=()))
    low = biases(torch.ones(N, m, dtype=torch.bool), dtype)
    if operator.masks == "any":
        # one row of a matrix, and two numbers in one row
        low[:, torch.arange(N) != 2] = 0
        low[:, 2, 1] *= 0.9
    else:
        low = low[:, :1]
    many = [x.expand(len(low), *x.shape) for x in (q, k, v)]
    options = dict(operator.small) | {"query_mask": torch.ones(N, dtype=torch.bool)}
    plan = operator.plan(*many[:2], mask=low, **options)
    assert plan.isfinite().all()
    if operator.always_causal:
        # a low number hides its pair, whatever stands beside it
        hidden = (low <= -5000).all(-1).expand(len(low), N)
        assert torch.equal(plan.float().sum(-1) < 0.5, hidden)
    elif operator.rows_exact:
        torch.testing.assert_close(plan.float().sum(-1), torch.ones(len(low), N), atol=0.01, rtol=0)
    operator.attention(*many, mask=low, **options).square().sum().backward()
    assert all(t.grad is None or t.grad.isfinite().all() for t in (q, k, v))


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_backends_agree_on_rows_of_very_low_biases(lam):
    q, k, v = tokens(bistoch.OPERATORS["elastic"], torch.float32, batch=())
    low = biases(torch.arange(N)[:, None] == 2, torch.float32).expand(-1, N, M).clone()
    low[:, 2, 3] *= 1.5
    many = [x.expand(len(low), *x.shape) for x in (q, k, v)]
    results = {
        backend: bistoch.elastic_attention(*many, lam=lam, mask=low, backend=backend)
        for backend in ("reference", "streaming", "cpu")
    }
    for result in results.values():
        torch.testing.assert_close(result, results["reference"])
    if lam == 0:
        lowest = low.amax(-1).amin(-1) < -1e8
        softmax = bistoch.softmax_attention(*many, mask=low)
        torch.testing.assert_close(results["cpu"][lowest], softmax[lowest])


def test_potentials_know_what_all_biases_of_a_row_have_in_common():
    q, k, _ = tokens(bistoch.OPERATORS["elastic"], torch.float64, batch=())
    bias = torch.zeros(N, M, dtype=torch.float64)
    bias[2] -= 1e5
    row, column, *_ = bistoch.elastic_potentials(q, k, mask=bias)
    plan = (q @ k.mT / D**0.5 + bias + row[:, None] + column).exp()
    torch.testing.assert_close(plan, bistoch.elastic_plan(q, k, mask=bias))
    torch.testing.assert_close(plan, bistoch.elastic_plan(q, k))


def test_a_mask_of_balance_hides_what_a_low_score_only_makes_expensive():
    scores, hidden = torch.randn(N, M), torch.arange(M) > 7
    bias = biases(hidden[None], torch.float32)
    plan = bistoch.balance(scores.expand(len(bias), N, M), mask=bias, iters=50)
    torch.testing.assert_close(
        plan, bistoch.balance(scores, mask=~hidden, iters=50).expand_as(plan)
    )
    # what is added to a whole column of scores, the column step takes away again
    plan = bistoch.balance(scores - 100 * hidden, iters=200)
    torch.testing.assert_close(plan, bistoch.balance(scores, iters=200), atol=1e-4, rtol=0)


def tensor_options(operator, m):
    """Every option that may be a tensor, as one."""
    made = {
        "eps": torch.rand(3) * 0.05 + 0.001,
        "lam": torch.rand(3) * 0.9 + 0.05,
        "omega": torch.rand(3) + 0.5,
        "tau": torch.rand(3),
        "logit": torch.randn(3),
        "shift": torch.randn(3),
        "column_mass": torch.rand(m) + 0.1,
        "weight": torch.randn(N, m),
        "pivots": torch.randn(4, D),
        "pivot_mass": torch.rand(4) + 0.1,
        "directions": torch.randn(3, D),
        "theta": torch.randn(theta_length(3, ancilla=1, layers=1, ansatz="parted")),
        "query_variance": torch.rand(2, 3, N, D),
        "key_variance": torch.rand(2, 3, m, D),
    }
    if operator.masks in ("any", "keys"):
        made["mask"] = torch.randn(N if operator.masks == "any" else 1, m)
    if operator.name == "hard":
        # a number, which only its straight-through gradient uses
        del made["eps"]
    known = inspect.signature(operator.attention).parameters
    return {name: value for name, value in made.items() if name in known}


def attend(operator, inputs, options, arriving):
    """The result, its plan, and the gradients of everything."""
    inputs = [t.clone().requires_grad_() for t in inputs]
    options = {name: t.clone().requires_grad_() for name, t in options.items()}
    fixed = dict(operator.small) | {"query_mask": torch.ones(N, dtype=torch.bool)}
    result = operator.attention(*inputs, **options, **fixed)
    plan = operator.plan(*inputs[:2], **options, **fixed)
    leaves = [*inputs, *options.values()]
    grads = torch.autograd.grad(result, leaves, arriving.to(result.dtype), allow_unused=True)
    return [result, plan, *grads]


@every_operator
@every_half
def test_half_precision_is_computed_in_float32(operator, dtype):
    m = N if operator.square else M
    inputs = tokens(operator, dtype)
    options = {name: t.to(dtype) for name, t in tensor_options(operator, m).items()}
    arriving = torch.randn(2, 3, N, E).to(dtype)
    found = attend(operator, inputs, options, arriving)
    wanted = attend(
        operator, [t.float() for t in inputs], {n: t.float() for n, t in options.items()}, arriving
    )
    for one, other in zip(found, wanted, strict=True):
        if other is None:
            assert one is None
        else:
            # bit by bit: the only rounding is that of what is returned
            assert one.dtype == dtype
            torch.testing.assert_close(one, other.to(dtype), atol=0, rtol=0)


@every_operator
@every_half
def test_options_of_half_precision_may_be_small(operator, dtype):
    if not isinstance(tensor_options(operator, N).get("eps"), torch.Tensor):
        pytest.skip("its eps is no tensor")
    q, k, v = tokens(operator, dtype)
    # so that the gradient of eps, which has a square of eps below it, fits
    q, k, v = 0.01 * q, 0.1 * k, 0.01 * v
    eps = torch.full((3,), 0.003, dtype=dtype, requires_grad=True)
    result = operator.attention(q, k, v, eps=eps, **operator.small)
    result.sum().backward()
    assert result.isfinite().all()
    assert eps.grad.isfinite().all()


@every_half
def test_plain_softmax_loses_no_more_than_rounding(dtype):
    # by torch's own kernels, which round the weights before they use them
    q, k, v = tokens(bistoch.OPERATORS["softmax"], dtype)
    for eps in (1.0, 0.01):
        wanted = bistoch.softmax_attention(*(t.double() for t in (q, k, v)), eps=eps)
        error = (bistoch.softmax_attention(q, k, v, eps=eps).double() - wanted).abs().max()
        assert error < torch.finfo(dtype).eps * v.abs().max()


@every_half
def test_functions_beside_the_table_compute_half_precision_in_float32(dtype):
    q, k, v = tokens(bistoch.OPERATORS["elastic"], dtype)
    scores, eps = torch.randn(2, 3, N, M).to(dtype), torch.full((3,), 0.01, dtype=dtype)
    spread = torch.rand_like(v)

    def run(q, k, v, scores, eps, spread):
        seed = torch.Generator().manual_seed(0)
        return [
            bistoch.balance(scores, eps=eps),
            bistoch.gumbel_balance(scores, eps=eps, generator=seed),
            *bistoch.wasserstein_moments(q, k, v, spread, eps=eps),
            *bistoch.elastic_potentials(q, k, eps=eps)[:2],
            bistoch.causal_elastic_step(q, k[..., :N, :], v[..., :N, :], eps=eps)[0],
        ]

    inputs = (q, k, v, scores, eps, spread)
    for one, other in zip(run(*inputs), run(*(t.float() for t in inputs)), strict=True):
        torch.testing.assert_close(one, other.to(one.dtype), atol=0, rtol=0)


@pytest.mark.parametrize("name", ["elastic", "sinkhorn", "anneal", "elastic_monarch"])
def test_a_bias_that_scores_make_up_for_forbids_nothing(name):
    # squared lengths as a bias of the keys: scores are minus squared distances, far from the origin
    operator = bistoch.OPERATORS[name]
    q, k = torch.randn(N, D, dtype=torch.float64), torch.randn(M, D, dtype=torch.float64)
    away = 3000 * torch.randn(D, dtype=torch.float64)
    few = {"scale": 1.0, "iters": 3, "query_mask": torch.ones(N, dtype=torch.bool)}
    bias = [-x.square().sum(-1)[None] / 2 for x in (k, k + away)]
    assert (bias[1].amax() - bias[1].amin()) > 5000
    plan = operator.plan(q, k, mask=bias[0], **few)
    shifted = operator.plan(q + away, k + away, mask=bias[1], **few)
    torch.testing.assert_close(shifted, plan, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, N])
def test_a_mask_is_read_for_every_problem_alone(rows):
    # a neighbour whose scores could make up for the bias
    q, k, v = torch.randn(3, 2, N, D).unbind()
    bias = biases(torch.arange(N).expand(rows, N) > 4, torch.float32)[:1]
    options = {"mask": bias, "query_mask": torch.ones(N, dtype=torch.bool)}
    alone = bistoch.sinkhorn_attention(q, k, v, **options)
    assert not bistoch.sinkhorn_plan(q, k, **options)[0, :, 5:].any()
    q[1] *= 1e5
    together = bistoch.sinkhorn_attention(q, k, v, **options)
    torch.testing.assert_close(together[0], alone[0])
