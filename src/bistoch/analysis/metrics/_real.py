"""What the metrics share: plans and states in working precision, with padding set to zero."""

import torch
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional.pose import working_dtype


def read_plan(
    metric: str, plan: Tensor, query_mask: Tensor | None, key_mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """A plan that is zero at padding, and ones at the places of its real queries and keys."""
    inputs.check_floating(metric, "plan", plan, axes="(*b, n, m)", rank=2)
    plan = plan.to(working_dtype(plan.dtype))
    batch, (n, m) = plan.shape[:-2], plan.shape[-2:]
    queries = read_mask(metric, "query_mask", query_mask, (*batch, n), plan)
    keys = read_mask(metric, "key_mask", key_mask, (*batch, m), plan)
    if query_mask is not None:
        plan = plan.masked_fill(queries[..., :, None] == 0, 0)
    if key_mask is not None:
        plan = plan.masked_fill(keys[..., None, :] == 0, 0)
    return plan, queries, keys


def read_states(
    metric: str, states: Tensor, token_mask: Tensor | None, *, name: str = "states"
) -> tuple[Tensor, Tensor]:
    """States that are zero at padding, and ones at the places of the real tokens."""
    inputs.check_floating(metric, name, states, axes="(*b, n, d)", rank=2)
    states = states.to(working_dtype(states.dtype))
    tokens = read_mask(metric, "token_mask", token_mask, states.shape[:-1], states)
    if token_mask is not None:
        states = states.masked_fill(tokens[..., None] == 0, 0)
    return states, tokens


def read_mask(
    metric: str, name: str, mask: Tensor | None, shape: tuple[int, ...], like: Tensor
) -> Tensor:
    """Ones where a token is real, zeros where it is padding, in the dtype of the metric."""
    if mask is None:
        return torch.ones(shape, dtype=like.dtype, device=like.device)
    inputs.check_padding(metric, name, mask, shape, like.device)
    return mask.expand(shape).to(like.dtype)


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """A quotient that is zero where there is nothing to divide by."""
    empty = denominator == 0
    return torch.where(empty, 0, numerator / torch.where(empty, 1, denominator))
