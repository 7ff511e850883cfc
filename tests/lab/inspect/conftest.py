"""Tiny models on disk: an encoder, a writer and a seer, with a tokenizer of forty words."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

WORDS = "a the cat dog mat house tree sits runs on in under old red blue big small sky"
SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 19,
    "vocab_size": 5 + len(WORDS.split()),
    "max_position_embeddings": 24,
}


def tokenizer(folder):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = Tokenizer(
        WordLevel({word: i for i, word in enumerate(special + WORDS.split())}, unk_token="[UNK]")
    )
    words.pre_tokenizer = Whitespace()
    words.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]", model_max_length=24,
    ).save_pretrained(folder)  # fmt: skip


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folders by kind."""
    t = transformers
    t.set_seed(0)
    made = {
        "encoder": t.BertModel(t.BertConfig(**SIZES)),
        "writer": t.LlamaForCausalLM(
            t.LlamaConfig(**SIZES, num_key_value_heads=1, bos_token_id=2, eos_token_id=3)
        ),
        "seer": t.ViTModel(
            t.ViTConfig(
                num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=19,
                image_size=20, patch_size=5,
            )
        ),
        "silent": t.BertModel(t.BertConfig(**SIZES)),
    }  # fmt: skip
    folders = {}
    for name, model in made.items():
        # fresh weights are so small that all plans are even; these are not
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                layer.weight.data.mul_(10)
        folders[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(folders[name])
    for name in ("encoder", "writer"):
        tokenizer(folders[name])
    return folders
