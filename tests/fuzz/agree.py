"""When two results agree: errors are judged by precision and by what the inputs allow."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fuzz.call import Found

Values = dict[str, Any]
Results = dict[str, Tensor]

# roundings of a sum of so many terms that a result may be off
ROUNDINGS = 8
# how much worse than the reference at the same precision, or than the exact result for inputs that
# are changed by a few roundings, a single result may be: errors of single draws scatter
WORSE = 4
SHAKES = 12
# a bias beyond this hides a pair: its rounding is not that of a score
HIDDEN = 1e30


def agree(
    found: Results,
    again: Callable[[Values], Results],
    values: Values,
    *,
    terms: int,
    sizes: dict[str, float],
    slack: float = 0.0,
    pairs: tuple[int, ...] = (),
) -> None:
    """Raise `Found` if results are worse than their precision, the reference and the inputs allow.

    Args:
        found: what to judge, by name.
        again: the reference, at the precision of the values.
        values: the arguments of the call.
        terms: of the longest sum.
        sizes: of the terms, which may cancel, by the name of the result, and of a "score".
        slack: what else a result may be off, as a share of its size.
        pairs: the shape of the scores, for functions with a mask of pairs.
    """
    dtype = working(next(iter(found.values())).dtype)
    eps = torch.finfo(dtype).eps
    doubles = convert(values, dtype, torch.float64)
    exact = again(doubles)
    rounded: Results = {}
    shaken: list[Results] = []
    for name, tensor in found.items():
        best = exact[name]
        in_range = best.abs() < 0.9 * torch.finfo(tensor.dtype).max
        own, size = torch.finfo(tensor.dtype), max(sizes.get(name, 1.0), peak(best))
        # a score and its potentials are rounded as they stand in the exponent
        lost = ROUNDINGS * eps * (terms + sizes["score"])
        # below the smallest normal number there are fewer digits
        allowed = size * (4 * own.eps + lost + slack) + own.smallest_normal * own.eps
        if not bool(tensor[in_range].isfinite().all()):
            if allowed > own.max:
                # what is left of terms that cancel need not fit a half precision result
                continue
            raise Found(f"{name} is not finite")
        error = distance(tensor, best, in_range)
        if error <= allowed:
            continue
        rounded = rounded or again(convert(values, dtype))
        allowed += WORSE * distance(rounded[name], best, in_range)
        worst = 0.0
        for number in range(SHAKES):
            if error <= allowed + WORSE * worst:
                break
            if len(shaken) == number:
                shaken.append(again(shake(doubles, eps, number, pairs, sizes["score"])))
            worst = max(worst, distance(shaken[number][name], best, in_range))
        if not error <= allowed + WORSE * worst:
            raise Found(
                f"{name} is off by {error:.3g}, and {allowed + WORSE * worst:.3g} is "
                f"allowed; its largest entry is {peak(best):.3g}"
            )


def working(dtype: torch.dtype) -> torch.dtype:
    """The precision inside."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def convert(values: Values, *dtypes: torch.dtype) -> Values:
    """Every floating-point tensor, rounded to one dtype after the other."""
    converted = dict(values)
    for name, value in values.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            for dtype in dtypes:
                # what is finite stays so
                most = torch.finfo(dtype).max
                finite = value.double().clamp(-most, most)
                value = torch.where(value.isinf(), value.double(), finite).to(dtype)
            converted[name] = value
    return converted


def shake(values: Values, eps: float, seed: int, pairs: tuple[int, ...], score: float) -> Values:
    """The same arguments, changed by a few roundings; what means "hidden" stays."""
    generator = torch.Generator().manual_seed(seed)

    def noise(shape: tuple[int, ...]) -> Tensor:
        return 4 * eps * torch.randn(shape, generator=generator, dtype=torch.float64).clamp(-3, 3)

    shaken = dict(values)
    for name, value in values.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            changed = value * (1 + noise(value.shape))
            if name in ("lam", "omega"):
                changed = changed.clamp(0, 1 if name == "lam" else 1.999)
            shaken[name] = torch.where(value.abs() < HIDDEN, changed, value)
    mask = shaken.get("mask")
    if pairs:
        # scores are rounded pair by pair, which no change of tokens does
        if mask is None:
            shaken["mask"] = score * noise(pairs)
        elif mask.dtype == torch.bool:
            shaken["mask"] = (score * noise(pairs)).masked_fill(~mask, -math.inf)
        else:
            shaken["mask"] = mask + score * noise(mask.shape)
    return shaken


def distance(found: Tensor, exact: Tensor, where: Tensor) -> float:
    """The largest difference of two results."""
    return peak((found.double() - exact)[where].nan_to_num(math.inf))


def peak(tensor: Tensor) -> float:
    """The largest absolute entry; of none, zero."""
    return float(tensor.detach().abs().max()) if tensor.numel() else 0.0
