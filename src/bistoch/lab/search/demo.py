"""The first minute: left halves of pictures find their right halves, with hubs and without."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from bistoch.lab.device import CPU
from bistoch.lab.machine import provenance
from bistoch.lab.progress import Display, progress
from bistoch.lab.report import Report
from bistoch.lab.search.draw import draw_dial, draw_lists, draw_pairs, draw_shelf
from bistoch.lab.search.halves import Halves, load_halves
from bistoch.lab.search.methods import (
    BASELINES,
    LISTED,
    WARM,
    Found,
    balanced_bias,
    baseline_bias,
    choose_eps,
    search,
)
from bistoch.lab.stats import bootstrap_difference
from bistoch.retrieval import perplexity_eps

if TYPE_CHECKING:
    from rich.console import Console

LAMS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
# which queries a method learns its bias from
BANKS = {"bank": "other queries", "known": "the queries themselves"}
# the elasticity that is recommended with each
OURS = {"bank": 0.9, "known": 1.0}
# hubs whose first places are shown, searches shown for each, and pictures of a row
HUBS, SEARCHES, SHELF = 3, 10, 12
CODE = """from bistoch.retrieval import HubCorrection

correction = HubCorrection().fit(past_queries, documents)   # no labels, no training
index.add(correction.documents(documents))                  # any inner-product index
scores, found = index.search(correction.queries(queries), k=10)"""

Measured = Mapping[tuple[str, str | float], Found]


def run_demo(out: Path, console: "Console", device: torch.device = CPU) -> Path:
    """Search with every method, print the table, and write a page with pictures; its path."""
    with progress(console, 2 * (len(BASELINES) + len(LAMS)), animated=False) as display:
        halves = load_halves()
        found = measure(halves, display, device)
    command = "bistoch demo" if device.type == "cpu" else f"bistoch demo --device {device}"
    report = Report("Search without hubs", command, console)
    _write_summary(report, halves, found)
    _write_hubs(report, halves, found)
    report.heading("In your code")
    report.text(
        "One call, one more coordinate per vector: faiss, hnswlib or a plain matrix product work "
        "as before. docs/retrieval.md has the details, and says when it does not help."
    )
    report.code(CODE)
    record = provenance(command) | {
        "recall": {f"{bank}, {_name(name)}": one.recall() for (bank, name), one in found.items()}
    }
    return report.write(out / "report.html", record=record)


def measure(halves: Halves, display: Display, device: torch.device = CPU) -> Measured:
    """What every method finds, by the bank that it knows and its name or its lam."""
    found: dict[tuple[str, str | float], Found] = {}
    choosing = load_halves(validation=True)
    for kind in BANKS:
        bank, other = (x.bank if kind == "bank" else x.queries for x in (halves, choosing))
        for method in BASELINES:
            display.start(f"{method}, {kind}")

            def score(eps: float, method: str = method, other: object = other) -> float:
                bias = baseline_bias(method, other, choosing.documents, eps)  # type: ignore[arg-type]
                return search(choosing.queries, choosing.documents, bias, device=device).recall()

            eps = choose_eps(score) if method in WARM else 0.0
            bias = baseline_bias(method, bank, halves.documents, eps)
            found[kind, method] = search(halves.queries, halves.documents, bias, device=device)
            display.finish(f"{method}, {kind}")
        ours, theirs = (torch.from_numpy(x).to(device) for x in (bank, halves.documents))
        eps = perplexity_eps(ours, theirs)
        for lam in LAMS:
            display.start(f"balanced, lam {lam}, {kind}")
            bias = balanced_bias(bank, halves.documents, lam, eps, device)
            found[kind, lam] = search(halves.queries, halves.documents, bias, device=device)
            display.finish(f"balanced, lam {lam}, {kind}")
    return found


def _write_summary(report: Report, halves: Halves, found: Measured) -> None:
    before, bank, known = (
        f"{100 * found[key].recall():.1f} %"
        for key in (("bank", "cosine"), ("bank", OURS["bank"]), ("known", OURS["known"]))
    )
    count = len(halves.queries)
    report.text(
        f"{count} left halves of pictures look for their right halves. A linear map, learned on "
        f"{len(halves.bank)} other pictures, says where the right half should be, and the nearest "
        f"of all right halves is the answer. Plain cosine search is right for {before} of the "
        "queries: some right halves, the hubs, are near to everything and come up again and again, "
        "others are never found. Balance gives every document one number, found without labels and "
        f"without training, that takes this away: {bank} are right when the numbers come from "
        f"{len(halves.bank)} other queries (the bank), {known} when they come from the queries "
        "themselves."
    )
    rows = []
    names: list[str | float] = [*BASELINES, OURS["bank"], OURS["known"]]
    for name in names:
        line: list[object] = [_name(name)]
        for kind in BANKS:
            one = found[kind, name]
            line += [f"{100 * one.recall():.1f}", _gain(one, found[kind, "cosine"])]
        lists = found["bank", name].lists
        rows.append([*line, lists.largest, f"{100 * lists.never:.1f} %"])
    report.table(
        ("method", "R@1 bank", "gain", "R@1 known", "gain", "largest hub", "never found"), rows,
        "R@1: queries whose first result is right, in per cent; gain: over cosine, with 95 % "
        "interval. Bank: the method knows other queries; known: it knows the queries. Largest "
        f"hub: of {count} result lists of length {LISTED}, those that one document is in; never "
        "found: documents in none (both with the bank). Temperatures of the softmax methods were "
        "chosen on other pairs, that of balance needs none.",
        printed=True,
    )  # fmt: skip
    panels = {
        f"bias from {words}": (
            {lam: found[kind, lam].recall() for lam in LAMS},
            {method: found[kind, method].recall() for method in BASELINES},
        )
        for kind, words in BANKS.items()
    }
    report.finding(
        f"Plain cosine search finds the right half for {before} of the queries. One number per "
        f"document, found without labels or training, makes that {bank}, and {known} if it is "
        "found from the queries themselves.",
        lambda: draw_dial(panels),
        "How often the first result is right, over the elasticity lam. At 0 nothing is corrected, "
        "at 1 every document gets the same share of the queries.",
        "dial",
    )


def _write_hubs(report: Report, halves: Halves, found: Measured) -> None:
    before, after = found["bank", "cosine"], found["bank", OURS["bank"]]
    counts = before.lists.counts, after.lists.counts
    report.heading("The pictures that come up again and again")
    report.text(
        f"Each of {len(halves.queries)} searches lists {LISTED} results, so a right half is in "
        f"{LISTED} lists on average. These are in the most under cosine search. The first number "
        "is in how many lists, the second in how many after balance (lam 0.9, bank)."
    )
    hubs = [place for place, _ in before.lists.hubs(SHELF)]
    report.figure(
        lambda: draw_shelf(halves, hubs, counts),
        "The largest hubs of cosine search.",
        "hubs",
        photos=True,
    )
    pairs = searches_at_hubs(before, after)
    report.text(
        "What that looks like. Each picture is a left half beside its first result. A blue frame: "
        "it is the right one; orange: it is not. Above, the searches that end at one hub under "
        "cosine similarity; below, the same searches after balance."
    )
    report.figure(
        lambda: draw_pairs(halves, pairs, before, after),
        "Searches that end at the same picture, and what they find after balance.", "searches",
        photos=True,
    )  # fmt: skip
    report.heading("Pictures in no result list")
    never = (counts[0] == 0).nonzero()[0]
    report.text(
        f"{len(never)} of {len(counts[0])} right halves are in no list at all under cosine search; "
        f"after balance {(counts[1] == 0).sum()}. Some of them, with the number of lists before "
        "and after."
    )
    report.figure(
        lambda: draw_shelf(halves, never[:: max(1, len(never) // SHELF)][:SHELF], counts),
        "Right halves that cosine search never lists.", "never", photos=True,
    )  # fmt: skip
    report.figure(
        lambda: draw_lists(counts, LISTED),
        "All right halves, sorted by the number of lists that they are in.", "lists",
    )  # fmt: skip


def searches_at_hubs(before: Found, after: Found, hubs: int = HUBS) -> list[list[int]]:
    """For the pictures that are the first result most often: the searches that end there."""
    firsts = torch.bincount(torch.from_numpy(before.first))
    chosen = []
    for hub in firsts.argsort(descending=True, stable=True)[:hubs].tolist():
        ends = (before.first == hub).nonzero()[0].tolist()
        # those that change come first, so that a row shows what happens
        ends.sort(key=lambda place: (after.first[place] == before.first[place], place))
        chosen.append(ends[:SEARCHES])
    return chosen


def _name(name: str | float) -> str:
    return name if isinstance(name, str) else f"balance lam {name:g}"


def _gain(ours: Found, theirs: Found) -> str:
    if ours.ranks is theirs.ranks:
        return ""
    each = ours.hits().astype(float) - theirs.hits().astype(float)
    return bootstrap_difference(each.tolist()).text(".1f", 100)
