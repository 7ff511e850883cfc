"""Models of transformers, alone and inside other modules, and models of bistoch."""

import pytest
import torch
from torch import nn

import bistoch
from foreign_layers import Own

WORDS = torch.tensor([[7, 8, 9, 10, 11], [12, 13, 14, 0, 0]])
REAL = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=12, num_attention_heads=3, intermediate_size=24,
        vocab_size=50,
    )  # fmt: skip
    return transformers.BertModel(config, add_pooling_layer=False).eval()


class Reader(nn.Module):
    """A model of transformers as a part, beside an attention layer of another kind."""

    def __init__(self):
        super().__init__()
        self.first, self.encoder, self.head = Own(), bert(), Own()

    def forward(self, words):
        states = self.encoder(words, attention_mask=REAL).last_hidden_state
        return self.head(states)


def test_a_model_of_transformers_is_converted_as_by_its_integration():
    from bistoch.integrations import huggingface

    model, other = bert(), bert()
    other.load_state_dict(model.state_dict())
    before = model(WORDS, attention_mask=REAL).last_hidden_state
    call = {"operator": "elastic(iters=4)", "layers": [1], "heads": [0, 2], "lam": [0.5, 1.0]}
    bistoch.convert(model, **call)
    huggingface.convert(other, **call)
    assert model.config.bistoch == other.config.bistoch
    ours, theirs = (one(WORDS, attention_mask=REAL).last_hidden_state for one in (model, other))
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, before)
    assert torch.equal(bistoch.restore(model)(WORDS, attention_mask=REAL).last_hidden_state, before)
    assert not hasattr(model.config, "bistoch")


def test_a_model_of_transformers_inside_another(tmp_path):
    model = Reader()
    assert list(bistoch.convert.attention_layers(model)) == [
        "first", "encoder.encoder.layer.0.attention.self",
        "encoder.encoder.layer.1.attention.self", "head",
    ]  # fmt: skip
    before = model(WORDS)
    bistoch.convert(model, "elastic", layers=["encoder", "head"], lam=0.5)
    after = model(WORDS)
    assert not torch.allclose(after, before)
    # the part can be saved by itself, as transformers does it
    assert set(model.encoder.config.bistoch) == {"0", "1"}
    path = bistoch.convert.save(model, tmp_path / "lam.json")
    fresh = Reader()
    bistoch.convert.load(fresh, path).load_state_dict(model.state_dict())
    assert torch.equal(fresh(WORDS), after)
    assert torch.equal(bistoch.restore(model)(WORDS), before)


def test_decoders_of_transformers_are_refused_as_before():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_embd=12, n_head=3, vocab_size=50, bos_token_id=0, eos_token_id=0
    )
    with pytest.raises(ValueError, match=r"layer 0 \(h.0.attn\) of GPT2Model, whose queries must"):
        bistoch.convert(transformers.GPT2Model(config), "sinkhorn")


@pytest.mark.parametrize("heads", [None, [0, 2]])
def test_layers_of_bistoch(heads):
    layers = nn.ModuleList(
        [bistoch.nn.Attention(12, 3), bistoch.nn.MultiheadAttention(12, 3, batch_first=True)]
    )
    x, real = torch.randn(2, 7, 12), torch.arange(7) < torch.tensor([[7], [4]])
    calls = [{"key_mask": real}, {"key": x, "value": x, "key_padding_mask": ~real}]

    def run():
        results = [layer(x, **call) for layer, call in zip(layers, calls, strict=True)]
        return torch.stack([one if isinstance(one, torch.Tensor) else one[0] for one in results])

    before = run()
    bistoch.convert(layers, "softmax", heads=heads)
    torch.testing.assert_close(run()[:, real], before[:, real])
    bistoch.convert(layers, "elastic", lam=0.5, heads=heads)
    after = run()
    assert not torch.allclose(after, before)
    alone = torch.stack([layers[0](x[1:, :4]), layers[1](*(x[1:, :4],) * 3)[0]])
    torch.testing.assert_close(after[:, 1:, :4], alone)
    assert len(list(bistoch.convert.converted_layers(layers))) == 2
    bistoch.restore(layers)
    assert torch.equal(run(), before)
    assert repr(layers[0].operator) == "softmax()"


def test_models_of_bistoch():
    config = bistoch.models.lm.LanguageConfig(vocabulary=50, depth=2, dim=12, heads=3)
    model = bistoch.models.lm.LanguageModel(config).eval()
    before = model(WORDS)
    with pytest.raises(ValueError, match="whose queries must not know of later ones"):
        bistoch.convert(model, "sinkhorn")
    with pytest.raises(NotImplementedError, match="leave heads= out"):
        bistoch.convert(model, "softmax", heads=[0])
    bistoch.convert(model, "causal_elastic", lam=0.5)
    built = bistoch.models.lm.LanguageModel(config, "causal_elastic(learn='head')").eval()
    built.load_state_dict(model.state_dict())
    assert torch.equal(model(WORDS), built(WORDS))
    assert torch.equal(bistoch.restore(model)(WORDS), before)
