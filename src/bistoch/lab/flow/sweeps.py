"""Errors of flows against closed forms, over eps, n and lam."""

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from bistoch.flows import (
    FrozenWarning,
    GaussianMixture,
    barycentric_projection,
    gaussian_mixture,
    heat_flow,
    heat_step,
    score_estimate,
    self_transport,
    self_transport_slope,
    step_variance,
    w2_line,
    w2_to_law,
)
from bistoch.flows.heat import FlowState

NORMAL = gaussian_mixture([1.0], [0.0], [1.0])
# masses below this share of the largest are beyond what float64 can balance
NEGLIGIBLE = 1e-12


def grid_particles(law: GaussianMixture, count: int = 601) -> tuple[Tensor, Tensor]:
    """A law on the line without sampling: an even grid whose particles weigh what the law says.

    For smooth densities sums over such a grid are exact to rounding, so what is left of an error is
    that of the scheme.
    """
    reach = 8 * law.covariance.sqrt().item()
    x = torch.linspace(-reach, reach, count, dtype=torch.float64) + law.mean
    weights = law.density(x[:, None])
    live = weights > NEGLIGIBLE * weights.max()
    return x[live][:, None], weights[live]


def one_step_errors(law: GaussianMixture, steps: Sequence[float]) -> list[float]:
    """How far one step lands from where the heat flow carries each particle, in the mean square."""
    x, weights = grid_particles(law)
    found = []
    for eps in steps:
        moved = heat_step(x, eps, weights=weights, tol=1e-10)
        found.append(_mean_square(moved[:, 0] - law.carry(x[:, 0], eps), weights))
    return found


def flow_errors(law: GaussianMixture, time: float, steps: Sequence[float]) -> list[float]:
    """The same after a fixed time."""
    x, weights = grid_particles(law)
    right = law.carry(x[:, 0], time)
    found = []
    for eps in steps:
        end = _last(heat_flow(x, time, eps, weights=weights, tol=1e-9))
        found.append(_mean_square(end.particles[:, 0] - right, weights))
    return found


def score_biases(law: GaussianMixture, steps: Sequence[float]) -> list[float]:
    """The error of twice the score estimate for a law without sampling, in the mean square."""
    x, weights = grid_particles(law)
    right = law.score(x)[:, 0]
    return [
        _mean_square(2 * score_estimate(x, eps, weights=weights, tol=1e-10)[:, 0] - right, weights)
        for eps in steps
    ]


def score_noise(
    dimensions: int, eps: float, sizes: Sequence[int], repeats: int, generator: torch.Generator
) -> list[float]:
    """How far sampling moves the estimate from its value for the whole law N(0, I), near zero."""
    law = gaussian_mixture([1.0], [[0.0] * dimensions], [1.0])
    at = 0.5 * torch.randn(16, dimensions, dtype=torch.float64, generator=generator)
    right = 2 * at * (self_transport_slope(1.0, eps) - 1) / eps
    found = []
    for n in sizes:
        squares = [
            (2 * score_estimate(law.sample(n, generator=generator), eps, at=at) - right).square()
            for _ in range(repeats)
        ]
        found.append(torch.stack(squares).sum(-1).mean().sqrt().item())
    return found


def score_errors(
    law: GaussianMixture, sizes: Sequence[int], steps: Sequence[float], generator: torch.Generator
) -> dict[int, list[float]]:
    """The whole error of twice the score estimate at its own particles: bias and noise together."""
    found = {}
    for n in sizes:
        x = law.sample(n, generator=generator)
        right = law.score(x)
        found[n] = [
            (2 * score_estimate(x, eps) - right).square().mean().sqrt().item() for eps in steps
        ]
    return found


def step_against_recursion(sizes: Sequence[int], eps: float) -> list[float]:
    """The gain of variance in one step on quantiles of N(0, 1), away from the closed form."""
    right = step_variance(1.0, eps).item()
    found = []
    for n in sizes:
        x = NORMAL.quantiles(n)
        x = x / x.square().mean().sqrt()
        found.append(abs(heat_step(x, eps, tol=1e-8).square().mean().item() - right))
    return found


def freezing(sizes: Sequence[int], steps: Sequence[float]) -> dict[int, list[tuple[float, float]]]:
    """For each n and eps on N(0, 1): the speed of one step, true speed being one, and self-weight.

    Below the spacing of particles each sees only itself, the plan is the identity, and the speed
    falls to zero.
    """
    found: dict[int, list[tuple[float, float]]] = {}
    for n in sizes:
        x = NORMAL.sample(n, generator=torch.Generator().manual_seed(n))
        found[n] = []
        for eps in steps:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FrozenWarning)
                known = self_transport(x, eps)
                seen = barycentric_projection(x, eps, potential=known.potential)
            gain = (2 * x - seen).var() - x.var()
            right = step_variance(x.var(), eps) - x.var()
            found[n].append(((gain / right).item(), known.self_weight.item()))
    return found


def speeds_over_lam(
    lams: Sequence[float], steps: Sequence[float], n: int
) -> dict[float, tuple[list[float], list[float]]]:
    """The speed of one step on N(0, 1) over lam, measured and in closed form; one at lam = 1.

    The speed is twice the pull `(1 - slope) / eps`.
    """
    x = NORMAL.quantiles(n)
    middle = slice(n // 10, n - n // 10)
    found = {}
    for eps in steps:
        measured, exact = [], []
        for lam in lams:
            seen = barycentric_projection(x, eps, lam=lam, tol=1e-5, iters=5000)[middle]
            slope = (seen * x[middle]).sum() / x[middle].square().sum()
            measured.append((2 * (1 - slope) / eps).item())
            exact.append((2 * (1 - self_transport_slope(1.0, eps, lam)) / eps).item())
        found[eps] = (measured, exact)
    return found


def mixture_sweep(
    law: GaussianMixture, time: float, steps: Sequence[float], sizes: Sequence[int], seeds: int
) -> list[dict[str, float]]:
    """W2 to the exact law for each eps and n: of the flow, of the carried start, of fresh samples.

    "carried" moves the same start by the exact flow: what the scheme is not to blame for. "fresh"
    draws anew from the law at the end, the mean over ten draws.
    """
    truth = law.after(time)
    rows = []
    for n in sizes:
        fresh = [
            w2_to_law(truth.sample(n, generator=_seeded(1000 + s)), truth.quantile)
            for s in range(10)
        ]  # fmt: skip
        for eps in steps:
            sums = {"flow": 0.0, "carried": 0.0, "particles": 0.0, "self_weight": 0.0}
            for seed in range(seeds):
                x = law.sample(n, generator=_seeded(seed))
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", FrozenWarning)
                    end = _last(heat_flow(x, time, eps))
                carried = law.carry(x[:, 0], time)
                sums["flow"] += w2_to_law(end.particles, truth.quantile) / seeds
                sums["carried"] += w2_to_law(carried, truth.quantile) / seeds
                sums["particles"] += w2_line(end.particles, carried) / seeds
                sums["self_weight"] += end.self_weight.item() / seeds
            rows.append({"n": n, "eps": eps, **sums, "fresh": sum(fresh) / len(fresh)})
    return rows


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _last(states) -> FlowState:
    *_, end = states
    return end


def _mean_square(gap: Tensor, weights: Tensor) -> float:
    return math.sqrt(((gap.square() * weights).sum() / weights.sum()).item())
