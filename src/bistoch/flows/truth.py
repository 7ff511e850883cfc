"""Gaussian mixtures, whose heat flow is known: only the covariances grow."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.flows._inputs import as_numbers, check_line, check_time
from bistoch.functional.inputs import check_count, check_floating, check_generator


@dataclass(frozen=True)
class GaussianMixture:
    """A mixture of Gaussians: `weights (k,)`, `means (k, d)`, `covariances (k, d, d)`, float64.

    `after(t)` is the same law after heat of duration t, `d rho/dt = 1/2 laplace rho`: every
    covariance grows by t times the identity. Make one with `gaussian_mixture`.

    >>> law = gaussian_mixture([0.5, 0.5], [-2.0, 2.0], [1.0, 1.0])
    >>> law.after(2.0).covariance.item(), law.score(torch.zeros(1, 1)).item()
    (7.0, 0.0)
    """

    weights: Float[Tensor, "k"]
    means: Float[Tensor, "k d"]
    covariances: Float[Tensor, "k d d"]

    @property
    def dimensions(self) -> int:
        """Of the space it lives in."""
        return self.means.shape[-1]

    @property
    def mean(self) -> Float[Tensor, "d"]:
        """The mean of the law, which heat leaves alone."""
        return self.weights @ self.means

    @property
    def covariance(self) -> Float[Tensor, "d d"]:
        """The covariance of the law."""
        away = self.means - self.mean
        around = away[:, :, None] * away[:, None, :] + self.covariances
        return (self.weights[:, None, None] * around).sum(0)

    def after(self, time: float) -> "GaussianMixture":
        """The law after heat of this duration."""
        check_time("GaussianMixture.after", "time", time)
        grown = self.covariances + time * torch.eye(self.dimensions, dtype=torch.float64)
        return GaussianMixture(self.weights, self.means, grown)

    def log_density(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b"]:
        """The log of the density at points."""
        return self._log_parts("log_density", x)[0].logsumexp(-1)

    def density(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b"]:
        """The density at points."""
        return self._log_parts("density", x)[0].logsumexp(-1).exp()

    def score(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """The gradient of the log of the density at points."""
        logs, pulls = self._log_parts("score", x)
        return (logs.softmax(-1)[..., None] * pulls).sum(-2)

    def sample(
        self, count: int, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "count d"]:
        """Independent points of this law."""
        check_count("GaussianMixture.sample", "count", count, least=1)
        check_generator("GaussianMixture.sample", generator, self.weights.device)
        which = torch.multinomial(self.weights, count, replacement=True, generator=generator)
        noise = torch.randn(count, self.dimensions, dtype=torch.float64, generator=generator)
        factors = torch.linalg.cholesky(self.covariances)[which]
        return self.means[which] + (factors @ noise[..., None])[..., 0]

    def cdf(self, x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """The share of the law to the left of numbers; on the line only."""
        check_line("GaussianMixture.cdf", self.dimensions)
        check_floating("GaussianMixture.cdf", "x", x, axes="(*b)", rank=0)
        deviations = self.covariances[:, 0, 0].sqrt()
        away = (x.double()[..., None] - self.means[:, 0]) / deviations
        # the complement keeps its digits where torch.special.ndtr is already zero
        return torch.special.erfc(-away / math.sqrt(2)) @ self.weights / 2

    def quantile(self, share: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """The numbers to whose left these shares in (0, 1) of the law lie; on the line only."""
        check_line("GaussianMixture.quantile", self.dimensions)
        check_floating("GaussianMixture.quantile", "share", share, axes="(*b)", rank=0)
        share = share.double()
        if not bool(((share > 0) & (share < 1)).all()):
            raise ValueError(
                "GaussianMixture.quantile: share must lie strictly between 0 and 1, but it "
                f"reaches from {share.min().item():g} to {share.max().item():g}"
            )
        reach = 40 * self.covariances[:, 0, 0].sqrt()
        low = torch.full_like(share, (self.means[:, 0] - reach).min().item())
        high = torch.full_like(share, (self.means[:, 0] + reach).max().item())
        # halving always ends, where Newton may leave through a flat tail
        for _ in range(100):
            middle = (low + high) / 2
            left = self.cdf(middle) < share
            low, high = torch.where(left, middle, low), torch.where(left, high, middle)
        return (low + high) / 2

    def quantiles(self, count: int) -> Float[Tensor, "count 1"]:
        """Evenly spread particles: the quantiles in the middle of `count` equal shares."""
        check_count("GaussianMixture.quantiles", "count", count, least=1)
        shares = (torch.arange(count, dtype=torch.float64) + 0.5) / count
        return self.quantile(shares)[:, None]

    def carry(self, x: Float[Tensor, "*b"], time: float) -> Float[Tensor, "*b"]:
        """Where the heat flow carries numbers: monotone, to the same quantile of the later law."""
        check_floating("GaussianMixture.carry", "x", x, axes="(*b)", rank=0)
        check_time("GaussianMixture.carry", "time", time)
        left = self.cdf(x) <= 0.5
        # shares near one are rounded to it: the right half is carried in the mirror
        mirror = GaussianMixture(self.weights, -self.means, self.covariances)
        half = torch.full((), 0.5, dtype=torch.float64)
        carried = self.after(time).quantile(torch.where(left, self.cdf(x), half))
        mirrored = mirror.after(time).quantile(torch.where(left, half, mirror.cdf(-x)))
        return torch.where(left, carried, -mirrored)

    def _log_parts(self, method: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log density of every part at every point, weighted, and minus precision times offset."""
        check_floating(f"GaussianMixture.{method}", "x", x, axes="(*b, dimensions)", rank=1)
        if x.shape[-1:] != self.means.shape[-1:]:
            raise ValueError(
                f"GaussianMixture.{method}: x must have {self.dimensions} coordinates in its last "
                f"axis, but its shape is {tuple(x.shape)}; add an axis to numbers on the line"
            )
        away = x.double()[..., None, :] - self.means
        pull = -torch.linalg.solve(self.covariances, away[..., None])[..., 0]
        logdet = torch.linalg.slogdet(self.covariances)[1]
        constant = self.weights.log() - 0.5 * (logdet + self.dimensions * math.log(2 * math.pi))
        return constant + 0.5 * (away * pull).sum(-1), pull


def gaussian_mixture(
    weights: Sequence[float] | Tensor,
    means: Sequence[float] | Sequence[Sequence[float]] | Tensor,
    covariances: Sequence[float] | Tensor,
) -> GaussianMixture:
    """A mixture from plain numbers: means on the line or points, variances or matrices.

    >>> gaussian_mixture([1.0], [[0.0, 0.0]], [2.0]).covariances
    tensor([[[2., 0.],
             [0., 2.]]], dtype=torch.float64)
    """
    w, m, c = (
        as_numbers("gaussian_mixture", name, numbers)
        for name, numbers in (("weights", weights), ("means", means), ("covariances", covariances))
    )
    m = m[:, None] if m.ndim == 1 else m
    if c.ndim == 1:
        c = c[:, None, None] * torch.eye(m.shape[-1], dtype=torch.float64)
    count, dimensions = m.shape
    if not count or w.shape != (count,) or c.shape != (count, dimensions, dimensions):
        raise ValueError(
            f"gaussian_mixture: weights, means and covariances must have one entry per part, but "
            f"their shapes are {tuple(w.shape)}, {tuple(m.shape)} and {tuple(c.shape)}"
        )
    if not all(bool(x.isfinite().all()) for x in (w, m, c)) or not torch.equal(c, c.mT):
        raise ValueError(
            "gaussian_mixture: weights, means and covariances must be finite, and covariances "
            "symmetric, but they are not; check where they come from"
        )
    if not bool((w > 0).all()) or not bool((torch.linalg.eigvalsh(c) > 0).all()):
        raise ValueError(
            "gaussian_mixture: weights and covariances must be positive, but the smallest weight "
            f"is {w.min().item():g} and the smallest variance "
            f"{torch.linalg.eigvalsh(c).min().item():g}"
        )
    return GaussianMixture(w / w.sum(), m, c)


def two_bumps() -> GaussianMixture:
    """The law of the published pictures: half N(-2, 1), half N(2, 1).

    >>> two_bumps().covariance.item()
    5.0
    """
    return gaussian_mixture([0.5, 0.5], [-2.0, 2.0], [1.0, 1.0])
