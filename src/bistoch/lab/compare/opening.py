"""What a comparison found, in a few sentences, and which panels show a difference."""

from collections.abc import Mapping, Sequence

import numpy as np

from bistoch.lab.compare.summary import Row, baseline_of, difference_to, score_text
from bistoch.lab.train import Task

# a gap between operators below this share of the largest value is none that a reader would see
VISIBLE = 0.02


def finding(rows: Sequence[Row], task: Task) -> str:
    """Scores, whether they differ, and what the fullest key receives, in two sentences."""
    whole = [row for row in rows if row.cells]
    if not whole:
        return "No run came to its end: see below."
    percent = " (%)" if task.score_name == "accuracy" else ""
    scores = [f"{row.operator} {score_text(row.test(task.score_name), task)}" for row in whole]
    loads = [f"{row.layers('peak').mean():.1f} with {row.operator}" for row in whole]
    difference = _difference(whole, task)
    return (
        f"Test {task.score_name}{percent}: {', '.join(scores)}{difference}. The key that receives "
        f"most gets, over its even share, {', '.join(loads)}."
    )


def _difference(rows: Sequence[Row], task: Task) -> str:
    """Whether operators can be told from the baseline, in a few words."""
    baseline = baseline_of(rows)
    if baseline is None or len(rows) < 2:
        return ""
    found = {
        row.operator: one
        for row in rows
        if row is not baseline and (one := difference_to(row, baseline, task)) is not None
    }
    if max((len(one.each) for one in found.values()), default=0) < 2:
        return "; one seed does not tell a difference from noise"
    words = []
    for name, one in found.items():
        if not one.inconclusive:
            better = (one.mean > 0) == task.larger_is_better
            words.append(f"{name} is {'better' if better else 'worse'} than {baseline.operator}")
    return f"; {', '.join(words) or f'none can be told from {baseline.operator}'}"


def split_panels(
    found: Mapping[str, Mapping[str, np.ndarray]], panels: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The panels in which operators differ, and those in which they do not.

    They differ if the means of two are further apart than the seeds of one, at the same place, and
    than what can be seen. One operator alone differs from nothing, and all is shown.

    Args:
        found: for every operator, under every name of `panels`, an array (seeds, places).
        panels: names and titles.

    >>> same, other = np.ones((2, 3)), np.full((2, 3), 2.0)
    >>> found = {"a": {"x": same, "y": same}, "b": {"x": same, "y": other}}
    >>> split_panels(found, {"x": "flat", "y": "not"})
    ({'y': 'not'}, {'x': 'flat'})
    """
    if len(found) < 2:
        return dict(panels), {}
    shown: dict[str, str] = {}
    folded: dict[str, str] = {}
    for name, title in panels.items():
        places = min(values[name].shape[1] for values in found.values())
        each = [values[name][:, :places] for values in found.values()]
        means = np.stack([one.mean(0) for one in each])
        noise = np.max([one.max(0) - one.min(0) for one in each], axis=0)
        gap, largest = means.max(0) - means.min(0), np.abs(means).max()
        differs = bool((gap > np.maximum(noise, VISIBLE * largest)).any())
        (shown if differs else folded)[name] = title
    return shown, folded
