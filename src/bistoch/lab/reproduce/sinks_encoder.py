"""The sinks of a trained sentence encoder, and what balance makes of them without any training."""

import functools
import importlib.util
from statistics import mean
from typing import Any

import torch
from torch.nn.functional import cosine_similarity

from bistoch.analysis import capture
from bistoch.analysis.capture import CapturedPlan
from bistoch.integrations import huggingface
from bistoch.lab.inspect.load import import_transformers, load_subject, read_texts
from bistoch.lab.inspect.swap import embed
from bistoch.lab.reproduce.network import operator_text
from bistoch.lab.reproduce.study import Measurement
from bistoch.lab.reproduce.zero_training.run import INSTALLED, model_name
from bistoch.lab.reproduce.zero_training.sentences import load_sentences


def is_installed() -> bool:
    """Whether the encoder can be read without a network."""
    return all(importlib.util.find_spec(name) for name in ("transformers", INSTALLED))


def capture_encoder(operator: str, smoke: bool) -> tuple[list[list[CapturedPlan]], float]:
    """The plans of every sentence with an operator in all heads, and what is left of the result.

    Sentences are read one by one, so that no padding counts. What is left is the mean cosine of
    the embeddings with those of the model as it came.
    """
    model, batches, real = _read(smoke)
    before = embed(model, batches, real)
    if operator != "softmax":
        huggingface.convert(model, operator_text(operator))
    try:
        seen: list[list[CapturedPlan]] = []
        for batch in batches:
            with torch.no_grad(), capture(model, states=None) as captured:
                model(**batch)
            seen.append(captured.plans)
        after = embed(model, batches, real)
    finally:
        huggingface.restore(model)
    return seen, cosine_similarity(after, before).mean().item()


def average(found: list[Measurement]) -> Measurement:
    """The mean over sentences of every number and of every head's numbers.

    >>> average([{"a": [1.0, 2.0], "b": 1.0, "c": None}, {"a": [3.0, 4.0], "b": 2.0, "c": 3}])
    {'a': [2.0, 3.0], 'b': 1.5}
    """
    means: Measurement = {}
    for name, first in found[0].items():
        values = [one[name] for one in found]
        if isinstance(first, list):
            means[name] = [mean(heads) for heads in zip(*values, strict=True)]
        elif isinstance(first, float):
            means[name] = mean(values)
    return means


@functools.cache
def _read(smoke: bool) -> tuple[Any, list[Any], list[Any]]:
    # the sentences of the library's own need no data to be fetched
    own = load_sentences(True, 0)[0]
    lines = own.choosing if smoke else [*own.choosing, *own.compared]
    subject = load_subject(model_name(), lines[:1])
    transformers = import_transformers()
    batches, real = [], []
    for line in lines:
        some, marks, _ = read_texts(transformers, subject.name, subject.model.config, [line])
        batches += some
        real += marks
    return subject.model, batches, real
