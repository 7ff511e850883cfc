"""Particles under balanced self-attention: one step is a step of the heat equation."""

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bistoch.flows._inputs import check_alike, check_time
from bistoch.flows.cloud import Options, attend, gather, pair, temperature
from bistoch.flows.transport import (
    SelfTransport,
    check_options,
    solve,
    warn_frozen,
    warn_unconverged,
)
from bistoch.functional.inputs import Option, check_choice, check_eps
from bistoch.functional.pose import working_dtype
from bistoch.functional.precision import full_precision

Direction = Literal["heat", "cluster"]
DIRECTIONS = ("heat", "cluster")


class FlowState(NamedTuple):
    """A cloud on its way, and how the step went that led here.

    `step` of `steps` are done and `time` has passed; `eps` is the length of a step. `error`,
    `iterations`, `converged` and `self_weight` are those of `SelfTransport`, zero at the start.
    `potential` belongs to the particles of the step before; it is where the next step begins.
    """

    step: int
    steps: int
    time: float
    eps: float
    particles: Float[Tensor, "*b n d"]
    potential: Float[Tensor, "*b n"]
    iterations: Int[Tensor, "*b"]
    error: Float[Tensor, "*b"]
    converged: Bool[Tensor, "*b"]
    self_weight: Float[Tensor, "*b"]


@full_precision
@torch.no_grad()
def barycentric_projection(
    particles: Float[Tensor, "*b n d"],
    eps: Option,
    *,
    at: Float[Tensor, "*b k d"] | None = None,
    lam: float = 1.0,
    weights: Float[Tensor, "..."] | None = None,
    tol: float = 1e-4,
    iters: int = 500,
    potential: Float[Tensor, "*b n"] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b k d"]:
    """Where each particle looks under self-attention: the mean of the cloud as its row weighs it.

        B(x_i) = sum_j P_ij x_j,   P_ij ~ w_j exp(g_j - |x_i - x_j|² / (2 eps)),   rows sum to one

    At `lam = 1` it is the conditional mean of the Schrödinger bridge from the cloud to itself, and
    the mean of the cloud is kept. At `lam = 0` it is the step of kernel mean-shift.

    Args:
        at: points to look from, by default the particles themselves.
        particles, eps, lam, weights, tol, iters, potential, backend: those of `self_transport`.

    >>> import torch
    >>> x = torch.randn(100, 3, dtype=torch.float64)
    >>> bool(torch.allclose(barycentric_projection(x, 0.1, tol=1e-9).mean(0), x.mean(0)))
    True
    """
    function = "barycentric_projection"
    options = Options(lam, weights, tol, iters, potential, backend)
    check_options(function, options, particles)
    result, found = _project(function, particles, eps, at, options)
    warn_unconverged(function, found.error, options)
    return result


@full_precision
@torch.no_grad()
def score_estimate(
    particles: Float[Tensor, "*b n d"],
    eps: Option,
    *,
    at: Float[Tensor, "*b k d"] | None = None,
    lam: float = 1.0,
    weights: Float[Tensor, "..."] | None = None,
    tol: float = 1e-4,
    iters: int = 500,
    potential: Float[Tensor, "*b n"] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b k d"]:
    """Half the score of the law behind a cloud, from where its particles look.

        (B(x) - x) / eps  ->  grad log rho(x) / 2     at lam = 1, for many particles and small eps

    The bias is of order eps; the noise falls with `1/sqrt(n)` and grows with `eps^-((d + 2)/4)`.
    At `lam = 0` the limit is the whole score. Arguments are those of `barycentric_projection`.

    >>> import torch
    >>> x = torch.randn(2000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> point = torch.tensor([[1.0]]).double()
    >>> half = score_estimate(x, 0.1, at=point).item()   # the score of N(0, 1) at 1 is -1
    >>> abs(half + 0.5) < 0.1
    True

    Reference: Agarwal, Harchaoui, Mulcahy, Pal, arXiv 2406.10823.
    """
    function = "score_estimate"
    options = Options(lam, weights, tol, iters, potential, backend)
    check_options(function, options, particles)
    result, found = _project(function, particles, eps, at, options)
    warn_unconverged(function, found.error, options)
    start = particles if at is None else at
    wide = torch.as_tensor(eps, dtype=result.dtype, device=result.device)
    return (result - start) / wide[..., None, None]


@full_precision
@torch.no_grad()
def heat_step(
    particles: Float[Tensor, "*b n d"],
    eps: Option,
    *,
    direction: Direction = "heat",
    lam: float = 1.0,
    weights: Float[Tensor, "..."] | None = None,
    tol: float = 1e-4,
    iters: int = 500,
    potential: Float[Tensor, "*b n"] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n d"]:
    """The cloud after one step of length eps.

        "heat":  x <- 2x - B(x),  close to x - eps/2 grad log rho      "cluster":  x <- B(x)

    Arguments are those of `barycentric_projection`.

    >>> import torch
    >>> heat_step(torch.tensor([[-1.0], [1.0]]), 1e6)   # both look at the mean, and leave it
    tensor([[-2.0000],
            [ 2.0000]])
    """
    function = "heat_step"
    check_choice(function, "direction", direction, DIRECTIONS)
    options = Options(lam, weights, tol, iters, potential, backend)
    check_options(function, options, particles)
    moved, found = _move(function, particles, eps, direction, options)
    warn_unconverged(function, found.error, options)
    return moved


@full_precision
def heat_flow(
    particles: Float[Tensor, "*b n d"],
    time: float,
    eps: float,
    *,
    direction: Direction = "heat",
    lam: float = 1.0,
    weights: Float[Tensor, "..."] | None = None,
    tol: float = 1e-4,
    iters: int = 500,
    potential: Float[Tensor, "*b n"] | None = None,
    backend: str = "auto",
) -> Iterator[FlowState]:
    """A cloud under `d rho/dt = 1/2 laplace rho`, state by state, the start first.

        time/eps steps x <- 2x - B(x) ("heat"), or x <- B(x) ("cluster")

    If eps does not divide the time, steps are a little shorter; `FlowState.eps` says how long. Each
    step begins where the potentials of the two before point to. The first step that misses `tol`
    warns, and so does the first one whose eps is below the spacing of the particles. `lam = 0` is
    kernel mean-shift, which moves twice as fast.

    Args:
        time: how long to flow; a variance grows by it in every direction.
        eps: temperature and length of a step.
        direction: "heat" spreads the cloud, "cluster" is ordinary attention, which contracts it.
        particles, lam, weights, tol, iters, potential, backend: those of `self_transport`.

    >>> import torch
    >>> x = torch.erfinv(torch.linspace(-0.99, 0.99, 100).double())[:, None] * 2**0.5
    >>> for state in heat_flow(x, time=1.0, eps=0.25):
    ...     print(f"{state.step}/{state.steps}  t = {state.time:.2f}  {state.particles.var():.2f}")
    0/4  t = 0.00  1.00
    1/4  t = 0.25  1.25
    2/4  t = 0.50  1.50
    3/4  t = 0.75  1.75
    4/4  t = 1.00  2.00

    Reference: Agarwal, Harchaoui, Mulcahy, Pal, arXiv 2406.10823.
    """
    # checked here and not in the generator, whose body waits for the first state
    function = "heat_flow"
    options = Options(lam, weights, tol, iters, potential, backend)
    check_options(function, options, particles)
    check_time(function, "time", time)
    # one eps is one clock: clouds with different ones would be at different times
    check_eps(function, eps, ())
    cloud = gather(particles, weights, backend)
    pair(function, cloud.points, cloud, temperature(function, eps, cloud))
    check_choice(function, "direction", direction, DIRECTIONS)
    eps = float(eps)
    steps = math.ceil(time / eps - 1e-9)
    length = time / steps if steps else eps
    return _states(function, particles.detach(), steps, length, direction, options)


def _states(
    function: str, particles: Tensor, steps: int, eps: float, direction: str, options: Options
) -> Iterator[FlowState]:
    work = working_dtype(particles.dtype)
    blank = particles.new_zeros(particles.shape[:-2], dtype=work)
    start = particles.new_zeros(particles.shape[:-1], dtype=work)
    start = start if options.potential is None else options.potential
    yield FlowState(0, steps, 0.0, eps, particles, start, blank.long(), blank, blank == 0, blank)
    warned = frozen = False
    before: Tensor | None = None
    for step in range(1, steps + 1):
        particles, found = _move(function, particles, eps, direction, options)
        # potentials change evenly from step to step: go on as they went
        ahead = found.potential if before is None else 2 * found.potential - before
        before, options = found.potential, options._replace(potential=ahead)
        warned = warned or warn_unconverged(function, found.error, options)
        # a cluster that is found stands still, and should
        watch = direction == "heat" and not frozen
        frozen = frozen or (watch and warn_frozen(function, found, eps))
        yield FlowState(step, steps, step * eps, eps, particles, *found)


@full_precision
@torch.no_grad()
def _move(
    function: str, particles: Tensor, eps: Option, direction: str, options: Options
) -> tuple[Tensor, SelfTransport]:
    projected, found = _project(function, particles, eps, None, options)
    moved = projected if direction == "cluster" else 2 * particles.detach() - projected
    return moved, found


def _project(
    function: str, particles: Tensor, eps: Option, at: Tensor | None, options: Options
) -> tuple[Tensor, SelfTransport]:
    """Where points look at particles that were checked, with all options but eps."""
    cloud = gather(particles, options.weights, options.backend)
    wide = temperature(function, eps, cloud)
    pairs = viewers = pair(function, cloud.points, cloud, wide)
    if at is not None:
        check_alike(function, ("particles", "at"), particles, at)
        away = gather(at, None, options.backend, centre=cloud.centre)
        viewers = pair(function, away.points, cloud, wide)
    found = solve(function, pairs, options)
    seen = attend(function, viewers, found.potential) + cloud.centre
    return seen.to(particles.dtype), found
