"""What the rank decay study found: verdicts beside the claims, tables, a picture and a page."""

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from bistoch.lab.drawing import legend_beside, sheet, tidy
from bistoch.lab.report import Report
from bistoch.lab.reproduce.study import Cells, Settings, Verdict
from bistoch.lab.reproduce.telling import COLOURS, SMOKE, add_picture, finish, tell_verdicts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALONE = "no skip mlp norm"
TITLES = {
    "product": "products of independent plans",
    "random": "networks before training",
    "trained": "trained networks",
}
# residuals below this are rounding of float64, not of the network
FLOOR = 1e-13
METRICS = {
    "residual": "residual", "residual_composite": "residual, composite norm",
    "effective_rank": "effective rank", "stable_rank": "stable rank", "cosine": "mean cosine",
    "contraction": "contraction of the last layer", "sigma_2": "sigma 2 of the last plan",
    "worst_contraction": "worst contraction of the last plan",
    "column_error": "column error of the last plan", "entropy": "entropy of the last plan",
}  # fmt: skip


class Curve(NamedTuple):
    """One setting: the measurements of all its seeds."""

    kind: str
    operator: str
    scale: str
    without: str
    seeds: list[dict[str, Any]]

    def last(self, metric: str) -> float:
        """The mean over seeds of the last value."""
        return mean(seed[metric][-1] for seed in self.seeds)


def read_curves(cells: Cells) -> list[Curve]:
    """The cells by setting, their seeds together."""
    found: dict[tuple[str, str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for name, cell in cells.found.items():
        kind, operator, scale, *rest = name.split("/")
        found[kind, operator, scale, rest[0] if len(rest) == 2 else ""].append(cell)
    return [Curve(*key, seeds) for key, seeds in found.items()]


def write_report(cells: Cells, folder: Path, console: Console, settings: Settings) -> Path:
    """Print the verdicts, and write the picture and the page; the path of the page."""
    curves = read_curves(cells)
    _print(curves, console)
    report = Report("Rank decay", settings.command("rank-decay"))
    report.text(
        "How much of the differences between tokens is left with depth, by operator. The residual "
        "is |X - 1 x^T| / |X| with the mean token x: 1 when the mean is zero, 0 when all tokens "
        "are the same."
    )
    tell_verdicts(console, report, judge(curves))
    if settings.smoke:
        console.print(SMOKE)
        report.text(SMOKE)
    caption = "Residual and effective rank by depth; thin lines are single seeds."
    picture = functools.partial(draw, curves)
    add_picture(report, picture, caption, folder / "rank_decay.png", console)
    for kind, title in TITLES.items():
        report.heading(title[0].upper() + title[1:])
        rows = [
            (c.operator, c.scale, c.without, *(f"{c.last(m):.3g}" for m in METRICS),
             *([f"{mean(s['accuracy'] for s in c.seeds):.3f}"] if kind == "trained" else []))
            for c in curves if c.kind == kind
        ]  # fmt: skip
        head = ("operator", "score scale", "parts", *METRICS.values())
        report.table(head + (("accuracy",) if kind == "trained" else ()), rows)
    return finish(report, folder, console)


def judge(curves: Sequence[Curve]) -> list[Verdict]:
    """The claims beside what the curves say."""
    return [_collapse(curves), _skips(curves), _trained(curves), _products(curves)]


def decay_order(residuals: Sequence[float]) -> float | None:
    """The p of r_next = C r^p where r is small: 1 is exponential decay, above 1 doubly so.

    >>> round(decay_order([0.5, 0.05, 5e-5, 5e-14, 0.0]), 2)
    3.0
    """
    real = [r for r in residuals if r > FLOOR]
    steps = [math.log(after / before) for before, after in itertools.pairwise(real)]
    orders = [b / a for a, b in itertools.pairwise(steps) if a < 0 and b < 0]
    return median(orders[-3:]) if orders else None


def _pick(curves: Sequence[Curve], kind: str, without: str = "") -> dict[tuple[str, str], Curve]:
    return {
        (c.operator, c.scale): c for c in curves if c.kind == kind and c.without == without
    }  # fmt: skip


def _collapse(curves: Sequence[Curve]) -> Verdict:
    alone = _pick(curves, "random", ALONE)
    orders = {}
    for operator in ("softmax", "sinkhorn"):
        found = [
            decay_order(seed["residual"])
            for (name, _), curve in alone.items() if name == operator for seed in curve.seeds
        ]  # fmt: skip
        known = [order for order in found if order is not None]
        orders[operator] = median(known) if known else math.nan
    words = ", ".join(f"{name} {order:.2f}" for name, order in orders.items())
    return Verdict(
        "attention alone, without skip, MLP and norm, loses its rank doubly exponentially, with "
        "softmax and with Sinkhorn (order 3 of the residual per layer)",
        f"order of the decay: {words}",
        "yes" if min(orders.values()) > 1.5 else "no",
    )


def _skips(curves: Sequence[Curve]) -> Verdict:
    alone, skipped = _pick(curves, "random", ALONE), _pick(curves, "random", "no mlp norm")
    skipped = skipped or _pick(curves, "random", "whole")
    words, gains = [], []
    for operator in ("softmax", "sinkhorn"):
        pairs = [(alone[key], skipped[key]) for key in alone if key[0] == operator]
        without = mean(pair[0].last("residual") for pair in pairs)
        having = mean(pair[1].last("residual") for pair in pairs)
        gains.append(having / max(without, 1e-300))
        words.append(f"{operator} {having:.2g} with, {without:.2g} without")
    return Verdict(
        "skip connections are what keeps the rank, for both",
        "last residual: " + "; ".join(words),
        "yes" if min(gains) > 10 else "no",
    )


def _trained(curves: Sequence[Curve]) -> Verdict:
    whole = _pick(curves, "trained", "whole")
    pairs = list(
        zip(whole["softmax", "1"].seeds, whole["sinkhorn", "1"].seeds, strict=True)
    )  # fmt: skip
    words = []
    wins = 0
    for metric in ("residual", "effective_rank"):
        theirs, ours = ([seed[metric][-1] for seed in side] for side in zip(*pairs, strict=True))
        wins += sum(b > a for a, b in zip(theirs, ours, strict=True))
        words.append(f"{METRICS[metric]} softmax {mean(theirs):.3g}, sinkhorn {mean(ours):.3g}")
    total = 2 * len(pairs)
    return Verdict(
        "in trained networks Sinkhorn attention keeps more rank than softmax",
        f"after the last layer: {'; '.join(words)}; Sinkhorn is ahead in {wins} of {total}",
        "yes" if wins == total else "no" if wins == 0 else "in part",
    )


def _products(curves: Sequence[Curve]) -> Verdict:
    products = _pick(curves, "product")

    def rate(curve: Curve) -> float:
        ratios = [s["residual"][-1] / s["residual"][0] for s in curve.seeds]
        return mean(math.log(r) for r in ratios) / (len(curve.seeds[0]["residual"]) - 1)

    words, largest = [], 0.0
    for scale in sorted({key[1] for key in products}):
        theirs, ours = (math.exp(rate(products[o, scale])) for o in ("softmax", "sinkhorn"))
        largest = max(largest, abs(math.log(ours / theirs)))
        words.append(f"{theirs:.3f} and {ours:.3f} at scale {scale}")
    return Verdict(
        "products of independent random plans decay alike for softmax and Sinkhorn",
        "residual left per layer, softmax and Sinkhorn: " + "; ".join(words),
        # a tenth per layer is what counts as alike
        "yes" if largest < 0.1 else "no",
    )


def _print(curves: Sequence[Curve], console: Console) -> None:
    operators = list(dict.fromkeys(curve.operator for curve in curves))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="residual after the last layer")
    for head in ("depth of", "parts", "scale", *operators):
        table.add_column(head, no_wrap=True, justify="left" if head == "depth of" else "right")
    settings = dict.fromkeys((c.kind, c.without, c.scale) for c in curves)
    by_name = {(c.kind, c.without, c.scale, c.operator): c for c in curves}
    for setting in settings:
        values = [f"{by_name[(*setting, o)].last('residual'):.3g}" for o in operators]
        table.add_row(setting[0], setting[1] or "-", setting[2], *values)
    console.print(table)


def draw(curves: Sequence[Curve]) -> "Figure":
    """Residual above, effective rank below, one column per kind of depth."""
    scales = sorted({c.scale for c in curves if c.kind == "random"}, key=float)
    middle = scales[len(scales) // 2]
    skipped = {c.without for c in curves if c.kind == "random"} & {"no mlp norm", "whole"}
    panels = (
        ("product", middle, "", "independent plans"),
        ("random", middle, ALONE, "random, attention alone"),
        ("random", middle, min(skipped, default="whole"), "random, with skips"),
        ("trained", "1", ALONE, "trained, attention alone"),
        ("trained", "1", "whole", "trained, whole"),
    )
    figure, axes = sheet(2, len(panels), width=2.5, height=2.5, sharex="col")
    for (above, below), (kind, scale, without, title) in zip(axes.T, panels, strict=True):
        for curve in curves:
            if (curve.kind, curve.scale, curve.without) == (kind, scale, without):
                _lines(above, curve, "residual")
                _lines(below, curve, "effective_rank")
        low, high = above.get_ylim()
        # a short range is read more easily without powers of ten
        above.set(yscale="log" if high > 20 * max(low, 1e-300) or low <= 0 else "linear")
        below.xaxis.get_major_locator().set_params(integer=True)
        first = kind == "product"
        tidy(above, title, "", "residual to rank one" if first else "")
        tidy(below, "", "layers", "effective rank" if first else "")
    legend_beside(figure, axes[0][0])
    figure.suptitle(f"score scale {middle} before training", x=0.01, ha="left", fontsize=9)
    return figure


def _lines(axes: Any, curve: Curve, metric: str) -> None:
    colour = COLOURS[curve.operator]
    values = [seed[metric] for seed in curve.seeds]
    for line in values if len(values) > 1 else []:
        axes.plot(line, color=colour, linewidth=0.5, alpha=0.5)
    middle = [mean(point) for point in zip(*values, strict=True)]
    axes.plot(middle, color=colour, linewidth=1.8, label=curve.operator)
