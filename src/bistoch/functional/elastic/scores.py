"""From scores that exist already to a checked `Problem`."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional._masks import read_bias
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.inputs.tensors import as_number
from bistoch.functional.pose import (
    BalanceOptions,
    ScoreOptions,
    check_balance,
    pose_balance,
    pose_padding,
    working_dtype,
)
from bistoch.functional.problem import GivenScores, Problem


def pose_given(
    operator: str,
    scores: Float[Tensor, "*b n m"],
    pairs: ScoreOptions,
    options: BalanceOptions,
) -> Problem[GivenScores]:
    """Check scores and every option, for a function that calls itself `operator`."""
    inputs.check_floating(operator, "scores", scores, axes="(*b, n, m)", rank=2)
    (*_, n, m), batch, mask = scores.shape, scores.shape[:-2], pairs.mask
    inputs.check_eps(operator, pairs.eps, batch, scores.device)
    if mask is not None:
        inputs.check_mask(operator, mask, scores.shape, scores.device)
    work = with_mask(over_eps(scores, pairs.eps), mask)
    row_mass, counts = check_balance(operator, batch, n, m, work, options)
    padding = pose_padding(operator, scores.shape, scores.device, pairs, counts)
    given = GivenScores(work.reshape(math.prod(batch), n, m), *padding)
    if options.moves_columns() and options.shards is None:
        inputs.warn_half_padding(operator, n, m, mask, pairs.query_mask, pairs.key_mask)
    return Problem(given, pose_balance(operator, batch, given, options, row_mass))


def over_eps(scores: Float[Tensor, "*b n m"], eps: Option) -> Float[Tensor, "*b n m"]:
    """Scores in units of the temperature, in working precision."""
    work = scores.to(working_dtype(scores.dtype))
    if isinstance(eps, Tensor):
        return work / eps.to(work.dtype)[..., None, None]
    return work if eps == 1 else work / as_number(eps)


def with_mask(
    scores: Float[Tensor, "*b n m"], mask: Mask | None, *, keep_level: bool = False
) -> Float[Tensor, "*b n m"]:
    """Scores with their bias added, minus infinity where a pair is forbidden.

    What is common to the very low biases of a row is left out, unless its level is to be kept.
    """
    if mask is None:
        return scores
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, -torch.inf)
    lowest, highest = _extremes(scores)
    read = read_bias(mask, scores.dtype, (highest - lowest).clamp_min(0))
    # what is forbidden breaks nothing: a NaN plus minus infinity would stay a NaN
    allowed = scores.masked_fill(read.bias == -torch.inf, 0)
    if keep_level:
        return allowed + read.bias + read.level
    # beside their bias the scores of such a row do not differ, but their level is more than zero
    return torch.where(read.lost & scores.isfinite(), highest, allowed) + read.bias


def _extremes(
    scores: Float[Tensor, "*b n m"],
) -> tuple[Float[Tensor, "*b n 1"], Float[Tensor, "*b n 1"]]:
    """The lowest and the highest of the finite scores of a row."""
    if scores.shape[-1] == 0:
        return (scores.sum(-1, keepdim=True),) * 2
    is_number, scores = scores.isfinite(), scores.detach()
    lowest = scores.masked_fill(~is_number, torch.inf).amin(-1, keepdim=True)
    return lowest, scores.masked_fill(~is_number, -torch.inf).amax(-1, keepdim=True)
