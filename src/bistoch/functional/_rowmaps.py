"""Row by row from scores to weights: the maps behind `rowwise`.

Each takes scores in which minus infinity is a forbidden pair. A forbidden pair has weight zero, and
a row in which every pair is forbidden is zero with a zero gradient.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.functional.problem import row_softmax

# added to the normaliser of softpick, as published: rows whose scores all vanish become zero
SOFTPICK_FLOOR = 1e-8

# a difference of scores whose square is far from overflow, and far above one for any row length
LARGE = 1e12


def sigmoid(
    scores: Float[Tensor, "B n m"], shift: Float[Tensor, "B"] | None
) -> Float[Tensor, "B n m"]:
    """Every pair for itself; the shift is by default minus the log of the keys in sight."""
    if shift is None:
        in_sight = (scores > -torch.inf).sum(-1, keepdim=True).clamp_min(1)
        return (scores - in_sight.to(scores.dtype).log()).sigmoid()
    return (scores + shift[:, None, None]).sigmoid()


def softpick(scores: Float[Tensor, "B n m"]) -> Float[Tensor, "B n m"]:
    """`relu(e^x - 1) / sum |e^x - 1|`: negative scores get nothing, and may leave a row empty."""
    if scores.shape[-1] == 0:
        return scores.exp()
    forbidden = scores == -torch.inf
    scores = scores.masked_fill(forbidden, 0)
    # zero joins the maximum: exp(-peak) then never overflows, however negative the row is
    peak = scores.detach().amax(-1, keepdim=True).clamp_min(0)
    # the slope of relu is zero at zero, as published, where that of a clamp is one: in a row of
    # zeros it would be divided by the floor
    above, below = scores.relu(), -(-scores).relu()
    # e^(x - peak) - e^(-peak), by whichever form does not cancel
    rises = -torch.expm1(-above) * (above - peak).exp()
    falls = -torch.expm1(below) * (-peak).exp()
    return rises / ((rises + falls).sum(-1, keepdim=True) + SOFTPICK_FLOOR)


def sparsemax(scores: Float[Tensor, "B n m"]) -> Float[Tensor, "B n m"]:
    """The nearest point of the simplex: `relu(x - t)` with the t for which rows sum to one."""
    x, dead = _below_the_peak(scores)
    if x.shape[-1] == 0:
        return x
    with torch.no_grad():
        falling, count = x.sort(-1, descending=True).values, _count(x)
        threshold = (falling.cumsum(-1) - 1) / count
        threshold = threshold.gather(-1, _support(falling > threshold))
    above = (x - threshold).relu()
    # a Newton step from the solution: it moves the value by rounding only, and has its gradient
    threshold = threshold + (above.sum(-1, keepdim=True) - 1) / (above > 0).sum(-1, keepdim=True)
    return (x - threshold).relu().masked_fill(dead, 0)


def entmax(scores: Float[Tensor, "B n m"]) -> Float[Tensor, "B n m"]:
    """Between softmax and sparsemax: `relu(x/2 - t)^2` with the t for which rows sum to one."""
    x, dead = _below_the_peak(scores)
    if x.shape[-1] == 0:
        return x
    x = x / 2
    with torch.no_grad():
        falling, count = x.sort(-1, descending=True).values, _count(x)
        mean = falling.cumsum(-1) / count
        spread = falling.square().cumsum(-1) - count * mean.square()
        threshold = mean - ((1 - spread) / count).clamp_min(0).sqrt()
        threshold = threshold.gather(-1, _support(falling >= threshold))
    above = (x - threshold).relu()
    # a Newton step from the solution: it moves the value by rounding only, and has its gradient
    excess, slope = above.square().sum(-1, keepdim=True) - 1, 2 * above.sum(-1, keepdim=True)
    return (x - threshold - excess / slope).relu().square().masked_fill(dead, 0)


def norm_softmax(scores: Float[Tensor, "B n m"]) -> Float[Tensor, "B n m"]:
    """Softmax of rows whose standard deviation, if below one, is first brought to one."""
    if scores.shape[-1] == 0:
        return scores.exp()
    seen = scores > -torch.inf
    count = seen.sum(-1, keepdim=True).clamp_min(1)
    peak = scores.detach().amax(-1, keepdim=True)
    below = (scores - peak).masked_fill(~seen, 0)
    # one that is so far below makes the deviation more than one, and its square need not be known
    near = below.clamp_min(-LARGE)
    apart = (near - near.sum(-1, keepdim=True) / count).masked_fill(~seen, 0)
    # a row of equal scores has only rounding to be spread out, which must not decide
    floor = torch.finfo(scores.dtype).eps
    deviation = (apart.square().sum(-1, keepdim=True) / count + floor).sqrt()
    return row_softmax((below / deviation.clamp_max(1)).masked_fill(~seen, -torch.inf))


def _below_the_peak(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Scores minus their row's maximum, and the rows that have none.

    Nothing more than 2 below the peak has weight (1 for sparsemax): cutting there keeps the sums
    over a row exact and free of infinities.
    """
    dead = (scores == -torch.inf).all(-1, keepdim=True)
    if scores.shape[-1] == 0:
        return scores, dead
    scores = scores.masked_fill(dead, 0)
    return (scores - scores.detach().amax(-1, keepdim=True)).clamp_min(-4), dead


def _count(x: Tensor) -> Tensor:
    return torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)


def _support(inside: Tensor) -> Tensor:
    """The index of the last entry of a falling row that still has weight."""
    # a row of NaN has none, and stays a row of NaN
    return (inside.sum(-1, keepdim=True) - 1).clamp_min(0)
