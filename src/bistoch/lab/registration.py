"""Rigid registration of point clouds by soft assignment whose temperature falls.

Every step moves the source by the present rotation, assigns its points softly to those of the
target, and finds the rotation and shift that bring it nearest to what it was assigned. Clouds are
worked on in batches.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

import bistoch

Clouds = Float[Tensor, "b n 3"]
Rotations = Float[Tensor, "b 3 3"]


class Assigned(NamedTuple):
    """Where every point of the source should go, and how much that counts."""

    goal: Clouds
    weight: Float[Tensor, "b n"]


# moved source, target and length scale -> assigned
Assign = Callable[[Clouds, Clouds, float], Assigned]


class Motion(NamedTuple):
    """A rotation and a shift: `x -> x Rᵀ + t`."""

    rotation: Rotations
    shift: Float[Tensor, "b 1 3"]

    def __call__(self, points: Clouds) -> Clouds:
        """The points after the motion."""
        return points @ self.rotation.mT + self.shift


def register(source: Clouds, target: Clouds, assign: Assign, sigmas: Sequence[float]) -> Motion:
    """The motion that brings the source onto the target, by one assignment for each of `sigmas`.

    >>> source = torch.randn(2, 50, 3, generator=torch.Generator().manual_seed(0))
    >>> truth = Motion(turn(torch.ones(2, 3), 0.3), torch.ones(2, 1, 3))
    >>> found = register(source, truth(source), elastic(1.0), anneal(0.5, 0.02, 20))
    >>> bool((angle(found.rotation, truth.rotation) < 1).all())
    True
    """
    still = torch.eye(3, dtype=source.dtype).expand(len(source), 3, 3)
    motion = Motion(still, target.mean(1, keepdim=True) - source.mean(1, keepdim=True))
    for sigma in sigmas:
        motion = fit_motion(source, *assign(motion(source), target, sigma))
    return motion


def anneal(first: float, last: float, steps: int) -> list[float]:
    """Lengths that fall geometrically.

    >>> anneal(0.5, 0.005, 3)
    [0.5, 0.05, 0.005]
    """
    return [round(first * (last / first) ** (i / (steps - 1)), 12) for i in range(steps)]


def fit_motion(source: Clouds, goal: Clouds, weight: Float[Tensor, "b n"]) -> Motion:
    """The rigid motion with the least weighted squared distance, by Kabsch's formula."""
    share = (weight / weight.sum(-1, keepdim=True).clamp_min(1e-12))[..., None]
    middle, aim = (share * source).sum(1, keepdim=True), (share * goal).sum(1, keepdim=True)
    left, _, right = torch.linalg.svd((share * (source - middle)).mT @ (goal - aim))
    # without this a reflection could be nearer than every rotation
    sign = torch.ones_like(middle)
    sign[..., -1] = torch.linalg.det(left @ right)[:, None]
    rotation = right.mT * sign @ left.mT
    return Motion(rotation, aim - middle @ rotation.mT)


def elastic(lam: float, iters: int = 10) -> Assign:
    """Goals are means of the target under the elastic plan; `lam = 0` is the softmax of EM-ICP."""

    def assign(moved: Clouds, target: Clouds, sigma: float) -> Assigned:
        # x y - |y|²/2 is -|x - y|²/2 up to what a row has in common; the last term as a feature
        key = torch.cat([target, -target.square().sum(-1, keepdim=True) / 2], -1)
        query = torch.cat([moved, torch.ones_like(moved[..., :1])], -1)
        steps = iters if lam else 0
        goal = bistoch.elastic_attention(query, key, target, lam=lam, iters=steps, scale=sigma**-2)
        return Assigned(goal, goal.new_ones(goal.shape[:-1]))

    return assign


def slack(reach: float, iters: int = 10) -> Assign:
    """A plan in which points may stay unmatched, at the price of a pair at the distance `reach`."""

    def assign(moved: Clouds, target: Clouds, sigma: float) -> Assigned:
        scores = (reach**2 - torch.cdist(moved, target).square()) / 2
        plan = bistoch.match(
            scores, row_price=0.0, column_price=0.0, eps=sigma**2, iters=iters, end="columns"
        ).plan
        weight = plan.sum(-1)
        return Assigned(plan @ target / weight.clamp_min(1e-12)[..., None], weight)

    return assign


def nearest(moved: Clouds, target: Clouds, sigma: float) -> Assigned:
    """Every point goes to its nearest one, as in ICP; the length scale plays no part."""
    place = torch.cdist(moved, target).argmin(-1)
    goal = target.gather(1, place[..., None].expand_as(moved))
    return Assigned(goal, goal.new_ones(goal.shape[:-1]))


def turn(axis: Float[Tensor, "b 3"], angle: float) -> Rotations:
    """Rotations by an angle in radians about axes of any length."""
    x, y, z = torch.nn.functional.normalize(axis, dim=-1).unbind(-1)
    zero = torch.zeros_like(x)
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3))
    return torch.linalg.matrix_exp(angle * cross)


def angle(one: Rotations, other: Rotations) -> Float[Tensor, "b"]:
    """The angle between rotations, in degrees."""
    trace = (one * other).sum((-2, -1))
    return ((trace - 1) / 2).clamp(-1, 1).acos().rad2deg()
