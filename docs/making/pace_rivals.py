"""Other ways to save passes, beside the one that the library takes."""

from collections.abc import Callable

import torch
from making.drawing import put_table
from making.pace import random_scores, real_scores
from torch import Tensor

from bistoch.functional.elastic.pace import Pace, choose
from bistoch.functional.elastic.reference import column_step, row_step
from bistoch.functional.problem import spread

TOLS = (1e-1, 1e-2, 1e-3)
LAM, ITERS = 1.0, 400

# from potentials, their residuals and their errors, all so far, to the next potentials
Rule = Callable[[list[Tensor], list[Tensor], list[Tensor]], Tensor]


def pace_rivals() -> None:
    """Passes of every rule until a tolerance, on average over matrices; 400 are the most."""
    by_name = dict(random_scores()) | {name: scores[1:2] for name, scores in real_scores()}
    names = ("random tokens, eps = 0.25", "near a permutation", "sentence encoder, news")
    rules: dict[str, Callable[[], Rule]] = {
        "plain": lambda: relaxed(1.0),
        "omega = 1.5": lambda: relaxed(1.5),
        "2 / (2 - rate)": observed,
        "chosen": chosen,
        **{f"Anderson, {depth}": lambda depth=depth: anderson(depth) for depth in (1, 2, 3, 5)},
    }
    rows = [
        [rule, *(passes(by_name[name][0], make()) for name in names)]
        for rule, make in rules.items()
    ]
    put_table("pace.md", "pace_rivals", ["rule", *names], rows)


def passes(scores: Tensor, rule: Rule) -> str:
    """How many passes each tolerance took, on average."""
    size, n, m = scores.shape
    log_mass = scores.new_full((size, m), n / m).log()
    reached = torch.full((len(TOLS), size), ITERS)
    columns, residuals, errors = [torch.zeros_like(log_mass)], [], []
    live = torch.ones_like(log_mass, dtype=torch.bool)
    for t in range(ITERS):
        row = row_step(scores, columns[-1])
        residuals.append(LAM * column_step(scores, row, log_mass) - columns[-1])
        errors.append(spread(residuals[-1], live))
        for place, tol in enumerate(TOLS):
            reached[place, (errors[-1] <= tol) & (reached[place] == ITERS)] = t
        running = reached[-1] == ITERS
        if not running.any():
            break
        moved = rule(columns, residuals, errors)
        columns.append(torch.where(running[:, None], moved, columns[-1]))
    return " / ".join(f"{count:.1f}" for count in reached.double().mean(-1).tolist())


def relaxed(omega: float) -> Rule:
    """The same step in every iteration."""
    return lambda columns, residuals, _: columns[-1] + omega * residuals[-1]


def observed() -> Rule:
    """The best fixed step for the rate that was just seen; plain after an error that grew."""
    omega: list[Tensor] = []

    def rule(columns: list[Tensor], residuals: list[Tensor], errors: list[Tensor]) -> Tensor:
        step = torch.ones_like(errors[-1])
        if omega:
            kept = errors[-1] / errors[-2].clamp_min(1e-300)
            slowest = (1 - (1 - kept) / omega[-1]).clamp(0, 0.999)
            step = torch.where(kept < 1, 2 / (2 - slowest), 1)
        omega.append(step)
        return columns[-1] + step[:, None] * residuals[-1]

    return rule


def chosen() -> Rule:
    """What the library does."""
    paces: list[Pace] = []

    def rule(columns: list[Tensor], residuals: list[Tensor], errors: list[Tensor]) -> Tensor:
        live, lam = torch.ones_like(columns[-1], dtype=torch.bool), torch.ones_like(errors[-1])
        before = paces[-1] if paces else None
        paces.append(choose(residuals[-1], live, errors[-1], LAM * lam, before))
        return columns[-1] + paces[-1].omega[:, None] * residuals[-1]

    return rule


def anderson(depth: int) -> Rule:
    """The mixture of the last iterates whose residual is smallest; plain if the error doubled."""

    def rule(columns: list[Tensor], residuals: list[Tensor], errors: list[Tensor]) -> Tensor:
        plain = columns[-1] + residuals[-1]
        if len(columns) == 1:
            return plain
        last = slice(-depth - 1, None)
        moves = torch.stack(columns[last], -1).diff(dim=-1)
        changes = torch.stack([r - r.mean(-1, keepdim=True) for r in residuals[last]], -1)
        now, changes = changes[..., -1:], changes.diff(dim=-1)
        gram = changes.mT @ changes
        size = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None] + 1e-300
        gram = gram + 1e-12 * size * torch.eye(gram.shape[-1], dtype=gram.dtype)
        mixed = plain - ((moves + changes) @ torch.linalg.solve(gram, changes.mT @ now))[..., 0]
        least = torch.stack(errors).amin(0)
        return torch.where((errors[-1] <= 2 * least)[:, None], mixed, plain)

    return rule
