"""What the page on training shows: trained models, from their records in benchmarks/lab."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from making.drawing import DOCS, PALETTE, decorate, put_table, save
from matplotlib.figure import Figure

from bistoch.lab.compare.difference import Difference
from bistoch.lab.compare.summary import spread
from bistoch.lab.reproduce.qdsformer import CIRCUIT, OPERATORS

RECORDS = DOCS.parent / "benchmarks" / "lab"
HEAD = (
    "operator", "test accuracy (%)", "each seed", "difference to softmax", "largest column mass",
    "step, over softmax",
)  # fmt: skip


def lab_fashion() -> None:
    """The eight-token vision Transformer beside what is published of it, after ten epochs."""
    beside_published("lab_fashion", read_record("qdsformer-fashion"))


def lab_fashion_long() -> None:
    """The same after fifty epochs."""
    beside_published("lab_fashion_long", read_record("qdsformer-fashion-50"))


def beside_published(table: str, record: Mapping[str, Any]) -> None:
    """Ours after the last epoch and at the best one, beside the paper's."""
    lines = []
    for line, runs in zip(score_lines(record), by_operator(record).values(), strict=True):
        published = OPERATORS[line[0].strip("`")]
        theirs = f"{published.what} {published.accuracy} ± {published.spread}" if published else ""
        best = spread([max(row["accuracy"] for row in run["curve"]) for run in runs], 100, 2)
        lines.append([*line[:4], best, theirs, *line[4:]])
    circuit = f"{CIRCUIT.what} {CIRCUIT.accuracy} ± {CIRCUIT.spread}"
    lines.append(["", "", "", "", "", circuit, "", ""])
    head = [*HEAD[:4], "best epoch (%)", "published (%)", *HEAD[4:]]
    put_table("training.md", table, head, lines)


def lab_points() -> None:
    """The Set Transformer on ModelNet10."""
    put_table("training.md", "lab_points", HEAD, score_lines(read_record("modelnet10")))


def lab_text() -> None:
    """The encoder of sentences on SST-2."""
    put_table("training.md", "lab_text", HEAD, score_lines(read_record("sst2")))


def lab_scores() -> None:
    """The test accuracy of every run of the three records."""
    names = {
        "qdsformer-fashion": "FashionMNIST, eight tokens", "modelnet10": "ModelNet10, 128 points",
        "sst2": "SST-2, words",
    }  # fmt: skip
    records = {name: read_record(name) for name in names}
    counts = [len(record["comparison"]["operators"]) for record in records.values()]
    figure = Figure(figsize=(8.0, 0.34 * sum(counts) + 1.9), layout="constrained")
    panels = figure.subplots(len(records), 1, height_ratios=counts)
    for axes, (name, record) in zip(panels, records.items(), strict=True):
        for place, runs in enumerate(by_operator(record).values()):
            scores = [100 * run["test"]["accuracy"] for run in runs]
            colour = PALETTE[place % len(PALETTE)]
            axes.plot(scores, [place] * len(scores), "o", color=colour, markersize=5, alpha=0.6)
            middle = sum(scores) / max(len(scores), 1)
            axes.plot([middle], [place], "|", color=colour, markersize=17, markeredgewidth=1.6)
        operators = record["comparison"]["operators"]
        axes.set_yticks(range(len(operators)), [plain(text) for text in operators])
        axes.set_ylim(len(operators) - 0.5, -0.5)
        last = "test accuracy in percent: a dot per seed, a bar for their mean"
        decorate(axes, names[name], last if axes is panels[-1] else "", "")
    save(figure, "lab_scores")


def read_record(name: str) -> dict[str, Any]:
    """What `bistoch compare` or `bistoch reproduce` left in its report.json."""
    found: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def by_operator(record: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The runs of every operator that came to an end."""
    return {
        operator: [
            run for run in record["runs"] if run["operator"] == operator and "test" in run
        ]
        for operator in record["comparison"]["operators"]
    }  # fmt: skip


def score_lines(record: Mapping[str, Any]) -> list[list[str]]:
    """One line per operator: accuracy, that of every seed, lead, column mass, time of a step."""
    seconds = record["times"]["seconds"]
    lines = []
    for operator, runs in by_operator(record).items():
        scores = [run["test"]["accuracy"] for run in runs]
        lines.append([
            f"`{operator}`", spread(scores, 100, 2), " ".join(f"{100 * x:.2f}" for x in scores),
            "" if operator == "softmax" else lead(record, operator),
            spread([peak(run["attention"]) for run in runs], digits=2),
            f"{seconds[operator] / seconds['softmax']:.2f}",
        ])  # fmt: skip
    return lines


def lead(record: Mapping[str, Any], operator: str) -> str:
    """What an operator has more than softmax, seed by seed, in points, with its 95 % interval."""
    ours, theirs = (
        {run["seed"]: run["test"]["accuracy"] for run in by_operator(record)[name]}
        for name in (operator, "softmax")
    )
    grain = 100 / record["samples"]["test"]
    found = Difference(tuple(100 * (ours[seed] - theirs[seed]) for seed in ours), grain)
    low, high = found.mean - found.half, found.mean + found.half
    return f"{found.mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def peak(attention: Mapping[str, Sequence[Any]]) -> float:
    """The largest column mass, the mean over the layers that have the operator."""
    own = [
        value
        for name, value in zip(attention["layers"], attention["peak"], strict=True)
        if not name.startswith("pool")
    ]
    return sum(own) / len(own)


def plain(operator: str) -> str:
    """An operator without its backend, for a narrow axis."""
    for words in (", backend='cpu'", "(backend='cpu')"):
        operator = operator.replace(words, "")
    return operator
