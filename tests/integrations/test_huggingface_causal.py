"""Causal balance inside GPT-2 and Llama, with their caches: the same text however it is made."""

import copy

import pytest
import torch

from bistoch.integrations.huggingface import convert, converted_layers, register, restore
from bistoch.testing import assert_causal

CAUSAL = ("gpt2", "llama")
OPERATOR = "causal_elastic(lam=0.8, block=3)"
every_model = pytest.mark.parametrize("name", CAUSAL)


@pytest.fixture(name="build")
def build_sharp(build):
    """The maker of tiny models, with layers of GPT-2 that are felt beside its embeddings."""

    def make(name):
        model = build(name)
        for layer in model.modules():
            if type(layer).__name__ == "Conv1D":
                layer.weight.data.mul_(12)
        return model

    return make


def words(padding=None):
    torch.manual_seed(0)
    start = {"input_ids": torch.randint(3, 101, (3, 7))}
    if padding is not None:
        place, real = torch.arange(7), torch.tensor([7, 5, 2])[:, None]
        mask = place >= 7 - real if padding == "left" else place < real
        start["attention_mask"] = mask.long()
    return start


def write(model, start, **options):
    asked = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    return model.generate(**start, **asked | options)


@torch.no_grad()
def logits(model, start, **options):
    return model(**start, **options).logits


@every_model
@pytest.mark.parametrize("padding", [None, "left", "right"])
def test_without_elasticity_it_is_the_model(build, name, padding):
    model, start = build(name).double(), words(padding)
    expected, text = logits(model, start), write(model, start)
    convert(model, "causal_elastic(lam=0.0, block=3)")
    real = start.get("attention_mask", torch.ones(3, 7)).bool()
    found = logits(model, start)
    torch.testing.assert_close(found[real], expected[real], atol=1e-9, rtol=1e-9)
    if padding != "right":
        assert torch.equal(write(model, start), text)
    # a learned elasticity starts there
    found = logits(convert(restore(model), "causal_elastic(learn='head')"), start)
    torch.testing.assert_close(found[real], expected[real], atol=1e-9, rtol=1e-9)


@every_model
@pytest.mark.parametrize("padding", [None, "left"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_text_is_the_same_with_and_without_a_cache(build, name, padding, cache):
    model, start = convert(build(name).double(), OPERATOR), words(padding)
    expected = write(model, start, use_cache=False)
    assert torch.equal(write(model, start, cache_implementation=cache), expected)
    # balance is felt
    assert not torch.equal(write(restore(model), start), expected)


@every_model
def test_any_cut_gives_the_logits_of_one_call(build, name):
    from transformers import DynamicCache

    model, start = convert(build(name).double(), OPERATOR), words()["input_ids"]
    expected = logits(model, {"input_ids": start}, use_cache=False)
    for cuts in ([7], [1] * 7, [2, 4, 1]):
        cache, rows, first = DynamicCache(config=model.config), [], 0
        for size in cuts:
            part = {"input_ids": start[:, first : first + size]}
            rows.append(logits(model, part, past_key_values=cache))
            first += size
        torch.testing.assert_close(torch.cat(rows, 1), expected, atol=1e-9, rtol=1e-9)


@every_model
def test_beams_carry_their_state(build, name):
    model, start = convert(build(name).double(), OPERATOR), words("left")
    expected = write(model, start, num_beams=3, use_cache=False)
    assert torch.equal(write(model, start, num_beams=3), expected)


@every_model
def test_padding_is_invisible(build, name):
    model, start = convert(build(name).double(), OPERATOR), words("left")
    padded = write(model, start)
    for row, real in enumerate((7, 5, 2)):
        alone = {"input_ids": start["input_ids"][row : row + 1, 7 - real :]}
        assert torch.equal(write(model, alone)[0, real:], padded[row, 7:])


@every_model
def test_no_future_in_the_whole_model(build, name):
    model = convert(build(name), OPERATOR)
    tokens = torch.randn(2, 9, 32)
    assert_causal(lambda x: model(inputs_embeds=x, use_cache=False).logits, tokens)
    assert_causal(lambda x: model(inputs_embeds=x, use_cache=True).logits, tokens, at=4)


@every_model
def test_plans_are_returned_while_decoding(build, name):
    model, start = convert(build(name).double(), OPERATOR), words()["input_ids"]
    with torch.no_grad():
        whole = model(start, output_attentions=True, use_cache=False).attentions
        first = model(start[:, :5], output_attentions=True, use_cache=True)
        rest = model(start[:, 5:], output_attentions=True, past_key_values=first.past_key_values)
    for plan, head, tail in zip(whole, first.attentions, rest.attentions, strict=True):
        torch.testing.assert_close(head, plan[..., :5, :5])
        torch.testing.assert_close(tail, plan[..., 5:, :])


def test_some_heads_of_some_layers_decode(build):
    model, start = build("llama").double(), words("left")
    convert(model, OPERATOR, layers=[1], heads=[3, 0])
    expected = write(model, start, use_cache=False)
    assert torch.equal(write(model, start), expected)
    assert torch.equal(write(model, start, cache_implementation="static"), expected)
    assert torch.equal(write(copy.deepcopy(model), start), expected)


def test_restore_stops_watching(build):
    model = build("gpt2")
    layers = [block.attn for block in model.transformer.h]
    convert(convert(model, OPERATOR), OPERATOR)
    assert [len(layer._forward_pre_hooks) for layer in layers] == [1, 1]
    restore(model)
    assert [len(layer._forward_pre_hooks) for layer in layers] == [0, 0]
    assert not converted_layers(model)


def test_lam_is_learned(build):
    model, start = build("llama"), words()["input_ids"]
    convert(model, "causal_elastic(block=2)", lam=0.5)
    model(start, labels=start).loss.backward()
    for layer in converted_layers(model).values():
        assert layer.bistoch.operator.lam.grad.abs().min() > 0


def test_what_a_cache_cannot_do_is_said(build):
    from transformers import DynamicCache

    model, start = convert(build("llama"), OPERATOR), words()["input_ids"]
    cache = DynamicCache(config=model.config)
    logits(model, {"input_ids": start}, past_key_values=cache)
    cache.crop(-2)
    with pytest.raises(ValueError, match="remembers 7 tokens, but the cache held 5 before"):
        logits(model, {"input_ids": start[:, :1]}, past_key_values=cache)
    cache.reset()
    logits(model, {"input_ids": start}, past_key_values=cache)
    # without a place in the model there is nobody to keep a state
    register(OPERATOR)
    restore(model).set_attn_implementation(OPERATOR)
    expected = logits(convert(copy.deepcopy(model), OPERATOR), {"input_ids": start})
    torch.testing.assert_close(logits(model, {"input_ids": start}), expected)
    with pytest.raises(NotImplementedError, match="or swap causal_elastic in with convert"):
        write(model, {"input_ids": start})
