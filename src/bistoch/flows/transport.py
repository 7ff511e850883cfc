"""A cloud transported onto itself: the potential that balances its kernel."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bistoch.flows._inputs import check_potential, check_tolerance
from bistoch.flows.cloud import (
    Options,
    Pairs,
    balance,
    check_particles,
    gather,
    pair,
    soft_minimum,
    temperature,
)
from bistoch.functional import ConvergenceWarning
from bistoch.functional.inputs import Option, check_count, check_lam, warn_caller
from bistoch.functional.precision import full_precision

# the averaged update moves a share of the way to T(g). Near the limit T is minus a plan with
# eigenvalues in (0, 1], so each step shrinks errors by |1 - share (1 + sigma)|; these two in turn
# are the best pair for that range (the roots of a Chebyshev polynomial) and shrink them 17 times,
# where the plain average, one half twice, shrinks them 4 times
SHARES = (0.5395, 0.8723)
# above this mean weight on themselves particles hardly depend on each other
FROZEN = 0.5


class FrozenWarning(UserWarning):
    """eps is below the spacing of the particles: each sees only itself, and nothing moves."""


class SelfTransport(NamedTuple):
    """How a cloud attends to itself, `P_ij = w_j exp(f_i + g_j - |x_i - x_j|² / (2 eps))`.

    `potential` is g, up to a constant; f makes rows sum to one. At `lam = 1` both are the same, the
    constant included, and the plan carries the weights onto themselves;
    `error` then bounds the largest relative error of what a particle receives, and for every `lam`
    it measures the distance from the fixed point. `self_weight` is the mean weight that a particle
    keeps for itself: near one, eps is below the spacing of the particles.
    """

    potential: Float[Tensor, "*b n"]
    iterations: Int[Tensor, "*b"]
    error: Float[Tensor, "*b"]
    converged: Bool[Tensor, "*b"]
    self_weight: Float[Tensor, "*b"]


@full_precision
@torch.no_grad()
def self_transport(
    particles: Float[Tensor, "*b n d"],
    eps: Option,
    *,
    lam: float = 1.0,
    weights: Float[Tensor, "..."] | None = None,
    tol: float = 1e-4,
    iters: int = 500,
    potential: Float[Tensor, "*b n"] | None = None,
    backend: str = "auto",
) -> SelfTransport:
    """The Schrödinger bridge of a cloud with itself, as one potential per particle.

        g = lam T(T(g)),   T(g)_i = -log sum_j w_j exp(g_j - |x_i - x_j|² / (2 eps))

    At `lam = 1` this is `g = T(g)`, found by the symmetric averaged update: half as much work as
    alternating, at a rate that no small eps can spoil. Below one it is `g <- lam T(T(g))`, with
    rate `lam`. No gradients.

    Args:
        particles: clouds of points; leading axes are clouds of their own.
        eps: temperature, in squared units of length; a number, or one for each cloud.
        lam: elasticity in [0, 1]: 1 balances what particles receive, 0 is kernel mean-shift.
        weights: masses of the particles, only ratios matter; by default all the same. A particle of
            mass zero sees the others and is not seen.
        tol: stop each cloud once its error is at most this; a warning says when it was not reached.
        iters: at most so many iterations.
        potential: where to start, for example what an earlier call found for similar particles.
        backend: that of `elastic_attention`.

    >>> import torch
    >>> x = torch.randn(50, 2, dtype=torch.float64)
    >>> found = self_transport(x, 0.5, tol=1e-9)
    >>> plan = (found.potential[:, None] + found.potential - torch.cdist(x, x) ** 2).exp() / 50
    >>> bool(found.converged), bool(torch.allclose(plan.sum(0), torch.ones(50).double()))
    (True, True)

    Reference: Feydy et al., Interpolating between optimal transport and MMD, AISTATS 2019.
    """
    function = "self_transport"
    options = Options(lam, weights, tol, iters, potential, backend)
    check_options(function, options, particles)
    cloud = gather(particles, weights, backend)
    wide = temperature(function, eps, cloud)
    found = solve(function, pair(function, cloud.points, cloud, wide), options)
    warn_unconverged(function, found.error, options)
    return found


def solve(function: str, pairs: Pairs, options: Options) -> SelfTransport:
    """The transport of a cloud whose pairs with itself these are, by checked options."""
    cloud = pairs.cloud
    start = options.potential
    start = (
        torch.zeros_like(cloud.log_weights) if start is None else start.detach().to(cloud.points)
    )
    solve_for = _solve_symmetric if options.lam == 1 else _solve_elastic
    column, iterations, error, both = solve_for(function, pairs, start, options)
    kept = (2 * cloud.log_weights + both).exp().sum(-1)
    return SelfTransport(column, iterations, error, error <= options.tol, kept)


def _solve_elastic(
    function: str, pairs: Pairs, start: Tensor, options: Options
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows and columns in turn, by the elastic solver: g, iterations, error, and f + g."""
    # columns that are free have nothing to balance, wherever they start
    start = start if options.lam > 0 else torch.zeros_like(start)
    found = balance(function, pairs, pairs, options, start=start)
    return found.column, found.iterations, found.error, found.row + found.column


def _solve_symmetric(
    function: str, pairs: Pairs, column: Tensor, options: Options
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `_solve_elastic`, for one potential of both sides; clouds that are done stay as they are.

    At `lam = 1` and a small eps, rows and columns in turn would take thousands of iterations.
    """
    live = pairs.cloud.log_weights > -torch.inf
    iterations = torch.zeros(column.shape[:-1], dtype=torch.int64, device=column.device)
    running = torch.ones_like(iterations, dtype=torch.bool)
    error, both = column.new_zeros(column.shape[:-1]), column
    for t in range(options.iters):
        row = soft_minimum(function, pairs, column)
        # the spread of T(g) - g bounds that of T(T(g)) - g, since T is nonexpansive
        residual, both = row - column, row + column
        found, middle = spread(residual, live)
        error = torch.where(running, found, error)
        # T(g + c) = T(g) - c: what is constant in the residual is halved at once
        moved = column + middle[..., None] / 2 + SHARES[t % 2] * (residual - middle[..., None])
        # the step is taken even by those who are done: it never makes the error larger
        column = torch.where(running[..., None], moved, column)
        iterations += running
        running &= found > options.tol
        if not running.any():
            break
    return column, iterations, error, both


def check_options(function: str, options: Options, particles: Tensor) -> None:
    """Check everything but eps, once for all steps of a flow."""
    check_particles(function, "particles", particles, options.weights, options.backend)
    if options.potential is not None:
        check_potential(function, options.potential, particles)
    check_lam(function, options.lam, ())
    check_tolerance(function, options.tol)
    check_count(function, "iters", options.iters, least=1)


def spread(
    residual: Float[Tensor, "*b n"], live: Bool[Tensor, "*b n"]
) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b"]]:
    """How far the entries of particles with mass lie apart, and their middle.

    What is constant in them is invisible in the plan.
    """
    if residual.shape[-1] == 0:
        zero = residual.new_zeros(residual.shape[:-1])
        return zero, zero
    highest = residual.masked_fill(~live, -torch.inf).amax(-1)
    lowest = residual.masked_fill(~live, torch.inf).amin(-1)
    return highest - lowest, (highest + lowest) / 2


def warn_unconverged(function: str, error: Tensor, options: Options) -> bool:
    """One warning if a tolerance was not reached; returns whether there was one."""
    worst = error.max().item() if error.numel() else 0.0
    if worst <= options.tol:
        return False
    warn_caller(
        f"{function}: the error is {worst:.3g} after iters={options.iters}, above "
        f"tol={options.tol:g}; raise iters, raise eps, or use float64 particles",
        ConvergenceWarning,
    )
    return True


def warn_frozen(function: str, found: SelfTransport, eps: float) -> bool:
    """One warning if eps is below the spacing of particles; returns whether there was one."""
    heaviest = found.self_weight.max().item() if found.self_weight.numel() else 0.0
    if heaviest <= FROZEN or found.potential.shape[-1] < 2:
        return False
    warn_caller(
        f"{function}: particles keep {heaviest:.0%} of their weight for themselves at eps={eps:g}, "
        "so the flow is frozen by its spacing; raise eps or take more particles",
        FrozenWarning,
    )
    return True
