"""A vision Transformer of Gaussian tokens, and whether its probabilities can be trusted.

Small networks on a part of FashionMNIST and CIFAR-10, asked about test images, about corrupted ones
and about digits, which they cannot know; beside dropout at test time and an ensemble.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import mean
from typing import Any

import numpy as np
from torch import Tensor

from bistoch.analysis import metrics
from bistoch.lab.data import CORRUPTIONS, STRENGTHS, corrupt
from bistoch.lab.drawing import PALETTE, grid, tidy
from bistoch.lab.reproduce.stochastic_networks import (
    RECIPE,
    Images,
    Sizes,
    Trained,
    probabilities,
    read_images,
    train,
)
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
    trained_network,
)
from bistoch.lab.train import TensorTask, time_steps
from bistoch.lab.train.task import class_losses, class_scores

PUBLISHED, SOFTMAX = "Gaussian, softmax, positives", "softmax ViT"
# options of every method; "lam" makes tokens Gaussian
METHODS: dict[str, dict[str, Any]] = {
    SOFTMAX: {},
    "wider softmax ViT": {"wide": True},
    "dropout": {"dropout": True},
    "ensemble": {"ensemble": True},
    "Gaussian, softmax": {"lam": 0.0},
    PUBLISHED: {"lam": 0.0, "regulariser": "positives"},
    "Gaussian, softmax, negatives": {"lam": 0.0, "regulariser": "negatives"},
    "Gaussian, elastic 0.5, positives": {"lam": 0.5, "regulariser": "positives"},
    "Gaussian, elastic 1, positives": {"lam": 1.0, "regulariser": "positives"},
}
ELASTIC = "Gaussian, elastic 1, positives"
# the cells that the claims need; colour images cost more
ON_CIFAR = (SOFTMAX, "dropout", "ensemble", PUBLISHED, ELASTIC)
DATA = {"fashion-mnist": tuple(METHODS), "cifar10": ON_CIFAR}
NUMBERS = ("accuracy", "nll", "ece", "brier")


RECORDED = Sizes()
SMOKE = Sizes(
    train=100, test=50, corrupted=20, depth=1, dim=8, wide=12, heads=2, iters=2, samples=2,
    members=2, recipe=replace(RECIPE, epochs=1),
)  # fmt: skip


# all images of both sets, and five times the epochs
FULL = Sizes(train=60_000, test=10_000, corrupted=10_000, recipe=replace(RECIPE, epochs=50))


def sizes(settings: Settings, chosen: Sizes = RECORDED) -> Sizes:
    """Those of a run with its epochs, or of a smoke run."""
    if settings.smoke:
        return SMOKE
    recipe = chosen.recipe
    return replace(chosen, recipe=replace(recipe, epochs=settings.epochs or recipe.epochs))


def cells(smoke: bool, chosen: Mapping[str, Sequence[str]] = DATA) -> list[Cell]:
    """One per data set and method, and the time of a training step."""
    sets = {"fashion-mnist-small": tuple(METHODS)} if smoke else chosen
    trained = [
        Cell(f"{data}: {method}", {"data": data, "method": method})
        for data, methods in sets.items()
        for method in methods
    ]
    return [*trained, Cell("time", {"data": next(iter(sets))}, seeded=False)]


def run(cell: Cell, seed: int, context: Context) -> Result:
    """Train the networks of a method; its probabilities for known, corrupted and foreign images."""
    chosen: Sizes = context.sizes
    data = read_images(cell.options["data"], chosen, digits=not context.smoke)
    if cell.name == "time":
        return time_networks(data, chosen)
    options = METHODS[cell.options["method"]]
    count = chosen.members if options.get("ensemble") else 1
    folder = context.runner.settings.out / "networks"
    # the first network of an ensemble is that of the plain method
    kept = {key: value for key, value in options.items() if key != "ensemble"}
    networks = []
    for member in range(count):
        own = seed + 1000 * member
        network, _ = trained_network(
            folder, f"stochastic-vit {cell.options['data']}",
            {"sizes": asdict(chosen), "data": cell.options["data"], **kept}, own,
            lambda: Trained(data, chosen, kept),
            functools.partial(train, data=data, chosen=chosen, seed=own, context=context),
        )  # fmt: skip
        networks.append(network)
    ask = functools.partial(
        probabilities, networks, samples=chosen.samples if kept.get("dropout") else 0, seed=seed
    )
    return {
        **measure(ask, data, chosen, seed),
        "auroc": outliers(lambda x: metrics.predictive_entropy(ask(x)), data),
        **(
            {"auroc_variance": outliers(networks[0].variance, data)}
            if "lam" in kept else {}
        ),
        "parameters": sum(p.numel() for one in networks for p in one.model.parameters()),
    }  # fmt: skip


def measure(ask: Callable[[np.ndarray], Tensor], data: Images, chosen: Sizes, seed: int) -> Result:
    """The numbers of test images, and of corrupted ones by kind and strength."""
    few, labels = data.x_test[: chosen.corrupted], data.y_test[: chosen.corrupted]
    found = {
        kind: [numbers(ask(corrupt(few, kind, level, seed=seed)), labels) for level in STRENGTHS]
        for kind in CORRUPTIONS
    }
    means = {
        name: mean(one[name] for levels in found.values() for one in levels) for name in NUMBERS
    }
    return {
        "test": numbers(ask(data.x_test), data.y_test), "corrupted": means, "corruptions": found,
    }  # fmt: skip


def numbers(p: Tensor, target: Tensor) -> dict[str, float]:
    """Accuracy, negative log-likelihood, calibration error and Brier score.

    >>> import torch
    >>> numbers(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1]))["brier"]
    0.25
    """
    return {
        "accuracy": class_scores(p, target).mean().item(),
        "nll": metrics.negative_log_likelihood(p, target).item(),
        "ece": metrics.calibration_error(p, target).item(),
        "brier": metrics.brier_score(p, target).item(),
    }


def outliers(score: Callable[[np.ndarray], Tensor], data: Images) -> float:
    """How well a score tells digits from test images."""
    return metrics.auroc(score(data.x_test), score(data.digits)).item()


def time_networks(data: Images, chosen: Sizes) -> Result:
    """Training steps of the networks, in turns; dropout and an ensemble cost what they are."""
    names = (SOFTMAX, "wider softmax ViT", PUBLISHED, ELASTIC)
    made = {name: Trained(data, chosen, METHODS[name]) for name in names}

    def losses(output: Tensor, target: Tensor) -> Tensor:
        return class_losses(output[:, : data.classes], target)

    task = TensorTask("images", {"train": (data.x_train, data.y_train)}, losses=losses)
    return time_steps(made, task, chosen.recipe)


def sets_of(results: Results) -> dict[str, list[str]]:
    """The cells of every data set."""
    names = [name for name in results.names if name != "time"]
    return {
        data: list(some) for data, some in itertools.groupby(names, key=lambda n: n.split(": ")[0])
    }


def tables(results: Results) -> list[Table]:
    """All numbers on test images, and the means over corruptions, for every data set."""
    made = []
    times = results.times_over(SOFTMAX)
    for data, names in sets_of(results).items():
        columns = [
            Column("accuracy (%)", "test.accuracy", ".1f", 100),
            Column("NLL", "test.nll", compared=True),
            Column("ECE (%)", "test.ece", ".1f", 100, compared=True),
            Column("Brier", "test.brier"),
            Column("AUROC, digits (%)", "auroc", ".1f", 100),
            Column("by variance", "auroc_variance", ".1f", 100),
        ]
        labels = {"method": "method"}
        baseline = f"{data}: {SOFTMAX}"
        first = next(iter(results.by_seed(baseline).values()))["parameters"]
        more = {
            "parameters, over softmax": {
                name: f"{results.mean(name, 'parameters') / first:.1f}" for name in names
            },
            "step, over softmax": {name: times.get(name.split(": ")[1], "") for name in names},
        }
        note = f"Test images of {data}; differences are to the softmax ViT, paired by seed."
        made.append(
            results.table(
                columns,
                note,
                names=names,
                labels=labels,
                baseline=_first_of,
                more=more,
            )
        )
        columns = [
            Column("accuracy (%)", "corrupted.accuracy", ".1f", 100),
            Column("NLL", "corrupted.nll", compared=True),
            Column("ECE (%)", "corrupted.ece", ".1f", 100, compared=True),
            Column("Brier", "corrupted.brier"),
        ]
        note = f"Corrupted images of {data}, the mean over three kinds and five strengths."
        made.append(results.table(columns, note, names=names, labels=labels, baseline=_first_of))
    return made


def _first_of(name: str) -> str:
    """The softmax ViT on the same data."""
    return f"{name.split(': ')[0]}: {SOFTMAX}"


def checks(results: Results) -> list[Verdict]:
    """What is claimed of Gaussian tokens, and what is hoped of balance and of negatives."""
    found = []
    for data, names in sets_of(results).items():

        def claim(
            text: str, ours: str, other: str, metric: str, *, larger: bool = False, data: str = data
        ) -> Verdict:
            percent = metric.endswith(("ece", "auroc"))
            return results.claim(
                f"{data}: {text}", f"{data}: {ours}", f"{data}: {other}", metric, larger=larger,
                unit="points" if percent else "nats", form=".2f", scale=100 if percent else 1,
            )  # fmt: skip

        asked = itertools.product(("test", "corrupted"), ("ece", "nll"))
        for images, number in asked:
            where = " on corrupted images" if images == "corrupted" else ""
            lower, metric = f"has a lower {number.upper()} than", f"{images}.{number}"
            found += [
                claim(f"{PUBLISHED} {lower} {other}{where}", PUBLISHED, other, metric)
                for other in (SOFTMAX, "dropout", "ensemble")
            ]
            # the direct comparison: the same Gaussian tokens under the other plan
            text = f"an elastic plan (lam = 1) {lower} a softmax plan of the same tokens{where}"
            found.append(claim(text, ELASTIC, PUBLISHED, metric))
        found.append(
            claim(f"{PUBLISHED} finds digits better than {SOFTMAX}", PUBLISHED, SOFTMAX, "auroc",
                  larger=True)
        )  # fmt: skip
        if f"{data}: Gaussian, softmax, negatives" in names:
            wide = "wider softmax ViT"
            found += [
                claim(f"Gaussian tokens without regulariser have a lower NLL than a {wide}",
                      "Gaussian, softmax", wide, "test.nll"),
                claim(f"Gaussian tokens without regulariser have a lower ECE than a {wide}",
                      "Gaussian, softmax", wide, "test.ece"),
                claim("Gaussian tokens without regulariser have a lower NLL than a wider softmax "
                      "ViT on corrupted images", "Gaussian, softmax", wide, "corrupted.nll"),
                claim("positives lower the ECE of Gaussian tokens", PUBLISHED, "Gaussian, softmax",
                      "test.ece"),
                claim("negatives lower the ECE further", "Gaussian, softmax, negatives", PUBLISHED,
                      "test.ece"),
            ]  # fmt: skip
    return found


def figure(results: Results) -> Any:
    """Calibration by strength of a corruption, and how well digits are found, for every set."""
    sets = sets_of(results)
    made, panels = grid(3 * len(sets), 3, width=3.0, height=2.4)
    shown = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(METHODS)}
    for row, (data, names) in enumerate(sets.items()):
        nll, ece, auroc = panels[3 * row : 3 * row + 3]
        for name in names:
            method = name.split(": ")[1]
            style = "-" if "Gaussian" in method else "--"
            for axes, number in ((nll, "nll"), (ece, "ece")):
                curve = [results.mean(name, f"test.{number}")]
                curve += [
                    results.mean(name, functools.partial(_at, number=number, level=level))
                    for level in range(len(STRENGTHS))
                ]
                axes.plot([0, *STRENGTHS], curve, style, color=shown[method], linewidth=1.4,
                          marker="o", markersize=3, label=method)  # fmt: skip
        for place, name in enumerate(names):
            values = results.values(name, "auroc")
            auroc.plot(values, [place] * len(values), "o", color=shown[name.split(": ")[1]],
                       markersize=5)  # fmt: skip
        tidy(nll, f"{data}: NLL", "strength of the corruption (0: none)")
        tidy(ece, "calibration error", "strength of the corruption (0: none)")
        tidy(auroc, "AUROC of digits, every seed")
        auroc.yaxis.tick_right()
        auroc.set_yticks(range(len(names)), [name.split(": ")[1] for name in names], fontsize=7)
        auroc.set_ylim(len(names) - 0.5, -0.5)
    handles, labels = panels[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return made


def _at(result: Result, number: str, level: int) -> float:
    return mean(result["corruptions"][kind][level][number] for kind in CORRUPTIONS)


STUDY = Study(
    name="stochastic-vit",
    title="A vision Transformer of Gaussian tokens",
    question="Are the probabilities of a vision Transformer better calibrated if its tokens are "
    "normal distributions, and does a balanced plan help?",
    source="Erick, Rezaei, Mueller, Kainz, arXiv 2311.18645",
    about="The first 10,000 training images of FashionMNIST and CIFAR-10, cut into 4 x 4 patches, "
    "two layers of four heads, ten epochs; asked about the first 5,000 test images, 1,000 of them "
    "with noise, blur and low contrast at five strengths, and about 5,000 digits of MNIST, "
    "which should be found by the entropy of the probabilities. The paper's networks are larger "
    "and trained for longer, and its numbers are not known to us: what is tested is whether its "
    "claims hold here. On CIFAR-10 only the cells that the claims need are run. Dropout is 0.3 "
    "with ten samples at test time; an ensemble has three networks. The distance regulariser has "
    "the weight 0.1, to a learned distribution of every class.",
    sizes=sizes,
    cells=cells,
    run=run,
    checks=checks,
    tables=tables,
    figure=figure,
    caption="Means over seeds, over noise, blur and contrast; digits for every seed.",
    epochs=RECIPE.epochs,
)
FULL_STUDY = replace(
    STUDY, name="stochastic-vit-full", title="A vision Transformer of Gaussian tokens, all images",
    about="The networks of `stochastic-vit` with all training and test images of both sets, 50 "
    "epochs, and all methods on CIFAR-10 too: days on a processor.",
    sizes=functools.partial(sizes, chosen=FULL),
    cells=functools.partial(cells, chosen=dict.fromkeys(DATA, tuple(METHODS))),
    epochs=FULL.recipe.epochs,
)  # fmt: skip
