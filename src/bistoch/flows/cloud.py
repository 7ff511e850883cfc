"""Clouds as tokens: squared distances are dot products and a bias of the keys.

    -|x - y|² / (2 eps) = x·y / eps - |y|² / (2 eps) - |x|² / (2 eps)

The last term is the same for a whole row, so the plan does not feel it. Every pass over a cloud is
one call of the elastic operator without iterations: its backends never keep all pairs.
"""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.flows._inputs import check_cloud, check_resolution, check_weights
from bistoch.functional import elastic_attention, elastic_potentials
from bistoch.functional.elastic import BACKENDS
from bistoch.functional.inputs import Option, check_choice, check_eps
from bistoch.functional.pose import working_dtype

# dimensions from which a product costs more than the exponential that follows it
MANY = 32


class Cloud(NamedTuple):
    """Checked particles in working precision, around a centre, with the logs of their masses."""

    points: Float[Tensor, "*b n d"]
    centre: Float[Tensor, "*b 1 d"]
    log_weights: Float[Tensor, "*b n"]
    backend: str
    # x·y / eps of all pairs, where it is worth keeping
    products: Float[Tensor, "*b n n"] | None = None


def remember(cloud: Cloud, eps: Float[Tensor, "*b 1"]) -> Cloud:
    """Keep the products of all pairs if they cost much, and fit into the operator's workspace."""
    points = cloud.points
    if points.shape[-1] < MANY:
        return cloud
    from bistoch.functional.elastic.cpu.launch import WORKSPACE_BYTES

    pairs = points.shape[:-1].numel() * points.shape[-2]
    if pairs * points.element_size() > WORKSPACE_BYTES:
        return cloud
    return cloud._replace(products=(points / eps[..., None]) @ points.mT)


def gather(
    function: str,
    name: str,
    points: Tensor,
    weights: Tensor | None,
    backend: str,
    centre: Tensor | None = None,
) -> Cloud:
    """Check particles and move their mean to the origin: far from it distances lose digits."""
    check_cloud(function, name, points)
    check_choice(function, "backend", backend, ("auto", *BACKENDS))
    work = points.detach().to(working_dtype(points.dtype))
    if weights is None:
        log_weights = work.new_full(work.shape[:-1], -math.log(max(work.shape[-2], 1)))
    else:
        owner = "weights" if name == "particles" else f"{name}_weights"
        check_weights(function, owner, weights, points)
        masses = weights.detach().to(work).expand(work.shape[:-1])
        if work.shape[-2]:
            # the sum of large masses may be too large a number
            masses = masses / masses.amax(-1, keepdim=True)
        log_weights = (masses / masses.sum(-1, keepdim=True)).log()
    if centre is None:
        centre = _mean(work, log_weights)
    return Cloud(work - centre, centre, log_weights, backend)


def temperature(function: str, eps: Option, *clouds: Cloud) -> Float[Tensor, "*b 1"]:
    """The checked eps as a tensor beside particles."""
    points = clouds[0].points
    batch = points.shape[:-2]
    check_eps(function, eps, batch, points.device)
    wide = torch.as_tensor(eps, dtype=points.dtype, device=points.device).expand(batch)[..., None]
    for cloud in clouds:
        # diameters are at most twice the distance from the centre
        check_resolution(function, 4 * cloud.points.square().sum(-1), wide)
    return wide


def soft_minimum(
    at: Float[Tensor, "*b k d"],
    cloud: Cloud,
    potential: Float[Tensor, "*b n"],
    eps: Float[Tensor, "*b 1"],
) -> Float[Tensor, "*b k"]:
    """`-log sum_j w_j exp(potential_j - |at_i - x_j|² / (2 eps))`: one pass over all pairs."""
    query, key, options = _tokens(at, cloud, potential, eps)
    row = elastic_potentials(query, key, iters=0, scale=1.0, backend=cloud.backend, **options).row
    return row + at.square().sum(-1) / (2 * eps)


def attend(
    at: Float[Tensor, "*b k d"],
    cloud: Cloud,
    potential: Float[Tensor, "*b n"],
    eps: Float[Tensor, "*b 1"],
) -> Float[Tensor, "*b k d"]:
    """Where each point looks: the mean of the cloud under its row of the plan."""
    query, key, options = _tokens(at, cloud, potential, eps)
    return elastic_attention(
        query, key, cloud.points, iters=0, scale=1.0, backend=cloud.backend, **options
    )


def _mean(points: Tensor, log_weights: Tensor) -> Float[Tensor, "*b 1 d"]:
    if not points.numel():
        return points.new_zeros(*points.shape[:-2], 1, points.shape[-1])
    # the first particle first: the mean of equal numbers is then exact
    first = points[..., :1, :]
    return first + (log_weights.exp()[..., None] * (points - first)).sum(-2, keepdim=True)


def _tokens(
    at: Tensor, cloud: Cloud, potential: Tensor, eps: Tensor
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Queries, keys, and what goes with them to make the scores."""
    bias = _bias(cloud, potential, eps)
    if cloud.products is None or at is not cloud.points:
        return at, cloud.points, {"eps": eps[..., 0], "mask": bias}
    # the products are a mask that is there already; the bias is all that keys have to say
    return torch.ones_like(at[..., :1]), bias.mT, {"mask": cloud.products}


def _bias(cloud: Cloud, potential: Tensor, eps: Tensor) -> Float[Tensor, "*b 1 n"]:
    squares = cloud.points.square().sum(-1) / (2 * eps)
    return (cloud.log_weights + potential - squares)[..., None, :]
