"""Sinks and switches: where heads look when they have nothing to say, by operator."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from torch import nn

from bistoch.analysis import capture, metrics
from bistoch.analysis.capture import CapturedPlan
from bistoch.analysis.metrics import SINK
from bistoch.lab.drawing import INK, legend_beside, sheet, tidy
from bistoch.lab.reproduce import ablation
from bistoch.lab.reproduce.ablation import LAMS, Shape, operator_text
from bistoch.lab.reproduce.encoder import Encoder, is_installed
from bistoch.lab.reproduce.lookup import TaskShape, draw_sequences, trained_lookup
from bistoch.lab.reproduce.sentences import load_sentences
from bistoch.lab.study import Cell, Column, Context, Result, Results, Study, Table, Verdict

TASKS = ("lookup", "pictures", "encoder")
# what counts as a head that has become a diagonal, and as a value that is drained
DIAGONAL, DRAINED = 0.5, 0.5
TASK = TaskShape()


@dataclass(frozen=True)
class Sizes:
    """The classifier of pictures, the lookup task, and how many sequences are looked at."""

    pictures: Shape = ablation.USUAL
    task: TaskShape = TASK
    sequences: int = 64


FULL = Sizes()
SMOKE = Sizes(ablation.SMALL, TaskShape(dim=16, steps=50), 8)


def cells(smoke: bool) -> list[Cell]:
    """Three tasks with every operator; the encoder came trained, so it has no seeds."""
    operators = ("softmax", "sinkhorn") if smoke else tuple(LAMS)
    tasks = TASKS if is_installed() else TASKS[:2]
    return [
        Cell(f"{task}/{operator}", {"task": task, "operator": operator}, task != "encoder")
        for operator in operators
        for task in tasks
    ]


def run(cell: Cell, seed: int, context: Context) -> Result:
    """What every head does, and how good the network is at its task."""
    sizes: Sizes = context.sizes
    task, operator = cell.options["task"], cell.options["operator"]
    if task == "encoder":
        return measure_encoder(operator, smoke=context.smoke)
    network: nn.Module
    if task == "lookup":
        # a dozen tokens are too few for kernels: the dense code is faster there
        text = operator_text(operator)
        text = text if operator == "softmax" else text[:-1] + ", backend='reference')"
        network, numbers = trained_lookup(sizes.task, text, context)
        generator = torch.Generator().manual_seed(seed + 1000)
        inputs, _ = draw_sequences(sizes.task, sizes.sequences, generator)
        right = numbers["explained"]
    else:
        network, numbers = ablation.trained_classifier(sizes.pictures, operator, context)
        inputs, right = ablation.load_pictures(0)[2][: sizes.sequences], numbers["accuracy"]
    with torch.no_grad(), capture(network, problems=None, states=None) as seen:
        network(inputs)
    return {**measure_heads(seen.plans), "right": right}


def measure_encoder(operator: str, *, smoke: bool) -> Result:
    """A sentence encoder that was trained with softmax, with the operator in all its heads."""
    # the sentences of the library's own need no data to be fetched
    (own,) = load_sentences(own=True, seed=0)
    lines = own.choosing if smoke else [*own.choosing, *own.compared]
    text = None if operator == "softmax" else operator_text(operator)
    seen, cosine = Encoder(lines, alone=True).capture(text)
    return {**_average([measure_heads(plans) for plans in seen]), "right": cosine}


def _average(found: Sequence[Result]) -> Result:
    """The mean over sentences of every number and of every head's numbers.

    >>> _average([{"a": [1.0, 2.0], "b": 1.0, "c": None}, {"a": [3.0, 4.0], "b": 2.0, "c": 3}])
    {'a': [2.0, 3.0], 'b': 1.5}
    """
    means: Result = {}
    for name, first in found[0].items():
        values = [one[name] for one in found]
        if isinstance(first, list):
            means[name] = [mean(heads) for heads in zip(*values, strict=True)]
        elif isinstance(first, float):
            means[name] = mean(values)
    return means


def measure_heads(plans: Sequence[CapturedPlan], *, causal: bool = False) -> Result:
    """Sinks, diagonals, drained values and heads that are off, for every head of a captured model.

    Lists have one entry per head, layer after layer: means over sequences. `sink_rate` is over
    heads and sequences, as is `sink_place`, the position of the strongest sink. A plan of many
    queries and a model with padding should be cut to their real tokens first.

    Args:
        plans: what `capture` recorded, (batch, heads, n, n) each, with their values.
        causal: whether key j is seen by later queries only; the last half of the keys, seen by few,
            is then no candidate for a sink.

    >>> plan = torch.eye(5).expand(2, 3, 5, 5)
    >>> seen = [CapturedPlan("layer", 0, "sdpa", plan, torch.ones(2, 3, 5, 4))]
    >>> found = measure_heads(seen)
    >>> found["diagonal"], found["sink_rate"]
    ([1.0, 1.0, 1.0], 0.0)
    """
    lists: dict[str, list[float]] = {
        name: [] for name in ("sink", "diagonal", "drain", "off", "gini", "entropy")
    }
    sinks, places = [], []
    for _, _, _, plan, value in plans:
        score = metrics.sink_score(plan, causal=causal)
        score = score[..., : max(1, score.shape[-1] // 2)] if causal else score
        sinks.append(score.amax(-1).flatten())
        places.append(score.argmax(-1).flatten())
        found = {
            "sink": score.amax(-1),
            "diagonal": metrics.diagonal_score(plan),
            "gini": metrics.load_gini(metrics.column_sums(plan)),
            "entropy": metrics.mean_entropy(plan),
        }
        if value is not None:
            seen = value[..., : score.shape[-1], :]
            found["drain"] = metrics.value_drain(score, seen)
            found["off"] = metrics.off_rate(metrics.switch_ratio(plan, value))
        for name, heads in found.items():
            # all axes but the heads are sequences
            heads = heads.movedim(-1, 0).flatten(1) if heads.ndim > 1 else heads[:, None]
            lists[name] += heads.mean(1).tolist()
    strongest = torch.cat(sinks)
    common = torch.cat(places)[strongest > metrics.SINK]
    return {
        **lists,
        "sink_rate": (strongest > metrics.SINK).double().mean().item(),
        "sink_place": common.mode().values.item() if common.numel() else None,
    }


def checks(results: Results) -> list[Verdict]:
    """The claims beside what was measured, task by task."""
    tasks = [task for task in TASKS if results.names_with(task=task, operator="softmax")]
    return [verdict for task in tasks for verdict in _check_task(task, results)]


def _check_task(task: str, results: Results) -> list[Verdict]:
    names = (f"{task}/softmax", f"{task}/sinkhorn")
    rates = [results.mean(name, "sink_rate") for name in names]
    diagonals = [mean(d > DIAGONAL for d in _heads(results, name, "diagonal")) for name in names]
    values = zip(*(_heads(results, names[0], metric) for metric in ("sink", "drain")), strict=True)
    drained = [drain for sink, drain in values if sink > SINK]
    removed = switched = "inconclusive"
    drain = "no head has a sink"
    if rates[0] > 0.05:
        removed = "yes" if rates[1] < 0.1 * rates[0] else "no"
    if drained:
        switched = "yes" if mean(drained) < DRAINED else "no"
        drain = f"mean value of the sink, over the median: {mean(drained):.2f}"
    return [
        Verdict(
            f"{task}: balance removes sinks",
            f"sink rate: softmax {rates[0]:.2f}, sinkhorn {rates[1]:.2f}",
            removed,
        ),
        Verdict(f"{task}: a sink switches a head off, by a small value", drain, switched),
        Verdict(
            f"{task}: where sinks are forbidden, diagonal heads take over",
            "heads that look at themselves: "
            f"softmax {diagonals[0]:.0%}, sinkhorn {diagonals[1]:.0%}",
            "yes" if diagonals[1] - diagonals[0] > 0.1 else "no",
        ),
    ]


def _heads(results: Results, name: str, metric: str) -> list[float]:
    """A number of every head of every seed."""
    return [value for heads in results.values(name, metric) for value in heads]


def _over_heads(metric: str) -> Any:
    return lambda result: mean(result[metric])


def tables(results: Results) -> list[Table]:
    """One line per task and operator."""
    lists = ("sink", "diagonal", "drain", "off", "gini", "entropy")
    columns = [Column("right", "right", ".2f"), Column("sink rate", "sink_rate", ".2f")]
    columns += [Column(name, _over_heads(name), ".2f") for name in lists]
    names = [name for task in TASKS for name in results.names_with(task=task)]
    caption = (
        "Means over heads and sequences. right: accuracy (pictures), explained share of the wanted "
        "result (lookup), cosine with the result of softmax (encoder); sink rate: plans with a "
        "sink; sink: the attention on the strongest one; drain: the size of its value over the "
        "median; off: queries for whom the head is off; gini: of the column sums."
    )
    labels = {"task": "task", "operator": "operator"}
    return [results.table(columns, caption, names=names, labels=labels)]


def figure(results: Results) -> Any:
    """One panel per task: a dot per head, its strongest sink across, its diagonal up."""
    tasks = [task for task in TASKS if results.names_with(task=task)]
    made, axes = sheet(1, len(tasks), width=3.7, height=3.4, sharex=True, sharey=True)
    for panel, task in zip(axes[0], tasks, strict=True):
        for name in results.names_with(task=task):
            operator = results.options(name)["operator"]
            panel.scatter(
                _heads(results, name, "sink"), _heads(results, name, "diagonal"), s=26, alpha=0.75,
                color=ablation.COLOURS[operator], linewidths=0, label=operator,
            )  # fmt: skip
        panel.axvline(SINK, color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
        panel.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
        ylabel = "diagonal score of the head" if task == tasks[0] else ""
        tidy(panel, task, "strongest sink of the head", ylabel)
    legend_beside(made, axes[0][0])
    return made


STUDY = Study(
    name="sinks",
    title="Sinks and switches",
    question="Does balance remove attention sinks, and do diagonal heads take their place?",
    source="Sukenik et al., arXiv 2605.08453; Gu et al., ICLR 2025",
    about='Where heads look when they have nothing to say. In the task "lookup" one token of a '
    'sequence must fetch a word and all others must return zeros; "pictures" are classifiers of '
    'FashionMNIST, rows of pixels as tokens; "encoder" is all-MiniLM-L6-v2, trained with softmax '
    "and not trained again (left out where it is not installed). A sink is a key with a mean "
    f"attention above {SINK}; a head is off for a query to which it gives less than a twentieth of "
    "a mean value.",
    sizes=lambda settings: SMOKE if settings.smoke else FULL,
    cells=cells,
    run=run,
    checks=checks,
    tables=tables,
    figure=figure,
    caption="Every head of every network: its strongest sink, its diagonal.",
)
