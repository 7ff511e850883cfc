"""Rank decay: what depth leaves of the differences between tokens, by operator.

Three kinds of depth are measured: products of independent random plans, random networks with and
without their parts, and trained networks with parts removed afterwards.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

import bistoch
from bistoch.analysis import capture, metrics
from bistoch.lab.drawing import legend_beside, sheet, tidy
from bistoch.lab.reproduce import ablation
from bistoch.lab.reproduce.ablation import LAMS, Network, Shape, operator_text
from bistoch.lab.study import Cell, Column, Context, Result, Results, Study, Table, Verdict

# iterations before training, and for products of plans
RANDOM_ITERS, PRODUCT_ITERS = 20, 200
# residuals below this are rounding of float64, not of the network
FLOOR = 1e-13
WHOLE, ALONE = "whole", "no skip mlp norm"
KINDS = {
    "product": "Products of independent plans.",
    "random": "Networks before training, at three scales of their scores.",
    "trained": "Trained networks, parts removed afterwards.",
}
METRICS = {
    "residual": "residual", "residual_composite": "residual, composite norm",
    "effective_rank": "effective rank", "stable_rank": "stable rank", "cosine": "mean cosine",
    "contraction": "contraction of the last layer", "sigma_2": "sigma 2 of the last plan",
    "worst_contraction": "worst contraction of the last plan",
    "column_error": "column error of the last plan", "entropy": "entropy of the last plan",
}  # fmt: skip


DEEP = Shape(depth=12)


@dataclass(frozen=True)
class Sizes:
    """Products of plans, networks before training and trained ones, pictures sent through them."""

    product_depth: int = 12
    product_size: int = 32
    draws: int = 8
    random: Shape = DEEP
    trained: Shape = ablation.USUAL
    pictures: int = 8


Missing = list[tuple[str, ...]]
FULL = Sizes()
SMOKE = Sizes(5, 16, 2, Shape(depth=5, dim=16, heads=2), ablation.SMALL, 4)


def cells(smoke: bool) -> list[Cell]:
    """Operators by score scale and by the parts that are missing, before training and after."""
    operators, scales = tuple(LAMS), [1.0, 2.0, 4.0]
    pairs = [("mlp", "norm"), ("skip", "norm"), ("skip", "mlp")]
    before: Missing = [ablation.PARTS, *pairs, ("mlp",), ("skip",), ()]
    after: Missing = [(), ("mlp",), ("skip",), ("skip", "mlp"), ablation.PARTS]
    if smoke:
        operators, scales = ("softmax", "sinkhorn"), [2.0]
        before, after = [ablation.PARTS, ()], [(), ablation.PARTS]
    return [
        cell
        for operator in operators
        for cell in (
            *(_cell("product", operator, scale) for scale in scales),
            *(_cell("random", operator, s, gone) for s in scales for gone in before),
            *(_cell("trained", operator, 1.0, gone) for gone in after),
        )
    ]


def _cell(kind: str, operator: str, scale: float, missing: tuple[str, ...] | None = None) -> Cell:
    parts = "" if missing is None else "no " + " ".join(missing) if missing else WHOLE
    name = "/".join(filter(None, (kind, operator, f"{scale:g}", parts)))
    return Cell(name, {"kind": kind, "operator": operator, "scale": scale, "parts": parts})


def run(cell: Cell, seed: int, context: Context) -> Result:
    """All rank metrics by depth."""
    sizes: Sizes = context.sizes
    operator, scale = cell.options["operator"], cell.options["scale"]
    if cell.options["kind"] == "product":
        return measure_product(sizes, operator, scale, seed)
    missing = cell.options["parts"].split()[1:]
    if cell.options["kind"] == "random":
        return measure_random(sizes, operator, scale, missing, seed)
    network, numbers = ablation.trained_classifier(sizes.trained, operator, context)
    return measure_network(network.double(), missing, sizes.pictures) | numbers


def measure_product(sizes: Sizes, operator: str, scale: float, seed: int) -> Result:
    """Multiply independent plans of Gaussian scores onto random tokens."""
    generator = torch.Generator().manual_seed(seed)
    n, shape = sizes.product_size, (sizes.draws, sizes.product_depth)
    scores = scale * torch.randn(*shape, n, n, generator=generator, dtype=torch.float64)
    states = [torch.randn(sizes.draws, n, n, generator=generator, dtype=torch.float64)]
    plans = bistoch.balance(scores, lam=LAMS[operator], iters=PRODUCT_ITERS, backend="reference")
    for one in plans.unbind(1):
        states.append(one @ states[-1])
    return profile(states, list(plans.unbind(1)))


def measure_random(
    sizes: Sizes, operator: str, scale: float, missing: Sequence[str], seed: int
) -> Result:
    """Send pictures through a network before training, without some of its parts."""
    text = operator_text(operator, RANDOM_ITERS, scale)
    network = ablation.random_network(sizes.random, text, seed)
    return measure_network(network, missing, sizes.pictures)


def measure_network(network: Network, missing: Sequence[str], pictures: int) -> Result:
    """Send pictures through a network without some of its parts."""
    network.remove(*missing)
    _, _, x_test, _ = ablation.load_pictures(0)
    with torch.no_grad(), capture(network, problems=None, budget=1 << 30) as seen:
        network(x_test[:pictures].double())
    return profile([s.state for s in seen.states], [p.plan for p in seen.plans])


def profile(states: Sequence[Tensor], plans: Sequence[Tensor]) -> Result:
    """All rank metrics by depth: of the states after every layer, and of the plans inside.

    >>> x = torch.randn(3, 5, 4)
    >>> found = profile([x, x.mean(-2, keepdim=True).expand(3, 5, 4)], [torch.full((3, 5, 5), 0.2)])
    >>> found["residual"][1] < 1e-6 < found["residual"][0], len(found["sigma_2"])
    (True, 1)
    """
    of_states: dict[str, Callable[[Tensor], Tensor]] = {
        "residual": metrics.rank_one_residual,
        "residual_composite": partial(metrics.rank_one_residual, norm="composite"),
        "effective_rank": metrics.effective_rank,
        "stable_rank": metrics.stable_rank,
        "cosine": metrics.mean_cosine,
    }
    of_plans = {
        "sigma_2": metrics.second_singular_value,
        "worst_contraction": metrics.worst_contraction,
        "column_error": metrics.doubly_stochastic_error,
        "entropy": metrics.mean_entropy,
    }
    found: Result = {name: [_mean(of(x), name) for x in states] for name, of in of_states.items()}
    found |= {name: [_mean(of(p), name) for p in plans] for name, of in of_plans.items()}
    pairs = itertools.pairwise(states)
    found["contraction"] = [_mean(metrics.contraction(*pair), "contraction") for pair in pairs]
    return found


def _mean(values: Tensor, name: str) -> float:
    # what shrinks by factors is averaged by factors
    if name in ("residual", "residual_composite", "contraction"):
        return values.clamp_min(1e-300).log().mean().exp().item()
    return values.mean().item()


def decay_order(residuals: Sequence[float]) -> float | None:
    """The p of r_next = C r^p where r is small: 1 is exponential decay, above 1 doubly so.

    >>> round(decay_order([0.5, 0.05, 5e-5, 5e-14, 0.0]), 2)
    3.0
    """
    real = [r for r in residuals if r > FLOOR]
    steps = [math.log(after / before) for before, after in itertools.pairwise(real)]
    orders = [b / a for a, b in itertools.pairwise(steps) if a < 0 and b < 0]
    return median(orders[-3:]) if orders else None


def _last(metric: str) -> Any:
    """The value of a metric after the last layer."""
    return lambda result: result[metric][-1]


def checks(results: Results) -> list[Verdict]:
    """Collapse without skips, what skips are worth, trained networks, products of plans."""
    return [_collapse(results), _skips(results), *_trained(results), _products(results)]


def _collapse(results: Results) -> Verdict:
    orders = {}
    for operator in ("softmax", "sinkhorn"):
        names = results.names_with(kind="random", operator=operator, parts=ALONE)
        found = [decay_order(r) for name in names for r in results.values(name, "residual")]
        known = [order for order in found if order is not None]
        orders[operator] = median(known) if known else math.nan
    words = ", ".join(f"{name} {order:.2f}" for name, order in orders.items())
    return Verdict(
        "attention alone, without skip, MLP and norm, loses its rank doubly exponentially, with "
        "softmax and with Sinkhorn (order 3 of the residual per layer)",
        f"order of the decay: {words}",
        "yes" if min(orders.values()) > 1.5 else "no",
    )


def _skips(results: Results) -> Verdict:
    words, gains = [], []
    for operator in ("softmax", "sinkhorn"):
        same = {"kind": "random", "operator": operator}
        kept = results.names_with(**same, parts="no mlp norm")
        kept = kept or results.names_with(**same, parts=WHOLE)
        alone = results.names_with(**same, parts=ALONE)
        having, without = (
            mean(results.mean(name, _last("residual")) for name in names)
            for names in (kept, alone)
        )  # fmt: skip
        gains.append(having / max(without, 1e-300))
        words.append(f"{operator} {having:.2g} with, {without:.2g} without")
    return Verdict(
        "skip connections are what keeps the rank, for both",
        "last residual: " + "; ".join(words),
        "yes" if min(gains) > 10 else "no",
    )


def _trained(results: Results) -> list[Verdict]:
    ours, theirs = f"trained/sinkhorn/1/{WHOLE}", f"trained/softmax/1/{WHOLE}"
    return [
        results.claim(
            f"trained networks with Sinkhorn attention have a larger {METRICS[metric]} after the "
            "last layer than with softmax",
            ours, theirs, _last(metric), larger=True,
        )
        for metric in ("residual", "effective_rank")
    ]  # fmt: skip


def _products(results: Results) -> Verdict:
    def rate(result: Result) -> float:
        residual = result["residual"]
        return math.log(residual[-1] / residual[0]) / (len(residual) - 1)

    words, largest = [], 0.0
    for name in results.names_with(kind="product", operator="softmax"):
        scale = results.options(name)["scale"]
        theirs, ours = (
            math.exp(results.mean(f"product/{operator}/{scale:g}", rate))
            for operator in ("softmax", "sinkhorn")
        )
        largest = max(largest, abs(math.log(ours / theirs)))
        words.append(f"{theirs:.3f} and {ours:.3f} at scale {scale:g}")
    return Verdict(
        "products of independent random plans decay alike for softmax and Sinkhorn",
        "residual left per layer, softmax and Sinkhorn: " + "; ".join(words),
        # a tenth per layer is what counts as alike
        "yes" if largest < 0.1 else "no",
    )


def tables(results: Results) -> list[Table]:
    """The residual after the last layer by operator, then all metrics by kind of depth."""
    operators = [o for o in LAMS if results.names_with(operator=o)]
    lines: dict[tuple[str, str, str], list[str]] = {}
    for name in results.names:
        options = results.options(name)
        line = lines.setdefault((options["kind"], options["parts"], f"{options['scale']:g}"), [])
        line.append(f"{results.mean(name, _last('residual')):.3g}")
    first = Table(
        ("depth of", "parts", "scale", *operators),
        [(*setting, *values) for setting, values in lines.items()],
        "Residual after the last layer, mean over seeds.",
    )
    columns = [Column(title, _last(metric), ".3g") for metric, title in METRICS.items()]
    labels = {"operator": "operator", "score scale": "scale", "parts": "parts"}
    more = [Column("accuracy", "accuracy", ".3f")]
    return [first] + [
        results.table(
            columns + more * (kind == "trained"), caption, names=results.names_with(kind=kind),
            labels=labels,
        )
        for kind, caption in KINDS.items()
    ]  # fmt: skip


def figure(results: Results) -> Any:
    """Residual above, effective rank below, one column per kind of depth."""
    scales = sorted(
        {row.options["scale"] for row in results.rows if row.options["kind"] == "random"}
    )
    middle = scales[len(scales) // 2]
    skips = "no mlp norm" if results.names_with(kind="random", parts="no mlp norm") else WHOLE
    panels = (
        ("product", middle, "", "independent plans"),
        ("random", middle, ALONE, "random, attention alone"),
        ("random", middle, skips, "random, with skips"),
        ("trained", 1.0, ALONE, "trained, attention alone"),
        ("trained", 1.0, WHOLE, "trained, whole"),
    )
    made, axes = sheet(2, len(panels), width=2.5, height=2.5, sharex="col")
    for (above, below), (kind, scale, parts, title) in zip(axes.T, panels, strict=True):
        for name in results.names_with(kind=kind, scale=scale, parts=parts):
            _draw_seeds(above, results, name, "residual")
            _draw_seeds(below, results, name, "effective_rank")
        low, high = above.get_ylim()
        # a short range is read more easily without powers of ten
        above.set(yscale="log" if high > 20 * max(low, 1e-300) or low <= 0 else "linear")
        below.xaxis.get_major_locator().set_params(integer=True)
        first = kind == "product"
        tidy(above, title, "", "residual to rank one" if first else "")
        tidy(below, "", "layers", "effective rank" if first else "")
    legend_beside(made, axes[0][0])
    made.suptitle(f"score scale {middle:g} before training", x=0.01, ha="left", fontsize=9)
    return made


def _draw_seeds(axes: Any, results: Results, name: str, metric: str) -> None:
    operator, values = results.options(name)["operator"], results.values(name, metric)
    for line in values if len(values) > 1 else []:
        axes.plot(line, color=ablation.COLOURS[operator], linewidth=0.5, alpha=0.5)
    middle = [mean(point) for point in zip(*values, strict=True)]
    axes.plot(middle, color=ablation.COLOURS[operator], linewidth=1.8, label=operator)


STUDY = Study(
    name="rank-decay",
    title="Rank decay",
    question="Does balanced attention keep more directions alive with depth than softmax?",
    source="Lapenna, Fioresi, Gharesifard, arXiv 2604.07925; Dong et al., ICML 2021",
    about="How much of the differences between tokens is left with depth, by operator. The "
    "residual is |X - 1 x^T| / |X| with the mean token x: 1 when the mean is zero, 0 when all "
    "tokens are the same.",
    sizes=lambda settings: SMOKE if settings.smoke else FULL,
    cells=cells,
    run=run,
    checks=checks,
    tables=tables,
    figure=figure,
    caption="Residual and effective rank by depth; thin lines are single seeds.",
)
