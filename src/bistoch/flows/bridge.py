"""The Schrödinger bridge between two clouds, and where its particles are on the way."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bistoch.flows._inputs import check_alike, check_share, check_tolerance
from bistoch.flows.cloud import (
    Cloud,
    Options,
    attend,
    balance,
    check_particles,
    gather,
    pair,
    temperature,
)
from bistoch.flows.transport import warn_unconverged
from bistoch.functional.inputs import Option, check_count, check_generator
from bistoch.functional.precision import full_precision

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
        return self._look("Bridge.arrival", self.source, self.target, self.column)

    @torch.no_grad()
    def origin(self) -> Float[Tensor, "*b m d"]:
        """The mean start of every particle of the target, `E[X | Y = y_j]`."""
        return self._look("Bridge.origin", self.target, self.source, self.row)

    @full_precision
    def _look(self, function: str, at: Cloud, cloud: Cloud, potential: Tensor) -> Tensor:
        seen = attend(function, pair(function, at.points, cloud, self.eps), potential)
        return (seen + cloud.centre).to(self.dtype)

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


@full_precision
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

    Found by the solver of `elastic_potentials`. A particle of mass zero is carried along. No
    gradients.

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
    check_particles(function, "source", source, source_weights, backend)
    check_particles(function, "target", target, target_weights, backend)
    start = gather(source, source_weights, backend)
    end = gather(target, target_weights, backend, centre=start.centre)
    wide = temperature(function, eps, start)
    there, back = pair(function, start.points, end, wide), pair(function, end.points, start, wide)
    options = Options(1.0, None, tol, iters, None, backend)
    found = balance(function, there, back, options, start=None)
    warn_unconverged(function, found.error, options)
    converged = found.error <= tol
    return Bridge(
        start, end, wide, found.row, found.column, found.iterations, found.error, converged,
        source.dtype,
    )  # fmt: skip


@full_precision
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
