"""The numbers of a comparison by operator: means and spreads over seeds."""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np

from bistoch.lab.compare.cells import Cell
from bistoch.lab.compare.plan import Comparison
from bistoch.lab.train import Task

LAYERED = ("entropy", "sink", "peak", "rank")


class Row(NamedTuple):
    """An operator: its cells that came to an end, and those that did not."""

    operator: str
    cells: list[Cell]
    diverged: list[Cell]

    def test(self, name: str) -> list[float]:
        """A number of the test split, one per seed."""
        return [cell.result["test"][name] for cell in self.cells]

    def layers(self, name: str) -> np.ndarray:
        """A number of attention by seed and layer."""
        return np.array([cell.result["attention"][name] for cell in self.cells])

    def curve(self, name: str) -> np.ndarray:
        """A curve by seed and epoch, as long as the shortest."""
        curves = [[row[name] for row in cell.result["curve"]] for cell in self.cells]
        return np.array([curve[: min(map(len, curves))] for curve in curves])


def rows_of(comparison: Comparison, cells: Sequence[Cell]) -> list[Row]:
    """The final cells by operator: of tried learning rates the one that was chosen."""
    final: dict[tuple[str, int], Cell] = {}
    for cell in cells:
        # of the first seed all rates were tried first, and the chosen one comes again at the end
        final[cell.setup.operator, cell.setup.seed] = cell
    rows = []
    for operator in comparison.operators:
        own = [final[operator, seed] for seed in comparison.seeds if (operator, seed) in final]
        whole, lost = [c for c in own if not c.diverged], [c for c in own if c.diverged]
        rows.append(Row(operator, whole, lost))
    return rows


def spread(values: Sequence[float], scale: float = 1.0, digits: int = 1) -> str:
    """Mean and standard deviation over seeds, in words.

    >>> spread([0.5, 0.6], 100), spread([0.5], 100), spread([])
    ('55.0 ± 7.1', '50.0', 'none')
    """
    if not values:
        return "none"
    middle = f"{scale * mean(values):.{digits}f}"
    return middle if len(values) < 2 else f"{middle} ± {scale * stdev(values):.{digits}f}"


def score_text(values: Sequence[float], task: Task) -> str:
    """A score with its spread: accuracies in percent, others with three digits."""
    if task.score_name == "accuracy":
        return spread(values, 100)
    return spread(values, digits=3)


def score_table(
    rows: Sequence[Row], task: Task, times: Mapping[str, Any]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line per operator: test score, seeds, loss, time of a step, learning rate."""
    percent = " (%)" if task.score_name == "accuracy" else ""
    head = ("operator", f"test {task.score_name}{percent}", "each seed", "test loss",
            "step, over softmax", "parameters", "learning rate")  # fmt: skip
    seconds = times["seconds"]
    lines: list[tuple[str, ...]] = []
    for row in rows:
        scores = row.test(task.score_name)
        each = " ".join(score_text([score], task) for score in scores)
        lost = f"{len(row.diverged)} diverged" if row.diverged else ""
        cells = [*row.cells, *row.diverged]
        lines.append((
            row.operator, score_text(scores, task), " ".join(filter(None, (each, lost))),
            spread(row.test("loss"), digits=3),
            f"{seconds[row.operator] / seconds['softmax']:.2f}",
            f"{row.cells[0].result['parameters']:,}" if row.cells else "",
            f"{cells[0].setup.recipe.rate:g}" if cells else "",
        ))  # fmt: skip
    return head, lines


def layer_table(rows: Sequence[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line per operator and layer: what attention does there."""
    head = ("operator", "layer", "entropy", "largest sink score", "largest column mass",
            "effective rank after")  # fmt: skip
    lines: list[tuple[str, ...]] = []
    for row in rows:
        numbers = {name: row.layers(name).mean(0) for name in LAYERED} if row.cells else {}
        for layer in range(len(numbers.get("entropy", ()))):
            ranks = numbers["rank"]
            # a block may attend more than once; then layers and states do not pair up
            paired = len(ranks) == len(numbers["entropy"]) + 1
            rank = f"{ranks[layer + 1]:.1f}" if paired else ""
            name = row.cells[0].result["attention"]["layers"][layer].removesuffix(".attention")
            lines.append((
                row.operator, f"{layer + 1}: {name}", f"{numbers['entropy'][layer]:.2f}",
                f"{numbers['sink'][layer]:.3f}", f"{numbers['peak'][layer]:.2f}", rank,
            ))  # fmt: skip
    return head, lines


def lam_table(rows: Sequence[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]] | None:
    """One line per operator, seed and layer: the elasticity that every head learned, if any did."""
    lines: list[tuple[str, ...]] = []
    for row in rows:
        for cell in row.cells:
            for name, lams in cell.result["attention"]["lam"].items():
                where = name.removesuffix(".operator").removesuffix(".attention")
                heads = "  ".join(f"{lam:.3f}" for lam in lams)
                lines.append((row.operator, str(cell.setup.seed), where, heads))
    return (("operator", "seed", "layer", "lam of every head"), lines) if lines else None
