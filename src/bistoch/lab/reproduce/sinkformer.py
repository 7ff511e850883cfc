"""Sinkformers: whether balance helps point clouds and texts, and whether softmax drifts towards it.

The paper counts half-steps: 1 is softmax, 3 is row, column, row, which is one iteration here.
"""

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import numpy as np

from bistoch.lab.compare.attention import column_deviations, drift_of
from bistoch.lab.data import Dataset, load
from bistoch.lab.drawing import PALETTE, grid, tidy
from bistoch.lab.stats import difference, seeds_of
from bistoch.lab.study import (
    Cell,
    Column,
    Context,
    Result,
    Results,
    Settings,
    Study,
    Table,
    Verdict,
)
from bistoch.lab.train import Recipe, Setup, Task, evaluate, open_task, train_run

HALF_STEPS = (1, 3, 5, 21)
# accuracies of the paper (%), means over seeds, from memory: its tables were not at hand
PUBLISHED = {
    ("set", 1): "85.8 (ModelNet40)", ("set", 3): "88.3 (ModelNet40, best n_it)",
    ("wide", 1): "85.8 (ModelNet40)", ("wide", 3): "88.3 (ModelNet40, best n_it)",
    ("pct", 1): "92.5 (ModelNet40)", ("pct", 3): "92.7 (ModelNet40, best n_it)",
    ("imdb", 1): "about 85", ("imdb", 3): "about 85.4",
}  # fmt: skip
TITLES = {
    "set": "Set Transformer", "wide": "Set Transformer, published width",
    "pct": "Point Cloud Transformer", "imdb": "IMDb encoder",
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One task: data, samples that are used of them (None: all), the network, and its training."""

    data: str
    model: str
    recipe: Recipe
    length: int
    train: int | None = None
    test: int | None = None


# by task
Sizes = Mapping[str, Part]


def recipe_of(epochs: int, share: float, **options: Any) -> Recipe:
    """Adam without decay or warmup; a tenth of the rate after so much of the epochs.

    >>> recipe_of(200, 0.75, lr=1e-3).milestones, recipe_of(1, 0.75, lr=1e-3).schedule
    ((151,), 'constant')
    """
    fall = round(share * epochs) + 1
    steps = {"schedule": "steps", "milestones": (fall,)} if 1 < fall <= epochs else {}
    return Recipe(
        epochs=epochs, optimizer="adam", weight_decay=0.0, warmup=0.0, clip=None,
        **({"schedule": "constant"} | steps | options),
    )  # fmt: skip


# as published, but for ModelNet10 instead of ModelNet40, its 1,024 points, and the usual split of
# IMDb; what trains the Point Cloud Transformer is not in the published code
FULL: Sizes = {
    "set": Part("modelnet10", "set_sinkformer", recipe_of(200, 0.75, lr=1e-3, batch_size=64), 1024),
    "pct": Part("modelnet10", "point_pct", recipe_of(200, 0.75, lr=1e-3, batch_size=64), 1024),
    "imdb": Part("imdb", "text_sinkformer", recipe_of(15, 11 / 15, lr=1e-4, batch_size=32), 512),
}
SMALL: Sizes = {
    "set": Part(
        "modelnet10", "set_sinkformer(dim=64)",
        recipe_of(30, 0.75, lr=1e-3, batch_size=64), 128,
    ),
    # at the published rate of 1e-3 it was still at chance after nine epochs
    "wide": Part(
        "modelnet10", "set_sinkformer", recipe_of(15, 0.75, lr=3e-4, batch_size=64), 128
    ),
    "pct": Part(
        "modelnet10", "point_pct(dim=64, summary=256)",
        recipe_of(15, 0.75, lr=1e-3, batch_size=32), 128,
    ),
    "imdb": Part(
        "imdb", "text_sinkformer(depth=2, dim=64, heads=4)",
        recipe_of(4, 11 / 15, lr=1e-3, batch_size=32), 128, test=5000,
    ),
}  # fmt: skip
SMOKE: Sizes = {
    "set": Part("shapes", "set_sinkformer(dim=8, heads=2)", recipe_of(2, 0.5, lr=1e-3), 16, 40, 20),
    "pct": Part(
        "shapes", "point_pct(depth=2, dim=8, summary=8)", recipe_of(2, 0.5, lr=1e-3), 16, 40, 20
    ),
    "imdb": Part(
        "made texts", "text_sinkformer(depth=2, dim=8, heads=2)", recipe_of(2, 0.5, lr=1e-3), 8,
        40, 20,
    ),
}  # fmt: skip


def sizes(settings: Settings, chosen: Sizes = SMALL) -> Sizes:
    """Those of a run with its epochs, or of a smoke run."""
    if settings.smoke:
        return SMOKE
    if settings.epochs is None:
        return chosen
    return {
        name: replace(part, recipe=_shortened(part.recipe, settings.epochs))
        for name, part in chosen.items()
    }


def _shortened(recipe: Recipe, epochs: int) -> Recipe:
    share = (recipe.milestones[0] - 1) / recipe.epochs if recipe.milestones else 1.0
    return recipe_of(epochs, share, lr=recipe.lr, batch_size=recipe.batch_size)


def cells(smoke: bool, half_steps: tuple[int, ...] = (1, 3), chosen: Sizes = SMALL) -> list[Cell]:
    """All half-steps for the Set Transformer; pooling by its own softmax, or balanced as published.

    A balanced plan with one row is uniform, whatever the scores, so that is pooling by the mean.
    """
    counts = dict.fromkeys(chosen, half_steps) | {"set": HALF_STEPS}
    if smoke:
        counts = dict.fromkeys(SMOKE, (1, 3))
    found = [
        Cell(f"{task} n_it {count}", {"task": task, "n_it": count, "pooling": "softmax"})
        for task, some in counts.items()
        for count in some
    ]
    means = {"task": "set", "n_it": 3, "pooling": "mean"}
    return [*found, Cell("set n_it 3, mean pooling", means)]


def run(cell: Cell, seed: int, context: Context) -> Result:
    """Train a network; its test scores, and column masses before training and by epoch."""
    part: Part = context.sizes[cell.options["task"]]
    task = _open(part)
    # a softmax of scores that are divided by a large number is the uniform plan
    pooling = ", pooling='softmax(eps=1e6)'" if cell.options["pooling"] == "mean" else ""
    model = part.model
    if pooling:
        model = f"{model.removesuffix(')')}{pooling if model.endswith(')') else '(' + pooling[2:]})"
    setup = Setup(part.data, model, operator_of(cell.options["n_it"]), part.recipe, seed)
    network, fitted = train_run(
        setup, task, context.folder, on_step=context.on_step,
        observe=lambda model: column_deviations(model, task),
    )  # fmt: skip
    return {
        "test": evaluate(network, task, "test"),
        "curve": fitted.curve,
        "drift": drift_of(fitted.observed),
        "parameters": sum(p.numel() for p in network.parameters()),
    }


def operator_of(half_steps: int) -> str:
    """The operator for a number of half-steps, of which the last one is of rows.

    >>> [operator_of(count) for count in (1, 3, 21)]
    ['softmax', 'sinkhorn(iters=1)', 'sinkhorn(iters=10)']
    """
    return "softmax" if half_steps == 1 else f"sinkhorn(iters={(half_steps - 1) // 2})"


@functools.cache
def _open(part: Part) -> Task:
    found = made_texts() if part.data == "made texts" else load(part.data)
    if not isinstance(found, Dataset):
        raise TypeError(f"sinkformer: {part.data} has no classes")
    some: dict[str, Any] = {}
    for split, count in (("train", part.train), ("test", part.test)):
        x, y = getattr(found, f"x_{split}"), getattr(found, f"y_{split}")
        # clouds are stored class by class
        rows = np.random.default_rng(0).permutation(len(y))[:count]
        some[f"x_{split}"] = [x[row] for row in rows] if found.kind == "text" else x[rows]
        some[f"y_{split}"] = y[rows]
    return open_task(replace(found, **some), length=part.length)


def made_texts(count: int = 60) -> Dataset:
    """Texts for a smoke run: the first word tells the class."""
    words = [
        f"{('good', 'bad')[i % 2]} film number {i % 7} seen {i % 5} times" for i in range(count)
    ]
    y = np.arange(count) % 2
    return Dataset("made texts", "text", words, y, words, y, ("good", "bad"))


def drift(result: Result, place: int) -> float:
    """The distance from even column masses at an epoch, 0 before training; the mean of layers."""
    return mean(result["drift"]["deviation"][place])


def tasks_of(results: Results) -> dict[str, list[str]]:
    """The cells of every task."""
    found = {task: results.names_with(task=task) for task in TITLES}
    return {task: names for task, names in found.items() if names}


def tables(results: Results) -> list[Table]:
    """Accuracies beside the paper's, and column masses before and after training by layer."""
    published = {
        name: PUBLISHED.get((results.options(name)["task"], results.options(name)["n_it"]), "")
        for name in results.names
        if results.options(name)["pooling"] == "softmax"
    }
    columns = [
        Column("accuracy (%)", "test.accuracy", ".1f", 100, compared=True),
        Column("test loss", "test.loss"),
        Column("column deviation before", lambda r: drift(r, 0)),
        Column("after one epoch", lambda r: drift(r, 1)),
        Column("at the end", lambda r: drift(r, -1)),
    ]
    scores = results.table(
        columns, NOTE, baseline=lambda name: f"{results.options(name)['task']} n_it 1",
        more={"paper, not checked (%)": published},
    )  # fmt: skip
    lines = []
    for task in TITLES:
        name = f"{task} n_it 1"
        each = [result["drift"] for result in results.by_seed(name).values()]
        for i, layer in enumerate(each[0]["layers"] if each else ()):
            moments = [mean(one["deviation"][place][i] for one in each) for place in (0, 1, -1)]
            change = difference([o["deviation"][-1][i] - o["deviation"][0][i] for o in each])
            lines.append([TITLES[task], layer, *(f"{x:.3f}" for x in moments), change.text()])
    head = ["softmax in", "layer", "before training", "after one epoch", "at the end", "change"]
    layers = Table(head, lines, "Mean distance of a column mass from its even share, by layer.")
    return [scores, layers]


NOTE = (
    "Half-steps n_it as in the paper: 1 is softmax, odd numbers end with a row step. Differences "
    "are to softmax in the same network with the same seed. Column deviation: mean distance of a "
    "column mass from its even share, over layers, heads and test samples."
)


def checks(results: Results) -> list[Verdict]:
    """Balance raises accuracies; softmax drifts towards balance; pooling may be balanced too."""
    found = []
    for task, names in tasks_of(results).items():
        base = f"{task} n_it 1"
        found += [
            results.claim(
                f"{TITLES[task]}: {name.removeprefix(task + ' ')} is more accurate than softmax",
                name, base, "test.accuracy", larger=True, unit="points", form=".1f", scale=100,
            )
            for name in names
            if name != base
        ]  # fmt: skip
    found.append(
        results.claim(
            "Set Transformer, n_it 3: pooling by softmax is more accurate than balanced pooling",
            "set n_it 3", "set n_it 3, mean pooling", "test.accuracy", larger=True, unit="points",
            form=".1f", scale=100,
        )
    )  # fmt: skip
    for task, (place, when) in itertools.product(
        TITLES, ((0, "before training"), (1, "after one epoch"))
    ):
        each = [drift(r, -1) - drift(r, place) for r in results.by_seed(f"{task} n_it 1").values()]
        if each:
            change = difference(each)
            found.append(
                Verdict(
                    f"{TITLES[task]}: softmax is nearer to balance at the end than {when}",
                    f"{change.text()}, {seeds_of(len(each))}", change.verdict(larger=False),
                )
            )  # fmt: skip
    return found


def figure(results: Results) -> Any:
    """Column masses by epoch, and accuracies by half-steps, one column of panels per task."""
    tasks = tasks_of(results)
    made, panels = grid(2 * len(tasks), len(tasks), width=3.3, height=2.7)
    for place, (task, names) in enumerate(tasks.items()):
        above, below = panels[place], panels[len(tasks) + place]
        for i, name in enumerate(names):
            colour, seeds = PALETTE[i - 1], results.by_seed(name).values()
            curves = np.array([np.mean(one["drift"]["deviation"], -1) for one in seeds])
            epochs = range(curves.shape[1])
            label = name.removeprefix(f"{task} ")
            above.plot(epochs, curves.mean(0), color=colour, linewidth=1.4, label=label)
            above.fill_between(epochs, curves.min(0), curves.max(0), color=colour, alpha=0.15,
                               linewidth=0)  # fmt: skip
            scores = [100 * x for x in results.values(name, "test.accuracy")]
            below.plot([i] * len(scores), scores, "o", color=colour, markersize=5, alpha=0.6)
            below.plot([i - 0.25, i + 0.25], [mean(scores)] * 2, color=colour, linewidth=2)
        tidy(above, TITLES[task], "epoch (0: before training)", "" if place else "column deviation")
        above.set_ylim(bottom=0)
        above.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        tidy(below, "", "", "" if place else "test accuracy (%), every seed")
        short = [name.removeprefix(f"{task} ").replace(", ", ",\n") for name in names]
        below.set_xticks(range(len(names)), short, fontsize=7)
        below.set_xlim(-0.6, len(names) - 0.4)
    handles, labels = panels[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    return made


STUDY = Study(
    name="sinkformer",
    title="Sinkformers: balance for point clouds and texts",
    question="Does attention with balanced columns classify point clouds and texts better, and do "
    "softmax plans drift towards balance by themselves?",
    source="Sander, Ablin, Blondel, Peyré, Sinkformers, AISTATS 2022, arXiv 2110.11773",
    about="The published architectures in a smaller width, with fewer points, words and epochs: "
    "a Set Transformer and a Point Cloud Transformer with 64 features on all clouds of ModelNet10, "
    "128 points each, 30 and 15 epochs, and the encoder for IMDb with two layers of 64 features on "
    "all 25,000 training texts, the first 128 words each, 4 epochs, tested on 5,000 texts. The Set "
    "Transformer is trained in its published width of 256 too, for 15 epochs, at a rate of 3e-4. "
    "`bistoch reproduce sinkformer-full` runs the published sizes. The published code balances the "
    "pooling of the Set Transformer too, which has one query: that is pooling by the mean.",
    sizes=sizes,
    cells=cells,
    run=run,
    checks=checks,
    tables=tables,
    figure=figure,
    caption="Above, the mean distance of a column mass from its even share while training, with a "
    "band from the lowest seed to the highest. Below, test accuracies of all seeds and their mean.",
    epochs=max(part.recipe.epochs for part in SMALL.values()),
)
FULL_STUDY = replace(
    STUDY,
    name="sinkformer-full",
    title="Sinkformers at the published sizes",
    about="The published architectures, sizes and recipes, on ModelNet10 with 1,024 points and on "
    "the usual split of IMDb with 512 words; days on a processor.",
    sizes=functools.partial(sizes, chosen=FULL),
    cells=functools.partial(cells, half_steps=HALF_STEPS, chosen=FULL),
    epochs=max(part.recipe.epochs for part in FULL.values()),
)
