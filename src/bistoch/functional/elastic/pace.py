"""How large a column step to take, chosen from what the step before it did (docs/pace.md).

With a tolerance and no `omega`, every problem finds its own step anew in every iteration. Close to
the fixed point a step turns the residual r = lam h - g into r - omega A r. The step that would have
made that smallest is the one to take next:

    y = r^(t-1) - r^t,   omega^t = omega^(t-1) <r^(t-1), y> / <y, y>

It is a number like any other to the iteration and to its gradient: it has no gradient of its own.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# the largest step, which an iteration that would keep 99 of 100 parts of its error asks for
LONGEST = 100.0
# roundings of the largest row potential that a change must exceed to tell anything
ROUNDINGS = 2.0


class Pace(NamedTuple):
    """The step that a problem takes now, and what the choice of the next one needs."""

    omega: Float[Tensor, "B"]
    # without what all live columns share, which no plan can see
    residual: Float[Tensor, "B m"]
    smallest_error: Float[Tensor, "B"]


def choose(
    residual: Float[Tensor, "B m"],
    live: Bool[Tensor, "B m"],
    error: Float[Tensor, "B"],
    lam: Float[Tensor, "B"],
    row: Float[Tensor, "B n"],
    before: Pace | None,
    total: Callable[[Tensor], Tensor] = lambda summed: summed,
) -> Pace:
    """The step of this iteration: plain at first, then the best for what was seen.

    It is at least plain, and at most what the smallest eigenvalue that A can have, 1 - lam, would
    ask for. An error that has grown draws it back, up to the plain step, which never fails, where
    the error is twice the smallest so far. A change of the residual that is no more than rounding,
    which is that of the row potentials behind it, says nothing. If other processes hold other
    columns, `total` makes sums over all columns of those over the ones that are here.
    """
    residual, error, lam = residual.detach(), error.detach(), lam.detach()
    residual = residual.masked_fill(~live, 0)
    sums = torch.stack([live.sum(-1, keepdim=True).to(residual.dtype), residual.sum(-1, True)])
    count, shared = total(sums).unbind()
    count = count.clamp_min(1)
    residual = (residual - shared / count).masked_fill(~live, 0)
    if before is None:
        return Pace(torch.ones_like(error), residual, error)
    change = before.residual - residual
    sums = torch.stack([(before.residual * change).sum(-1), change.square().sum(-1)])
    gained, size = total(sums).unbind()
    level = row.detach().abs().amax(-1) if row.shape[-1] else torch.zeros_like(error)
    rounding = ROUNDINGS * torch.finfo(row.dtype).eps * (1 + level)
    known = (gained > 0) & (size > count[:, 0] * rounding.square())
    best = before.omega * torch.where(known, gained, 1) / torch.where(known, size, 1)
    longest = 1 / (1 - lam).clamp_min(1 / LONGEST)
    extra = torch.where(known, best.clamp_min(1).minimum(longest) - 1, 0)
    least = before.smallest_error
    # an error of zero cannot grow
    trust = (2 - error / torch.where(least > 0, least, 1)).clamp(0, 1)
    return Pace(1 + trust * extra, residual, torch.minimum(least, error))
