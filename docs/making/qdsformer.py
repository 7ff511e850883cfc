"""What the page on QDSFormer shows: the circuit trained beside others, from the record."""

from making.drawing import PALETTE, decorate, put_table, save
from making.lab import RECORDS, plain
from matplotlib.figure import Figure

from bistoch.lab.reproduce import qdsformer as study
from bistoch.lab.reproduce.qdsformer_plans import own_plans_of
from bistoch.lab.study import Results, read_record

PAGE = "qdsformer.md"


def qdsformer() -> None:
    """Tables, verdicts and the picture of the page."""
    results = read_record(RECORDS / "qdsformer-fashion.json")
    whole, fashion, digits, steady, plans, own, steps = study.tables(results)
    for name, table in {
        "qdsformer_all": whole, "qdsformer_fashion": fashion, "qdsformer_mnist": digits,
        "qdsformer_steady": steady,
        "qdsformer_plans": plans, "qdsformer_own": own, "qdsformer_steps": steps,
    }.items():  # fmt: skip
        put_table(PAGE, name, table.head, table.rows)
    put_table(PAGE, "qdsformer_verdicts", ("asked", "measured", "holds"), study.checks(results))
    save(draw(results), "qdsformer")


def draw(results: Results) -> Figure:
    """Accuracies on two data sets, and what the models' own plans keep of the class."""
    operators = list(study.GROUPS["fashion-mnist"])
    panels = {
        "FashionMNIST, accuracy (%)": (lambda name: name, "test.accuracy"),
        "MNIST, accuracy (%)": (
            lambda name: study.cell_of("mnist", name), "test.accuracy"
        ),
        "class of the nearest plan right (%)": (own_plans_of, "trained.nearest"),
    }  # fmt: skip
    figure = Figure(figsize=(9.6, 2.6), layout="constrained")
    for axes, (title, (name, metric)) in zip(
        figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True
    ):
        for place, operator in enumerate(operators):
            scores = [100 * score for score in results.values(name(operator), metric)]
            colour = PALETTE[place % len(PALETTE)]
            axes.plot(scores, [place] * len(scores), "o", color=colour, markersize=5, alpha=0.6)
            middle = sum(scores) / max(len(scores), 1)
            axes.plot([middle], [place], "|", color=colour, markersize=17, markeredgewidth=1.6)
        axes.set_yticks(range(len(operators)), [plain(text) for text in operators])
        axes.set_ylim(len(operators) - 0.5, -0.5)
        decorate(axes, title, "a dot per seed, a bar for their mean", "")
    return figure
