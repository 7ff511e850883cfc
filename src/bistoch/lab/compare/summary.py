"""The numbers of a comparison by operator: means and spreads over seeds."""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np

from bistoch.lab.compare.cells import Cell
from bistoch.lab.compare.difference import Difference
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


def base_of(rows: Sequence[Row]) -> Row | None:
    """The operator that the others are compared with: softmax, or the first that came to an end."""
    whole = [row for row in rows if row.cells]
    return next((row for row in whole if row.operator == "softmax"), whole[0] if whole else None)


def lead(row: Row, base: Row, task: Task) -> Difference | None:
    """What an operator scores more than another, over the seeds that both have; None without any.

    For one seed both start from the same weights and see the same batches, so the difference is
    taken seed by seed.
    """
    name = task.score_name
    ours, theirs = (
        {cell.setup.seed: cell.result["test"][name] for cell in line.cells} for line in (row, base)
    )
    each = tuple(ours[seed] - theirs[seed] for seed in ours if seed in theirs)
    grain = 1 / max(task.count("test"), 1) if name == "accuracy" else 0.0
    return Difference(each, grain) if each else None


def lead_text(found: Difference, task: Task) -> str:
    """A difference with sign, and its 95 % interval if there are seeds enough for one."""
    if len(found.each) < 2:
        return signed(found.mean, task)
    low, high = (signed(found.mean + side * found.half, task) for side in (-1, 1))
    return f"{signed(found.mean, task)} [{low}, {high}]"


def signed(value: float, task: Task) -> str:
    """A difference of scores with its sign: of accuracies in points, of others with three digits.

    Points have as many digits as the test samples tell apart. A sign is kept where all digits are
    zero: it says on which side an interval ends.

    >>> from bistoch.lab.train import open_task
    >>> signed(-0.0151, open_task("shapes")), signed(-0.0001, open_task("shapes"))
    ('-1.5', '-0.0')
    """
    if task.score_name != "accuracy":
        return f"{value:+.3f}"
    digits = max(1, len(str(task.count("test"))) - 3)
    return f"{100 * value:+.{digits}f}"


def score_table(
    rows: Sequence[Row], task: Task, times: Mapping[str, Any], *, rates: bool = False
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line per operator: test score, its lead over softmax, seeds, loss, time of a step.

    `rates` adds the learning rates, for comparisons in which every operator chose its own.
    """
    percent = " (%)" if task.score_name == "accuracy" else ""
    base = base_of(rows) if sum(bool(row.cells) for row in rows) > 1 else None
    seconds = times["seconds"]
    lines: list[dict[str, str]] = []
    for row in rows:
        scores, cells = row.test(task.score_name), [*row.cells, *row.diverged]
        lost = f" ({len(row.diverged)} diverged)" if row.diverged else ""
        line = {
            "operator": row.operator,
            f"test {task.score_name}{percent}": score_text(scores, task) + lost,
        }
        if base is not None:
            more = lead(row, base, task) if row is not base else None
            line[f"difference to {base.operator}"] = lead_text(more, task) if more else ""
        line |= {
            "each seed": " ".join(score_text([score], task) for score in scores),
            "test loss": spread(row.test("loss"), digits=3) if scores else "",
            "step, over softmax": f"{seconds[row.operator] / seconds['softmax']:.2f}",
            "parameters": f"{row.cells[0].result['parameters']:,}" if row.cells else "",
        }
        if rates:
            line["learning rate"] = f"{cells[0].setup.recipe.lr:g}" if cells else ""
        lines.append(line)
    return tuple(lines[0]), [tuple(line.values()) for line in lines]


def layer_table(rows: Sequence[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line per operator and layer: what attention does there."""
    head = ("operator", "layer", "entropy", "largest sink score", "largest column mass")
    lines: list[tuple[str, ...]] = []
    # a block may attend more than once; then layers and states do not pair up
    paired = all(
        row.layers("rank").shape[1] == row.layers("entropy").shape[1] + 1
        for row in rows
        if row.cells
    )
    for row in rows:
        numbers = {name: row.layers(name).mean(0) for name in LAYERED} if row.cells else {}
        for layer in range(len(numbers.get("entropy", ()))):
            name = row.cells[0].result["attention"]["layers"][layer].removesuffix(".attention")
            lines.append((
                row.operator, f"{layer + 1}:\u00a0{name}", f"{numbers['entropy'][layer]:.2f}",
                f"{numbers['sink'][layer]:.3f}", f"{numbers['peak'][layer]:.2f}",
                *([f"{numbers['rank'][layer + 1]:.1f}"] if paired else []),
            ))  # fmt: skip
    return (*head, "effective rank after") if paired else head, lines


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
