"""Clouds as tokens: squared distances are dot products of longer tokens.

    log w_j - |x - y_j|² / (2 eps) = [x, 1]·[y_j, eps log w_j - |y_j|² / 2] / eps - |x|² / (2 eps)

The last term is the same for a whole row, so the plan does not depend on it. Every pass over all
pairs is a row step of the elastic solver, which starts from the potential of the cloud.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.flows._inputs import check_cloud, check_resolution, check_weights
from bistoch.functional.elastic import BACKENDS
from bistoch.functional.elastic.api import solve
from bistoch.functional.inputs import Option, check_choice, check_eps
from bistoch.functional.pose import flatten, working_dtype
from bistoch.functional.problem import (
    Balance,
    GivenScores,
    Problem,
    Scores,
    Solution,
    free_columns,
    no_values,
)

# dimensions from which a product costs more than the exponential that follows it
MANY = 32


class Cloud(NamedTuple):
    """Checked particles in working precision, around a centre, with the logs of their masses."""

    points: Float[Tensor, "*b n d"]
    centre: Float[Tensor, "*b 1 d"]
    log_weights: Float[Tensor, "*b n"]
    backend: str


class Options(NamedTuple):
    """Everything a user may say about a transport beside its particles and eps, not yet checked."""

    lam: float
    weights: Tensor | None
    tol: float
    iters: int
    potential: Tensor | None
    backend: str


class Pairs(NamedTuple):
    """The scores of all pairs of points with particles of a cloud, for one temperature."""

    scores: Scores | GivenScores
    # |x|² / (2 eps), which the scores of a point leave out
    level: Float[Tensor, "*b k"]
    cloud: Cloud


def check_particles(
    function: str, name: str, points: Tensor, weights: Tensor | None, backend: str
) -> None:
    """Check all that makes a cloud."""
    check_cloud(function, name, points)
    check_choice(function, "backend", backend, ("auto", *BACKENDS))
    if weights is not None:
        owner = "weights" if name == "particles" else f"{name}_weights"
        check_weights(function, owner, weights, points)


def gather(
    points: Tensor, weights: Tensor | None, backend: str, centre: Tensor | None = None
) -> Cloud:
    """Move the mean of checked particles to the origin: far from it distances lose digits."""
    work = points.detach().to(working_dtype(points.dtype))
    if weights is None:
        log_weights = work.new_full(work.shape[:-1], -math.log(max(work.shape[-2], 1)))
    else:
        masses = weights.detach().to(work).expand(work.shape[:-1])
        if work.shape[-2]:
            # the sum of large masses may be too large a number
            masses = masses / masses.amax(-1, keepdim=True)
        log_weights = (masses / masses.sum(-1, keepdim=True)).log()
    if centre is None:
        centre = _mean(work, log_weights)
    return Cloud(work - centre, centre, log_weights, backend)


def temperature(function: str, eps: Option, cloud: Cloud) -> Float[Tensor, "*b 1"]:
    """The checked eps as a tensor beside particles."""
    points = cloud.points
    batch = points.shape[:-2]
    check_eps(function, eps, batch, points.device)
    return torch.as_tensor(eps, dtype=points.dtype, device=points.device).expand(batch)[..., None]


def pair(
    function: str, at: Float[Tensor, "*b k d"], cloud: Cloud, eps: Float[Tensor, "*b 1"]
) -> Pairs:
    """Points that look at a cloud, if their distances can be told apart at this temperature."""
    points, batch, is_own = cloud.points, at.shape[:-2], at is cloud.points
    squares = at.square().sum(-1)
    others = squares if is_own else points.square().sum(-1)
    for some in (squares,) if is_own else (squares, others):
        # diameters are at most twice the distance from the centre
        check_resolution(function, 4 * some, eps)
    heights = eps * _log_masses(cloud) - others / 2
    dead = cloud.log_weights == -torch.inf
    seen = ~dead.reshape(math.prod(batch), -1) if dead.any() else None
    scores: Scores | GivenScores
    if is_own and _is_worth_keeping(points):
        given = ((points / eps[..., None]) @ points.mT).add_((heights / eps)[..., None, :])
        scores = GivenScores(given.flatten(0, -3) if batch else given[None], None, seen)
    else:
        query = torch.cat([at, torch.ones_like(squares)[..., None]], -1)
        key = torch.cat([points, heights[..., None]], -1)
        sharpness = 1 / eps.reshape(-1)
        scores = Scores(
            flatten(query, batch), flatten(key, batch), None, None, None, seen, sharpness
        )
    return Pairs(scores, squares / (2 * eps), cloud)


def soft_minimum(
    function: str, pairs: Pairs, potential: Float[Tensor, "*b n"]
) -> Float[Tensor, "*b k"]:
    """`-log sum_j w_j exp(potential_j - |x_i - x_j|² / (2 eps))`: one pass over all pairs."""
    found = _row_step(function, pairs, potential, no_values(pairs.scores))
    return found.row.reshape(pairs.level.shape) + pairs.level


def attend(
    function: str, pairs: Pairs, potential: Float[Tensor, "*b n"]
) -> Float[Tensor, "*b k d"]:
    """Where each point looks: the mean of the cloud under its row of the plan."""
    points = pairs.cloud.points
    found = _row_step(function, pairs, potential, flatten(points, points.shape[:-2]))
    return found.output.reshape(*pairs.level.shape, points.shape[-1])


def balance(
    function: str,
    there: Pairs,
    back: Pairs,
    options: Options,
    *,
    start: Float[Tensor, "*b m"] | None,
) -> Solution:
    """The potentials of two clouds, with which columns of the plan have the masses of the target.

    Args:
        function: the function that was called.
        there, back: the source that looks at its target, and the target at its source.
        options: of which `lam`, `tol` and `iters` are those of `elastic_potentials`.
        start: the potential of the target to start from.
    """
    source, target, scores = back.cloud, there.cloud, there.scores
    size, n, m = scores.shape
    dead_row, dead_column = (side.log_weights == -torch.inf for side in (source, target))
    if dead_row.any():
        scores = scores._replace(query_mask=~dead_row.reshape(size, n))
    log_row_mass = _log_masses(source)
    steps = Balance(
        lam=scores.like.new_full((size,), options.lam),
        omega=None,
        log_mass=_log_masses(target).reshape(size, m),
        log_row_mass=log_row_mass.reshape(size, n),
        start=None if start is None else start.reshape(size, m),
        iters=options.iters,
        tol=options.tol,
    )
    found = solve(function, Problem(scores, steps), no_values(scores), options.backend)
    row = found.row.reshape(log_row_mass.shape) - log_row_mass + there.level
    column = found.column.reshape(back.level.shape)
    # a particle without mass is not seen, and has a potential all the same
    if dead_row.any():
        row = torch.where(dead_row, soft_minimum(function, there, column), row)
    if dead_column.any():
        column = torch.where(dead_column, options.lam * soft_minimum(function, back, row), column)
    batch = there.level.shape[:-1]
    error, iterations = found.error.reshape(batch), found.iterations.reshape(batch)
    return Solution(found.output, row, column, error, iterations)


def _row_step(function: str, pairs: Pairs, potential: Tensor, value: Tensor) -> Solution:
    problem = free_columns(pairs.scores)
    # a particle without mass is masked, whatever its potential
    potential = potential.masked_fill(potential == -torch.inf, 0)
    start = potential.reshape(problem.balance.log_mass.shape)
    problem = Problem(problem.scores, problem.balance._replace(start=start))
    return solve(function, problem, value, pairs.cloud.backend)


def _log_masses(cloud: Cloud) -> Float[Tensor, "*b n"]:
    """The logs of masses; zero stands for none, where a mask says so."""
    return cloud.log_weights.masked_fill(cloud.log_weights == -torch.inf, 0)


def _is_worth_keeping(points: Tensor) -> bool:
    """Whether products of all pairs cost much, and fit into the operator's workspace."""
    if points.shape[-1] < MANY:
        return False
    from bistoch.functional.elastic.cpu.launch import WORKSPACE_BYTES

    pairs = points.shape[:-1].numel() * points.shape[-2]
    return pairs * points.element_size() <= WORKSPACE_BYTES


def _mean(points: Tensor, log_weights: Tensor) -> Float[Tensor, "*b 1 d"]:
    if not points.numel():
        return points.new_zeros(*points.shape[:-2], 1, points.shape[-1])
    # the first particle first: the mean of equal numbers is then exact
    first = points[..., :1, :]
    return first + (log_weights.exp()[..., None] * (points - first)).sum(-2, keepdim=True)
