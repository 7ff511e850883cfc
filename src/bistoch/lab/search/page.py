"""A page about the hubs of a user's search: who they are, and what a correction changes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from bistoch.lab.device import CPU
from bistoch.lab.machine import provenance
from bistoch.lab.report import Report
from bistoch.lab.search.draw import draw_counts
from bistoch.lab.search.halves import unit
from bistoch.lab.search.own import Collection, read_collection, read_pairs
from bistoch.lab.stats import bootstrap_difference
from bistoch.retrieval import HubCorrection, HubReport
from bistoch.retrieval.vectors import in_blocks

if TYPE_CHECKING:
    from rich.console import Console

CUTS = (1, 5, 10)
# letters of a document's name in a table
NAME = 60


def run_search(
    queries: Path,
    documents: Path,
    *,
    bank: Path | None,
    pairs: str | None,
    lam: float,
    eps: float | Literal["auto"],
    encoder: str | None,
    cosine: bool,
    device: torch.device,
    out: Path,
    command: str,
    console: "Console",
) -> Path:
    """Fit a correction, write it beside a page about what it changes; the path of the page."""
    correction = HubCorrection(eps=eps, lam=lam)
    asked, found = (read_collection(path, encoder, device) for path in (queries, documents))
    past = asked if bank is None else read_collection(bank, encoder, device)
    _check_widths({queries: asked, documents: found, bank or queries: past})
    right = None if pairs is None else read_pairs(pairs, len(asked.vectors), len(found.vectors))
    ours, theirs, known = (
        unit(one.vectors) if cosine else one.vectors for one in (asked, found, past)
    )
    correction.fit(*(torch.from_numpy(x).to(device) for x in (known, theirs)))
    seen = correction.report(ours)
    report = Report("Hubs of a search", command, console)
    report.text(
        f"{len(ours)} queries over {len(theirs)} documents of {theirs.shape[1]} features, by "
        f"{'cosine similarity' if cosine else 'inner products'}. The bias of every document was "
        f"found from {'the queries themselves' if bank is None else f'{len(known)} other queries'} "
        f"with lam {lam:g} and eps {correction.fitted_eps:.4g}; it needs no labels."
    )
    record: dict[str, Any] = {
        "queries": len(ours), "documents": len(theirs), "bank": len(known), "lam": lam,
        "eps": correction.fitted_eps,
    }  # fmt: skip
    if right is not None:
        record["recall"] = _write_recall(
            report, ranks(ours, theirs, correction.bias, right, device)
        )
    record["lists"] = _write_lists(report, seen, found)
    out.mkdir(parents=True, exist_ok=True)
    saved = correction.save(out / "correction.npz")
    report.heading("In your code")
    report.code(
        "from bistoch.retrieval import HubCorrection\n\n"
        f'correction = HubCorrection.load("{saved.name}")\n'
        "index.add(correction.documents(documents))   # any inner-product index\n"
        "scores, found = index.search(correction.queries(queries), k=10)"
    )
    return report.write(out / "report.html", record=provenance(command) | record)


def ranks(
    queries: np.ndarray,
    documents: np.ndarray,
    bias: np.ndarray,
    right: Sequence[Sequence[int]],
    device: torch.device = CPU,
) -> np.ndarray:
    """How many documents come before the first right one, without the bias and with it.

    >>> x = np.eye(3, dtype="float32")
    >>> ranks(x, x, np.array([0, 0, 2.0], "float32"), [[0], [1, 2], [2]]).tolist()
    [[0, 0, 0], [1, 0, 0]]
    """
    found: list[list[int]] = [[], []]
    theirs, more = (torch.from_numpy(x).to(device) for x in (documents, bias))
    done = 0
    for block in in_blocks(torch.from_numpy(queries).to(theirs), len(documents)):
        scores = block @ theirs.T
        wanted = right[done : done + len(block)]
        for ours, shown in zip(found, (scores, scores + more), strict=True):
            best = torch.stack([
                line[places].max() for line, places in zip(shown, map(list, wanted), strict=True)
            ])  # fmt: skip
            ours += (shown > best[:, None]).sum(1).tolist()
        done += len(block)
    return np.array(found)


def _write_recall(report: Report, found: np.ndarray) -> dict[str, list[float]]:
    report.heading("What is found")
    rows, record = [], {}
    for cut in CUTS:
        before, after = (found < cut).astype(float)
        record[f"R@{cut}"] = [float(before.mean()), float(after.mean())]
        gain = bootstrap_difference((after - before).tolist()).text(".1f", 100)
        rows.append([f"R@{cut}", f"{100 * before.mean():.1f}", f"{100 * after.mean():.1f}", gain])
    report.table(
        ("", "before", "after", "gain"), rows,
        "Queries with a right document among the first k, per cent; gain with 95 % interval.",
        printed=True,
    )  # fmt: skip
    return record


def _write_lists(report: Report, seen: HubReport, documents: Collection) -> dict[str, Any]:
    sides = {"before": seen.before, "after": seen.after}
    report.heading("Hubs")
    report.table(
        ("", *sides),
        [
            ["largest hub, lists", *(one.largest for one in sides.values())],
            ["documents never found", *(f"{one.never:.1%}" for one in sides.values())],
        ],
        f"Result lists of length {seen.k} of {seen.queries} queries.",
        printed=True,
    )
    report.figure(
        lambda: draw_counts((seen.before.counts, seen.after.counts)),
        "All documents, sorted by the number of result lists that they are in.", "lists",
    )  # fmt: skip
    rows = [
        [place, *([_name(documents, place)] if documents.names else []), count,
         int(seen.after.counts[place])]
        for place, count in seen.before.hubs(20)
    ]  # fmt: skip
    head = ("document", *(["name"] if documents.names else []), "lists before", "lists after")
    report.table(head, rows, "The documents that are in the most result lists.")
    return {
        name: {"largest": one.largest, "never": one.never, "hubs": one.hubs(20)}
        for name, one in sides.items()
    }


def _name(documents: Collection, place: int) -> str:
    name = (documents.names or [])[place]
    return name if len(name) <= NAME else name[: NAME - 3] + "..."


def _check_widths(found: dict[Path, Collection]) -> None:
    widths = {path: one.vectors.shape[1] for path, one in found.items()}
    if len(set(widths.values())) > 1:
        words = ", ".join(f"{path} {width}" for path, width in widths.items())
        raise ValueError(
            f"retrieval: all vectors must have as many features, but there are: {words}; use "
            "vectors of the same encoder"
        )
