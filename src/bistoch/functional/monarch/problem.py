"""What is solved: tokens with a bias per key, how columns are balanced, and a layout."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional._nonfinite import clean_scores
from bistoch.functional.monarch.layout import Cut, Layout, default_block, lay_out
from bistoch.functional.pose import BalanceOptions, ScoreOptions, flatten, pose, pose_scores
from bistoch.functional.problem import Balance, Scores


class Form(NamedTuple):
    """Everything a user may say about the Monarch form, not yet checked."""

    updates: int
    block: int | tuple[int, ...] | None = None
    pad: str = "post"
    grid: tuple[int, ...] | None = None
    tiles: tuple[int, int] = (1, 1)
    backend: str = "auto"


class Monarch(NamedTuple):
    """A checked problem with one leading axis."""

    query: Float[Tensor, "B n d"]
    key: Float[Tensor, "B m d"]
    sharpness: Float[Tensor, "B"]
    # what is added to all scores of a key: minus infinity if it is not real. None is nothing
    bias: Float[Tensor, "B m"] | None
    # which queries are real; None is all
    real: Bool[Tensor, "B n"] | None
    # None if columns are free
    balance: Balance | None
    layout: Layout
    updates: int


class Posed(NamedTuple):
    """A problem, the values, and the rows that are to be NaN."""

    problem: Monarch
    value: Tensor | None
    broken: Tensor | None


def pose_monarch(
    operator: str, batch: torch.Size, query: Tensor, key: Tensor, value: Tensor | None,
    pairs: ScoreOptions, balance: BalanceOptions | None, form: Form,
) -> Posed:  # fmt: skip
    """Check everything, and put it in the form that backends take."""
    n, m = query.shape[-2], key.shape[-2]
    cut = check_form(operator, n, m, form)
    if pairs.mask is not None:
        reason = "a Monarch matrix can hide a key from all queries, but not from some"
        inputs.check_shared_mask(operator, pairs.mask, reason)
    steps: Balance | None = None
    if balance is not None:
        scores, steps = pose(operator, batch, query, key, pairs, balance)
    else:
        scores = pose_scores(operator, batch, query, key, pairs)
    if balance is None or not balance.moves_columns():
        # what a group shares also holds what padded queries ask
        inputs.warn_half_padding(operator, n, m, pairs.mask, pairs.query_mask, pairs.key_mask)
        steps = None
    flat, broken = None if value is None else flatten(value, batch), None
    if n and m:
        options = () if steps is None else steps.tensors()
        scores, flat, broken = clean_scores(scores, flat, "problem", options=options)
    layout = lay_out(max(n, 1), max(m, 1), cut, query.device)
    problem = Monarch(
        scores.query, scores.key, scores.sharpness, bias_of(scores), scores.query_mask, steps,
        layout, form.updates,
    )  # fmt: skip
    return Posed(problem, flat, broken)


def check_form(operator: str, n: int, m: int, form: Form) -> Cut:
    """How tokens are cut; blocks are not larger than the sequence, or than the grid."""
    grid, block = form.grid, form.block
    inputs.check_choice(operator, "pad", form.pad, ("post", "pre"))
    inputs.check_tiles(operator, form.tiles)
    if grid is not None:
        inputs.check_grid(operator, grid, n, m)
    inputs.check_block(operator, block, grid)
    if grid is None:
        sizes = (block,) if isinstance(block, int) else default_block(n, m, None)
        # all tokens in one block are not filled up
        sizes = (min(sizes[0], max(n, m, 1)),)
    else:
        grid = tuple(grid)
        sizes = block if isinstance(block, tuple | list) else default_block(n, m, grid)
        sizes = tuple(min(size, axis) for size, axis in zip(sizes, grid, strict=True))
        inputs.check_others(operator, n - math.prod(grid), math.prod(sizes))
    return Cut(sizes, form.pad, grid, (form.tiles[0], form.tiles[1]))


def bias_of(scores: Scores) -> Float[Tensor, "B m"] | None:
    """What is added to all scores of a key."""
    bias = None
    if scores.mask is not None:
        shared = scores.mask[scores.mask_index, 0].expand(scores.shape[0], scores.shape[2])
        bias = shared
        if shared.dtype == torch.bool:
            bias = _forbidden(shared, scores.like)
    if scores.key_mask is not None:
        if bias is None:
            return _forbidden(scores.key_mask, scores.like)
        bias = bias.masked_fill(~scores.key_mask, -torch.inf)
    return bias


def _forbidden(allowed: Bool[Tensor, "B m"], like: Tensor) -> Float[Tensor, "B m"]:
    return like.new_zeros(allowed.shape).masked_fill(~allowed, -torch.inf)
