"""Checks of clouds, weights and times, with every error sentence of `flows`."""

import math

import torch
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional.inputs.tensors import check_device, is_number, kind

# scores that are rounded by more than this cannot tell near particles apart
ROUNDING = 0.1


def check_cloud(function: str, name: str, points: Tensor) -> None:
    """Check that points are finite particles `(*b, n, d)`."""
    inputs.check_floating(function, name, points, axes="(*b, particles, dimensions)", rank=2)
    if points.device.type == "meta":
        raise ValueError(
            f"{function}: {name} must hold numbers, but it is on the device meta, which has none; "
            "make the particles on the device where they are to move"
        )
    bad = (~points.isfinite()).sum().item()
    if bad:
        raise ValueError(
            f"{function}: {name} must be finite, but {bad} of its {points.numel()} numbers are "
            "NaN or infinite; remove these particles first"
        )


def check_alike(function: str, names: tuple[str, str], first: Tensor, second: Tensor) -> None:
    """Check that two clouds live in one space."""
    check_cloud(function, names[0], first)
    check_cloud(function, names[1], second)
    same = first.shape[:-2] == second.shape[:-2] and first.shape[-1] == second.shape[-1]
    if not same or first.dtype != second.dtype or first.device != second.device:
        raise ValueError(
            f"{function}: {names[0]} and {names[1]} must agree in everything but the number of "
            f"particles, but they are {tuple(first.shape)} {first.dtype} and "
            f"{tuple(second.shape)} {second.dtype}; convert or expand one of them"
        )


def check_weights(function: str, name: str, weights: Tensor, points: Tensor) -> None:
    """Check masses of particles: not negative, finite, some of them positive."""
    inputs.check_floating(function, name, weights, axes="(*b, particles)", rank=1)
    shape = points.shape[:-1]
    try:
        fits = torch.broadcast_shapes(weights.shape, shape) == shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{function}: {name} must have one mass per particle, {tuple(shape)}, "
            f"but its shape is {tuple(weights.shape)}"
        )
    check_device(function, name, weights, points.device)
    if not bool(((weights >= 0) & weights.isfinite()).all()):
        raise ValueError(
            f"{function}: {name} must be finite and not negative, but its smallest entry is "
            f"{weights.min().item():g}; a particle of mass zero is carried along and pulls no other"
        )
    if points.shape[-2] and not bool((weights.sum(-1) > 0).all()):
        raise ValueError(
            f"{function}: {name} must leave every cloud some mass, but all masses of one cloud are "
            "zero; leave weights out to give every particle the same"
        )


def check_potential(function: str, potential: Tensor, points: Tensor) -> None:
    """Check where a transport is to start."""
    inputs.check_floating(function, "potential", potential, axes="(*b, particles)", rank=1)
    shape = points.shape[:-1]
    if potential.shape != shape:
        raise ValueError(
            f"{function}: potential must hold one finite number per particle, {tuple(shape)}, "
            f"but its shape is {tuple(potential.shape)}; leave it out to start from zero"
        )
    check_device(function, "potential", potential, points.device)
    bad = (~potential.isfinite()).sum().item()
    if bad:
        raise ValueError(
            f"{function}: potential must hold one finite number per particle, but {bad} are NaN or "
            "infinite; leave it out to start from zero"
        )


def check_resolution(function: str, reach: Tensor, eps: Tensor) -> None:
    """Check that squared distances over eps are known to better than a tenth."""
    if not reach.numel():
        return
    limits = torch.finfo(reach.dtype)
    if not bool(((eps >= limits.tiny) & (eps <= limits.max)).all()):
        raise ValueError(
            f"{function}: eps must lie between {limits.tiny:.3g} and {limits.max:.3g}, the "
            f"numbers that {reach.dtype} knows well; measure lengths in another unit"
        )
    largest = (reach / eps).max().item()
    rounding = largest * torch.finfo(reach.dtype).eps
    if not rounding <= ROUNDING:
        wider = "" if reach.dtype == torch.float64 else ", or use float64"
        raise ValueError(
            f"{function}: eps is too small for this cloud: squared distances reach "
            f"{reach.max().item():.3g}, which is {largest:.3g} times eps, and {reach.dtype} knows "
            f"that ratio to {rounding:.2g} only; raise eps{wider}"
        )


def check_time(function: str, name: str, time: float) -> None:
    """Check a length of time."""
    _check_kind(function, name, time, "a number, zero or positive")
    if not 0 <= time < math.inf:
        raise ValueError(
            f"{function}: {name} must be zero or positive, but it is {time!r}; "
            f"write for example {name}=1.0"
        )


def check_share(function: str, name: str, share: float) -> None:
    """Check a place between two ends."""
    _check_kind(function, name, share, "a number in [0, 1]")
    if not 0 <= share <= 1:
        raise ValueError(
            f"{function}: {name} must be in [0, 1], but it is {share!r}; 0 is the start and 1 the "
            "end"
        )


def check_tolerance(function: str, tol: float) -> None:
    """Check a tolerance, without which no iteration would end early."""
    _check_kind(function, "tol", tol, "a positive number")
    inputs.check_tol(function, tol)


def check_variance(function: str, name: str, variance: Tensor | float) -> None:
    """Check a variance of a Gaussian, or a tensor of them."""
    if isinstance(variance, Tensor):
        inputs.check_floating(function, name, variance, axes="(...)", rank=0)
        wrong = variance[~((variance >= 0) & variance.isfinite())]
        found = wrong[0].item() if wrong.numel() else None
    else:
        _check_kind(function, name, variance, "a number or a floating-point tensor")
        found = None if 0 <= variance < math.inf else variance
    if found is not None:
        raise ValueError(
            f"{function}: {name} must be a variance, finite and not negative, but one is "
            f"{found:g}; square a deviation first"
        )


def as_numbers(function: str, name: str, numbers: object) -> Tensor:
    """A float64 tensor of plain numbers, lists of them, or a tensor."""
    try:
        return torch.as_tensor(numbers, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"{function}: {name} must be numbers, lists of numbers or a tensor, but it is "
            f"{kind(numbers)} that cannot be read as such; write for example {name}=[1.0]"
        ) from None


def check_law(function: str, quantile: object) -> None:
    """Check that a law is given by a function."""
    if not callable(quantile):
        raise TypeError(
            f"{function}: quantile must be a function from shares in (0, 1) to numbers, but it is "
            f"{kind(quantile)}; pass for example two_bumps().quantile"
        )


def _check_kind(function: str, name: str, value: object, wanted: str) -> None:
    if not is_number(value):
        raise TypeError(
            f"{function}: {name} must be {wanted}, but it is {kind(value)}; "
            f"write for example {name}=0.5"
        )


def check_single(function: str, name: str, points: Tensor) -> None:
    """Check that points are one cloud that is not empty."""
    if points.ndim != 2 or not len(points):
        raise ValueError(
            f"{function}: {name} must be one cloud with a particle or more, (particles, "
            f"dimensions), but its shape is {tuple(points.shape)}; compare clouds one by one"
        )


def check_line(function: str, dimensions: int) -> None:
    """Check that a law lives on the line."""
    if dimensions != 1:
        raise ValueError(
            f"{function}: is known on the line only, but the law has {dimensions} dimensions"
        )
