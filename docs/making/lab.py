"""What the page on training shows: trained models, from their records in benchmarks/lab."""

import json
from typing import Any

from making.drawing import DOCS, PALETTE, decorate, put_table, save
from matplotlib.figure import Figure

from bistoch.functional import OPERATORS
from bistoch.lab.reproduce.qdsformer import tables
from bistoch.lab.study import Column, Results, Row, Table, read_record

RECORDS = DOCS.parent / "benchmarks" / "lab"


def lab_fashion() -> None:
    """The eight-token vision Transformer beside what is published of it, after ten epochs."""
    put("lab_fashion", tables(read_record(RECORDS / "qdsformer-fashion.json"))[0])


def lab_fashion_long() -> None:
    """The same after fifty epochs."""
    put("lab_fashion_long", tables(read_record(RECORDS / "qdsformer-fashion-50.json"))[0])


def put(name: str, table: Table) -> None:
    """A table of the page, with operators as code."""
    rows = [[f"`{row[0]}`" if row[0] else "", *row[1:]] for row in table.rows]
    put_table("training.md", name, table.head, rows)


def lab_points() -> None:
    """The Set Transformer on ModelNet10."""
    put("lab_points", score_table("modelnet10"))


def lab_text() -> None:
    """The encoder of sentences on SST-2."""
    put("lab_text", score_table("sst2"))


def lab_scores() -> None:
    """The test accuracy of every run of the three records."""
    names = {
        "qdsformer-fashion": "FashionMNIST, eight tokens", "modelnet10": "ModelNet10, 128 points",
        "sst2": "SST-2, words",
    }  # fmt: skip
    records = {name: read(name) for name in names}
    # a record may have more cells than those of the operators on all data; circuits, which need a
    # wider axis, are drawn on a page of their own
    shown = OPERATORS.keys() - {"quantum"}
    trained = {
        name: [one for one in results.names if one.split("(")[0] in shown]
        for name, results in records.items()
    }
    counts = [len(names) for names in trained.values()]
    figure = Figure(figsize=(8.0, 0.34 * sum(counts) + 1.9), layout="constrained")
    panels = figure.subplots(len(records), 1, height_ratios=counts)
    for axes, (name, results) in zip(panels, records.items(), strict=True):
        operators = trained[name]
        for place, operator in enumerate(operators):
            scores = [100 * score for score in results.values(operator, "test.accuracy")]
            colour = PALETTE[place % len(PALETTE)]
            axes.plot(scores, [place] * len(scores), "o", color=colour, markersize=5, alpha=0.6)
            middle = sum(scores) / max(len(scores), 1)
            axes.plot([middle], [place], "|", color=colour, markersize=17, markeredgewidth=1.6)
        axes.set_yticks(range(len(operators)), [plain(text) for text in operators])
        axes.set_ylim(len(operators) - 0.5, -0.5)
        last = "test accuracy in percent: a dot per seed, a bar for their mean"
        decorate(axes, names[name], last if axes is panels[-1] else "", "")
    save(figure, "lab_scores")


def read(name: str) -> Results:
    """A record of `bistoch reproduce`, or the report.json of `bistoch compare` as one."""
    path = RECORDS / f"{name}.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    if "cells" in record:
        return read_record(path)
    rows = [Row(run["operator"], run["seed"], {}, run) for run in record["runs"]]
    return Results([*rows, Row("time", 0, {}, record["times"])])


def score_table(name: str) -> Table:
    """One line per operator: accuracy, difference to softmax, column mass, time of a step."""
    results = read(name)
    columns = [
        Column("test accuracy (%)", "test.accuracy", ".2f", 100, compared=True),
        Column("largest column mass", peak, ".2f"),
    ]
    return results.table(
        columns, names=results.names[:-1], baseline="softmax",
        more={"step, over softmax": results.times_over("softmax")},
    )  # fmt: skip


def peak(result: dict[str, Any]) -> float:
    """The largest column mass, the mean over the layers that have the operator."""
    attention = result["attention"]
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
