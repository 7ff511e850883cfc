"""Masks of transformers in every way in which they are written, and the scale of a model."""

import pytest
import torch

import bistoch
from bistoch.integrations.huggingface import convert
from bistoch.integrations.huggingface.interface import attend
from bistoch.integrations.huggingface.swapped import Swapped
from bistoch.nn.swap.masks import read_masks

REAL = torch.arange(7) < torch.tensor([[7], [4]])


class Layer(torch.nn.Module):
    """What transformers hands to an attention function."""

    is_causal = False
    config = None


def call(operator, q, k, v, mask=None, **options):
    swapped = Swapped(bistoch.nn.build_operator(operator, heads=3, size=5), None, 3, None)
    return attend(swapped, Layer(), q, k, v, mask, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("low", [-1e4, -1e9, None])
@pytest.mark.parametrize("whole", [False, True], ids=["keys", "pairs"])
def test_padding_however_it_is_written(dtype, low, whole):
    low = torch.finfo(dtype).min if low is None else low
    if low < torch.finfo(dtype).min:
        pytest.skip("the dtype has no such number")
    seen = REAL[:, None, None, :]
    seen = seen & REAL[:, None, :, None] if whole else seen
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, low)
    masks = read_masks(
        mask, None, queries=7, keys=7, causal=False, hide_queries=True, device=mask.device
    )
    assert masks["mask"] is None
    assert torch.equal(masks["query_mask"][:, 0], REAL)
    assert torch.equal(masks["key_mask"][:, 0], REAL)
    q, k, v = torch.randn(3, 2, 3, 7, 5).to(dtype).unbind()
    padded, _ = call("sinkhorn", q, k, v, mask)
    alone, _ = call("sinkhorn", *(x[1:, :, :4] for x in (q, k, v)))
    torch.testing.assert_close(padded[1:, :4], alone)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("operator", ["softmax", "elastic(lam=0.5)"])
def test_the_scale_of_a_model_is_not_rounded(operator, dtype):
    q, k, v = (4 * torch.randn(3, 2, 3, 7, 5)).to(dtype).unbind()
    layer = Layer()
    layer.config = type("Config", (), {"output_attentions": True})()
    swapped = Swapped(bistoch.nn.build_operator(operator, heads=3, size=5), None, 3, None)
    found = attend(swapped, layer, q, k, v, None, scaling=0.3)
    wanted = attend(swapped, layer, q.float(), k.float(), v.float(), None, scaling=0.3)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other.to(dtype), atol=0, rtol=0)


def test_masks_are_derived_once_per_forward(build, monkeypatch):
    from bistoch.integrations.huggingface import interface

    calls = []

    def counted(*arguments, **options):
        calls.append(arguments)
        return read_masks(*arguments, **options)

    monkeypatch.setattr(interface, "read_masks", counted)
    model = convert(build("llama"), "causal_elastic(block=4)")
    words, real = torch.randint(3, 101, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    real[0, :4] = 0
    for number in (1, 2):
        with torch.no_grad():
            model(words, attention_mask=real, use_cache=False)
        assert len(calls) == number


def test_a_mask_that_was_changed_is_read_again(build):
    model = convert(build("llama"), "causal_elastic(block=4)")
    words, mask = torch.randint(3, 101, (1, 9)), torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()
    with torch.no_grad():
        before = model(words, attention_mask=mask, use_cache=False)[0]
        mask[..., :3] = False
        mask[..., 0, 0] = True
        after = model(words, attention_mask=mask, use_cache=False)[0]
    assert not torch.allclose(before[:, -1], after[:, -1])
