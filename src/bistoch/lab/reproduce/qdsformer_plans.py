"""How different the plans are that operators make of the same scores, and what they keep of them.

The measures of Born et al.: how many different plans there are, Frobenius distances between them
and to the doubly stochastic matrices, entropy; and how much of the scores can be found in a plan.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bistoch.analysis import metrics
from bistoch.functional import OPERATORS, read_call
from bistoch.lab.store import Result
from bistoch.models import operators

# what makes plans of the same scores; sinkhorn once with the few steps of the paper, where
# three half-steps are one and a half of ours, and once converged
COMPARED = (
    "softmax", "sinkhorn(iters=1)", "sinkhorn(iters=200)", "orthogonal", "orthogonal(method='lq')",
    "elastic(lam=0.5)", "quantum(layers=8)",
)  # fmt: skip
# entries of a 4 x 4 matrix that take all values of -1, 0 and 1; the others are drawn once
VARIED, VARIED_SMOKE = 9, 4
PAIRS = 4000
Pairs = tuple[Int[Tensor, "p"], Int[Tensor, "p"]]


@torch.no_grad()
def scores_of(model: nn.Module, inputs: tuple[Tensor, ...]) -> Float[Tensor, "layers B n n"]:
    """The scores that the layers of a model with one head compute."""
    found: list[Tensor] = []

    def keep(module: nn.Module, tokens: tuple[Tensor, ...]) -> None:
        query, key = tokens[0].double(), tokens[1].double()
        found.append((query @ key.mT / query.shape[-1] ** 0.5).squeeze(1))

    handles = [module.register_forward_pre_hook(keep) for module in operators(model).values()]
    try:
        model.eval()(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(found)


def measure_plans(trained: tuple[Tensor, Tensor], seed: int, smoke: bool) -> Result:
    """All numbers of all operators: on a grid of scores, and on scores of a trained model."""
    scores, classes = trained
    generator = torch.Generator().manual_seed(seed)
    grid = grid_of(VARIED_SMOKE if smoke else VARIED, generator)
    # the same pairs for all operators
    far, near = pairs_of(len(grid), generator), pairs_of(scores.shape[1], generator)
    result: Result = {}
    for operator in COMPARED:
        on_grid = diversity(make_plans(operator, grid), far)
        plans = make_plans(operator, scores)
        layers = [
            {**diversity(plan, near), **information(score, plan, classes, near)}
            for score, plan in zip(scores, plans, strict=True)
        ]
        means = {name: sum(layer[name] for layer in layers) / len(layers) for name in layers[0]}
        result[operator] = {"grid": on_grid, "trained": means}
    return result


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
