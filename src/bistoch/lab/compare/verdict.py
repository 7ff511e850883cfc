"""What a comparison says, in a few sentences: who is ahead, and whether that is more than noise."""

from collections.abc import Sequence

from bistoch.lab.compare.summary import Row, base_of, lead, signed
from bistoch.lab.train import Task


def verdict(rows: Sequence[Row], task: Task) -> str:
    """Every operator beside softmax (or the first): better, worse, or not to be told from it.

    The difference is taken seed by seed; it is more than noise if its 95 % interval over seeds
    (Student) does not hold zero. Empty if there are no two operators to compare.
    """
    base = base_of(rows)
    others = [row for row in rows if row is not base]
    leads = {row.operator: lead(row, base, task) for row in others} if base else {}
    known = {name: found for name, found in leads.items() if found is not None}
    if base is None or not known:
        return ""
    seeds = max(len(found.each) for found in known.values())
    if seeds < 2:
        return (
            "There is one seed, and the same operator with another seed scores differently too: "
            "take three or more seeds to tell a difference from noise."
        )
    unit = "points" if task.score_name == "accuracy" else task.score_name
    told, same = [], []
    for name, found in known.items():
        if found.is_noise:
            same.append(name)
            continue
        is_better = (found.mean > 0) == task.larger_is_better
        low, high = sorted(abs(found.mean + side * found.half) for side in (-1, 1))
        told.append(
            f"{name} is {'better' if is_better else 'worse'} than {base.operator} by "
            f"{signed(abs(found.mean), task)[1:]} {unit} (95 % interval: "
            f"{signed(low, task)[1:]} to {signed(high, task)[1:]})."
        )
    if same:
        told.append(
            f"{_and(same)} {'differs' if len(same) == 1 else 'differ'} from {base.operator} by no "
            f"more than noise: over {seeds} seeds, the 95 % interval of the difference holds zero."
        )
    return " ".join(told)


def _and(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> _and(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
