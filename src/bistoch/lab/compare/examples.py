"""Attention on real samples: plans of one, and for pictures the mass of every patch."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from bistoch.analysis import metrics
from bistoch.lab.compare.draw import NAMED, draw_clouds, draw_pictures, draw_plans_by_layer
from bistoch.lab.compare.look import Seen, see
from bistoch.lab.compare.summary import Row
from bistoch.lab.train import Classification, Task, restore_run
from bistoch.models import ViT

PICTURES = 6
# a word of a long token name that is shown
LETTERS = 12


def example_figures(task: Task, rows: Sequence[Row]) -> Iterator[tuple[str, Any, str]]:
    """Names, figures and captions of some test samples with the model of each operator."""
    shown = _spread(task)
    models = {row.operator: restore_run(row.cells[0].folder).model for row in rows}
    seen = {
        name: [see(model, task, range(row, row + 1)) for row in shown]
        for name, model in models.items()
    }
    plans = {name: found[0].plans[0] for name, found in seen.items()}
    words = _words(task, shown[0])
    yield (
        "plans", draw_plans_by_layer(plans, words),
        f"A test sample{_of_class(task, shown[0])}: its plans, the mean of all heads. Rows are "
        "queries, columns are keys; darker is more, on one scale for all operators of a layer.",
    )  # fmt: skip
    first = next(iter(models.values()))
    place = _points_layer(next(iter(seen.values()))[0]) if task.kind == "points" else None
    if place is not None and isinstance(task, Classification):
        heights = {
            name: [metrics.column_load(one.plans[0][place]).mean(0).numpy() for one in found]
            for name, found in seen.items()
        }
        layer = seen[rows[0].operator][0].names[place].removesuffix(".attention")
        yield (
            "clouds",
            draw_clouds(
                [task.samples["test"][row] for row in shown],
                [_title(task, row) for row in shown], heights,
            ),
            f"What the points of clouds receive in the layer {layer}, over their share: red is "
            "more, blue is less, grey is even.",
        )  # fmt: skip
    if isinstance(first, ViT) and isinstance(task, Classification):
        maps = {name: [_patch_loads(one, first) for one in found] for name, found in seen.items()}
        pictures = [task.samples["test"][row] for row in shown]
        titles = [_title(task, row) for row in shown]
        yield (
            "pictures", draw_pictures(pictures, titles, maps),
            "What the patches of pictures receive in the last layer, over their share: red is "
            "more, blue is less, white is even.",
        )  # fmt: skip


def _spread(task: Task) -> list[int]:
    """Samples of different classes, as far as there are any."""
    labels = getattr(task, "labels", {}).get("test")
    if labels is None:
        return [0]
    if isinstance(task, Classification) and task.kind == "text":
        # a text whose words can be read beside its plans, if there is one
        short = (row for row, text in enumerate(task.encoded["test"]) if 3 < len(text) <= NAMED)
        return [next(short, 0)]
    _, firsts = np.unique(labels, return_index=True)
    return [int(row) for row in np.sort(firsts)[:PICTURES]]


def _of_class(task: Task, row: int) -> str:
    return f" of the class {_title(task, row)}" if "classes" in task.facts else ""


def _title(task: Task, row: int) -> str:
    return str(task.facts["classes"][int(task.batch("test", torch.tensor([row])).target)])


def _words(task: Task, row: int) -> list[str]:
    if not isinstance(task, Classification) or task.kind != "text":
        return []
    numbers = task.encoded["test"][row].tolist()
    return [task.facts["tokens"][number][:LETTERS] for number in numbers]


def _points_layer(seen: Seen) -> int | None:
    """The last layer in which points are the keys of several queries; pooling is not one."""
    points = len(seen.states[0][0])
    found = [
        place
        for place, (name, plan) in enumerate(zip(seen.names, seen.plans[0], strict=True))
        if plan.shape[-1] == points and plan.shape[-2] > 1 and not name.startswith("pool")
    ]
    return found[-1] if found else None


def _patch_loads(seen: Seen, model: ViT) -> np.ndarray:
    """The load of the patches in the last layer, as they lie in the picture."""
    load = metrics.column_load(seen.plans[0][-1]).mean(0)
    # the class token comes first, and lies nowhere
    return load[int(model.has_class) :].reshape(model.config.grid).numpy()
