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


def other_tokens(wrong, last, k, v):
    """The tokens of a next step, some of which are not those that the state belongs to."""
    some = {
        "dtype": [x.double() for x in (last, k, v)],
        "dtype of keys": [last, k.double(), v],
        "dtype of values": [last, k, v.double()],
        "batch": [x.repeat(5, 1, 1, 1) for x in (last, k, v)],
        "smaller batch": [x[:1] for x in (last, k, v)],
        "batch of keys": [last, k[:1].clone(), v],
        "batch of values": [last, k, v[:1].clone()],
        "heads": [last.repeat(1, 2, 1, 1), k, v],
        "heads of keys": [last, k.repeat(1, 3, 1, 1), v.repeat(1, 3, 1, 1)],
        "heads of values": [last, k, v[:, :1].clone()],
        "features": [last, k[..., :3].clone(), v],
        "length": [last, k[..., :8, :].clone(), v[..., :8, :].clone()],
        "length of values": [last, k, v[..., :8, :].clone()],
    }
    return some[wrong]


@pytest.mark.parametrize("wrong", [
    "dtype", "dtype of keys", "dtype of values", "batch", "smaller batch", "batch of keys",
    "batch of values", "heads", "heads of keys", "heads of values", "features", "length",
    "length of values",
])  # fmt: skip
def test_a_state_of_other_tokens_is_not_read(wrong):
    operator, q, k, v, state = after_eight_tokens()
    columns = state.columns.clone()
    other = other_tokens(wrong, q[..., 8:, :], k, v)
    assert operator.step_in_place(*other, state, scale=None, key_mask=None) is None
    assert state.length == 8
    assert torch.equal(state.columns, columns)


@pytest.mark.parametrize(("wrong", "sentence"), [
    ("batch", r"state must have the leading axes of the tokens, \(10, 2\), but it has \(2, 2\); "
              "choose its sequences with state.index_select as those of the cache"),
    ("heads", r"state must have the leading axes of the tokens, \(2, 4\), but it has \(2, 2\); "),
    ("length", "key and value must be the cache of all tokens, the 8 that the state has seen and "
               "the 1 new ones, but there are 8; append the new keys and values to the cache"),
    ("dtype of keys", "must have the dtype of query"),
    ("features", "must have the same number of features"),
])  # fmt: skip
def test_the_step_that_is_asked_instead_says_what_is_wrong(wrong, sentence):
    operator, q, k, v, state = after_eight_tokens()
    last, k, v = other_tokens(wrong, q[..., 8:, :], k, v)
    if wrong == "heads":
        k, v = (x.repeat(1, 2, 1, 1) for x in (k, v))
    with pytest.raises((ValueError, TypeError), match=f"^causal_elastic_step: .*{sentence}"):
        operator.step(last, k, v, state.state)


def test_the_step_that_is_asked_instead_converts_a_state_of_other_dtype():
    operator, q, k, v, state = after_eight_tokens()
    last, k, v = other_tokens("dtype", q[..., 8:, :], k, v)
    row, after = operator.step(last, k, v, state.state)
    assert row.dtype == after.bias.dtype == torch.float64
    torch.testing.assert_close(row, operator(q.double(), k, v)[..., 8:, :], rtol=1e-5, atol=1e-6)


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
