"""The eight-token vision Transformer of QDSFormer on FashionMNIST, with our operators.

Seven stripes of a picture and a class token, two layers of one head; published are accuracies.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bistoch.lab.compare.attention import measure
from bistoch.lab.compare.draw import draw_curves
from bistoch.lab.data import Dataset, load
from bistoch.lab.reproduce.qdsformer_operators import (
    CIRCUIT,
    CIRCUITS,
    DEEP,
    GROUPS,
    OPERATORS,
    SAMPLES,
    published_of,
)
from bistoch.lab.reproduce.qdsformer_plans import (
    COMPARED,
    measure_own_plans,
    measure_plans,
    own_plans_of,
    plan_checks,
    plan_tables,
    plans_of,
    scores_of,
)
from bistoch.lab.reproduce.qdsformer_steps import circuits, step_tables
from bistoch.lab.reproduce.stability import (
    count_spikes,
    stability_checks,
    stability_table,
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
)
from bistoch.lab.train import (
    Fitted,
    Recipe,
    Setup,
    StepInfo,
    Task,
    evaluate,
    new_model,
    open_task,
    time_steps,
    train_run,
)

SAMPLES_SMOKE = 100
FASHION_SMALL = "fashion-mnist-small"
# test pictures whose scores are turned into plans
PICTURES = 500
# Adam without decay, a tenth of the rate from epochs 31 and 45 on; how many epochs there were in
# all is not said in the paper, and fifty are five more than its last decay
RECIPE = Recipe(
    epochs=50, batch_size=100, lr=5e-4, optimizer="adam", weight_decay=0.0, schedule="steps",
    warmup=0.0, milestones=(31, 45), clip=None,
)  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """Data, model and protocol of every run."""

    data: str = "fashion-mnist"
    model: str = "vit_stripes"
    recipe: Recipe = RECIPE


def sizes(settings: Settings) -> Sizes:
    """The full set, or in a smoke run one epoch of the shipped part."""
    if settings.smoke:
        return Sizes(FASHION_SMALL, recipe=recipe_of(1))
    return Sizes(recipe=recipe_of(settings.epochs))


def recipe_of(epochs: int | None) -> Recipe:
    """The recipe of the paper in another number of epochs: the rate falls at the same shares of it.

    >>> recipe_of(None).milestones, recipe_of(10).milestones, recipe_of(1).schedule
    ((31, 45), (6, 9), 'constant')
    """
    if epochs is None:
        return RECIPE
    # no fall before the second epoch, and no two at once
    falls = sorted({round(epochs * decay / RECIPE.epochs) for decay in RECIPE.milestones} - {0, 1})
    if not falls:
        return replace(RECIPE, epochs=epochs, schedule="constant", milestones=())
    return replace(RECIPE, epochs=epochs, milestones=tuple(falls))


def cells(smoke: bool) -> list[Cell]:
    """One per operator and data set, the plans of their scores, and the time of a training step."""
    trained = [Cell(operator, {"operator": operator}) for operator in OPERATORS]
    for data, names in GROUPS.items():
        samples = SAMPLES_SMOKE if smoke else SAMPLES[data]
        more = {"data": FASHION_SMALL if smoke else data, "samples": samples}
        trained += [Cell(cell_of(data, name), {"operator": name, **more}) for name in names]
    compared = [Cell(plans_of(name), {"plans": name}) for name in COMPARED]
    compared += [Cell(own_plans_of(name), {"own": name}) for name in GROUPS["fashion-mnist"]]
    return [*trained, *compared, Cell("time", seeded=False)]


def full_cells(smoke: bool) -> list[Cell]:
    """Also circuits of sixteen layers, on both data sets."""
    found, more = cells(smoke), {"data": FASHION_SMALL, "samples": SAMPLES_SMOKE} if smoke else {}
    deep = [Cell(name, {"operator": name, **more}) for name in DEEP]
    digits = {"data": "mnist", "samples": None} | more
    return [*deep, *(Cell(cell_of("mnist", x), {"operator": x, **digits}) for x in DEEP), *found]


def cell_of(data: str, operator: str) -> str:
    """The name of the cell of an operator on another data set, or on a part of one.

    >>> cell_of("fashion-mnist", "softmax"), cell_of("mnist", "softmax")
    ('part of fashion-mnist: softmax', 'all of mnist: softmax')
    """
    return f"{'all' if SAMPLES[data] is None else 'part'} of {data}: {operator}"


def run(cell: Cell, seed: int, context: Context) -> Result:
    """Train an operator; test scores, the curve, and what its attention does."""
    chosen: Sizes = context.sizes
    if cell.name == "time":
        task = _open(chosen.data)
        # the kernels first: what the reference leaves in the cache is not their fault
        pairs = circuits(context.smoke).values()
        names = [*OPERATORS, *(name for kind in zip(*pairs, strict=True) for name in kind)]
        models = {name: new_model(_setup(chosen, name, 0), task) for name in names}
        return time_steps(models, task, chosen.recipe)
    if "plans" in cell.options:
        scores, _, classes = _scores("softmax", seed, context)
        return measure_plans(cell.options["plans"], scores, classes, seed)
    if "own" in cell.options:
        return measure_own_plans(*_scores(cell.options["own"], seed, context), seed)
    losses: list[float] = []

    def on_step(info: StepInfo) -> None:
        losses.append(info.loss)
        context.on_step(info)

    model, fitted, task = _train(cell.options, seed, context, context.folder, on_step)
    return {
        "test": evaluate(model, task, "test"),
        "curve": fitted.curve,
        "epoch": fitted.epoch,
        "steps": fitted.steps,
        # of a run that was resumed, those since then
        "spikes": count_spikes(losses),
        "parameters": sum(p.numel() for p in model.parameters()),
        "attention": measure(model, task),
    }


def _train(
    options: Mapping[str, Any], seed: int, context: Context, folder: Path,
    on_step: Callable[[StepInfo], None],
) -> tuple[nn.Module, Fitted, Task]:  # fmt: skip
    """Train what a cell says in a folder, or find it there trained."""
    chosen = replace(context.sizes, data=options.get("data", context.sizes.data))
    task = _open(chosen.data, options.get("samples"))
    setup = _setup(chosen, options["operator"], seed)
    return *train_run(setup, task, folder, on_step=on_step), task


def _scores(operator: str, seed: int, context: Context) -> tuple[Tensor, Tensor, Tensor]:
    """Scores and plans of both layers of a trained model, and the classes of the pictures."""
    name = cell_of("fashion-mnist", operator)
    context.result(name)
    options = context.runner.cells[name].options
    model, _, task = _train(options, seed, context, context.folder_of(name), context.on_step)
    batch = task.batch("test", torch.arange(min(PICTURES, task.count("test"))))
    return *scores_of(model, batch.inputs), batch.target


def _setup(chosen: Sizes, operator: str, seed: int) -> Setup:
    return Setup(chosen.data, chosen.model, operator, chosen.recipe, seed)


@functools.cache
def _open(data: str, samples: int | None = None) -> Task:
    """A data set, or only the first samples of its splits."""
    found = load(data)
    if samples is not None and isinstance(found, Dataset):
        train = {"x_train": found.x_train[:samples], "y_train": found.y_train[:samples]}
        test = {"x_test": found.x_test[:samples], "y_test": found.y_test[:samples]}
        found = replace(found, **train, **test)
    return open_task(found)


def lines_of(results: Results) -> list[str]:
    """The operators that were trained, in order."""
    return [name for name in (*OPERATORS, *DEEP) if name in results.names]


def group_of(results: Results, data: str) -> dict[str, str]:
    """The operators that were trained on another data set, by the names of their cells."""
    cells = {cell_of(data, operator): operator for operator in (*GROUPS[data], *DEEP)}
    return {name: operator for name, operator in cells.items() if name in results.names}


def _best(result: Result) -> float:
    return max(epoch["accuracy"] for epoch in result["curve"])


def _peak(result: Result) -> float:
    return mean(result["attention"]["peak"])


SCORES = [
    Column("ours (%)", "test.accuracy", ".2f", 100, compared=True),
    Column("best epoch (%)", _best, ".2f", 100),
    Column("test loss", "test.loss"),
    Column("largest column mass", _peak, ".2f"),
]


def tables(results: Results) -> list[Table]:
    """Ours beside the paper's, on all pictures and on a part, how steadily it learns, the plans."""
    names, times = lines_of(results), results.times_over("softmax")
    made = results.table(
        SCORES, NOTE + _shortened(results), names=names, baseline="softmax",
        more={
            "step, over softmax": times,
            "published (%)": {name: str(published_of(OPERATORS, CIRCUIT, name)) for name in names},
        },
    )  # fmt: skip
    # what is published of a circuit that was not trained
    blank = [] if DEEP[0] in names else [[*[""] * (len(made.head) - 1), str(CIRCUIT)]]
    found = [made._replace(rows=[*made.rows, *blank])]
    for data, known in GROUPS.items():
        group = group_of(results, data)
        if group:
            more = {
                "step, over softmax": {name: times.get(x, "") for name, x in group.items()},
                "published (%)": {
                    name: str(published_of(known, known.get(CIRCUITS[0]), x))
                    for name, x in group.items()
                },
            }
            samples = results.options(next(iter(group)))["samples"]
            note = ALL_NOTE if samples is None else PART_NOTE.format(samples=samples)
            table = results.table(
                SCORES, note + _shortened(results), names=list(group),
                baseline=cell_of(data, "softmax"), more=more,
            )  # fmt: skip
            found.append(_with_operators(table))
    groups = {"fashion-mnist, all": ({name: name for name in names}, OPERATORS)}
    groups |= {
        f"{data}, {'all' if SAMPLES[data] is None else 'part'}": (group_of(results, data), known)
        for data, known in GROUPS.items()
    }
    steady = {
        name: (data, operator, str(getattr(known.get(operator), "spread", None) or ""))
        for data, (cells, known) in groups.items()
        for name, operator in cells.items()
        # older records do not have it
        if results.values(name, "spikes")
    }
    if steady:
        found.append(stability_table(results, steady))
    return [*found, *map(_with_operators, plan_tables(results)), *step_tables(results)]


def _with_operators(table: Table) -> Table:
    """A table whose lines are named by operators, not by cells."""
    head = [
        "difference to softmax" if title.startswith("difference") else title for title in table.head
    ]
    lines = [list(map(str, row)) for row in table.rows]
    return table._replace(head=head, rows=[[row[0].split(": ")[-1], *row[1:]] for row in lines])


PART_NOTE = (
    "The first {samples} training and test pictures. Published with 60000 for training: compare "
    "ours with ours."
)
ALL_NOTE = "All training and test pictures."
NOTE = (
    "Published: two layers, five seeds, validation accuracy; of which epoch is not said. Ours is "
    "the accuracy on the test pictures after the last epoch; nothing was chosen by it. The best "
    "epoch of every seed is chosen by these pictures, so its accuracy is a little too high. "
    "Differences are to softmax with the same seed, with their 95 % interval."
)


def _shortened(results: Results) -> str:
    """That a run was not as long as the recipe, and what that means."""
    recipe = Recipe(**results.sizes["recipe"])
    if results.smoke or recipe.epochs == RECIPE.epochs:
        return ""
    return (
        f" Ours was trained for {recipe.epochs} epochs with {_falls(recipe)}, not for "
        f"{RECIPE.epochs} with {_falls(RECIPE)}: compare ours with ours, and with the published "
        "numbers only loosely."
    )


def _falls(recipe: Recipe) -> str:
    """When the rate falls.

    >>> _falls(recipe_of(10))
    'a tenth of the rate from epochs 6 and 9 on'
    >>> _falls(recipe_of(2)), _falls(recipe_of(1))
    ('a tenth of the rate from epoch 2 on', 'the same rate throughout')
    """
    if not recipe.milestones:
        return "the same rate throughout"
    epochs = "epoch" if len(recipe.milestones) == 1 else "epochs"
    return f"a tenth of the rate from {epochs} {' and '.join(map(str, recipe.milestones))} on"


def checks(results: Results) -> list[Verdict]:
    """What is published of accuracy, stability and plans, and what is hoped for."""
    groups = [{name: name for name in lines_of(results)}]
    groups += [group_of(results, data) for data in GROUPS]
    found = [
        results.claim(
            f"{name}: a higher accuracy than softmax", name, base, "test.accuracy",
            larger=True, unit="points", form=".2f", scale=100,
        )
        for group in groups
        for base in [name for name, operator in group.items() if operator == "softmax"]
        for name in group if name != base
    ]  # fmt: skip
    for group in groups:
        cells = {operator: name for name, operator in group.items()}
        others = [cells[name] for name in ("softmax", "sinkhorn(backend='cpu')") if name in cells]
        for circuit in (cells[name] for name in (*CIRCUITS, *DEEP) if name in cells):
            found += stability_checks(results, circuit, others)
    return found + plan_checks(results)


def figure(results: Results) -> Any:
    """Learning curves."""
    panels = {"train_loss": "training loss", "loss": "test loss", "accuracy": "test accuracy"}
    curves = {
        name: {
            key: np.array(
                [[e[key] for e in one["curve"]] for one in results.by_seed(name).values()]
            )
            for key in panels
        }
        for name in lines_of(results)
        if results.by_seed(name)
    }
    return draw_curves(curves, panels)


STUDY = Study(
    name="qdsformer-fashion",
    title="The eight-token vision Transformer of QDSFormer",
    question="Does balance help a small vision Transformer, and how much of it is enough?",
    source="Born et al., QDSFormer, NeurIPS 2025, arXiv 2504.16275",
    about="FashionMNIST, a picture as seven stripes and a class token, two layers of one head; the "
    "same on a part of it and on MNIST, and the plans that operators make of the same scores. For "
    "one seed all operators start from the same weights and see the same pictures in the same "
    "order.",
    sizes=sizes,
    cells=cells,
    run=run,
    checks=checks,
    tables=tables,
    figure=figure,
    caption="Mean over seeds by epoch; the band reaches from the lowest seed to the highest.",
    epochs=RECIPE.epochs,
)
# the published epochs, seeds and depth of the circuit: about a day of a core, by the time of a step
FULL_STUDY = replace(
    STUDY, name="qdsformer-full", title="The eight-token vision Transformer of QDSFormer, in full",
    cells=full_cells, seeds=(0, 1, 2, 3, 4),
)  # fmt: skip
