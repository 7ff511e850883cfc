"""Causal balance: the backends agree, nothing leaks, padding is unseen, memory is linear."""

import math

import pytest
import torch

import bistoch
from bistoch.functional.causal import BACKENDS as ALL
from bistoch.functional.causal.problem import Stream, fair_share, fair_share_of
from bistoch.functional.causal.reference import prefix_plan
from bistoch.lab.bench.memory import allocated_by

N, D = 53, 7
MIB = 1 << 20
# in Triton's interpreter a call takes seconds: `gpu` has tests of its own, these are for all
QUICK = tuple(backend for backend in ALL if backend != "triton")
BACKENDS = (*QUICK, pytest.param("triton", marks=pytest.mark.slow))


def tokens(n=N, batch=(2, 3), dtype=torch.float64):
    return torch.randn(3, *batch, n, D, dtype=dtype).unbind()


def causal(n=N):
    return torch.ones(n, n, dtype=torch.bool).tril()


def window(n=N):
    return causal(n) & ~causal(n).tril(-11)


def by_hand(scores, lam, block, prior):
    """One sequence, without logs: what a row gives, what remains, what follows."""
    n = len(scores)
    plan = torch.zeros(n, n).to(scores)
    bias = torch.zeros(n).to(scores)
    kernel, fair = (prior * torch.ones(n).to(scores) for _ in range(2))
    for i in range(n):
        weight = (scores[i, : i + 1] + bias[: i + 1]).exp()
        plan[i, : i + 1] = weight / weight.sum()
        kernel[: i + 1] += scores[i, : i + 1].exp() / weight.sum()
        fair[: i + 1] += 1 / (i + 1)
        if (i + 1) % block == 0:
            own = slice(i + 1 - block, i + 1)
            # keys to come begin where those of this block stand together, but not above
            start = min(1.0, (fair[own].sum() / kernel[own].sum()).item())
            kernel[i + 1 :] = prior / start
            bias = lam * (fair / kernel).log()
    return plan


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lam", [0.3, 1.0])
@pytest.mark.parametrize("block", [1, 5, 64])
def test_the_rule_by_hand(backend, lam, block):
    q, k, _ = tokens(23, ())
    plan = bistoch.causal_elastic_plan(q, k, lam=lam, block=block, prior=0.05, backend=backend)
    torch.testing.assert_close(plan, by_hand(q @ k.T / math.sqrt(D), lam, block, 0.05))


def local(scores, slope):
    """The same scores, less for every token of distance: new keys are then loved too much."""
    place = torch.arange(len(scores)).to(scores)
    return scores - slope * (place[:, None] - place)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("block", [1, 5])
def test_keys_to_come_are_held_back_as_the_last_new_ones_were(backend, block):
    scores = local(toy(23), 0.5)
    plan = plan_of(scores, lam=0.7, block=block, prior=0.05, backend=backend)
    torch.testing.assert_close(plan, by_hand(scores, 0.7, block, 0.05))
    # nothing but a slope: blocks are alike, and new keys come down towards their share
    slope = local(torch.zeros(400, 400, dtype=torch.float64), 0.5)
    plain, plan = (plan_of(slope, lam=lam, block=4, backend=backend) for lam in (0.0, 1.0))
    assert plain[-1, -4:].sum() > 0.8
    assert plan[-1, -4:].sum() < 0.3


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_to_come_are_not_favoured(backend):
    # every row looks at the first key and at no new one
    scores = toy(23, sink=30.0)
    plan = plan_of(scores, block=5, backend=backend)
    bias = (plan[5:] / plan[5:, :1]).log() - (scores[5:] - scores[5:, :1])
    fresh = torch.stack([bias[row - 5, row] for row in range(5, 10)])
    torch.testing.assert_close(fresh, fresh[:1].expand(5))


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_elasticity_it_is_causal_softmax(backend):
    q, k, v = tokens(dtype=torch.float32)
    found = bistoch.causal_elastic_attention(q, k, v, lam=0.0, block=8, backend=backend)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(found, wanted)
    # and so is every row of the first block
    found = bistoch.causal_elastic_attention(q, k, v, block=8, backend=backend)
    torch.testing.assert_close(found[..., :8, :], wanted[..., :8, :])


@pytest.mark.parametrize("mask", [None, window(), torch.randn(3, N, N)], ids=["", "window", "bias"])
@pytest.mark.parametrize("padding", ["none", "left", "right", "between"])
@pytest.mark.parametrize("faster", BACKENDS[1:])
def test_backends_are_the_reference(faster, mask, padding, monkeypatch):
    monkeypatch.setattr("bistoch.functional._recompute.FEW", 0)
    monkeypatch.setattr("bistoch.functional.causal.streaming.BUDGET", 4 * 5 * N)
    monkeypatch.setattr("bistoch.functional.causal.streaming.KEPT", 3)
    real = hide(padding)
    lam = torch.tensor([0.2, 0.7, 1.0], dtype=torch.float64, requires_grad=True)
    results = []
    for backend in ("reference", faster):
        torch.manual_seed(0)
        leaves = [x.requires_grad_() for x in tokens()]
        found = bistoch.causal_elastic_attention(
            *leaves, lam=lam, block=5, mask=mask, key_mask=real, backend=backend
        )
        slopes = torch.autograd.grad(found.square().sum(), [*leaves, lam])
        results.append((found, *slopes))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-10)


def hide(padding):
    place = torch.arange(N)
    masks = {
        "none": None,
        "left": place >= torch.tensor([17, 0])[:, None],
        "right": place < torch.tensor([N, 31])[:, None],
        "between": place % torch.tensor([3, 7])[:, None] != 1,
    }
    return None if masks[padding] is None else masks[padding][:, None]


@pytest.mark.parametrize("padding", ["left", "right", "between"])
@pytest.mark.parametrize("mask", [None, window()], ids=["", "window"])
def test_padding_is_invisible(padding, mask):
    q, k, v = tokens()
    real = hide(padding)
    padded = bistoch.causal_elastic_attention(q, k, v, block=5, key_mask=real, mask=mask)
    same = bistoch.causal_elastic_attention(q, k, v, block=5, query_mask=real, mask=mask)
    torch.testing.assert_close(padded, same, rtol=0, atol=0)
    for row in range(2):
        kept = real[row, 0]
        own = None if mask is None else mask[kept][:, kept]
        alone = bistoch.causal_elastic_attention(
            *(x[row][:, kept] for x in (q, k, v)), block=5, mask=own
        )
        torch.testing.assert_close(padded[row][:, kept], alone)
        assert not padded[row][:, ~kept].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("rows", "earlier"), [(1, 0), (1, 300), (7, 0), (64, 64), (65, 11), (128, 0), (200, 1000)]
)
def test_fair_shares_without_the_pairs_are_exact(rows, earlier, dtype):
    size = earlier + rows
    key = torch.empty(1, size, D, dtype=dtype)
    one = torch.ones(1, dtype=dtype)
    stream = Stream(key[:, earlier:], key, key, None, None, None, one, one, rows, 1.0)
    allowed = causal(size)[None, earlier:]
    found = fair_share_of(stream, 0, rows, allowed)
    assert found.dtype == dtype
    expected = fair_share(allowed, torch.float64)
    # the largest error that was measured is 1.6 roundings
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), expected, rtol=4 * rounding, atol=0)


def test_a_window_shares_fairly_inside_itself():
    # equal scores are balanced already: every row shares equally, whatever lam and block are
    q, k, _ = tokens(batch=())
    plan = bistoch.causal_elastic_plan(q * 0, k, block=5, mask=window())
    fair = window().double()
    torch.testing.assert_close(plan, fair / fair.sum(-1, keepdim=True))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_gradients_through_many_blocks(backend, slope, monkeypatch):
    monkeypatch.setattr("bistoch.functional.causal.streaming.KEPT", 2)
    q, k, v = (x[..., :2].contiguous().requires_grad_() for x in tokens(7, (2,)))
    lam = torch.tensor([0.4, 0.9], dtype=torch.float64, requires_grad=True)
    eps = torch.tensor([0.7, 1.3], dtype=torch.float64, requires_grad=True)
    # a slope, so that new keys are held back, and what holds them back has a gradient
    bias = local(torch.randn(7, 7, dtype=torch.float64), slope).requires_grad_()

    def attend(q, k, v, lam, eps, bias):
        return bistoch.causal_elastic_attention(
            q, k, v, lam=lam, eps=eps, mask=bias, block=2, backend=backend
        )

    assert torch.autograd.gradcheck(attend, (q, k, v, lam, eps, bias))


def toy(n, sink=3.0):
    """Scores with a planted sink in their first column."""
    generator = torch.Generator().manual_seed(0)
    q, k = 1.5 * torch.randn(2, n, 16, generator=generator, dtype=torch.float64)
    scores = q @ (k + torch.randn(16, generator=generator, dtype=torch.float64)).T / 4
    scores[:, 0] += sink
    return scores


def plan_of(scores, **options):
    unit = torch.eye(len(scores), dtype=scores.dtype)
    return bistoch.causal_elastic_plan(scores, unit, scale=1.0, **options)


def test_the_oracle_balances_every_prefix():
    scores = toy(19)
    plan = prefix_plan(scores, iters=500)
    # the newest key of a prefix has one row to get its share from
    torch.testing.assert_close(plan.diagonal(), 1 / torch.arange(1.0, 20, dtype=plan.dtype))
    torch.testing.assert_close(prefix_plan(scores, lam=0.0), plan_of(scores, lam=0.0))
    # no row knows a later one
    torch.testing.assert_close(prefix_plan(scores[:11, :11], iters=500), plan[:11, :11])


def test_it_comes_nearer_to_the_oracle_and_tames_the_sink():
    scores = toy(128)
    oracle = prefix_plan(scores)
    fair = (1 / torch.arange(1.0, 129, dtype=scores.dtype)).flip(0).cumsum(0).flip(0)
    plans = [plan_of(scores, lam=lam, block=8) for lam in (0.0, 0.5, 1.0)]
    far = [(plan - oracle).abs().sum(-1).mean().item() for plan in plans]
    assert far[2] < far[1] < far[0]
    assert far[2] < 0.65 * far[0]
    first = [plan[:, 0].sum().item() / fair[0].item() for plan in plans]
    assert first[2] < 0.5 * first[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_scores_stay_finite(backend):
    q, k, v = tokens(40, (2,), torch.float32)
    k[:, 3] = 1e4 * q.sum(-2)
    leaves = [x.clone().requires_grad_() for x in (100 * q, k, v)]
    found = bistoch.causal_elastic_attention(*leaves, block=4, backend=backend)
    found.sum().backward()
    assert found.isfinite().all()
    assert all(x.grad.isfinite().all() for x in leaves)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1.0, 1e2, 1e4, 1e6, 1e10])
def test_rows_are_exact_at_every_size_of_scores(backend, dtype, size):
    q, k, _ = tokens(batch=(2,), dtype=dtype)
    plan = bistoch.causal_elastic_plan(size * q, k, block=5, backend=backend)
    assert (plan >= 0).all()
    rows = plan.sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows), rtol=0, atol=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("n", [23, 131])
@pytest.mark.parametrize("block", [1, 5, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keys_that_are_all_alike_have_one_gradient(n, block, dtype):
    # rows share fairly, and the level of new keys is zero, where it has a kink
    q, k, v = tokens(n, (2,), dtype)
    leaves = [q, k[:, :1].expand_as(k).clone(), v, torch.zeros(n, n, dtype=dtype)]
    lam = torch.tensor([0.6, 1.0], dtype=dtype)
    found = {}
    for backend in QUICK:
        ready = [x.clone().requires_grad_() for x in (*leaves, lam)]
        *rest, elasticity = ready
        result = bistoch.causal_elastic_attention(
            *rest[:3], mask=rest[3], lam=elasticity, block=block, backend=backend
        )
        found[backend] = torch.autograd.grad(result.sin().sum(), ready)
    for name, wanted, *others in zip(
        ("query", "key", "value", "mask", "lam"), *found.values(), strict=True
    ):
        # in a row of equal keys queries have no gradient
        size = max(wanted.abs().max().item(), 0.1)
        for other in others:
            error = (other - wanted).abs().max().item()
            assert error < 1e3 * torch.finfo(dtype).eps * size, (name, error)


def test_the_slope_at_the_kink_is_that_of_keys_that_are_not_held_back():
    q, k, v = tokens(23, ())
    k = k[:1].expand_as(k)
    mask = torch.zeros(23, 23, dtype=torch.float64, requires_grad=True)
    slopes = []
    for shift in (0.0, 1e-7):
        # new keys are a little less seen than their share: they are not held back
        bias = mask - shift * torch.eye(23, dtype=torch.float64)
        result = bistoch.causal_elastic_attention(q, k, v, mask=bias, block=4)
        slopes.append(torch.autograd.grad(result.sin().sum(), mask)[0])
    torch.testing.assert_close(*slopes, atol=1e-5, rtol=1e-4)


# what numpy says of it in Triton's interpreter
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_a_broken_gradient_reaches_all_that_its_row_was_made_of(backend, number, masked):
    # a gradient scaler that finds none of it would take the step
    q, k, v = (x.requires_grad_() for x in tokens(23, (2,), torch.float32))
    mask = window(23) if masked else None
    result = bistoch.causal_elastic_attention(q, k, v, mask=mask, block=4, backend=backend)
    arriving = torch.ones_like(result)
    arriving[1, 17, 2] = number
    seen = window(23)[17] if masked else torch.arange(23) <= 17
    for name, grad in zip("qkv", torch.autograd.grad(result, (q, k, v), arriving), strict=True):
        assert grad[0].isfinite().all(), name
        rows = ~grad[1].isfinite().all(-1)
        assert rows[17], name
        # a query is felt by the rows of later blocks
        wanted = torch.arange(23) < 16 if name == "q" else seen
        assert rows[wanted].all(), name


def test_an_overwhelming_sink_is_tamed_in_time():
    # each block may lower it by a factor: after enough of them it has its share, and no more
    scores = toy(400, sink=30.0)
    plan = plan_of(scores, block=4)
    assert plan[:40, 0].mean() > 0.9
    assert plan[-100:, 0].mean() < 0.1
    torch.testing.assert_close(plan, plan_of(scores, block=4, backend="reference"))
    low = plan_of(scores.float(), block=4)
    torch.testing.assert_close(low.double(), plan, atol=1e-3, rtol=1e-3)


def train(n, batch=(), **options):
    q, k, v = (torch.randn(*batch, n, 4, requires_grad=True) for _ in range(3))

    def step():
        bistoch.causal_elastic_attention(q, k, v, backend="streaming", **options).sum().backward()

    return allocated_by(step)[1]


def test_memory_grows_linearly():
    small, large = train(1024), train(4096)
    assert large <= 4.5 * small
    # one float32 matrix of all scores would be 64 MiB
    assert large < 24 * MIB


def test_batch_and_heads_share_the_budget(monkeypatch):
    # the scores of one block of all heads would be 16 MiB, of which several would be alive
    monkeypatch.setattr("bistoch.functional.causal.streaming.BUDGET", 1 << 18)
    assert train(256, batch=(32, 8)) < 32 * MIB


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"block": 0}, ValueError, "block must be at least 1, but it is 0"),
        ({"block": 2.5}, TypeError, "block must be a whole number"),
        ({"prior": 0.0}, ValueError, "prior must be a positive number"),
        ({"lam": 1.5}, ValueError, "lam must be in [0, 1]"),
        ({"backend": "gpu"}, ValueError, "one of 'auto', 'reference', 'streaming', 'cpu'"),
    ],
)
def test_a_mistake_is_a_sentence(options, error, sentence):
    with pytest.raises(error) as caught:
        bistoch.causal_elastic_attention(*tokens(5), **options)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("causal_elastic_attention: ")
