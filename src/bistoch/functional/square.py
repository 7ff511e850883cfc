"""What the operators with square plans share: real tokens first, and back to where they stood."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import hardtanh

from bistoch.functional import inputs
from bistoch.functional._nonfinite import clean_scores, show
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import ScoreOptions, flatten, pose_scores


class Square(NamedTuple):
    """Scores of as many real queries as real keys, moved to the front; all others are zero.

    `real` marks the places in front, and `rows` and `columns` say to which place every query and
    every key went; the three are None if nothing is padded. `value` and `broken` are in the order
    of the tokens.
    """

    scores: Float[Tensor, "B n n"]
    real: Bool[Tensor, "B n"] | None
    rows: Int[Tensor, "B n"] | None
    columns: Int[Tensor, "B n"] | None
    # values in which what is not finite is zero, and the rows that depend on what is not finite
    value: Float[Tensor, "B n e"] | None
    broken: Bool[Tensor, "B n"] | None


def square_scores(
    operator: str,
    batch: torch.Size,
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    *,
    eps: Option,
    mask: Mask | None,
    query_mask: Tensor | None,
    key_mask: Tensor | None,
    scale: float | None,
) -> Square:
    """Check that the plan can be square, and compute the scores of the real tokens."""
    inputs.check_square(operator, query, key, "its plan is square")
    inputs.refuse_pairs(operator, mask, "the plan comes from the whole matrix")
    options = ScoreOptions(eps, scale, None, query_mask, key_mask)
    scores = pose_scores(operator, batch, query, key, options)
    inputs.check_equal_padding(operator, scores.query_mask, scores.key_mask, query.shape[-2])
    value = None if value is None else flatten(value, batch)
    # very large scores are limited below, and break nothing
    scores, value, broken = clean_scores(scores, value, "problem", factor=None)
    query, key, sharpness = scores.query, scores.key, scores.sharpness
    if scores.query_mask is None and scores.key_mask is None:
        return Square(_product(query, key, sharpness), None, None, None, value, broken)
    query, real_queries, rows = _real_first(query, scores.query_mask)
    key, real_keys, columns = _real_first(key, scores.key_mask)
    real = real_queries & real_keys
    query, key = (tokens.masked_fill(~real[..., None], 0) for tokens in (query, key))
    return Square(_product(query, key, sharpness), real, rows, columns, value, broken)


def restore(
    plan: Float[Tensor, "B n n"], square: Square, batch: torch.Size
) -> Float[Tensor, "*b n n"]:
    """Put the plan of the real tokens back to where they stood; padding gives and gets nothing."""
    if square.real is not None and square.rows is not None and square.columns is not None:
        pairs = square.real[:, :, None] & square.real[:, None, :]
        plan = _move(plan.masked_fill(~pairs, 0), square.rows)
        plan = _move(plan.mT, square.columns).mT
    return show(plan, square.broken).reshape(*batch, *plan.shape[1:])


def stochastic_complement(
    plan: Float[Tensor, "B n n"], real: Bool[Tensor, "B n"]
) -> Float[Tensor, "B n n"]:
    """The plan of a random walk that is watched only while it is on real tokens.

        P_11 + P_12 (I - P_22)^-1 P_21,   1 = real, 2 = padding

    Mass that goes to padding walks on until it is back on a real token. If the plan is doubly
    stochastic, so is this one on its real tokens. Everything else is zero.

    Reference: Meyer, Stochastic complementation, 1989.

    >>> plan = torch.tensor([[[0.5, 0.2, 0.3], [0.1, 0.6, 0.3], [0.4, 0.2, 0.4]]])
    >>> stochastic_complement(plan, torch.tensor([[True, True, False]]))
    tensor([[[0.7000, 0.3000, 0.0000],
             [0.3000, 0.7000, 0.0000],
             [0.0000, 0.0000, 0.0000]]])
    """
    row, column = real[:, :, None], real[:, None, :]
    inside, leaving = plan.masked_fill(~(row & column), 0), plan.masked_fill(~(row & ~column), 0)
    returning = plan.masked_fill(~(~row & column), 0)
    diagonal = torch.eye(plan.shape[-1], dtype=torch.bool, device=plan.device)
    moving = plan.masked_fill(row | column | diagonal, 0)
    # 1 - p_ii is the sum of the rest of the row, without cancellation; a walk that hardly ever
    # leaves the padding is stopped, so that there is always one solution
    eps = torch.finfo(plan.dtype).eps
    gone = torch.where(real, 1, moving.sum(-1) + returning.sum(-1) + 8 * eps)
    back = torch.linalg.solve(torch.diag_embed(gone) - moving, returning).clamp_min(0)
    # and what was stopped goes where the others went
    arrived = back.sum(-1, keepdim=True)
    back = back / torch.where(arrived > eps**2, arrived, 1)
    return inside + leaving @ back


def _real_first(
    tokens: Float[Tensor, "B n d"], mask: Bool[Tensor, "B n"] | None
) -> tuple[Float[Tensor, "B n d"], Bool[Tensor, "B n"], Int[Tensor, "B n"]]:
    """Tokens with the real ones in front, which those are, and where each token went."""
    if mask is None:
        mask = tokens.new_ones(tokens.shape[:2], dtype=torch.bool)
    order = (~mask).to(torch.int8).argsort(dim=-1, stable=True)
    return _move(tokens, order), mask.gather(-1, order), order.argsort(dim=-1)


def _product(query: Tensor, key: Tensor, sharpness: Float[Tensor, "B"]) -> Float[Tensor, "B n n"]:
    # scores beyond this mean nothing to an angle or a direction, and their squares would overflow;
    # it is clamp, with a quicker backward
    limit = torch.finfo(query.dtype).max ** 0.4
    query = hardtanh(query * sharpness[:, None, None], -limit, limit)
    return hardtanh(query @ hardtanh(key, -limit, limit).mT, -limit, limit)


def _move(rows: Float[Tensor, "B n d"], order: Int[Tensor, "B n"]) -> Float[Tensor, "B n d"]:
    return rows.gather(1, order[..., None].expand_as(rows))
