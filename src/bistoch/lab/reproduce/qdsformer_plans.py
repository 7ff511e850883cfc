"""How different the plans are that operators make of the same scores, and what they keep of them.

The measures of Born et al.: how many different plans there are, Frobenius distances between them
and to the doubly stochastic matrices, entropy; and how much of the scores can be found in a plan.
"""

from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bistoch.analysis import metrics
from bistoch.functional import OPERATORS, read_call
from bistoch.lab.reproduce.qdsformer_operators import CIRCUITS
from bistoch.lab.stats import NO, YES
from bistoch.lab.store import Result
from bistoch.lab.study import Column, Results, Table, Verdict
from bistoch.models import operators
from bistoch.nn import OperatorModule

# what makes plans of the same scores; sinkhorn with the steps of the paper, of whose half-steps
# there are two and one more in ours (it has 3 and 21), and converged
COMPARED = (
    "softmax", "sinkhorn(iters=1)", "sinkhorn(iters=10)", "sinkhorn(iters=200)", "orthogonal",
    "orthogonal(method='lq')", "elastic(lam=0.5)", "quantum(layers=8)",
)  # fmt: skip
CIRCUIT = COMPARED[-1]
# with angles a ninth as large, whose plans are those of a model that was trained with them
SMALL_ANGLES = CIRCUITS[1]
# entries of a 4 x 4 matrix that take all values of -1, 0 and 1; the others are drawn once
VARIED = 9
PAIRS = 4000
Pairs = tuple[Int[Tensor, "p"], Int[Tensor, "p"]]


PLANS = [
    Column("grid: distinct (%)", "grid.distinct", ".1f", 100),
    Column("grid: apart", "grid.apart"),
    Column("grid: entropy", "grid.entropy"),
    Column("distinct (%)", "trained.distinct", ".1f", 100),
    Column("apart", "trained.apart"),
    Column("entropy", "trained.entropy"),
    Column("outside", "trained.outside", ".1e"),
    Column("order", "trained.order"),
    Column("nearest (%)", "trained.nearest", ".1f", 100),
]
# published distances to the doubly stochastic matrices, of scores of their own
OUTSIDE = {
    "softmax": "1.12 ± 0.3", "sinkhorn(iters=1)": "0.84 ± 0.3", "sinkhorn(iters=10)": "0.23 ± 0.2",
    "orthogonal": "below 2e-4", "orthogonal(method='lq')": "below 2e-4",
    "quantum(layers=8)": "below 5e-6",
}  # fmt: skip
PLANS_NOTE = (
    "Plans of the same scores. Grid: all 4 x 4 matrices whose first nine entries are -1, 0 or 1. "
    "The other columns: scores of the softmax model of a part of FashionMNIST, 500 test pictures, "
    "mean of both layers. "
    "Distinct: the share of plans that differ in three decimals. Apart: the mean Frobenius "
    "distance of two plans. Entropy: of rows, relative to the largest. Outside: the Frobenius "
    "distance to the nearest doubly stochastic matrix. Order: the rank correlation of distances of "
    "scores with those of plans. Nearest: how often the picture with the nearest plan is of the "
    "same class. Published: Sinkhorn of 3 and 21 half-steps."
)
OWN_NOTE = (
    "The same numbers of models that were trained with these operators, on a part of FashionMNIST, "
    "each on scores of its own."
)


def plans_of(operator: str) -> str:
    """The name of the cell that looks at the plans of an operator."""
    return f"plans: {operator}"


def own_plans_of(operator: str) -> str:
    """The name of the cell that looks at the plans of a model trained with an operator."""
    return f"own plans: {operator}"


@torch.no_grad()
def scores_of(
    model: nn.Module, inputs: tuple[Tensor, ...]
) -> tuple[Float[Tensor, "layers B n n"], Float[Tensor, "layers B n n"]]:
    """The scores that the layers of a model with one head compute, and their plans."""
    scores: list[Tensor] = []
    plans: list[Tensor] = []

    def keep(module: nn.Module, tokens: tuple[Tensor, ...]) -> None:
        query, key = tokens[0].double(), tokens[1].double()
        scores.append((query @ key.mT / query.shape[-1] ** 0.5).squeeze(1))
        plans.append(cast(OperatorModule, module).plan(query, key).squeeze(1))

    handles = [module.register_forward_pre_hook(keep) for module in operators(model).values()]
    try:
        model.eval()(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(scores), torch.stack(plans)


def measure_plans(
    operator: str, scores: Float[Tensor, "layers B n n"], classes: Int[Tensor, "B"], seed: int
) -> Result:
    """All numbers of an operator: on a grid of scores, and on the scores of a trained model."""
    # the same grid and pairs for all operators
    generator = torch.Generator().manual_seed(seed)
    grid = grid_of(VARIED, generator)
    far, near = pairs_of(len(grid), generator), pairs_of(scores.shape[1], generator)
    return {
        "grid": diversity(make_plans(operator, grid), far),
        "trained": _mean_over_layers(scores, make_plans(operator, scores), classes, near),
    }


def measure_own_plans(
    scores: Float[Tensor, "layers B n n"],
    plans: Float[Tensor, "layers B n n"],
    classes: Int[Tensor, "B"],
    seed: int,
) -> Result:
    """The numbers of a model's own plans."""
    pairs = pairs_of(scores.shape[1], torch.Generator().manual_seed(seed))
    return {"trained": _mean_over_layers(scores, plans, classes, pairs)}


def _mean_over_layers(
    scores: Tensor, plans: Tensor, classes: Tensor, pairs: Pairs
) -> dict[str, float]:
    layers = [
        {**diversity(plan, pairs), **information(score, plan, classes, pairs)}
        for score, plan in zip(scores, plans, strict=True)
    ]
    return {name: sum(layer[name] for layer in layers) / len(layers) for name in layers[0]}


def grid_of(varied: int, generator: torch.Generator) -> Float[Tensor, "B 4 4"]:
    """All 4 x 4 matrices whose first entries are -1, 0 or 1; the others are the same in all.

    >>> grid_of(3, torch.Generator().manual_seed(0)).shape
    torch.Size([27, 4, 4])
    """
    values = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    first = torch.cartesian_prod(*[values] * varied)
    rest = torch.randint(-1, 2, (16 - varied,), generator=generator).double()
    return torch.cat([first, rest.expand(len(first), -1)], -1).reshape(-1, 4, 4)


def make_plans(operator: str, scores: Float[Tensor, "*b n n"]) -> Float[Tensor, "*b n n"]:
    """The plans of scores that are there already."""
    name, options = read_call(operator)
    eye = torch.eye(scores.shape[-1], dtype=scores.dtype)
    with torch.no_grad():
        return OPERATORS[name].plan(scores, eye.expand_as(scores), scale=1.0, **options)


def diversity(plans: Float[Tensor, "B n n"], pairs: Pairs) -> dict[str, float]:
    """Numbers of a set of plans.

    `distinct` is the share that differ in three decimals; `apart` the mean Frobenius distance of
    two of them; `entropy` that of the rows, relative to the largest possible; `outside` the mean
    Frobenius distance to the nearest doubly stochastic matrix.

    >>> plans = torch.eye(2, dtype=torch.float64).repeat(4, 1, 1)
    >>> diversity(plans, pairs_of(4, torch.Generator()))["distinct"]
    0.25
    """
    rounded = plans.mul(1000).round().flatten(1)
    one, other = pairs
    some = plans[: min(len(plans), 500)]
    return {
        "distinct": len(rounded.unique(dim=0)) / len(plans),
        "apart": (plans[one] - plans[other]).flatten(1).norm(dim=1).mean().item(),
        "entropy": metrics.mean_entropy(plans).mean().item(),
        "outside": metrics.birkhoff_distance(some).mean().item(),
    }


def information(
    scores: Float[Tensor, "B n n"],
    plans: Float[Tensor, "B n n"],
    classes: Int[Tensor, "B"],
    pairs: Pairs,
) -> dict[str, float]:
    """What plans keep of their scores.

    `order` is the rank correlation of distances between scores and between their plans; `nearest`
    how often the picture with the nearest plan is of the same class.
    """
    from scipy.stats import spearmanr

    one, other = pairs
    apart, moved = ((x[one] - x[other]).flatten(1).norm(dim=1) for x in (scores, plans))
    flat = plans.flatten(1)
    distances = torch.cdist(flat, flat).fill_diagonal_(torch.inf)
    same = classes[distances.argmin(1)] == classes
    order = spearmanr(apart.numpy(), moved.numpy()).statistic
    return {"order": float(order), "nearest": same.double().mean().item()}


def pairs_of(count: int, generator: torch.Generator) -> Pairs:
    """Pairs of different places."""
    one = torch.randint(count, (PAIRS,), generator=generator)
    return one, (one + torch.randint(1, count, (PAIRS,), generator=generator)) % count


def plan_tables(results: Results) -> list[Table]:
    """One line per operator, if their plans were measured."""
    if plans_of(COMPARED[0]) not in results.names:
        return []
    names = [plans_of(name) for name in COMPARED]
    more = {"outside, published": {plans_of(name): text for name, text in OUTSIDE.items()}}
    own = [name for name in results.names if name.startswith(own_plans_of(""))]
    return [
        results.table(PLANS, PLANS_NOTE, names=names, more=more),
        results.table(PLANS[3:], OWN_NOTE, names=own),
    ]


def plan_checks(results: Results) -> list[Verdict]:
    """What is published of the circuit's plans: all inputs told apart, more diverse, more kept."""
    ours, many = plans_of(CIRCUIT), plans_of("sinkhorn(iters=200)")
    if ours not in results.names:
        return []
    shares = results.values(ours, "grid.distinct")
    found = [
        Verdict(
            "grid: the circuit makes one plan of every input",
            f"{100 * min(shares):.1f} % at least", YES if min(shares) == 1 else NO,
        )
    ]  # fmt: skip
    percent: dict[str, Any] = {"unit": "points", "form": ".1f", "scale": 100}
    for text, one, other in (
        ("grid: the circuit makes more distinct plans than sinkhorn", ours, many),
        ("grid: sinkhorn makes more distinct plans than QR", many, plans_of("orthogonal")),
    ):
        found.append(results.claim(text, one, other, "grid.distinct", larger=True, **percent))
    # of the scores of a model with softmax, and of their own; with sinkhorn as it was trained
    small = own_plans_of(SMALL_ANGLES)
    for where, circuit, name, sinkhorn in (
        ("softmax scores", ours, plans_of, "sinkhorn(iters=10)"),
        ("own scores", own_plans_of(CIRCUIT), own_plans_of, "sinkhorn(backend='cpu')"),
        ("own scores, small angles", small, own_plans_of, "sinkhorn(backend='cpu')"),
    ):
        for text, metric, form in (
            ("further apart", "trained.apart", {"form": ".2f"}),
            ("with more of the order of distances", "trained.order", {"form": ".2f"}),
            ("with more of the class", "trained.nearest", percent),
        ):
            for other in ("softmax", sinkhorn):
                claim = f"{where}: plans of the circuit {text} than {other.split('(')[0]}"
                pair = circuit, name(other)
                found.append(results.claim(claim, *pair, metric, larger=True, **form))
    return found
