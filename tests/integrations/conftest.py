"""Tiny models of transformers, built from their configurations with fixed weights."""

import pytest
import torch

from bistoch.integrations.huggingface import attention_layers

transformers = pytest.importorskip("transformers")

SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "vocab_size": 101,
    "max_position_embeddings": 64,
}


def make(name):
    """One tiny model by the name of its family."""
    t = transformers
    t.set_seed(0)
    makers = {
        "bert": lambda: t.BertModel(t.BertConfig(**SIZES)),
        "roberta": lambda: t.RobertaModel(t.RobertaConfig(**SIZES)),
        "vit": lambda: t.ViTModel(
            t.ViTConfig(
                num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=37,
                image_size=30, patch_size=6,
            )
        ),
        "gpt2": lambda: t.GPT2LMHeadModel(
            t.GPT2Config(
                n_layer=2, n_embd=32, n_head=4, vocab_size=101, n_positions=64, bos_token_id=1,
                eos_token_id=2,
            )
        ),
        "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**SIZES, num_key_value_heads=2)),
        "t5": lambda: t.T5Model(
            t.T5Config(d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4, vocab_size=101)
        ),
    }  # fmt: skip
    model = makers[name]().eval()
    if name == "t5":
        try:
            attention_layers(model)
        except NotImplementedError:
            pytest.skip("T5 of this version of transformers computes its attention by itself")
    # fresh weights are so small that all plans are even; these are not
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.weight.data.mul_(8)
    return model


@pytest.fixture
def build():
    """The maker of tiny models."""
    return make
