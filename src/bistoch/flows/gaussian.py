"""What one step of self-attention does to a Gaussian, in closed form, at any eps and lam."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.flows._inputs import check_share, check_time, check_variance
from bistoch.functional.inputs import check_choice, check_eps, check_lam


def self_transport_slope(
    variance: Float[Tensor, "..."] | float, eps: float, lam: float = 1.0
) -> Float[Tensor, "..."]:
    """The slope of `B(x) = slope * x`, the barycentric projection of N(0, variance).

        lam = 1:  variance / (sqrt(variance² + eps²/4) + eps/2)        lam = 0:  v / (v + eps)

    In between the potential is a parabola, whose width solves one equation in one unknown: with p
    the precision of `rho exp(g)` and `q = 1/v - p/(1 + eps p)`, `1/v - p = lam q/(1 + eps q)`.

    >>> self_transport_slope(1.0, 0.1).item()
    0.951249...
    """
    return _slope("self_transport_slope", variance, eps, lam)


def step_variance(
    variance: Float[Tensor, "..."] | float, eps: float, lam: float = 1.0, direction: str = "heat"
) -> Float[Tensor, "..."]:
    """The variance after one step: `v (2 - slope)²` towards heat, `v slope²` towards clusters.

    In more dimensions, that of each principal axis. At `lam = 1` a heat step adds
    `eps - eps³/(8 v²) + ...`: the recursion is exact, and the heat equation would add eps.

    >>> round(step_variance(1.0, 0.1).item(), 6)
    1.099878
    """
    return _step("step_variance", variance, eps, lam, direction)


def flow_variance(
    variance: float, time: float, eps: float, lam: float = 1.0, direction: str = "heat"
) -> list[float]:
    """The variance after every step of `heat_flow` on N(0, variance), the start first.

    >>> round(flow_variance(1.0, 2.0, 0.1)[-1], 4)     # the heat equation ends at 3
    2.9991
    """
    function = "flow_variance"
    check_time(function, "time", time)
    # without a step nothing else checks them
    _step(function, variance, eps, lam, direction)
    steps = math.ceil(time / eps - 1e-9)
    now = torch.tensor(float(variance), dtype=torch.float64)
    found = [now.item()]
    for _ in range(steps):
        now = _step(function, now, time / steps, lam, direction)
        found.append(now.item())
    return found


def bridge_covariance(first: float, second: float, eps: float) -> float:
    """The covariance of the two ends of the Schrödinger bridge from N(., first) to N(., second).

        sqrt(first second + eps²/4) - eps/2

    >>> round(bridge_covariance(1.0, 4.0, 0.1), 4)
    1.9506
    """
    return _covariance("bridge_covariance", first, second, eps)


def bridge_variance(first: float, second: float, eps: float, t: float) -> float:
    """The variance at time t in [0, 1] of that bridge, a Brownian motion with variance eps.

    >>> bridge_variance(1.0, 4.0, 0.1, 0.0), bridge_variance(1.0, 4.0, 0.1, 1.0)
    (1.0, 4.0)
    """
    function = "bridge_variance"
    check_share(function, "t", t)
    between = _covariance(function, first, second, eps)
    ends = (1 - t) ** 2 * first + t**2 * second
    return ends + 2 * t * (1 - t) * between + eps * t * (1 - t)


def _slope(function: str, variance: Tensor | float, eps: float, lam: float) -> Tensor:
    check_eps(function, eps, ())
    check_lam(function, lam, ())
    check_variance(function, "variance", variance)
    v = torch.as_tensor(variance, dtype=torch.float64)
    if lam == 1:
        return v / (torch.sqrt(v * v + eps * eps / 4) + eps / 2)
    # the left side falls in p from above zero to below it: halve the interval until it is a number
    low, high = torch.zeros_like(v), 1 / v
    for _ in range(200):
        p = (low + high) / 2
        q = 1 / v - p / (1 + eps * p)
        above = 1 / v - p > lam * q / (1 + eps * q)
        low, high = torch.where(above, p, low), torch.where(above, high, p)
    return 1 / (1 + eps * (low + high) / 2)


def _step(
    function: str, variance: Tensor | float, eps: float, lam: float, direction: str
) -> Tensor:
    check_choice(function, "direction", direction, ("heat", "cluster"))
    slope = _slope(function, variance, eps, lam)
    factor = slope if direction == "cluster" else 2 - slope
    return torch.as_tensor(variance, dtype=torch.float64) * factor**2


def _covariance(function: str, first: float, second: float, eps: float) -> float:
    check_eps(function, eps, ())
    check_variance(function, "first", first)
    check_variance(function, "second", second)
    # the same number, without taking near equals from each other
    return first * second / (math.sqrt(first * second + eps * eps / 4) + eps / 2)
