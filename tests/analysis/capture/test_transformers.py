"""Models of transformers: eager and sdpa show the same plans, and the results stay the same."""

import pytest
import torch

from bistoch.analysis.capture import capture

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}


def bert(how):
    config = transformers.BertConfig(
        **SMALL, intermediate_size=32, vocab_size=50, max_position_embeddings=16,
        attn_implementation=how,
    )  # fmt: skip
    return transformers.BertModel(config), {"input_ids": torch.arange(21).reshape(3, 7)}


def gpt2(how):
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=4, vocab_size=50, n_positions=16, bos_token_id=0,
        eos_token_id=0, attn_implementation=how,
    )  # fmt: skip
    return transformers.GPT2Model(config), {"input_ids": torch.arange(21).reshape(3, 7)}


def vit(how):
    config = transformers.ViTConfig(
        **SMALL, intermediate_size=32, image_size=8, patch_size=4, attn_implementation=how
    )
    return transformers.ViTModel(config), {"pixel_values": torch.randn(3, 3, 8, 8)}


def llama(how):
    config = transformers.LlamaConfig(
        **SMALL, num_key_value_heads=2, intermediate_size=32, vocab_size=50,
        max_position_embeddings=16, attn_implementation=how,
    )  # fmt: skip
    return transformers.LlamaModel(config), {"input_ids": torch.arange(21).reshape(3, 7)}


def run(make, how, training=False, padded=False):
    torch.manual_seed(0)
    model, inputs = make(how)
    model.train(training)
    if padded:
        inputs["attention_mask"] = (torch.arange(7) < torch.tensor([7, 5, 3])[:, None]).long()
    torch.manual_seed(1)
    expected = model(**inputs).last_hidden_state
    torch.manual_seed(1)
    with capture(model) as seen:
        result = model(**inputs).last_hidden_state
    assert torch.equal(result, expected)
    assert not seen.missed
    return seen


@pytest.mark.parametrize("make", [bert, gpt2, vit, llama])
@pytest.mark.parametrize("how", ["eager", "sdpa"])
def test_plans_are_those_that_the_model_reports(make, how):
    seen = run(make, how)
    torch.manual_seed(0)
    model, inputs = make("eager")
    reported = model.eval()(**inputs, output_attentions=True, output_hidden_states=True)
    assert len(seen.plans) == 2
    assert {p.source for p in seen.plans} == {how}
    assert len({p.name for p in seen.plans}) == 2
    for found, wanted in zip(seen.plans, reported.attentions, strict=True):
        torch.testing.assert_close(found.plan, wanted)
        assert found.value.shape[:-1] == found.plan.shape[:2] + found.plan.shape[-1:]
    states = [s.state for s in seen.states]
    # the last reported state is behind the final norm
    for found, wanted in zip(states[:2], reported.hidden_states[:2], strict=True):
        torch.testing.assert_close(found, wanted)
    assert len(states) == 3


@pytest.mark.parametrize("make", [bert, gpt2, llama])
@pytest.mark.parametrize("how", ["eager", "sdpa"])
def test_dropout_and_padding(make, how):
    trained, asleep = run(make, how, training=True, padded=True), run(make, how, padded=True)
    first, same = trained.plans[0].plan, asleep.plans[0].plan
    assert first.shape == same.shape
    # the first plan of a model in training differs by dropout of the embeddings only
    torch.testing.assert_close(first.sum(-1), torch.ones(3, 4, 7))
    assert same[2, :, :, 3:].abs().max() == 0


def test_a_converted_layer_keeps_its_name_and_shows_all_its_heads():
    from bistoch.integrations.huggingface import convert

    torch.manual_seed(0)
    model, inputs = bert("sdpa")
    with torch.no_grad(), capture(model.eval()) as before:
        model(**inputs)
    convert(model, "elastic(lam=1.0, iters=50)", layers=[0], heads=[1, 3])
    with torch.no_grad(), capture(model) as after:
        model(**inputs)
    assert [p.name for p in after.plans] == [p.name for p in before.plans]
    assert [p.source for p in after.plans] == ["operator", "sdpa"]
    old, new = before.plans[0].plan, after.plans[0].plan
    torch.testing.assert_close(new[:, [0, 2]], old[:, [0, 2]])
    torch.testing.assert_close(new[:, [1, 3]].sum(-2), torch.ones(3, 2, 7), atol=1e-3, rtol=0)
