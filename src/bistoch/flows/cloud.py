"""Clouds as tokens: squared distances are dot products and a bias of the keys.

    -|x - y|² / (2 eps) = x·y / eps - |y|² / (2 eps) - |x|² / (2 eps)

The last term is the same for a whole row, so the plan does not feel it. Every pass over a cloud is
one call of the elastic operator without iterations: its backends never keep all pairs.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.flows._inputs import check_cloud, check_resolution, check_weights
from bistoch.functional import elastic_attention, elastic_potentials
from bistoch.functional._inputs import Option, check_eps
from bistoch.functional.elastic.pose import working_dtype


class Cloud(NamedTuple):
    """Checked particles in working precision, around a centre, with the logs of their masses."""

    points: Float[Tensor, "*b n d"]
    centre: Float[Tensor, "*b 1 d"]
    log_weights: Float[Tensor, "*b n"]
    backend: str


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
    work = points.detach().to(working_dtype(points.dtype))
    if weights is None:
        log_weights = work.new_full(work.shape[:-1], -math.log(max(work.shape[-2], 1)))
    else:
        owner = "weights" if name == "particles" else f"{name}_weights"
        check_weights(function, owner, weights, points)
        masses = weights.detach().to(work).expand(work.shape[:-1])
        log_weights = (masses / masses.sum(-1, keepdim=True)).log()
    if centre is None:
        # the first particle first: the mean of equal numbers is then exact
        first = work[..., :1, :]
        share = log_weights.exp()[..., None]
        centre = first + (share * (work - first)).sum(-2, keepdim=True) if work.numel() else first
    return Cloud(work - centre, centre, log_weights, backend)


def temperature(function: str, eps: Option, *clouds: Cloud) -> Float[Tensor, "*b 1"]:
    """The checked eps as a tensor beside particles."""
    points = clouds[0].points
    batch = points.shape[:-2]
    check_eps(function, eps, batch)
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
    row = elastic_potentials(
        at, cloud.points, eps=eps[..., 0], iters=0, scale=1.0, mask=_bias(cloud, potential, eps),
        backend=cloud.backend,
    ).row  # fmt: skip
    return row + at.square().sum(-1) / (2 * eps)


def attend(
    at: Float[Tensor, "*b k d"],
    cloud: Cloud,
    potential: Float[Tensor, "*b n"],
    eps: Float[Tensor, "*b 1"],
) -> Float[Tensor, "*b k d"]:
    """Where each point looks: the mean of the cloud under its row of the plan."""
    return elastic_attention(
        at, cloud.points, cloud.points, eps=eps[..., 0], iters=0, scale=1.0,
        mask=_bias(cloud, potential, eps), backend=cloud.backend,
    )  # fmt: skip


def _bias(cloud: Cloud, potential: Tensor, eps: Tensor) -> Float[Tensor, "*b 1 n"]:
    squares = cloud.points.square().sum(-1) / (2 * eps)
    return (cloud.log_weights + potential - squares)[..., None, :]
