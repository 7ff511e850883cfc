"""Wasserstein distances of order two: exact on the line, exact for small clouds, sliced for all."""

import math
from collections.abc import Callable
from importlib import import_module

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.flows._inputs import (
    check_alike,
    check_cloud,
    check_law,
    check_single,
    check_weights,
)
from bistoch.functional.inputs import check_count, check_floating, check_generator

# pairs beyond which an exact plan takes minutes and gigabytes
SMALL = 1 << 24
# numbers that a bundle of projections may hold
BUNDLE = 1 << 24


def w2_line(
    first: Float[Tensor, "n"],
    second: Float[Tensor, "m"],
    first_weights: Float[Tensor, "n"] | None = None,
    second_weights: Float[Tensor, "m"] | None = None,
) -> float:
    """The exact distance of two clouds on the line: between quantiles of the same share.

    >>> w2_line(torch.tensor([0.0, 1.0]), torch.tensor([3.0, 2.0]))
    2.0
    """
    return _on_line("w2_line", first, second, first_weights, second_weights)


def w2_to_law(
    particles: Float[Tensor, "n"], quantile: Callable[[Tensor], Tensor], *, fine: int = 32
) -> float:
    """The distance of a cloud on the line from a law given by its quantile function.

    Args:
        particles: numbers of equal mass.
        quantile: from shares in (0, 1) to numbers, such as `GaussianMixture.quantile`.
        fine: how many quantiles of the law stand for each particle's share.

    >>> round(w2_to_law(torch.zeros(5), lambda share: share), 4)   # zero, and uniform on [0, 1]
    0.5773
    """
    check_count("w2_to_law", "fine", fine, least=1)
    check_law("w2_to_law", quantile)
    xs, _ = _steps("w2_to_law", "particles", particles, None)
    count = len(xs) * fine
    shares = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    away = xs.repeat_interleave(fine) - quantile(shares)
    return away.square().mean().sqrt().item()


def w2_exact(
    first: Float[Tensor, "n d"],
    second: Float[Tensor, "m d"],
    first_weights: Float[Tensor, "n"] | None = None,
    second_weights: Float[Tensor, "m"] | None = None,
) -> float:
    """The exact distance of two small clouds in any dimension, by POT.

    >>> round(w2_exact(torch.zeros(2, 3), torch.ones(4, 3)), 6)
    1.732051
    """
    _check_clouds("w2_exact", first, second)
    pairs = first.shape[0] * second.shape[0]
    if pairs > SMALL:
        raise ValueError(
            f"w2_exact: keeps all {pairs} pairs, more than {SMALL}; use w2_sliced for such clouds"
        )
    try:
        ot = import_module("ot")
    except ImportError:
        raise ImportError(
            "w2_exact: needs POT; install it with: pip install 'bistoch[bench]'"
        ) from None
    a, b = (
        _masses("w2_exact", name, weights, points).numpy()
        for name, weights, points in (
            ("first", first_weights, first), ("second", second_weights, second)
        )
    )  # fmt: skip
    cost = torch.cdist(first.double(), second.double()).square().cpu().numpy()
    return math.sqrt(max(float(ot.emd2(a, b, cost, numItermax=10_000_000)), 0.0))


def w2_sliced(
    first: Float[Tensor, "n d"],
    second: Float[Tensor, "m d"],
    *,
    projections: int = 128,
    generator: torch.Generator | None = None,
) -> float:
    """The mean distance of two clouds along random lines, at n log n each.

        sqrt(mean over unit u of W2(u·x, u·y)²),   times sqrt(d) for clouds that differ by a shift

    >>> g = torch.Generator().manual_seed(0)
    >>> round(w2_sliced(torch.zeros(7, 2), torch.ones(7, 2), projections=2000, generator=g), 1)
    1.0
    """
    _check_clouds("w2_sliced", first, second)
    check_count("w2_sliced", "projections", projections, least=1)
    # the lines are drawn on the CPU, the same for clouds on any device
    check_generator("w2_sliced", generator, torch.device("cpu"))
    d = first.shape[-1]
    lines = torch.randn(projections, d, dtype=torch.float64, generator=generator)
    lines = (lines / lines.norm(dim=-1, keepdim=True)).to(first)
    total = 0.0
    at_once = max(1, BUNDLE // max(len(first), len(second), 1))
    for some in lines.split(at_once):
        x, y = ((points @ some.T).T.double().sort(-1).values for points in (first, second))
        if x.shape == y.shape:
            total += (x - y).square().mean(-1).sum().item()
        else:
            total += sum(_on_line("w2_sliced", a, b) ** 2 for a, b in zip(x, y, strict=True))
    return math.sqrt(total / projections)


def _check_clouds(function: str, first: Tensor, second: Tensor) -> None:
    check_alike(function, ("first", "second"), first, second)
    check_single(function, "first", first)
    check_single(function, "second", second)


def _on_line(function, first, second, first_weights=None, second_weights=None) -> float:
    xs, x_ends = _steps(function, "first", first, first_weights)
    ys, y_ends = _steps(function, "second", second, second_weights)
    ends = torch.cat((x_ends, y_ends)).clamp(max=1).sort().values
    lengths = torch.diff(ends, prepend=ends.new_zeros(1))
    # in the middle of a piece both quantiles are one particle's place
    middles = ends - lengths / 2
    x = xs[torch.searchsorted(x_ends, middles).clamp(max=len(xs) - 1)]
    y = ys[torch.searchsorted(y_ends, middles).clamp(max=len(ys) - 1)]
    return math.sqrt((lengths * (x - y) ** 2).sum().item())


def _steps(
    function: str, name: str, points: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Places in order, and the share of mass up to each."""
    check_floating(function, name, points, axes="(particles,)", rank=1)
    cloud = points if points.ndim == 2 else points[..., None]
    check_cloud(function, name, cloud)
    if cloud.ndim != 2 or cloud.shape[1] != 1 or not len(cloud):
        raise ValueError(
            f"{function}: {name} must be a list of numbers, but its shape is "
            f"{tuple(points.shape)}; pick one dimension, or use w2_exact or w2_sliced"
        )
    masses = _masses(function, name, weights, cloud)
    places, order = cloud[:, 0].double().cpu().sort()
    return places, masses[order].cumsum(0)


def _masses(function: str, name: str, weights: Tensor | None, points: Tensor) -> Tensor:
    if weights is None:
        return torch.full((len(points),), 1 / len(points), dtype=torch.float64)
    check_weights(function, f"{name}_weights", weights, points)
    masses = weights.double().cpu().expand(len(points))
    return masses / masses.sum()
