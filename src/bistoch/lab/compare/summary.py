"""The numbers of a comparison by operator: tables over seeds, and a verdict."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bistoch.lab.compare.cells import Cell
from bistoch.lab.compare.plan import Comparison
from bistoch.lab.report import Table
from bistoch.lab.stats import Difference, difference, spread
from bistoch.lab.train import Task


class Row(NamedTuple):
    """An operator: its finished runs, and those that diverged."""

    operator: str
    cells: list[Cell]
    diverged: list[Cell]

    def test(self, name: str) -> list[float]:
        """A number of the test split, one per seed."""
        return [cell.result["test"][name] for cell in self.cells]

    def layers(self, name: str) -> np.ndarray:
        """A number about attention by seed and layer."""
        return np.array([cell.result["attention"][name] for cell in self.cells])

    def curve(self, name: str) -> np.ndarray:
        """A metric by seed and epoch, as long as the shortest run."""
        curves = [[row[name] for row in cell.result["curve"]] for cell in self.cells]
        return np.array([curve[: min(map(len, curves))] for curve in curves])


def rows_of(comparison: Comparison, cells: Sequence[Cell]) -> list[Row]:
    """The final runs by operator: of several learning rates the chosen one, which comes last."""
    final = {(cell.setup.operator, cell.setup.seed): cell for cell in cells}
    rows = []
    for operator in comparison.operators:
        own = [final[operator, seed] for seed in comparison.seeds if (operator, seed) in final]
        whole, diverged = [c for c in own if not c.diverged], [c for c in own if c.diverged]
        rows.append(Row(operator, whole, diverged))
    return rows


def score_text(values: Sequence[float], task: Task) -> str:
    """Scores as mean and standard deviation: accuracies in percent, others with three digits."""
    return spread(values, 100) if task.score_name == "accuracy" else spread(values, form=".3f")


def baseline_of(rows: Sequence[Row]) -> Row | None:
    """What the others are compared with: softmax, or the first operator with a finished run."""
    whole = [row for row in rows if row.cells]
    return next((row for row in whole if row.operator == "softmax"), whole[0] if whole else None)


def difference_to(row: Row, baseline: Row, task: Task) -> Difference | None:
    """The difference of two operators over the seeds that both have; None without any.

    For one seed both start from the same weights and see the same batches, so the differences are
    paired.
    """
    name = task.score_name
    ours, theirs = (
        {cell.setup.seed: cell.result["test"][name] for cell in one.cells}
        for one in (row, baseline)
    )
    each = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    grain = 1 / max(task.count("test"), 1) if name == "accuracy" else 0.0
    return difference(each, grain=grain) if each else None


def _form_and_scale(task: Task) -> tuple[str, float]:
    """How differences are shown: accuracies in points, with the digits that test samples give."""
    if task.score_name != "accuracy":
        return ".3f", 1.0
    return f".{max(1, len(str(task.count('test'))) - 3)}f", 100.0


def verdict(rows: Sequence[Row], task: Task) -> str:
    """Every operator against softmax (or the first): better, worse, or inconclusive.

    A difference counts if its 95 % interval over seeds does not hold zero. Empty if there are no
    two operators to compare.
    """
    baseline = baseline_of(rows)
    others = [row for row in rows if row is not baseline]
    found = {row.operator: difference_to(row, baseline, task) for row in others} if baseline else {}
    known = {name: one for name, one in found.items() if one is not None}
    if baseline is None or not known:
        return ""
    seeds = max(len(one.each) for one in known.values())
    if seeds < 2:
        return (
            "There is one seed, and the same operator with another seed scores differently too: "
            "use three or more seeds to tell a difference from noise."
        )
    form, scale = _form_and_scale(task)
    unit = "points" if task.score_name == "accuracy" else task.score_name
    sentences, inconclusive = [], []
    for name, one in known.items():
        if one.inconclusive:
            inconclusive.append(name)
            continue
        better = (one.mean > 0) == task.larger_is_better
        low, high = sorted(abs(scale * x) for x in (one.low, one.high))
        sentences.append(
            f"{name} is {'better' if better else 'worse'} than {baseline.operator} by "
            f"{abs(scale * one.mean):{form}} {unit} (95 % interval: {low:{form}} to "
            f"{high:{form}})."
        )
    if inconclusive:
        names = " and ".join(filter(None, (", ".join(inconclusive[:-1]), inconclusive[-1])))
        sentences.append(
            f"{names} against {baseline.operator}: inconclusive; over {seeds} seeds, the 95 % "
            "interval of the difference holds zero."
        )
    return " ".join(sentences)


def score_table(
    rows: Sequence[Row], task: Task, times: Mapping[str, Any], *, lrs: bool = False
) -> Table:
    """One row per operator: test score, difference to softmax, seeds, loss, time of a step.

    `lrs` adds the learning rates, for comparisons in which every operator chose its own.
    """
    percent = " (%)" if task.score_name == "accuracy" else ""
    baseline = baseline_of(rows) if sum(bool(row.cells) for row in rows) > 1 else None
    form, scale = _form_and_scale(task)
    seconds = times["seconds"]
    lines: list[dict[str, str]] = []
    for row in rows:
        scores, cells = row.test(task.score_name), [*row.cells, *row.diverged]
        diverged = f" ({len(row.diverged)} diverged)" if row.diverged else ""
        line = {
            "operator": row.operator,
            f"test {task.score_name}{percent}": score_text(scores, task) + diverged,
        }
        if baseline is not None:
            found = difference_to(row, baseline, task) if row is not baseline else None
            text = found.text(form, scale) if found else ""
            line[f"difference to {baseline.operator}"] = text
        line |= {
            "each seed": " ".join(score_text([score], task) for score in scores),
            "test loss": spread(row.test("loss"), form=".3f") if scores else "",
            "step, over softmax": f"{seconds[row.operator] / seconds['softmax']:.2f}",
            "parameters": f"{row.cells[0].result['parameters']:,}" if row.cells else "",
        }
        if lrs:
            line["learning rate"] = f"{cells[0].setup.recipe.lr:g}" if cells else ""
        lines.append(line)
    return Table(tuple(lines[0]), [tuple(line.values()) for line in lines])


def layer_table(rows: Sequence[Row]) -> Table:
    """One row per operator and layer: numbers about attention."""
    head = ["operator", "layer", "entropy", "largest sink score", "largest column mass"]
    # a block may attend more than once; then layers and states do not pair up
    paired = all(
        row.layers("rank").shape[1] == row.layers("entropy").shape[1] + 1 for row in rows
    )  # fmt: skip
    lines = []
    for row in rows:
        entropy, sink, peak, rank = (
            row.layers(name).mean(0) for name in ("entropy", "sink", "peak", "rank")
        )
        for i, name in enumerate(row.cells[0].result["attention"]["layers"]):
            layer = f"{i + 1}:\u00a0{name.removesuffix('.attention')}"
            numbers = f"{entropy[i]:.2f}", f"{sink[i]:.3f}", f"{peak[i]:.2f}"
            after = [f"{rank[i + 1]:.1f}"] if paired else []
            lines.append((row.operator, layer, *numbers, *after))
    return Table((*head, "effective rank after") if paired else head, lines)


def has_drift(rows: Sequence[Row]) -> bool:
    """Whether column masses were watched in all runs; those of an earlier version have none."""
    cells = [cell for row in rows for cell in row.cells]
    return bool(cells) and all(
        cell.result.get("drift", {}).get("deviation") for cell in cells
    )  # fmt: skip


def drift_of_seeds(row: Row) -> np.ndarray:
    """How far column masses were from even ones: (seeds, epochs, layers), epoch 0 included."""
    drifts = [cell.result["drift"]["deviation"] for cell in row.cells]
    return np.array([drift[: min(map(len, drifts))] for drift in drifts])


def drift_curves(row: Row) -> dict[str, np.ndarray]:
    """Curves by seed and epoch: the mean of all layers, the first and the last layer."""
    found = drift_of_seeds(row)
    return {
        "deviation": found.mean(-1), "deviation first": found[..., 0],
        "deviation last": found[..., -1],
    }  # fmt: skip


def drift_panels(rows: Sequence[Row]) -> dict[str, str]:
    """The curves that are drawn and their titles; of models with one layer all are the same."""
    if all(drift_of_seeds(row).shape[-1] == 1 for row in rows):
        return {"deviation": "the only layer"}
    return {
        "deviation": "mean of all layers", "deviation first": "first layer",
        "deviation last": "last layer",
    }  # fmt: skip


def drift_table(rows: Sequence[Row]) -> Table:
    """One row per operator and layer: before training, after the first epoch, after the last."""
    lines = []
    for row in rows:
        found = drift_of_seeds(row)
        for i, name in enumerate(row.cells[0].result["drift"]["layers"]):
            moments = (found[:, place, i].tolist() for place in (0, 1, -1))
            change = difference((found[:, -1, i] - found[:, 0, i]).tolist()).text()
            layer = f"{i + 1}:\u00a0{name.removesuffix('.attention')}"
            lines.append((row.operator, layer, *(spread(x, form=".3f") for x in moments), change))
    head = ("operator", "layer", "before training", "after one epoch", "at the end", "change")
    return Table(head, lines, "Mean distance of a column mass from its even share.")


def lams_of(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """The learned lam of every operator that learned one: (seeds, layers, heads)."""
    found = {
        row.operator: [list(cell.result["attention"]["lam"].values()) for cell in row.cells]
        for row in rows
    }
    return {name: np.array(lams) for name, lams in found.items() if lams and lams[0]}


def lam_table(rows: Sequence[Row]) -> Table | None:
    """One row per operator, seed and layer: the learned lam of every head, if any was learned."""
    lines = [
        (
            row.operator, str(cell.setup.seed),
            name.removesuffix(".operator").removesuffix(".attention"),
            "  ".join(f"{lam:.3f}" for lam in lams),
        )
        for row in rows
        for cell in row.cells
        for name, lams in cell.result["attention"]["lam"].items()
    ]  # fmt: skip
    return Table(("operator", "seed", "layer", "lam of every head"), lines) if lines else None
