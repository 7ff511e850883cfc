"""Decoding: however a sequence is cut into steps, the rows are those of one call."""

import pytest
import torch

import bistoch
from bistoch.functional.causal import BACKENDS as ALL
from bistoch.functional.causal.decode import RUN as ALL_STEPS

N, D, BLOCK = 29, 5, 4
# `gpu` has tests of the kernels, which take seconds in Triton's interpreter
BACKENDS, RUN = (tuple(x for x in names if x != "triton") for names in (ALL, ALL_STEPS))
CUTS = {
    "token by token": [1] * N,
    "aligned": [8, 4, 4, 12, 1],
    "not aligned": [3, 7, 1, 11, 7],
    "all at once": [N],
    "prompt and tokens": [13, *[1] * 16],
}
every_cut = pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS.keys())


def tokens(batch=(2, 3), dtype=torch.float64):
    return torch.randn(3, *batch, N, D, dtype=dtype).unbind()


def decode(cuts, q, k, v, *, cache="growing", key_mask=None, mask=None, **options):
    """Run in steps, with a cache that grows or one of fixed size whose rest is rubbish."""
    rows, state, first = [], None, 0
    for size in cuts:
        last = first + size
        held = last if cache == "growing" else N
        keys, values = k[..., :held, :].clone(), v[..., :held, :].clone()
        keys[..., last:, :], values[..., last:, :] = torch.nan, torch.nan
        row, state = bistoch.causal_elastic_step(
            q[..., first:last, :], keys, values, state, block=BLOCK,
            key_mask=None if key_mask is None else key_mask[..., :held],
            mask=None if mask is None else mask[..., first:last, :held], **options,
        )  # fmt: skip
        rows.append(row)
        first = last
    return torch.cat(rows, -2), state


@every_cut
@pytest.mark.parametrize("cache", ["growing", "static"])
@pytest.mark.parametrize("backend", RUN)
@pytest.mark.parametrize("whole", BACKENDS)
def test_any_cut_is_one_call(cuts, cache, backend, whole):
    q, k, v = tokens()
    wanted = bistoch.causal_elastic_attention(q, k, v, block=BLOCK, backend=whole)
    found, state = decode(cuts, q, k, v, cache=cache, backend=backend)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)
    assert state.length == N
    assert (state.position == N).all()


@every_cut
@pytest.mark.parametrize("padding", ["left", "right", "between"])
@pytest.mark.parametrize("pattern", [False, True], ids=["", "window"])
def test_any_cut_with_padding(cuts, padding, pattern):
    place = torch.arange(N)
    real = {
        "left": place >= torch.tensor([6, 0])[:, None],
        "right": place < torch.tensor([N, 11])[:, None],
        "between": place % torch.tensor([3, 5])[:, None] != 1,
    }[padding][:, None]
    mask = (place[:, None] - place < 9) if pattern else None
    q, k, v = tokens()
    wanted = bistoch.causal_elastic_attention(q, k, v, block=BLOCK, key_mask=real, mask=mask)
    found, state = decode(cuts, q, k, v, key_mask=real, mask=mask)
    torch.testing.assert_close(found, wanted)
    assert torch.equal(state.position, real.sum(-1).expand(2, 3))


def test_states_are_the_same_after_any_cut():
    q, k, v = tokens()
    states = [decode(cuts, q, k, v)[1] for cuts in CUTS.values()]
    for state in states[1:]:
        for one, other in zip(state, states[0], strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("backend", RUN)
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_any_cut_of_a_broken_sequence_is_one_call(backend, number):
    for place in range(3):
        leaves = [x.clone() for x in tokens()]
        leaves[place][1, 2, 6, -1] = number
        wanted = bistoch.causal_elastic_attention(*leaves, block=BLOCK, backend=backend)
        assert torch.equal(wanted[1, 2].isnan().any(-1), torch.arange(N) >= 6)
        for cuts in CUTS.values():
            found, state = decode(cuts, *leaves, backend=backend)
            torch.testing.assert_close(found, wanted, equal_nan=True)
            assert state.level.isnan().sum() == 1
            assert state.level[1, 2].isnan()


def test_a_broken_state_is_not_healed_by_padding():
    q, k, v = tokens()
    q[1, 2, 6] = torch.nan
    real = (torch.arange(N) < 9).expand(2, 3, N)
    found, _ = decode([9, 5, 15], q, k, v, key_mask=real)
    assert not found[..., 9:, :].any()
    real = (torch.arange(N) < 9) | (torch.arange(N) >= 14)
    found, _ = decode([9, 5, 15], q, k, v, key_mask=real.expand(2, 3, N))
    assert found[1, 2, 14:].isnan().all()


def test_beams_are_reordered_with_the_cache():
    q, k, v = tokens()
    order, half = torch.tensor([1, 0, 1, 1]), 13
    _, state = decode([half], q[..., :half, :], k[..., :half, :], v[..., :half, :])
    q, k, v = (x.index_select(0, order) for x in (q, k, v))
    rest, _ = bistoch.causal_elastic_step(
        q[..., half:, :], k, v, state.index_select(0, order), block=BLOCK
    )
    wanted = bistoch.causal_elastic_attention(q, k, v, block=BLOCK)
    torch.testing.assert_close(rest, wanted[..., half:, :])


def test_low_precision_keeps_a_precise_state():
    q, k, v = tokens(dtype=torch.bfloat16)
    found, state = decode(CUTS["not aligned"], q, k, v)
    assert found.dtype == torch.bfloat16
    assert state.bias.dtype == torch.float32
    wanted = bistoch.causal_elastic_attention(q, k, v, block=BLOCK)
    torch.testing.assert_close(found, wanted, atol=1e-2, rtol=1e-2)


def test_a_gradient_crosses_steps():
    q, k, v = (x.requires_grad_() for x in tokens((2,)))
    found = decode([9, 20], q, k, v)[0]
    wanted = bistoch.causal_elastic_attention(q, k, v, block=BLOCK)
    slopes = [torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (found, wanted)]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other)


def test_no_new_token_changes_nothing():
    q, k, v = tokens()
    _, state = decode([9], q[..., :9, :], k[..., :9, :], v[..., :9, :])
    rows, after = bistoch.causal_elastic_step(
        q[..., :0, :], k[..., :9, :], v[..., :9, :], state, block=BLOCK
    )
    assert rows.shape == (2, 3, 0, D)
    assert all(torch.equal(one, other) for one, other in zip(state, after, strict=True))


def test_kernels_for_whole_sequences_refuse_steps():
    q, k, v = tokens()
    with pytest.raises(bistoch.BackendUnavailableError, match=r'not steps; choose backend="auto"'):
        bistoch.causal_elastic_step(q, k, v, backend="cpu")


def test_mistakes_are_sentences():
    q, k, v = tokens()
    _, state = bistoch.causal_elastic_step(q[..., :9, :], k, v)
    with pytest.raises(ValueError, match="the 9 that the state has seen and the 3 new ones, but"):
        bistoch.causal_elastic_step(q[..., :3, :], k[..., :11, :], v[..., :11, :], state)
    with pytest.raises(ValueError, match="choose its sequences with"):
        bistoch.causal_elastic_step(q[:1, :, :3], k[:1], v[:1], state)
    with pytest.raises(ValueError, match="one of the 2 leading axes"):
        state.index_select(2, torch.tensor([0]))


# what looks like half a padding mask is meant as a bias here
@pytest.mark.filterwarnings("ignore:.*without query_mask:bistoch.PaddingWarning")
@pytest.mark.parametrize("low", [-1e4, torch.finfo(torch.float32).min])
def test_a_low_bias_hides_a_pair_whatever_later_keys_have(low):
    q, k, v = torch.randn(3, 5, 4).unbind()
    bias = torch.tensor([low, low, 0.0, low, 0.0])
    whole = bistoch.causal_elastic_attention(q, k, v, mask=bias, block=2)
    hidden = bistoch.causal_elastic_attention(q, k, v, mask=bias == 0, block=2)
    assert torch.equal(whole, hidden)
    rows, state = [], None
    for t in range(5):
        row, state = bistoch.causal_elastic_step(
            q[t : t + 1], k[: t + 1], v[: t + 1], state, mask=bias[: t + 1], block=2
        )
        rows.append(row)
    torch.testing.assert_close(torch.cat(rows), whole)


def test_steps_of_an_empty_batch():
    x = torch.zeros(0, 4, 2)
    _, state = bistoch.causal_elastic_step(x[:, :2], x, x)
    rows, state = bistoch.causal_elastic_step(x[:, 2:], x, x, state)
    assert rows.shape == (0, 2, 2)
    assert state.bias.shape == (0, 4)


def test_a_mask_for_other_keys_is_refused():
    x = torch.zeros(5, 2)
    # of the tokens so far, or of a cache that is not filled yet
    for size in (3, 5):
        bistoch.causal_elastic_step(x[:3], x, x, key_mask=torch.ones(size, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"^causal_elastic_step: key_mask must broadcast.*\(9,\)"):
        bistoch.causal_elastic_step(x[:3], x, x, key_mask=torch.ones(9, dtype=torch.bool))
