"""Attention on test samples: plans of one, and the mass of the patches or points of several."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.analysis import draw_plans, metrics
from bistoch.lab.compare.attention import Captured, capture_samples
from bistoch.lab.compare.draw import (
    NAMED,
    draw_clouds,
    draw_images,
    draw_plans_by_layer,
    short_name,
)
from bistoch.lab.compare.summary import Row, baseline_of
from bistoch.lab.train import Classification, NextCharacter, Task, restore_run
from bistoch.models import ViT

# samples that are shown, and characters of a token
SHOWN, TOKEN = 6, 12


class Example(NamedTuple):
    """A figure of test samples: its file name, how to draw it, its caption, and what it is.

    `narrow` draws it for telephones; `photos` says that it shows pictures, `folded` that it is more
    detail than most readers want.
    """

    name: str
    draw: Callable[[], Any]
    caption: str
    narrow: Callable[[], Any] | None = None
    photos: bool = False
    folded: bool = False


def example_figures(task: Task, rows: Sequence[Row]) -> Iterator[Example]:
    """Figures of some test samples with the model of each operator."""
    shown = _choose(task)
    models = {row.operator: restore_run(row.cells[0].folder).model for row in rows}
    captured = {
        name: [capture_samples(model, task, range(row, row + 1)) for row in shown]
        for name, model in models.items()
    }
    titles = [_class_of(task, row) for row in shown]
    of_class = f" of the class {titles[0]}" if titles[0] else ""
    tokens = _tokens(task, shown[0], models[rows[0].operator])
    plans = {name: found[0].plans[0] for name, found in captured.items()}
    yield _fullest_head(plans, tokens, rows, of_class)
    yield Example(
        "plans", partial(draw_plans_by_layer, plans, tokens),
        f"A test sample{of_class}: its plans, the mean of all heads. Rows are queries, columns are "
        "keys; darker is more, on one scale for all operators of a layer.",
        folded=True,
    )  # fmt: skip
    if not isinstance(task, Classification):
        return
    samples = [task.samples["test"][row] for row in shown] if task.kind != "text" else []
    first = captured[rows[0].operator][0]
    layer = _points_layer(first) if task.kind == "points" else None
    if layer is not None:
        loads = {
            name: [metrics.column_load(one.plans[0][layer]).mean(0).numpy() for one in found]
            for name, found in captured.items()
        }
        yield Example(
            "clouds", partial(draw_clouds, samples, titles, loads),
            "The mass that the points of clouds receive in the layer "
            f"{first.names[layer].removesuffix('.attention')}, relative to their even share: red "
            "is more, blue is less, grey is even.",
        )  # fmt: skip
    vit = models[rows[0].operator]
    if isinstance(vit, ViT):
        maps = {name: [_patch_loads(one, vit) for one in found] for name, found in captured.items()}
        yield Example(
            "images", partial(draw_images, samples, titles, maps),
            "The mass that the patches of images receive in the last layer, relative to their even "
            "share: red is more, blue is less, white is even.", photos=True,
        )  # fmt: skip


def _fullest_head(
    plans: Mapping[str, Sequence[Tensor]], tokens: Sequence[str], rows: Sequence[Row], of_class: str
) -> Example:
    """The head that overloads a key most with softmax (or the first), with every operator.

    An operator with another number of heads shows the one of its own that does.
    """
    first = (baseline_of(rows) or rows[0]).operator
    # where a layer has one query there is nothing to balance
    layers = [place for place, plan in enumerate(plans[first]) if plan.shape[-2] > 1]
    loads = {
        (layer, head): metrics.column_load(plans[first][layer])[head].max().item()
        for layer in layers or [0]
        for head in [_fullest(plans[first][layer])]
    }
    layer, head = max(loads, key=lambda place: loads[place])
    counts = {name: len(found[layer]) for name, found in plans.items()}
    heads = {
        name: head if counts[name] == counts[first] else _fullest(found[layer])
        for name, found in plans.items()
    }
    chosen = {short_name(name): found[layer][heads[name]] for name, found in plans.items()}
    others = "".join(
        f" {name} has one head there, which is shown."
        if count == 1
        else f" {name} has {count} heads there; shown is its fullest, head {heads[name]}."
        for name, count in counts.items()
        if count != counts[first]
    )
    n, m = plans[first][layer].shape[-2:]
    queries, keys = (tokens if len(tokens) == count else () for count in (n, m))
    draw = partial(draw_plans, chosen, queries=queries, keys=keys)
    return Example(
        "head", draw,
        f"A test sample{of_class}: head {head} of layer {layer + 1}, the one in which a key is "
        f"fullest with {first}, {loads[layer, head]:.1f} times its share.{others} Rows are "
        "queries, columns are keys; bars are column sums, the dashed line is the even share.",
        narrow=partial(draw, across=1),
    )  # fmt: skip


def _fullest(plan: Float[Tensor, "heads n m"]) -> int:
    """The head that overloads a key most."""
    return int(metrics.column_load(plan).amax(-1).argmax())


def _choose(task: Task) -> list[int]:
    """Test samples of different classes, as far as there are any."""
    if not isinstance(task, Classification):
        return [0]
    if task.kind == "text":
        # a text whose tokens can be read beside its plans, if there is one
        short = (row for row, text in enumerate(task.encoded["test"]) if 3 < len(text) <= NAMED)
        return [next(short, 0)]
    _, firsts = np.unique(task.labels["test"], return_index=True)
    return [int(row) for row in np.sort(firsts)[:SHOWN]]


def _class_of(task: Task, row: int) -> str:
    if not isinstance(task, Classification):
        return ""
    return str(task.facts["classes"][task.labels["test"][row]])


def _tokens(task: Task, row: int, model: Any) -> list[str]:
    if isinstance(model, ViT):
        down, across = model.config.grid
        patches = [f"{y + 1}:{x + 1}" for y in range(down) for x in range(across)]
        return ["[class]"] * model.has_class + patches
    if isinstance(task, NextCharacter):
        ids = task.batch("test", torch.tensor([row])).inputs[0][0].tolist()
        return [task.facts["tokens"][i].replace(" ", "␣").replace("\n", "↵") for i in ids]
    if not isinstance(task, Classification) or task.kind != "text":
        return []
    return [task.facts["tokens"][i][:TOKEN] for i in task.encoded["test"][row].tolist()]


def _points_layer(captured: Captured) -> int | None:
    """The last layer in which points are the keys of several queries; pooling is not one."""
    points = len(captured.states[0][0])
    found = [
        layer
        for layer, (name, plan) in enumerate(zip(captured.names, captured.plans[0], strict=True))
        if plan.shape[-1] == points and plan.shape[-2] > 1 and not name.startswith("pool")
    ]
    return found[-1] if found else None


def _patch_loads(captured: Captured, model: ViT) -> np.ndarray:
    """The column loads of the patches in the last layer, as they lie in the image."""
    load = metrics.column_load(captured.plans[0][-1]).mean(0)
    # the class token comes first, and is no patch
    return load[int(model.has_class) :].reshape(model.config.grid).numpy()
