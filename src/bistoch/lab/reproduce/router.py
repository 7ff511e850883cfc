"""Experts with even loads in a language model: what each way to get them costs, and which leak."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from statistics import mean
from typing import Any, NamedTuple, cast

import torch

from bistoch.lab.data import Corpus, load
from bistoch.lab.drawing import INK, PALETTE, QUIET, legend_beside, sheet, tidy
from bistoch.lab.reproduce.causal_lm import made_words
from bistoch.lab.reproduce.router_layers import (
    AuxiliaryLoss,
    ExpertChoice,
    Mixture,
    QuantileBias,
    SignBias,
    overflow,
    overload,
)
from bistoch.lab.stats import INCONCLUSIVE, bootstrap_difference, difference
from bistoch.lab.study import Cell, Column, Context, Result, Results, Study, Table, Verdict
from bistoch.lab.train import NextCharacter, Recipe, fit
from bistoch.lab.train.loop import batch_sizes
from bistoch.lab.train.seeds import preserved_random_state, seed_all
from bistoch.models import LanguageConfig, LanguageModel
from bistoch.nn import Router
from bistoch.testing import assert_causal


class Line(NamedTuple):
    """A line of the table: a router, its options, and attributes that are set afterwards."""

    name: str
    router: type[Router]
    options: Mapping[str, Any] = {}
    settings: Mapping[str, float] = {}


NONE, OURS = "none", "potentials, lam 1"
LINES = (
    Line(NONE, Router, {"lam": 0.0}),
    Line("auxiliary loss", AuxiliaryLoss, {"lam": 0.0}, {"factor": 0.01}),
    Line("sign bias", SignBias, settings={"rate": 0.01}),
    Line("quantile bias", QuantileBias, {"decay": 0.0}),
    Line("quantile bias, averaged", QuantileBias),
    Line("expert choice", ExpertChoice),
    Line(OURS, Router),
    Line("potentials, lam 0.9", Router, {"lam": 0.9}),
)
RECIPE = Recipe(epochs=1, batch_size=32, lr=3e-3, weight_decay=0.1)
# the capacity that is asked for, the load that counts as even, and bits that count as the same
CAPACITY, EVEN, SAME = 1.25, 1.1, 0.02


@dataclass(frozen=True)
class Sizes:
    """The model, its experts, its windows of text, and batches of them to train and to test."""

    data: str = "tiny-shakespeare"
    recipe: Recipe = RECIPE
    depth: int = 2
    dim: int = 64
    heads: int = 4
    experts: int = 8
    hidden: int = 128
    window: int = 64
    steps: int = 160
    test: int = 16


FULL = Sizes()
SMOKE = Sizes("made words", Recipe(epochs=1, batch_size=16, lr=2e-3), 1, 8, 2, 4, 8, 32, 8, 2)


def cells(smoke: bool) -> list[Cell]:
    """One for each line."""
    return [
        Cell(line.name, {"router": line.router.__name__, **line.options, **line.settings})
        for line in LINES
    ]


def run(cell: Cell, seed: int, context: Context) -> Result:
    """Train a model with one kind of router; its loss, its loads, and whether it leaks."""
    sizes: Sizes = context.sizes
    task = open_text(sizes)
    model = new_model(sizes, next(one for one in LINES if one.name == cell.name), task, seed)
    fit(model, task, sizes.recipe, folder=context.folder, seed=seed, on_step=context.on_step)
    layer, batch = mixture(model), sizes.recipe.batch_size
    # the first half of training still learns to be even
    late = layer.loads[len(layer.loads) // 2 :]
    found = loads_on_test(model, task, batch)
    each = bits_of_windows(model, task, batch)
    return {
        "bits": mean(each),
        "train": {"overload": overload(late).mean().item(), "dropped": dropped(layer, late)},
        "test": {"overload": overload(found).mean().item(), "dropped": dropped(layer, found)},
        # one number per window and per batch, so that one seed can be judged too
        "each": {"bits": each, "overload": overload(found).tolist()},
        "alone": alone(model, task, batch),
        "leaks": leaks(layer),
        "curve": [part.mean().item() for part in overload(layer.loads).split(10)],
    }


@functools.cache
def open_text(sizes: Sizes) -> NextCharacter:
    """The text of a run in windows; that of a smoke run is made here."""
    corpus = made_words() if sizes.data == SMOKE.data else load(sizes.data)
    if not isinstance(corpus, Corpus):
        raise ValueError(f"router: running text is needed, but {sizes.data} is {corpus.kind}")
    batch = sizes.window * sizes.recipe.batch_size
    used = zip((corpus.train, corpus.valid, corpus.test), (sizes.steps, 1, sizes.test), strict=True)
    # one more character, the target of the last one
    texts = [text[: batches * batch + 1] for text, batches in used]
    return NextCharacter(Corpus(corpus.name, corpus.kind, *texts), length=sizes.window)


def new_model(sizes: Sizes, line: Line, task: NextCharacter, seed: int) -> LanguageModel:
    """A model whose last MLP is a mixture; for one seed all lines start from the same weights."""
    config = LanguageConfig(task.sizes["vocabulary"], sizes.depth, sizes.dim, sizes.heads)
    recipe = sizes.recipe
    steps = recipe.epochs * len(batch_sizes(task.count("train"), recipe.batch_size))
    with preserved_random_state():
        seed_all("weights", seed)
        model = LanguageModel(config)
        router = line.router(sizes.dim, sizes.experts, **line.options)
        for name, value in line.settings.items():
            setattr(router, name, value)
        model.blocks[-1].mlp = Mixture(router, sizes.hidden, steps)
    return model


def mixture(model: LanguageModel) -> Mixture:
    """The mixture of a model."""
    return cast(Mixture, model.blocks[-1].mlp)


@torch.no_grad()
def loads_on_test(model: LanguageModel, task: NextCharacter, size: int) -> torch.Tensor:
    """Loads of whole batches of test windows, (batches, experts)."""
    layer, loads = mixture(model.eval()), []
    for rows in torch.arange(task.count("test") // size * size).split(size):
        model(*task.batch("test", rows).inputs)
        loads.append(layer.load)
    return torch.stack(loads)


@torch.no_grad()
def bits_of_windows(model: LanguageModel, task: NextCharacter, size: int) -> list[float]:
    """Bits per character of every test window, computed in batches."""
    found: list[float] = []
    for rows in torch.arange(task.count("test")).split(size):
        batch = task.batch("test", rows)
        found += task.scores(model.eval()(*batch.inputs), batch.target).tolist()
    return found


def dropped(layer: Mixture, loads: torch.Tensor) -> float | None:
    """The share of tokens beyond the capacity; experts that choose have none to drop."""
    if isinstance(layer.router, ExpertChoice):
        return None
    return overflow(loads, CAPACITY).mean().item()


@torch.no_grad()
def alone(model: LanguageModel, task: NextCharacter, size: int) -> float:
    """By how much bits of test windows change when they are computed one by one."""
    batch = task.batch("test", torch.arange(min(size, task.count("test"))))
    together = model.eval()(*batch.inputs)
    apart = torch.cat([model(row[None]) for row in batch.inputs[0]])
    less = task.scores(apart, batch.target) - task.scores(together, batch.target)
    return float(less.mean())


def leaks(layer: Mixture) -> bool:
    """Whether the gates of a token depend on later ones."""
    tokens = torch.randn(2, 24, layer.router.dim, generator=torch.Generator().manual_seed(0))
    layer = layer.eval().requires_grad_(False)
    try:
        assert_causal(lambda x: layer.weights(x).unflatten(0, x.shape[:-1]), tokens)
    except AssertionError:
        return True
    return False


def tables(results: Results) -> list[Table]:
    """Loss, loads and leaks by line."""
    leaked = {name: "yes" if any(results.values(name, "leaks")) else "no" for name in results.names}
    columns = (
        Column("bits per character", "bits", compared=True),
        Column("load, training", "train.overload", ".2f"),
        Column("load, test", "test.overload", ".2f"),
        Column("dropped, training", "train.dropped", ".1f", 100),
        Column("dropped, test", "test.dropped", ".1f", 100),
        Column("bits, alone", "alone", "+.3f"),
    )
    return [results.table(columns, MEANING, baseline=NONE, more={"leaks": leaked})]


MEANING = (
    "Bits of the test split. Load: the largest of a batch over the mean, averaged over "
    "batches, in the second half of training and on test. Dropped: per cent of tokens beyond 1.25 "
    "times an even share. Alone: change of bits if windows are computed one by one and not in a "
    "batch. Leaks: bistoch.testing.assert_causal."
)


def checks(results: Results) -> list[Verdict]:
    """Even loads, at no price in bits, and nothing that leaks."""
    known = [name for name in results.names if name not in (OURS, "expert choice")]
    loads, bits = judged(results, "test.overload"), judged(results, "bits")
    return [
        _even(results, "train.overload", "in the second half of training"),
        _even(results, loads, "on test"),
        *(
            results.claim(
                f"{OURS}: loads on test more even than with {name}", OURS, name, loads, larger=False
            )
            for name in known
        ),
        *(_same_bits(results, name, bits) for name in known),
        _leaking(results),
    ]


def judged(results: Results, metric: str) -> str:
    """What intervals are taken over: seeds, or the batches or windows of test if there is one."""
    if len(results.by_seed(OURS)) > 1:
        return metric
    return f"each.{metric.removeprefix('test.')}"


def _even(results: Results, metric: str, where: str) -> Verdict:
    claim = f"{OURS}: the largest load is under {EVEN} times the mean {where}"
    values = results.values(OURS, metric)
    if not values:
        return Verdict(claim, "not measured", INCONCLUSIVE)
    if isinstance(values[0], list):
        found = bootstrap_difference([value - EVEN for value in values[0]])
    else:
        found = difference([value - EVEN for value in values])
    middle, low, high = (f"{x + EVEN:.3f}" for x in (found.mean, found.low, found.high))
    measured = f"{middle} [{low}, {high}]" if isfinite(found.high) else middle
    return Verdict(claim, measured, found.verdict(larger=False))


def _same_bits(results: Results, name: str, metric: str) -> Verdict:
    found = results.difference(OURS, name, metric)
    claim = f"{OURS}: bits within {SAME} of those with {name}"
    if found is None:
        return Verdict(claim, "not measured", INCONCLUSIVE)
    inside = found.low > -SAME and found.high < SAME
    outside = found.low > SAME or found.high < -SAME
    holds = "yes" if inside else "no" if outside else INCONCLUSIVE
    return Verdict(claim, f"{found.text()} bits", holds)


def _leaking(results: Results) -> Verdict:
    found = [name for name in results.names if any(results.values(name, "leaks"))]
    return Verdict(
        "expert choice leaks the future, all others do not",
        f"leaking: {', '.join(found) or 'none'}",
        "yes" if found == ["expert choice"] else "no",
    )


def figure(results: Results) -> Any:
    """Loads while training, and bits beside the load on test."""
    made, ((left, right),) = sheet(1, 2, width=4.8, height=3.3)
    colours = {name: QUIET if name == NONE else PALETTE[i % len(PALETTE)]
               for i, name in enumerate(results.names)}  # fmt: skip
    for name, colour in colours.items():
        curves = torch.tensor(results.values(name, "curve"))
        style = "--" if "averaged" in name or "0.9" in name else "-"
        left.plot(10 * torch.arange(curves.shape[1]) + 5, curves.mean(0), color=colour, label=name,
                  linestyle=style, linewidth=1.2)  # fmt: skip
        marker = "s" if style == "--" else "o"
        right.scatter(results.values(name, "test.overload"), results.values(name, "bits"), s=22,
                      color=colour, marker=marker, alpha=0.8, linewidths=0)  # fmt: skip
    left.axhline(1, color=INK, linewidth=0.6)
    left.set_ylim(0.95, 3)
    tidy(left, "largest load over the mean", "training step")
    tidy(right, "bits per character on test", "largest load over the mean, test")
    legend_beside(made, left)
    return made


STUDY = Study(
    name="router",
    title="Experts with even loads",
    question="Do averaged potentials of past batches keep experts evenly loaded, at the same loss "
    "and without a leak?",
    source="this library; Wang et al. 2024; Fedus et al. 2021; Zhou et al. 2022",
    about="Models of the next character whose last MLP is eight experts, one per token. For one "
    "seed all lines start from the same weights and see the same windows in the same order; "
    "nothing is dropped while training. The bias of every line comes from earlier batches alone. "
    "The sign bias (Wang) has ten times its published rate of 0.001, since the runs are short; the "
    "auxiliary loss (Fedus) the factor 0.01; experts that choose are those of Zhou. The quantile "
    "bias is that of Megatron-LM (2026); averaged, it is not published: it has the average of "
    "ours.",
    sizes=lambda settings: SMOKE if settings.smoke else FULL,
    cells=cells,
    run=run,
    checks=checks,
    tables=tables,
    figure=figure,
    caption="Left: loads while training, means of ten steps. Right: bits and loads on test, a mark "
    "per seed.",
)
