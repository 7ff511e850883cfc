"""The sentence encoder all-MiniLM-L6-v2 on texts of 512 tokens, with cheaper attention."""

import functools
import re
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.integrations import huggingface
from bistoch.lab.inspect.load import import_transformers
from bistoch.lab.inspect.swap import embed
from bistoch.lab.reproduce.cheap_attention import make_form
from bistoch.lab.reproduce.encoder import compare_embeddings, load_encoder, model_name
from bistoch.lab.reproduce.sentences import OWN
from bistoch.lab.study import Result

# texts that are read at once
AT_ONCE = 4


class LongTexts:
    """Parts of articles, each as long as the others, and their embeddings.

    Args:
        articles: how many are read; zero is the library's own sentences, repeated.
        parts: of every article.
        length: tokens of a part.
    """

    def __init__(self, articles: int, parts: int, length: int):
        self.model = load_encoder()
        tokenizer = import_transformers().AutoTokenizer.from_pretrained(model_name())
        ids: list[list[int]] = []
        self.topics: list[int] = []
        wanted, start, end = length - 2, tokenizer.cls_token_id, tokenizer.sep_token_id
        for number, text in enumerate(read_articles(articles)):
            found = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            pieces = [found[i : i + wanted] for i in range(0, len(found) - wanted + 1, wanted)]
            if len(pieces) >= parts and len(ids) < max(articles, len(OWN)) * parts:
                ids += [[start, *piece, end] for piece in pieces[:parts]]
                self.topics += [number] * parts
        self.batches = [{"input_ids": some} for some in torch.tensor(ids).split(AT_ONCE)]
        self.real = [torch.ones_like(x["input_ids"], dtype=torch.bool) for x in self.batches]

    @functools.cached_property
    def before(self) -> Float[Tensor, "samples features"]:
        """The embeddings of the model as it is."""
        return self.embed(None, [])

    def embed(self, form: str | None, layers: list[int]) -> Float[Tensor, "samples features"]:
        """The embeddings with a form in some layers; the model is left as it was."""
        self.model.set_attn_implementation("sdpa")
        if form is not None:
            is_operator = form.partition("(")[0] not in ("nystroem", "window")
            huggingface.convert(self.model, form if is_operator else "softmax", layers=layers)
            if not is_operator:
                n = self.batches[0]["input_ids"].shape[1]
                for layer in huggingface.converted_layers(self.model).values():
                    swapped: Any = layer.bistoch
                    swapped.operator = make_form(form, 0, 0, n)
        try:
            return embed(self.model, self.batches, self.real)
        finally:
            huggingface.restore(self.model)

    def compare(self, form: str, layers: list[int]) -> Result:
        """What is left of the embeddings with a form in some layers."""
        after = self.embed(form, layers)
        own = compare_embeddings(self.before, self.before, self.topics)["topic"]
        return compare_embeddings(self.before, after, self.topics) | {"topic_before": own}


@functools.cache
def load_texts(articles: int, parts: int, length: int) -> LongTexts:
    """Texts that are read once."""
    return LongTexts(articles, parts, length)


def count_layers() -> int:
    """How many attention layers the encoder has."""
    return len(huggingface.attention_layers(load_encoder()))


def read_articles(count: int) -> list[str]:
    """Articles of WikiText-2, those of the test part; or the own sentences of every topic.

    >>> len(read_articles(0))
    4
    """
    if not count:
        return [" ".join(some * 3) for some in OWN]
    from bistoch.lab.data import load

    text: Any = load("wikitext2").test
    # a title stands between single equals signs, those of sections between several
    return [part for part in re.split(r"\n = [^=\n]+ = \n", f"\n{text}") if part.strip()]
