"""Row and column sums of a plan."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

# how far below zero a weight may be by rounding, in single precision
ROUNDING = 1e-6


class PlanSums(NamedTuple):
    """A plan with its row sums, its column sums, and the sum every column would have in balance."""

    plan: Float[Tensor, "n m"]
    rows: Float[Tensor, "n"]
    columns: Float[Tensor, "m"]
    target: float

    @property
    def has_negative(self) -> bool:
        """Whether some weight is below zero by more than rounding."""
        return self.plan.min().item() < -ROUNDING


def add_up(name: str, plan: Float[Tensor, "..."]) -> PlanSums:
    """Add up one plan; the target is the mean column sum, n/m when every row sums to one.

    >>> import torch
    >>> sums = add_up("softmax", torch.tensor([[0.9, 0.1], [0.7, 0.3]]))
    >>> sums.columns, sums.target
    (tensor([1.6000, 0.4000], dtype=torch.float64), 1.0)
    """
    if plan.ndim != 2 or 0 in plan.shape:
        raise ValueError(
            f"the plan {name!r} must be one matrix (n, m) with at least one row and column, "
            f"but its shape is {tuple(plan.shape)}; pick one problem, for example plan[0, 0]"
        )
    plan = plan.detach().to("cpu", torch.float64)
    columns = plan.sum(0)
    # rounded, so that a target of one is drawn and printed as one
    return PlanSums(plan, plan.sum(1), columns, round(columns.mean().item(), 6))
