"""Decoding in place: rows and state of `step` without a copy, for heads that share keys."""

import pytest
import torch

from bistoch.functional import CausalState
from bistoch.functional.causal.growing import GrowingState
from bistoch.nn import CausalElastic


def tokens(n, heads=6, shared=2, size=5, batch=2):
    q = torch.randn(batch, n, heads, size, dtype=torch.float64).transpose(1, 2)
    k, v = (torch.randn(batch, shared, n, size, dtype=torch.float64) for _ in range(2))
    return q, k, v


def repeated(x, heads=6):
    return x.repeat_interleave(heads // x.shape[1], 1)


def assert_same(state, expected):
    for name, found, wanted in zip(CausalState._fields, state, expected, strict=True):
        torch.testing.assert_close(found, wanted, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("prefill", [1, 7, 8, 29])
@torch.no_grad()
def test_rows_and_state_are_those_of_steps(prefill):
    operator = CausalElastic(lam=torch.rand(6).double(), block=8, eps=0.7)
    q, k, v = tokens(150)
    expected, wanted = operator.step(
        q[:, :, :prefill], *(repeated(x)[:, :, :prefill] for x in (k, v))
    )
    some = (x[:, :, :prefill] for x in (q, k, v))
    rows, state = operator.step_in_place(*some, None, scale=None, key_mask=None)
    torch.testing.assert_close(rows, expected)
    # enough tokens for memory that is doubled, and for many blocks
    for t in range(prefill, 150):
        cache = [x[:, :, : t + 1] for x in (k, v)]
        expected, wanted = operator.step(q[:, :, t : t + 1], *map(repeated, cache), wanted)
        held = state
        row, state = operator.step_in_place(
            q[:, :, t : t + 1], *cache, state, scale=None, key_mask=None
        )
        assert state is held
        torch.testing.assert_close(row, expected)
    assert_same(state.state, wanted)


@torch.no_grad()
def test_padding_is_not_seen():
    operator, (q, k, v) = CausalElastic(block=4), tokens(30)
    real = torch.ones(2, 1, 30, dtype=torch.bool)
    real[0, :, :5], real[1, :, 20:23] = False, False
    state = wanted = None
    for t in range(30):
        key, value, mask = k[:, :, : t + 1], v[:, :, : t + 1], real[..., : t + 1]
        own = {"key_mask": mask, "query_mask": mask[..., t:]}
        expected, wanted = operator.step(
            q[:, :, t : t + 1], repeated(key), repeated(value), wanted, **own
        )
        if state is None:
            # a beginning with padding is left to the steps
            begin = q[:, :, :1], key, value, None
            assert operator.step_in_place(*begin, scale=None, key_mask=mask) is None
            state = GrowingState.of(wanted, key)
            continue
        row, state = operator.step_in_place(
            q[:, :, t : t + 1], key, value, state, scale=None, key_mask=mask
        )
        torch.testing.assert_close(row, expected)
    assert_same(state.state, wanted)
    chosen = torch.tensor([1, 1, 0])
    assert_same(state.index_select(0, chosen).state, wanted.index_select(0, chosen))


@torch.no_grad()
def test_what_is_not_a_number_is_left_to_the_steps():
    operator, (q, k, v) = CausalElastic(), tokens(9)
    _, state = operator.step_in_place(
        *(x[:, :, :8] for x in (q, k, v)), None, scale=None, key_mask=None
    )
    before = [x.clone() for x in state.state]
    for broken in range(3):
        given = [q[:, :, 8:].clone(), k.clone(), v.clone()]
        given[broken][..., -1, 0] = torch.nan
        assert operator.step_in_place(*given, state, scale=None, key_mask=None) is None
        assert_same(state.state, before)


def test_gradients_are_left_to_the_steps():
    operator, (q, k, v) = CausalElastic(), tokens(9)
    assert operator.step_in_place(q.requires_grad_(), k, v, None, scale=None, key_mask=None) is None


def after_eight_tokens():
    operator = CausalElastic(block=4)
    q, k, v = torch.randn(3, 2, 2, 9, 4, generator=torch.Generator().manual_seed(0)).unbind()
    first = (x[..., :8, :] for x in (q, k, v))
    _, state = operator.step_in_place(*first, None, scale=None, key_mask=None)
    return operator, q, k, v, state


@pytest.mark.parametrize("wrong", ["dtype", "batch", "length"])
def test_a_state_of_other_tokens_is_not_read(wrong):
    operator, q, k, v, state = after_eight_tokens()
    last = q[..., 8:, :]
    if wrong == "dtype":
        last, k, v = last.double(), k.double(), v.double()
    elif wrong == "batch":
        last, k, v = (x.repeat(5, 1, 1, 1) for x in (last, k, v))
    else:
        k, v = k[..., :8, :].clone(), v[..., :8, :].clone()
    assert operator.step_in_place(last, k, v, state, scale=None, key_mask=None) is None
    assert state.length == 8


def test_nan_in_values_of_padding_is_left_to_the_other_path():
    operator, q, k, v, _ = after_eight_tokens()
    real = torch.ones(2, 1, 9, dtype=torch.bool)
    real[0, :, :3] = False
    v[0, :, :3] = torch.nan
    first = {"query_mask": real[..., :8], "key_mask": real[..., :8]}
    _, state = operator.step(q[..., :8, :], k[..., :8, :], v[..., :8, :], **first)
    row, _ = operator.step(q[..., 8:, :], k, v, state, query_mask=real[..., 8:], key_mask=real)
    assert row.isfinite().all()
    found = operator.step_in_place(q[..., 8:, :], k, v, state, scale=None, key_mask=real)
    assert found is None
