"""How steadily a model learns: sudden rises of the loss, and how much seeds differ."""

from collections.abc import Mapping, Sequence
from statistics import stdev

import numpy as np

from bistoch.lab.stats import INCONCLUSIVE, OPPOSITE, YES, seeds_of, spread
from bistoch.lab.store import Result
from bistoch.lab.study import Results, Table, Verdict


def count_spikes(losses: Sequence[float], before: int = 50) -> Result:
    """How often the loss of a batch is more than twice the median of those before it.

    `largest` is the largest such ratio, `steps` how many batches were looked at.

    >>> count_spikes([1.0] * 60 + [2.5] + [1.0] * 9)
    {'steps': 20, 'share': 0.05, 'largest': 2.5}
    """
    if len(losses) <= before:
        return {"steps": 0, "share": 0.0, "largest": 0.0}
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(losses), before)[:-1]
    ratios = np.asarray(losses[before:]) / np.median(windows, 1).clip(1e-12)
    share, largest = float(np.mean(ratios > 2)), float(ratios.max())
    return {"steps": len(ratios), "share": share, "largest": largest}


def compare_spreads(text: str, ours: Sequence[float], theirs: Sequence[float]) -> Verdict:
    """Whether one standard deviation over seeds is below another, by the interval of their ratio.

    >>> compare_spreads("less", [1.0, 1.1, 0.9], [1.0, 3.0, -1.0])
    Verdict(claim='less', measured='ratio 0.05 [0.01, 0.31], 3 seeds', holds='yes')
    """
    if min(len(ours), len(theirs)) < 2 or not stdev(theirs) or not stdev(ours):
        return Verdict(text, "not measured", INCONCLUSIVE)
    from scipy.stats import f

    # the quotient of two variances, each of normal numbers, is distributed like F
    degrees = len(ours) - 1, len(theirs) - 1
    ratio = stdev(ours) / stdev(theirs)
    low, high = (ratio / float(f.ppf(q, *degrees)) ** 0.5 for q in (0.975, 0.025))
    measured = f"ratio {ratio:.2f} [{low:.2f}, {high:.2f}], {seeds_of(len(ours))}"
    holds = YES if high < 1 else OPPOSITE if low > 1 else INCONCLUSIVE
    return Verdict(text, measured, holds)


def stability_checks(results: Results, ours: str, others: Sequence[str]) -> list[Verdict]:
    """Whether a cell learns more steadily than others: smaller rises of the loss, closer seeds."""
    found = []
    for other in others:
        found.append(results.claim(
            f"{ours}: smaller rises of the loss than {other.split(': ')[-1]}", ours, other,
            "spikes.largest", larger=False, form=".2f",
        ))  # fmt: skip
        pair = (results.values(cell, "test.accuracy") for cell in (ours, other))
        text = f"{ours}: closer seeds than {other.split(': ')[-1]}"
        found.append(compare_spreads(text, *pair))
    return found


def stability_table(results: Results, lines: Mapping[str, tuple[str, str, str]]) -> Table:
    """The spread of the accuracy over seeds, and sudden rises of the loss.

    Args:
        results: those of a study whose cells have `test.accuracy` and `spikes`.
        lines: data, operator and published spread of every cell.
    """
    rows = []
    for name, (data, operator, published) in lines.items():
        accuracy = results.values(name, "test.accuracy")
        rows.append([
            data, operator, f"{100 * stdev(accuracy):.2f}" if len(accuracy) > 1 else "", published,
            spread(results.values(name, "spikes.share"), 1000, ".2f"),
            spread(results.values(name, "spikes.largest"), 1, ".2f"),
        ])  # fmt: skip
    head = ["data", "operator", "spread over seeds (points)", "published spread",
            "loss spikes per 1000 steps", "largest rise"]  # fmt: skip
    return Table(head, rows, NOTE)


NOTE = (
    "The spread is the standard deviation of the test accuracy over seeds; published is that of "
    "the whole data. A spike is the loss of a batch that is more than twice the median of the 50 "
    "before; the largest rise is the largest such ratio."
)
