"""The eight-token vision Transformer of QDSFormer on FashionMNIST, with our operators.

Seven stripes of a picture and a class token, two layers of one head. Published is a validation
accuracy with the attention of softmax, Sinkhorn, a QR decomposition and a quantum circuit.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bistoch.lab.compare.cells import time_once
from bistoch.lab.compare.page import Found
from bistoch.lab.compare.plan import Comparison
from bistoch.lab.compare.run import train_all, write_all
from bistoch.lab.compare.summary import Row, rows_of, spread
from bistoch.lab.reproduce import telling
from bistoch.lab.reproduce.study import Settings
from bistoch.lab.train import Recipe, open_task


class Published(NamedTuple):
    """A number of the paper: what it was measured with, mean and spread in percent."""

    what: str
    accuracy: float
    spread: float


# ours, and what the paper compares with; it has no elastic attention. The kernels are named because
# a batch of plans this small is otherwise left to torch, which spares compiling, not training. QR
# is there twice, since the paper does not say whether its columns are keys or queries
OPERATORS: dict[str, Published | None] = {
    "softmax": Published("softmax", 88.9, 0.1),
    "sinkhorn(backend='cpu')": Published("Sinkhorn", 89.1, 0.7),
    "orthogonal": Published("QR", 89.3, 0.1),
    "orthogonal(method='lq')": Published("QR", 89.3, 0.1),
    "elastic(lam=0.5, backend='cpu')": None,
    "elastic(learn='head', backend='cpu')": None,
}
CIRCUIT = Published("circuit", 90.0, 0.2)
# Adam without decay, a tenth of the rate from epochs 31 and 45 on; how many epochs there were in
# all is not said in the paper, and fifty are five more than its last decay
RECIPE = Recipe(
    epochs=50, batch_size=100, lr=5e-4, optimizer="adam", weight_decay=0.0, schedule="steps",
    warmup=0.0, milestones=(31, 45), clip=None,
)  # fmt: skip
SMOKE = Recipe(
    epochs=1, batch_size=100, lr=5e-4, optimizer="adam", weight_decay=0.0, schedule="constant",
    warmup=0.0, clip=None,
)  # fmt: skip


def comparison_of(settings: Settings) -> Comparison:
    """What a run of the study trains."""
    data = "fashion-mnist-small" if settings.smoke else "fashion-mnist"
    recipe = SMOKE if settings.smoke else recipe_of(settings.epochs)
    return Comparison(data, "vit_stripes", tuple(OPERATORS), settings.seeds, recipe)


def recipe_of(epochs: int | None) -> Recipe:
    """The recipe of the paper in another number of epochs: the rate falls at the same shares of it.

    >>> recipe_of(None).decays, recipe_of(10).decays, recipe_of(1).schedule
    ((31, 45), (6, 9), 'constant')
    """
    if epochs is None:
        return RECIPE
    # no fall before the second epoch, and no two at once
    falls = sorted({round(epochs * decay / RECIPE.epochs) for decay in RECIPE.milestones} - {0, 1})
    if not falls:
        return replace(RECIPE, epochs=epochs, schedule="constant", milestones=())
    return replace(RECIPE, epochs=epochs, milestones=tuple(falls))


def run_qdsformer(settings: Settings, console: Console) -> Path:
    """Train what is missing, print ours beside the published, and write the report; its path."""
    comparison, out = comparison_of(settings), settings.out / "qdsformer-fashion"
    task = open_task(comparison.data)
    cells = train_all(comparison, task, out, console)
    rows = rows_of(comparison, cells)
    head, lines = beside_published(rows, smoke=settings.smoke)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in head:
        table.add_column(name, justify="left" if name == "operator" else "right")
    for line in lines:
        table.add_row(*map(escape, line))
    console.print(table)
    notes = _notes(comparison.recipe, smoke=settings.smoke)
    for note in notes:
        console.print(note, highlight=False, markup=False)
    command = settings.command("qdsformer-fashion")
    times = time_once(comparison, task, out)
    found = Found(
        comparison, task, rows, times, command, notes, {"Beside the paper": (head, lines)}
    )
    return write_all(found, out, console)


def beside_published(
    rows: Sequence[Row], *, smoke: bool = False
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line per operator: our test accuracy, that of the best epoch, and what is published.

    A smoke run has other data and other epochs, so it is not compared.
    """
    head = ("operator", "ours (%)", "best epoch (%)", "published (%)", "difference")
    lines: list[tuple[str, ...]] = []
    for row in rows:
        ours, published = row.test("accuracy"), OPERATORS[row.operator]
        theirs = f"{published.what} {published.accuracy} ± {published.spread}" if published else ""
        gap = ""
        if published and ours and not smoke:
            gap = f"{100 * mean(ours) - published.accuracy:+.1f}"
        best = row.curve("accuracy").max(1).tolist() if ours else []
        lines.append((row.operator, spread(ours, 100, 2), spread(best, 100, 2), theirs, gap))
    lines.append(("", "", "", f"{CIRCUIT.what} {CIRCUIT.accuracy} ± {CIRCUIT.spread}", ""))
    return head, lines


def _notes(recipe: Recipe, *, smoke: bool) -> list[str]:
    notes = [
        "Published: Born et al., QDSFormer, NeurIPS 2025, two layers, five seeds, validation "
        "accuracy; of which epoch is not said. Ours is the accuracy on the test pictures after the "
        "last epoch; nothing was chosen by it. The best epoch of every seed is chosen by these "
        "pictures, so its accuracy is a little too high.",
    ]
    if smoke:
        return [telling.SMOKE, *notes]
    if recipe.epochs != RECIPE.epochs:
        notes.append(_shortened(recipe))
    return notes


def _shortened(recipe: Recipe) -> str:
    """That a run was not as long as the recipe, and what that means."""
    return (
        f"Ours was trained for {recipe.epochs} epochs with {_falls(recipe)}, not for "
        f"{RECIPE.epochs} with {_falls(RECIPE)}: compare ours with ours, and with the published "
        "numbers only loosely."
    )


def _falls(recipe: Recipe) -> str:
    """When the rate falls, in words.

    >>> _falls(recipe_of(10))
    'a tenth of the rate from epochs 6 and 9 on'
    >>> _falls(recipe_of(2)), _falls(recipe_of(1))
    ('a tenth of the rate from epoch 2 on', 'the same rate throughout')
    """
    if not recipe.milestones:
        return "the same rate throughout"
    epochs = "epoch" if len(recipe.milestones) == 1 else "epochs"
    return f"a tenth of the rate from {epochs} {' and '.join(map(str, recipe.milestones))} on"
