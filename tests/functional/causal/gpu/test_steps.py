"""Decoding by the Triton kernels: however a sequence is cut, rows are those of one call."""

import pytest
import torch

import bistoch
from bistoch.functional.kernels.gpu import record_launches
from precision import assert_as_good

N, D, BLOCK = 17, 5, 4
CUTS = {
    "prompt and tokens": [9, *[1] * 8],
    "token by token": [1] * N,
    "not aligned": [3, 7, 1, 6],
    "all at once": [N],
}
every_cut = pytest.mark.parametrize(
    "cuts",
    [pytest.param(cut, marks=[pytest.mark.slow] if i else [], id=name)
     for i, (name, cut) in enumerate(CUTS.items())],
)  # fmt: skip
pytestmark = pytest.mark.usefixtures("small_tiles")


def tokens(batch=(2,), dtype=torch.float64):
    return torch.randn(3, *batch, N, D, dtype=dtype).unbind()


def decode(cuts, q, k, v, *, key_mask=None, mask=None, backend="triton", held=None, **options):
    """Run in steps, with a cache that grows or one of fixed size whose rest is rubbish."""
    rows, state, first = [], None, 0
    for size in cuts:
        last = first + size
        stop = held or last
        keys, values = k[..., :stop, :].clone(), v[..., :stop, :].clone()
        keys[..., last:, :], values[..., last:, :] = torch.nan, torch.nan
        row, state = bistoch.causal_elastic_step(
            q[..., first:last, :], keys, values, state, block=BLOCK,
            key_mask=None if key_mask is None else key_mask[..., :stop],
            mask=None if mask is None else mask[..., first:last, :stop], backend=backend, **options,
        )  # fmt: skip
        rows.append(row)
        first = last
    return torch.cat(rows, -2), state


@every_cut
def test_any_cut_is_one_call(cuts):
    q, k, v = tokens()
    lam = torch.tensor([0.6, 1.0], dtype=torch.float64)
    wanted = bistoch.causal_elastic_attention(q, k, v, lam=lam, block=BLOCK, backend="reference")
    found, state = decode(cuts, q, k, v, lam=lam, held=N)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)
    _, other = decode(cuts, q, k, v, lam=lam, backend="reference")
    for one, two in zip(state, other, strict=True):
        torch.testing.assert_close(one, two, atol=1e-12, rtol=1e-12)


@pytest.mark.slow
@every_cut
@pytest.mark.parametrize("padding", ["left", "right", "between"])
@pytest.mark.parametrize("kind", ["none", "window", "bias"])
def test_any_cut_with_padding(cuts, padding, kind):
    place = torch.arange(N)
    real = {
        "left": place >= torch.tensor([6, 0])[:, None],
        "right": place < torch.tensor([N, 7])[:, None],
        "between": place % torch.tensor([3, 5])[:, None] != 1,
    }[padding]
    masks = {"none": None, "window": place[:, None] - place < 9, "bias": torch.randn(N, N)}
    q, k, v = tokens()
    options = {"key_mask": real, "mask": masks[kind]}
    wanted = bistoch.causal_elastic_attention(q, k, v, block=BLOCK, **options)
    found, state = decode(cuts, q, k, v, **options)
    torch.testing.assert_close(found, wanted)
    assert torch.equal(state.position, real.sum(-1))


@pytest.mark.slow
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_any_cut_of_a_broken_sequence_is_one_call(number):
    q, k, v = tokens()
    k[1, 6, -1] = number
    wanted = bistoch.causal_elastic_attention(q, k, v, block=BLOCK, backend="reference")
    for cuts in CUTS.values():
        found, state = decode(cuts, q, k, v)
        torch.testing.assert_close(found, wanted, equal_nan=True)
        assert state.level.isnan().tolist() == [False, True]


def test_half_precision_keeps_a_precise_state():
    q, k, v = tokens(dtype=torch.bfloat16)
    found, state = decode([9, 1, 7], q, k, v)
    wanted, other = decode([9, 1, 7], q, k, v, backend="reference")
    exact, _ = decode([9, 1, 7], q.double(), k.double(), v.double(), backend="reference")
    assert found.dtype == torch.bfloat16
    assert_as_good(("result",), [[exact]], [[wanted]], [[found]], terms=17)
    assert state.bias.dtype == torch.float32
    torch.testing.assert_close(state.bias, other.bias)


def test_a_token_is_three_launches_whatever_the_cache_holds():
    q, k, v = torch.randn(3, 2, 8, 4096, 16).unbind()
    with record_launches(run=False) as launches:
        _, state = bistoch.causal_elastic_step(
            q[..., :128, :], k[..., :128, :], v[..., :128, :], backend="triton"
        )
    # two blocks of a prompt
    assert len(launches) == 2 * 3
    zeros = torch.zeros(2, 8, 4095)
    state = bistoch.CausalState(
        zeros, zeros, zeros + 1, zeros[..., 0], torch.full((2, 8), 4095)
    )  # fmt: skip
    with record_launches(run=False) as launches:
        bistoch.causal_elastic_step(q[..., -1:, :], k, v, state, backend="triton")
    assert [x.kernel.__name__ for x in launches] == [
        "step_rows_kernel", "step_keys_kernel", "step_close_kernel",
    ]  # fmt: skip


def test_a_gradient_is_refused():
    q, k, v = tokens()
    q.requires_grad_()
    with pytest.raises(NotImplementedError, match=r"no gradient.*torch\.no_grad"):
        bistoch.causal_elastic_step(q, k, v, backend="triton")


def test_steps_of_an_empty_batch():
    x = torch.zeros(0, 4, 2)
    _, state = bistoch.causal_elastic_step(x[:, :2], x, x, backend="triton")
    rows, state = bistoch.causal_elastic_step(x[:, 2:], x, x, state, backend="triton")
    assert rows.shape == (0, 2, 2)
    assert state.bias.shape == (0, 4)
