"""What the page on choosing shows: the same question to all records, what every lam gave."""

import json
from collections.abc import Callable

from making.drawing import DOCS, put_table
from making.lab import read

from bistoch.lab.reproduce.registration import success
from bistoch.lab.study import Results

BENCHMARKS = DOCS.parent / "benchmarks" / "xeon-2.80GHz-2-threads"
LONG = DOCS.parent / "benchmarks" / "epyc-1-thread" / "long.json"
# operators that had no kernels yet when the others were measured; long.json has their times
NEWER = ("delta", "monarch", "elastic_monarch")
LAMS = ("0", "0.5", "0.9", "1")


def choosing() -> None:
    """The tables of the page."""
    put_table("choosing.md", "choosing_lam", *by_lam())
    put_table("choosing.md", "choosing_cost", *costs())
    put_table("choosing.md", "choosing_long", *long_costs())


def by_lam() -> tuple[list[str], list[list[str]]]:
    """One line for each task of the records, with the number that every lam gave."""
    rows = []
    searches = (
        ("left finds right, known", "queries known"),
        ("left finds right, bank", "other queries"),
        ("left finds right, distractors", "other queries, documents nobody asks for"),
    )
    results = read("retrieval")
    for cell, words in searches:
        # without balance the plan keeps the order of the scores: cosine search
        names = [f"{cell}, cosine", *(f"{cell}, lam {lam}" for lam in LAMS[1:])]
        found = shown(results, names, "recall.1", percent)
        rows.append([f"[search](retrieval.md), {words}", "found first, %", *found])
    results = read("registration")
    for setting in ("60 degrees", "60 degrees, 25 % outliers", "60 degrees, 25 % missing"):
        names = [f"{setting}: lam {lam}" for lam in LAMS]
        found = shown(results, names, lambda result: sum(success(result)) / 908, percent)
        words = setting.removeprefix("60 degrees").removeprefix(", ") or "clean"
        rows.append([f"[registration](registration.md), {words}", "success, %", *found])
    results = read("prototypes")
    for classes, words in (("balanced", "equal classes"), ("long tail", "long tail")):
        names = [f"10 prototypes, {classes}, lam {lam}" for lam in LAMS]
        found = shown(results, names, "test.nmi", two)
        rows.append([f"[prototypes](prototypes.md), {words}", "NMI", *found])
    results = read("router")
    names = ["none", "", "potentials, lam 0.9", "potentials, lam 1"]
    found = shown(results, names, "test.overload", two)
    rows.append(["[routing](routing.md)", "largest load over mean, less is better", *found])
    results = read("causal-lm")
    names = ["softmax", "lam 0.5", "", "lam 1"]
    found = shown(results, names, "bits.256", two)
    rows.append(["[language model](causal_lm.md), causal", "bits, less is better", *found])
    for record, task in (("modelnet10", "point clouds"), ("sst2", "sentences")):
        names = ["softmax", "elastic(lam=0.5)", "", "sinkhorn"]
        found = shown(read(record), names, "test.accuracy", percent)
        rows.append([f"[classifier](training.md#recorded), {task}", "accuracy, %", *found])
    return ["task", "measured", *(f"lam {lam}" for lam in LAMS)], rows


def shown(results: Results, names: list[str], metric, form: Callable[[float], str]) -> list[str]:
    """The mean over seeds of every cell that has a name."""
    return [form(results.mean(name, metric)) if name else "" for name in names]


def percent(value: float) -> str:
    """A share in percent."""
    return f"{100 * value:.1f}"


def two(value: float) -> str:
    """Two digits behind the point."""
    return f"{value:.2f}"


def costs() -> tuple[list[str], list[list[str]]]:
    """The time of every operator over softmax attention at n = 1024, from the newest record."""
    times = ratios("operators")
    for name in ("elastic", "sinkhorn"):
        times[name] = ratios("bench")["elastic cpu"]
    times["causal_elastic"] = ratios("causal")["causal_elastic cpu"]
    for name in ("sdpa", *NEWER):
        del times[name]
    ranked = sorted(times.items(), key=lambda entry: entry[1].get("forward", 0))
    rows = [
        [f"[{name}](operators/{name}.md)", *(show(one.get(way)) for way in DIRECTIONS)]
        for name, one in ranked
    ]
    return ["operator", *DIRECTIONS], rows


DIRECTIONS = ("forward", "forward+backward")


def long_costs() -> tuple[list[str], list[list[str]]]:
    """The time of what is meant for long sequences over softmax attention, by length."""
    cells = json.loads(LONG.read_text(encoding="utf-8"))["cells"]
    ratios = {
        (cell["contender"], cell["shape"][2], cell["direction"]): cell["ratio"]
        for cell in cells
        if cell["status"] == "measured"
    }
    lengths = sorted({length for _, length, _ in ratios})
    # the quickest at the longest first
    names = sorted(
        (name for name, length, way in ratios if (length, way) == (lengths[-1], "forward")),
        key=lambda name: ratios[name, lengths[-1], "forward"],
    )
    rows = []
    for name in names:
        # a variant has its options behind its name, and no page of its own
        link, _, options = name.partition(" ")
        if (DOCS / "operators" / f"{link}.md").is_file():
            shown = f"[{link}](operators/{link}.md)" + (f", `{options}`" if options else "")
            found = [[ratios.get((name, n, way)) for way in DIRECTIONS] for n in lengths]
            rows.append(
                [shown, *(" / ".join(two(x) if x else "-" for x in pair) for pair in found)]
            )
    return ["operator", *(f"n = {n}" for n in lengths)], rows


def show(ratio: float | None) -> str:
    """A ratio with as many digits as it deserves."""
    return "not measured" if ratio is None else f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"


def ratios(name: str) -> dict[str, dict[str, float]]:
    """Time over softmax attention by contender and direction: n = 1024, random scores."""
    cells = json.loads((BENCHMARKS / f"{name}.json").read_text(encoding="utf-8"))["cells"]
    found: dict[str, dict[str, float]] = {}
    for cell in cells:
        measured = cell["status"] == "measured" and cell["lam"] in (None, 1.0)
        if measured and cell["shape"] == [1, 8, 1024, 64] and cell["scores"] == "random":
            found.setdefault(cell["contender"], {})[cell["direction"]] = cell["ratio"]
    return found
