"""The Schrödinger bridge between two clouds, and where its particles are on the way."""

import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bistoch.flows._inputs import check_alike, check_share, check_tolerance
from bistoch.flows.cloud import Cloud, attend, gather, soft_minimum, temperature
from bistoch.flows.transport import Options, spread, warn_unconverged
from bistoch.functional import ConvergenceWarning, elastic_potentials
from bistoch.functional.inputs import Option, check_count, check_generator

# entries of the plan that sampling may hold at one time
ENTRIES = 1 << 22


@dataclass(frozen=True)
class Bridge:
    """Brownian motion of variance eps, from one cloud to another; made by `schrodinger_bridge`.

    Its ends are joined by `pi_ij = a_i b_j exp(f_i + g_j - |x_i - y_j|² / (2 eps))`, with `row` f
    and `column` g; `error` bounds the relative error of the mass that arrives at a target.
    """

    source: Cloud
    target: Cloud
    eps: Float[Tensor, "*b 1"]
    row: Float[Tensor, "*b n"]
    column: Float[Tensor, "*b m"]
    iterations: Int[Tensor, "*b"]
    error: Float[Tensor, "*b"]
    converged: Bool[Tensor, "*b"]
    # that of the clouds; inside, short numbers are float32
    dtype: torch.dtype

    @torch.no_grad()
    def arrival(self) -> Float[Tensor, "*b n d"]:
        """The mean end of every particle of the source, `E[Y | X = x_i]`."""
        seen = attend(self.source.points, self.target, self.column, self.eps)
        return (seen + self.target.centre).to(self.dtype)

    @torch.no_grad()
    def origin(self) -> Float[Tensor, "*b m d"]:
        """The mean start of every particle of the target, `E[X | Y = y_j]`."""
        seen = attend(self.target.points, self.source, self.row, self.eps)
        return (seen + self.source.centre).to(self.dtype)

    def displacement(self, t: float) -> Float[Tensor, "*b n d"]:
        """The source on straight ways to its mean ends: `(1 - t) x + t E[Y | X = x]`."""
        check_share("Bridge.displacement", "t", t)
        start = self.source.points + self.source.centre
        return ((1 - t) * start + t * self.arrival()).to(self.dtype)

    @torch.no_grad()
    def sample(
        self, t: float, count: int, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*b count d"]:
        """Places at time t of independent particles that take the bridge.

            Z_t = (1 - t) X + t Y + sqrt(eps t (1 - t)) noise,   (X, Y) drawn from pi

        Rows of the plan are made a few at a time.
        """
        check_share("Bridge.sample", "t", t)
        check_count("Bridge.sample", "count", count)
        check_generator("Bridge.sample", generator, self.source.points.device)
        x, y = self.source.points, self.target.points
        if count and not (x.shape[-2] and y.shape[-2]):
            raise ValueError(
                f"Bridge.sample: count must be 0 where a cloud has no particles, but it is {count}"
            )
        batch, d = x.shape[:-2], x.shape[-1]
        ends = self.target.log_weights + self.column
        clouds = zip(
            *(tensor.reshape(-1, *tensor.shape[len(batch) :])
              for tensor in (x, y, self.source.log_weights, ends, self.eps)),
            strict=True,
        )  # fmt: skip
        found = [
            _sample_pairs(*pair, t=t, count=count, generator=generator) for pair in clouds
        ]  # fmt: skip
        places = torch.stack(found) if found else x.new_empty(0, count, d)
        return (places.reshape(*batch, count, d) + self.source.centre).to(self.dtype)


@torch.no_grad()
def schrodinger_bridge(
    source: Float[Tensor, "*b n d"],
    target: Float[Tensor, "*b m d"],
    eps: Option,
    *,
    source_weights: Float[Tensor, "..."] | None = None,
    target_weights: Float[Tensor, "..."] | None = None,
    tol: float = 1e-4,
    iters: int = 5000,
    backend: str = "auto",
) -> Bridge:
    """The likeliest way of Brownian particles from one cloud to another.

        f = -log sum_j b_j exp(g_j - |x - y_j|² / (2 eps)),   g = the same with the clouds exchanged

    Clouds without weights are one call of `elastic_potentials`. A particle of mass zero is carried
    along. No gradients.

    Args:
        source, target: clouds with the same leading axes and dimensions.
        eps: the variance that Brownian motion would gain on the way.
        source_weights, target_weights: masses of particles, only ratios matter.
        tol: stop once the mass that arrives is right to this; a warning says when it is not.
        iters: at most so many iterations; a small eps needs many.
        backend: that of `elastic_attention`.

    >>> import torch
    >>> x = torch.randn(30, 2, dtype=torch.float64)
    >>> bridge = schrodinger_bridge(x, x + 3, eps=0.5)
    >>> bool(torch.allclose(bridge.arrival().mean(0), x.mean(0) + 3, atol=1e-3))
    True

    Reference: Leonard, A survey of the Schrödinger problem, 2014.
    """
    function = "schrodinger_bridge"
    check_tolerance(function, tol)
    check_count(function, "iters", iters, least=1)
    check_alike(function, ("source", "target"), source, target)
    start = gather(function, "source", source, source_weights, backend)
    end = gather(function, "target", target, target_weights, backend, centre=start.centre)
    wide = temperature(function, eps, start, end)
    options = Options(1.0, None, tol, iters, None, backend)
    by_operator = source_weights is None and target_weights is None
    solve = _solve_even if by_operator else _solve_weighted
    row, column, iterations, error = solve(start, end, wide, options)
    warn_unconverged(function, error, options)
    return Bridge(start, end, wide, row, column, iterations, error, error <= tol, source.dtype)


def _solve_even(source: Cloud, target: Cloud, eps: Tensor, options: Options) -> tuple[Tensor, ...]:
    """Equal masses are what the operator balances by itself, on kernels that keep what they can."""
    squares = [cloud.points.square().sum(-1, keepdim=True) / 2 for cloud in (source, target)]
    # a distance is a product of longer tokens, up to what all pairs of a row have in common
    query = torch.cat([source.points, torch.ones_like(squares[0])], -1)
    key = torch.cat([target.points, -squares[1]], -1)
    with warnings.catch_warnings():
        # the bridge says it in its own name
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = elastic_potentials(
            query, key, eps=eps[..., 0], iters=options.iters, scale=1.0, backend=options.backend,
            tol=options.tol,
        )  # fmt: skip
    column = found.column - target.log_weights
    return found.row + squares[0].squeeze(-1) / eps, column, found.iterations, found.error


def _solve_weighted(
    source: Cloud, target: Cloud, eps: Tensor, options: Options
) -> tuple[Tensor, ...]:
    """Rows and columns in turn; the weights of the source are felt by the columns only."""
    live = target.log_weights > -torch.inf
    column = target.points.new_zeros(target.points.shape[:-1])
    row = source.points.new_zeros(source.points.shape[:-1])
    iterations = torch.zeros(column.shape[:-1], dtype=torch.int64, device=column.device)
    running = torch.ones_like(iterations, dtype=torch.bool)
    error = column.new_zeros(column.shape[:-1])
    for _ in range(options.iters):
        row = soft_minimum(source.points, target, column, eps)
        residual = soft_minimum(target.points, source, row, eps) - column
        error = torch.where(running, spread(residual, live)[0], error)
        running &= error > options.tol
        if not running.any():
            break
        column = torch.where(running[..., None], column + residual, column)
        iterations += running
    return row, column, iterations, error


def _sample_pairs(
    x: Tensor,
    y: Tensor,
    log_weights: Tensor,
    column: Tensor,
    eps: Tensor,
    *,
    t: float,
    count: int,
    generator: torch.Generator | None,
) -> Float[Tensor, "count d"]:
    if not count:
        return x.new_empty(0, x.shape[-1])
    starts = x[torch.multinomial(log_weights.exp(), count, replacement=True, generator=generator)]
    ends = []
    for some in starts.split(max(1, ENTRIES // max(len(y), 1))):
        logits = (some @ y.T - y.square().sum(-1) / 2) / eps + column
        chosen = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        ends.append(y[chosen[:, 0]])
    noise = torch.randn(starts.shape, dtype=x.dtype, device=x.device, generator=generator)
    return (1 - t) * starts + t * torch.cat(ends) + (eps * t * (1 - t)).sqrt() * noise
