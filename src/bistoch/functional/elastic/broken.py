"""Problems with a NaN or an infinity in them: solved without it, and NaN where it matters.

The rule is that of docs/nonfinite.md, in two parts: `cleaned` before a problem is solved, `shown`
after it.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional._nonfinite import Reach, clean_scores, seeing_rows, show
from bistoch.functional.backends import Backend
from bistoch.functional.problem import (
    GivenScores,
    Problem,
    Scores,
    Shards,
    Solution,
    dense_scores,
    row_softmax,
)


def cleaned(
    problem: Problem, value: Tensor | None, *, options_too: bool = False
) -> tuple[Problem, Any, Bool[Tensor, "B n"] | None]:
    """The problem and its values without what is not finite, and the rows that depend on it.

    As soon as columns move, they connect the rows: all of a head depend on each of its tokens.
    """
    scores, balance = problem
    reach: Reach = "problem" if balance.iters else "row"
    scores, value, broken = clean_scores(
        scores, value, reach, options=balance.tensors(), options_too=options_too
    )
    if balance.shards is not None and balance.iters:
        broken = _broken_anywhere(broken, scores, balance.shards)
    return Problem(scores, balance), value, broken


def _broken_anywhere(
    broken: Bool[Tensor, "B n"] | None, scores: Scores | GivenScores, shards: Shards
) -> Bool[Tensor, "B n"] | None:
    """The same for rows of which others are elsewhere, where something may be broken too."""
    like = scores.like
    found = like.new_zeros(like.shape[0]) if broken is None else broken.any(-1).to(like.dtype)
    anywhere = shards.max(found) > 0
    return anywhere[:, None] & seeing_rows(scores) if bool(anywhere.any()) else None


def prepared(chosen: Backend, problem: Problem, value: Tensor) -> tuple[Problem, Any, Any]:
    """As `cleaned`, but for a backend that finds what is not finite by itself."""
    return (problem, value, None) if chosen.looks else cleaned(problem, value)


def shown(found: Solution, broken: Bool[Tensor, "B n"] | None, iters: int) -> Solution:
    """A solution that is NaN wherever it depends on what was taken out, and so are its gradients.

    Whatever sees no key, a row of zeros with a potential of minus infinity, depends on nothing.
    """
    if broken is None:
        return found
    anywhere = broken.any(-1)
    column = found.column
    if iters:
        seen = torch.where(column == -torch.inf, 1.0, torch.nan).to(column.dtype)
        column = column * torch.where(anywhere[:, None], seen, 1.0)
    return found._replace(
        output=show(found.output, broken),
        row=show(found.row[..., None], broken)[..., 0],
        column=column,
        error=torch.where(anywhere, torch.nan, found.error),
    )


def shown_plan(
    problem: Problem, found: Solution, broken: Bool[Tensor, "B n"] | None
) -> Float[Tensor, "B n m"]:
    """The plan of a solution as a matrix, NaN where it depends on what was taken out."""
    plan = row_softmax(dense_scores(problem.scores) + found.column[:, None, :])
    if problem.balance.log_row_mass is not None:
        plan = plan * problem.balance.log_row_mass.exp()[..., None]
    return show(plan, broken)
