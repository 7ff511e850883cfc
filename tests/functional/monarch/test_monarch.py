"""Monarch matrices: the published updates as an oracle, known answers, masks, memory."""

import inspect
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bistoch
from bistoch.lab.bench.memory import allocated_by, largest_allocation

MIB = 1 << 20


def tokens(n, m, d=5, e=3, batch=(2, 3), dtype=torch.float64):
    return (
        torch.randn(*batch, n, d, dtype=dtype),
        torch.randn(*batch, m, d, dtype=dtype),
        torch.randn(*batch, m, e, dtype=dtype),
    )


def fourier_tokens(n=256, d=32, seed=0):
    """Queries and keys that like their own position, with noise."""
    generator = torch.Generator().manual_seed(seed)
    frequency = 2 * math.pi * torch.arange(1, d // 2 + 1, dtype=torch.float64) / n
    phase = torch.arange(n, dtype=torch.float64)[:, None] * frequency
    noise = torch.randn(2, n, d, generator=generator, dtype=torch.float64)
    query, key = 1.2 * torch.cat([phase.sin(), phase.cos()], -1) + 0.5 * noise
    return query, key + 0.6


def published_updates(query, key, block, iters):
    """The update rules of the paper, index by index as they are printed there."""
    n, d = query.shape
    count = n // block
    q = query.reshape(count, block, d).transpose(0, 1) / math.sqrt(d)
    k = key.reshape(count, block, d)
    left = torch.eye(count, dtype=query.dtype).expand(block, count, count)
    for _ in range(iters):
        asked = torch.einsum("jkl,jld->kjd", left, q)
        mass = torch.einsum("jkl->kj", left)
        right = (torch.einsum("kjd,kid->kji", asked, k) / mass[..., None]).softmax(-1)
        answer = torch.einsum("kji,kid->jkd", right, k)
        negative_entropy = (right * right.log()).sum(-1).mT
        left = (torch.einsum("jkd,jld->jkl", answer, q) - negative_entropy[..., None]).softmax(1)
    return torch.einsum("jkl,kji->ljki", left, right).reshape(n, n)


@pytest.mark.parametrize("iters", [1, 2, 5])
@pytest.mark.parametrize(("n", "block"), [(12, 3), (12, 4), (35, 5)])
def test_it_is_the_published_algorithm(n, block, iters):
    q, k, _ = tokens(n, n, batch=())
    plan = bistoch.monarch_plan(q, k, block=block, iters=iters)
    torch.testing.assert_close(plan, published_updates(q, k, block, iters))


@pytest.mark.parametrize(("n", "m"), [(7, 7), (7, 11), (11, 7), (1, 13)])
def test_blocks_of_one_and_one_block_are_softmax(n, m):
    q, k, v = tokens(n, m)
    wanted = bistoch.softmax_attention(q, k, v)
    for block in (1, max(n, m), 100):
        torch.testing.assert_close(bistoch.monarch_attention(q, k, v, block=block), wanted)


def test_a_block_far_larger_than_the_sequence_costs_nothing():
    q, k, v = tokens(7, 5, batch=(), dtype=torch.float32)
    assert allocated_by(lambda: bistoch.monarch_attention(q, k, v, block=1 << 40))[1] < 1 * MIB


def test_a_plan_is_of_rank_one_for_every_place_and_block():
    q, k, _ = tokens(15, 12, batch=())
    plan = bistoch.monarch_plan(q, k, block=3).reshape(5, 3, 4, 3)
    assert torch.linalg.matrix_rank(plan.permute(1, 2, 0, 3), rtol=1e-9).eq(1).all()


def test_the_identity_is_a_monarch_matrix_and_is_found():
    x = 40 * torch.eye(11, dtype=torch.float64)
    for pad in ("pre", "post"):
        plan = bistoch.monarch_plan(x, x, iters=1, block=4, pad=pad)
        torch.testing.assert_close(plan, torch.eye(11, dtype=torch.float64))


@pytest.mark.parametrize(("n", "m"), [(16, 16), (13, 17)])
def test_every_update_raises_the_objective_and_softmax_is_its_bound(n, m):
    q, k, _ = tokens(n, m, batch=())
    scores = 3 * q @ k.T

    def objective(plan):
        return (plan * scores).sum() + torch.special.entr(plan).sum()

    values = [objective(bistoch.monarch_plan(q, k, scale=3.0, iters=t)) for t in (1, 2, 3, 6, 12)]
    assert all(later >= earlier - 1e-12 for earlier, later in itertools.pairwise(values))
    assert values[-1] < scores.logsumexp(-1).sum()


def test_the_error_falls_with_the_updates_as_published():
    # 256 tokens in 16 blocks of 16; the numbers were measured elsewhere, with another seed
    q, k = fourier_tokens()
    softmax = bistoch.softmax_plan(q, k)
    errors = [
        ((bistoch.monarch_plan(q, k, iters=t) - softmax).norm() / softmax.norm()).item()
        for t in (1, 2, 3, 5, 10)
    ]
    assert errors == pytest.approx([0.543, 0.425, 0.410, 0.403, 0.400], abs=0.03)
    assert errors == sorted(errors, reverse=True)
    # the best matrix of rank 16 has as many numbers, and is further away
    singular = torch.linalg.svdvals(softmax)
    assert singular[16:].norm() / singular.norm() > 0.65


def test_blocks_should_be_the_rows_of_an_image():
    # elsewhere, on activations of a video model: 0.12 for blocks along its grid, 0.76 for others
    wave = torch.arange(16, dtype=torch.float64)[:, None] * math.pi * torch.arange(1, 9) / 16
    wave = torch.cat([wave.sin(), wave.cos()], -1)
    place = torch.cat([x.expand(16, 16, 16) for x in (wave[:, None], wave[None])], -1).flatten(0, 1)
    q, k = 1.2 * (place + 0.1 * torch.randn(2, 256, 32, dtype=torch.float64))
    softmax = bistoch.softmax_plan(q, k)
    errors = {
        block: (bistoch.monarch_plan(q, k, block=block) - softmax).norm() / softmax.norm()
        for block in (15, 16, 17)
    }
    assert errors[16] < 0.12
    assert min(errors[15], errors[17]) > 0.5


@pytest.mark.parametrize("pad", ["post", "pre"])
@pytest.mark.parametrize(("n", "m"), [(10, 10), (5, 13), (13, 5)])
def test_padding_is_invisible_for_a_fixed_block(n, m, pad):
    q, k, v = tokens(n, m)
    wanted = bistoch.monarch_attention(q, k, v, block=4, pad=pad)

    def padded(x, more):
        filling = torch.randn(*x.shape[:-2], more, x.shape[-1], dtype=x.dtype)
        return torch.cat([x, filling] if pad == "post" else [filling, x], -2)

    def real(length, more):
        mask = torch.arange(length + more) < length
        return mask if pad == "post" else mask.flip(0)

    result = bistoch.monarch_attention(
        padded(q, 7), padded(k, 9), padded(v, 9), block=4, pad=pad,
        query_mask=real(n, 7), key_mask=real(m, 9),
    )  # fmt: skip
    torch.testing.assert_close(result[..., real(n, 7), :], wanted)
    assert not result[..., ~real(n, 7), :].any()


def test_pre_padding_makes_the_first_block_short():
    q, k, _ = tokens(10, 10, batch=())
    plan = bistoch.monarch_plan(q, k, block=4, pad="pre")
    # blocks 0..1, 2..5, 6..9: rows 0 and 4 are both third in their block, 0 and 1 are not
    assert torch.linalg.matrix_rank(plan[[0, 4]][:, 2:6], rtol=1e-9) == 1
    assert torch.linalg.matrix_rank(plan[[0, 1]][:, 2:6], rtol=1e-9) == 2
    post = bistoch.monarch_plan(q, k, block=4)
    assert torch.linalg.matrix_rank(post[[0, 4]][:, 2:6], rtol=1e-9) == 2


@pytest.mark.parametrize("iters", [1, 3])
def test_empty_blocks_are_no_trouble(iters):
    q, k, v = (t.requires_grad_() for t in tokens(16, 16, batch=(3,)))
    key_mask = torch.ones(3, 16, dtype=torch.bool)
    # a block in the middle, all but one key, all
    key_mask[0, 4:8], key_mask[1, 1:], key_mask[2] = False, False, False
    query_mask = key_mask.flip(-1)
    query_mask[2, 5] = True
    masks = {"key_mask": key_mask, "query_mask": query_mask}
    plan = bistoch.monarch_plan(q, k, iters=iters, **masks)
    assert not plan[~(query_mask[..., None] & key_mask[:, None, :])].any()
    torch.testing.assert_close(
        plan.sum(-1), (query_mask & key_mask.any(-1, keepdim=True)).to(plan.dtype)
    )
    bistoch.monarch_attention(q, k, v, iters=iters, **masks).square().sum().backward()
    assert all(t.grad.isfinite().all() for t in (q, k, v))
    assert not k.grad[~key_mask].any()


def test_a_mask_that_all_queries_share_hides_and_biases_keys():
    q, k, v = tokens(13, 11)
    hidden = torch.rand(2, 1, 11) > 0.4
    wanted = bistoch.monarch_attention(q, k, v, key_mask=hidden)
    bias = torch.randn(11, dtype=torch.float64)
    for mask in (hidden[..., None, :], torch.where(hidden[..., None, :], 0.0, -torch.inf)):
        torch.testing.assert_close(bistoch.monarch_attention(q, k, v, mask=mask), wanted)
    # a bias is one more feature of the keys, of which every query has one
    wider = torch.cat([q, torch.ones_like(q[..., :1])], -1)
    biased = torch.cat([k, bias[:, None].expand(2, 3, 11, 1)], -1)
    torch.testing.assert_close(
        bistoch.monarch_attention(q, k, v, mask=bias, scale=1.0),
        bistoch.monarch_attention(wider, biased, v, scale=1.0),
    )


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_rows_sum_to_one_and_gradients_are_finite(data):
    n, m, seed = (data.draw(st.integers(0, top)) for top in (9, 9, 2**31))
    generator = torch.Generator().manual_seed(seed)
    size = data.draw(st.sampled_from([0.0, 1.0, 30.0, 1e4]))
    q, k, v = (size * torch.randn(2, length, 3, generator=generator) for length in (n, m, m))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    options = {
        "iters": data.draw(st.integers(1, 4)),
        "block": data.draw(st.sampled_from([None, 1, 2, 3, 5])),
        "pad": data.draw(st.sampled_from(["pre", "post"])),
        "query_mask": torch.rand(2, n, generator=generator)
        < data.draw(st.sampled_from([0.5, 1.0])),
        "key_mask": torch.rand(2, m, generator=generator) < data.draw(st.sampled_from([0.3, 1.0])),
    }
    allowed = options["query_mask"][..., None] & options["key_mask"][:, None, :]
    for name, more in (("monarch", {}), ("elastic_monarch", {"lam": data.draw(st.floats(0, 1))})):
        row = bistoch.OPERATORS[name]
        plan = row.plan(q, k, **options, **more)
        assert (plan >= 0).all()
        assert not plan[~allowed].any()
        torch.testing.assert_close(plan.sum(-1), allowed.any(-1).float(), atol=1e-5, rtol=0)
        result = row.attention(q, k, v, **options, **more)
        torch.testing.assert_close(result, plan @ v, atol=1e-4 * max(size, 1), rtol=1e-4)
        gradients = torch.autograd.grad(result.sum(), leaves)
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_large_scores_in_low_precision():
    q, k, v = tokens(13, 11, dtype=torch.float32)
    plan = bistoch.monarch_plan(1e4 * q, k)
    assert plan.isfinite().all()
    torch.testing.assert_close(plan.sum(-1), torch.ones(2, 3, 13))
    exact = bistoch.monarch_attention(q.half().double(), k.half().double(), v.half().double())
    half = bistoch.monarch_attention(q.half(), k.half(), v.half())
    torch.testing.assert_close(half.double(), exact, atol=2e-3, rtol=2e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = bistoch.monarch_attention(q, k, v)
    torch.testing.assert_close(inside, bistoch.monarch_attention(q, k, v))


def test_the_gradient_is_the_same_whether_steps_are_kept_or_computed_again(monkeypatch):
    q, k, v = (t.requires_grad_() for t in tokens(7, 11, batch=(2,)))
    key_mask = torch.arange(11) < 9
    eps = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)

    def attend(q, k, v, eps):
        return bistoch.monarch_attention(q, k, v, eps=eps, iters=3, key_mask=key_mask)

    kept = torch.autograd.grad(attend(q, k, v, eps).square().sum(), (q, k, v, eps))
    monkeypatch.setattr("bistoch.functional._recompute.FEW", 0)
    again = torch.autograd.grad(attend(q, k, v, eps).square().sum(), (q, k, v, eps))
    torch.testing.assert_close(again, kept)
    assert torch.autograd.gradcheck(attend, (q, k, v, eps), fast_mode=True)


@pytest.mark.parametrize("name", ["monarch", "elastic_monarch"])
def test_memory_is_far_below_a_matrix(name):
    n, d = 4096, 8
    q, k, v = (torch.randn(n, d, requires_grad=True) for _ in range(3))
    real = torch.arange(n) < n - 100
    attention = bistoch.OPERATORS[name].attention

    def train():
        attention(q, k, v, query_mask=real, key_mask=real).sum().backward()

    # a matrix of all pairs is 64 MiB, a factor of 64 x 64 x 64 is 1 MiB. The largest piece is the
    # workspace of the backward, which is linear in n: of each number of a token it has seven
    # (tokens, values, results and their gradients), as many of the mean of a group or a block in
    # its place, and 24 numbers of every key and query; 2.1 MiB here
    assert largest_allocation(train) <= (14 * d + 25) * n * 4
    assert allocated_by(train)[1] < 20 * MIB


def test_memory_grows_more_slowly_than_a_matrix():
    def train(n):
        q, k, v = (torch.randn(n, 8, requires_grad=True) for _ in range(3))
        return allocated_by(lambda: bistoch.monarch_attention(q, k, v).sum().backward())[1]

    # n sqrt(n): four times the length, eight times the memory
    assert train(4096) < 9 * train(1024)


attend = inspect.unwrap(bistoch.monarch_attention)


@pytest.mark.parametrize(("change", "error", "sentence"), [
    ({"iters": 0}, ValueError, "iters must be at least 1, but it is 0"),
    ({"block": 0}, ValueError, "block must be at least 1"),
    ({"block": 2.0}, TypeError, "block must be a whole number"),
    ({"pad": "both"}, ValueError, "pad must be one of 'post', 'pre', but it is 'both'"),
    ({"mask": torch.ones(7, 11, dtype=torch.bool)}, ValueError,
     r"mask must be the same for all queries.*not from some; but its shape is \(7, 11\).*key_mask"),
    ({"mask": torch.ones(1, 12)}, ValueError, "mask must broadcast to the scores"),
    ({"eps": 0.0}, ValueError, "eps must be positive"),
])  # fmt: skip
def test_errors_teach(change, error, sentence):
    q, k, v = tokens(7, 11)
    with pytest.raises(error, match=f"^monarch_attention: .*{sentence}"):
        attend(q, k, v, **change)
