"""Self-labelling with prototypes: what keeps them from collapsing, and what uneven classes need.

A small network learns to give two views of a picture the same prototype, without any label. The
targets are the codes of `bistoch.prototype_codes`: softmax (lam 0), elastic, balanced, or the three
published steps of SwAV.
"""

import functools
import math
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import numpy as np
import torch

from bistoch.lab.data import Dataset, load
from bistoch.lab.drawing import PALETTE, QUIET, legend, sheet, tidy
from bistoch.lab.reproduce.prototype_views import (
    Encoder,
    SwappedPrediction,
    clustering_accuracy,
    mutual_information,
    purity,
)
from bistoch.lab.study import Cell, Column, Context, Result, Results, Study, Table, Verdict
from bistoch.lab.train import Recipe, fit
from bistoch.lab.train.seeds import preserved_random_state, seed_all

RECIPE = Recipe(epochs=1, batch_size=256, lr=3e-3, weight_decay=1e-4)
# name, elasticity, column steps
TARGETS = (
    ("lam 0", 0.0, 0),
    ("lam 0.5", 0.5, 20),
    ("lam 0.9", 0.9, 20),
    ("lam 1", 1.0, 20),
    ("three steps", 1.0, 3),
)
CLASSES = {"balanced": 1.0, "long tail": 20.0}


@dataclass(frozen=True)
class Sizes:
    """The network, the steps of a training, and how many pictures are taken of each split."""

    data: str = "fashion-mnist-small"
    recipe: Recipe = RECIPE
    steps: int = 200
    width: int = 64
    train: int = 4000
    test: int = 1000
    backend: str = "cpu"


FULL = Sizes()
SMOKE = Sizes(
    recipe=Recipe(epochs=1, batch_size=64, lr=3e-3), steps=4, width=8, train=200, test=100,
    backend="auto",
)  # fmt: skip


def cells(smoke: bool) -> list[Cell]:
    """Numbers of prototypes, classes of equal size or not, and targets."""
    return [
        Cell(
            cell_name(count, classes, target),
            {"prototypes": count, "classes": classes, "target": target, "lam": lam, "iters": iters},
        )
        for count in ((10,) if smoke else (10, 30))
        for classes in CLASSES
        for target, lam, iters in TARGETS
    ]


def cell_name(count: int, classes: str, target: str) -> str:
    """The name of a cell.

    >>> cell_name(10, "long tail", "lam 1")
    '10 prototypes, long tail, lam 1'
    """
    return f"{count} prototypes, {classes}, {target}"


def run(cell: Cell, seed: int, context: Context) -> Result:
    """Train with one kind of target, and compare the prototypes of pictures with their classes."""
    sizes, options = context.sizes, cell.options
    task = SwappedPrediction(
        pictures(sizes), imbalance=CLASSES[options["classes"]], lam=options["lam"],
        iters=options["iters"], backend=sizes.backend,
    )  # fmt: skip
    # as many steps for few pictures as for many
    recipe = with_steps(sizes.recipe, sizes.steps, task.count("train"))
    with preserved_random_state():
        seed_all("weights", seed)
        model = Encoder(
            math.prod(task.pictures["train"].shape[1:]), sizes.width, options["prototypes"]
        )
    fitted = fit(model, task, recipe, folder=context.folder, seed=seed, on_step=context.on_step)
    found = {
        split: measure(model, task, split, options["prototypes"]) for split in ("test", "train")
    }
    return found | {"steps": fitted.steps, "loss": fitted.curve[-1]["train_loss"]}


@functools.cache
def pictures(sizes: Sizes) -> Dataset:
    """The pictures of a run; a smoke run takes a few."""
    data = load(sizes.data)
    if not isinstance(data, Dataset) or data.kind != "images":
        raise ValueError(f"prototypes: pictures are needed, but {sizes.data} is {data.kind}")
    return Dataset(
        data.name, data.kind, data.x_train[: sizes.train], data.y_train[: sizes.train],
        data.x_test[: sizes.test], data.y_test[: sizes.test], data.classes,
    )  # fmt: skip


def with_steps(recipe: Recipe, steps: int, samples: int) -> Recipe:
    """A recipe of as many epochs as come nearest to a number of steps.

    >>> with_steps(Recipe(batch_size=64), 100, 640).epochs
    10
    """
    return replace(recipe, epochs=max(1, round(steps / math.ceil(samples / recipe.batch_size))))


@torch.no_grad()
def measure(model: Encoder, task: SwappedPrediction, split: str, count: int) -> Result:
    """How well the nearest prototypes of all pictures of a split agree with the classes."""
    shown, labels = task.pictures[split], task.labels[split]
    nearest = model.eval()(shown, shown)[:, 0].argmax(-1).numpy()
    shares = np.bincount(nearest, minlength=count) / len(nearest)
    return {
        "nmi": mutual_information(nearest, labels),
        "accuracy": clustering_accuracy(nearest, labels),
        "purity": purity(nearest, labels),
        # a tenth of an even share is enough to count
        "used": int((shares >= 0.1 / count).sum()),
    }


def tables(results: Results) -> list[Table]:
    """One table for each number of prototypes and kind of classes."""
    columns = (
        Column("NMI", "test.nmi", compared=True), Column("accuracy", "test.accuracy"),
        Column("purity", "test.purity"), Column("prototypes used", "test.used", ".1f"),
        Column("NMI, train", "train.nmi"),
    )  # fmt: skip
    found = []
    for count, classes in groups(results):
        names = results.names_with(prototypes=count, classes=classes)
        base = cell_name(count, classes, "three steps")
        table = results.table(
            columns, f"{count} prototypes, {classes} training set. {MEANING}", names=names,
            labels={"targets": "target"}, baseline=base,
        )  # fmt: skip
        head = [title.replace(base, "three steps") for title in table.head]
        found.append(table._replace(head=head))
    return found


MEANING = (
    "Test pictures, all classes equally frequent, unless said otherwise; accuracy gives each class "
    "one prototype, purity each prototype one class; used: prefers a tenth of an even share."
)


def groups(results: Results) -> list[tuple[int, str]]:
    """Numbers of prototypes and kinds of classes that were run."""
    return list(
        dict.fromkeys((r.options["prototypes"], r.options["classes"]) for r in results.rows)
    )


def checks(results: Results) -> list[Verdict]:
    """Collapse without balance; elastic codes beside balanced ones, for both kinds of classes."""
    verdicts = []
    for count, classes in groups(results):
        name = functools.partial(cell_name, count, classes)
        where = f"{count} prototypes, {classes}"
        used = {target: results.values(name(target), "test.used") for target, *_ in TARGETS}
        verdicts.append(
            Verdict(
                f"{where}: lam 0 collapses to one or two prototypes",
                f"{min(used['lam 0'])} to {max(used['lam 0'])} used",
                "yes" if max(used["lam 0"]) <= 2 else "no",
            )
        )
        kept = {target: mean(values) for target, values in used.items() if target != "lam 0"}
        verdicts.append(
            Verdict(
                f"{where}: every lam from 0.5 on keeps nine tenths of the prototypes in use",
                ", ".join(f"{target}: {value:.1f}" for target, value in kept.items()),
                "yes" if min(kept.values()) >= 0.9 * count else "no",
            )
        )
        verdicts += [
            results.claim(f"{where}: {ours} has a higher NMI than {base}", name(ours), name(base),
                          "test.nmi", larger=True)
            for ours, base in (("lam 0.9", "lam 1"), ("lam 0.5", "lam 1"),
                               ("lam 0.9", "three steps"), ("lam 1", "three steps"))
        ]  # fmt: skip
    return verdicts


def figure(results: Results) -> Any:
    """NMI and prototypes in use over lam, one line for each kind of classes."""
    counts = list(dict.fromkeys(count for count, _ in groups(results)))
    made, rows = sheet(len(counts), 2, width=4.2, height=2.8)
    for count, line in zip(counts, rows, strict=True):
        for axes, (metric, label) in zip(
            line,
            (("test.nmi", "NMI with the classes"), ("test.used", "prototypes used")),
            strict=True,
        ):
            for classes, colour in zip(CLASSES, PALETTE, strict=False):
                names = [cell_name(count, classes, target) for target, *_ in TARGETS[:-1]]
                lams = [results.options(name)["lam"] for name in names]
                for lam, name in zip(lams, names, strict=True):
                    values = results.values(name, metric)
                    axes.scatter([lam] * len(values), values, s=14, color=colour, alpha=0.5,
                                 linewidths=0)  # fmt: skip
                means = [results.mean(name, metric) for name in names]
                axes.plot(lams, means, color=colour, label=f"{classes}")
                base = results.mean(cell_name(count, classes, "three steps"), metric)
                axes.plot([1.05], [base], marker="D", markersize=5, color=colour)
            axes.axvline(1.025, color=QUIET, linewidth=0.6)
            tidy(axes, f"{count} prototypes: {label}", "lam; diamonds: the three published steps")
    legend(rows[0][0])
    return made


STUDY = Study(
    name="prototypes",
    title="Prototypes that do not collapse",
    question="Which codes keep prototypes in use, and which suit classes of uneven size?",
    source="Caron et al., SwAV, NeurIPS 2020; elastic codes: this library",
    about="An MLP learns unit vectors of FashionMNIST pictures, halved to 14 x 14, without labels: "
    "from each of two augmented views it predicts the code of the other. Codes come from "
    "bistoch.prototype_codes, with 20 column steps, or with the three of SwAV at lam = 1. In the "
    "long tail the largest class is 20 times the smallest one; test pictures stay balanced. All "
    "targets of a seed start from the same weights and see the same views.",
    sizes=lambda settings: SMOKE if settings.smoke else FULL,
    cells=cells,
    run=run,
    checks=checks,
    tables=tables,
    figure=figure,
    caption="Agreement with the classes, and prototypes in use, as lam grows; a dot per seed.",
    seeds=(0, 1, 2, 3, 4),
)
