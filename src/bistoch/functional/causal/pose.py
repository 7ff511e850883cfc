"""From the arguments of a call to a stream, with real tokens in front, and back."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional._nonfinite import Pairs, clean
from bistoch.functional.causal.problem import Stream
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import ScoreOptions, flatten, per_problem, pose_scores


class Rule(NamedTuple):
    """The options of a call, as the user gave them, not yet checked."""

    lam: Option
    eps: Option
    block: int
    prior: float
    scale: float | None


def pose_stream(
    operator: str,
    batch: torch.Size,
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    rule: Rule,
    mask: Mask | None,
    query_mask: Bool[Tensor, "..."] | None,
    key_mask: Bool[Tensor, "..."] | None,
) -> Stream:
    """Check every option and flatten the leading axes; the queries are the last of the tokens."""
    inputs.check_count(operator, "block", rule.block, least=1)
    inputs.check_prior(operator, rule.prior)
    if key_mask is not None and query_mask is None and query.shape[-2] == key.shape[-2]:
        # query t and key t are one token
        shape = (*batch, key.shape[-2])
        inputs.check_padding(operator, "key_mask", key_mask, shape, query.device)
        query_mask = key_mask
    inputs.check_lam(operator, rule.lam, batch, query.device)
    options = ScoreOptions(rule.eps, rule.scale, mask, query_mask, key_mask)
    scores = pose_scores(operator, batch, query, key, options, bias="numbers")
    if isinstance(rule.lam, Tensor) or rule.lam > 0:
        n, m = query.shape[-2], key.shape[-2]
        inputs.warn_half_padding(operator, n, m, mask, query_mask, key_mask)
    return Stream(
        query=scores.query,
        key=scores.key,
        value=flatten(value, batch),
        mask=scores.mask,
        mask_index=scores.mask_index,
        real=_real(scores.query_mask, scores.key_mask, key.shape[-2]),
        sharpness=scores.sharpness,
        lam=per_problem(rule.lam, batch, scores.sharpness),
        block=rule.block,
        prior=rule.prior,
    )


def clean_stream(
    stream: Stream, level: Float[Tensor, "B"] | None = None
) -> tuple[Stream, Bool[Tensor, "B n"] | None]:
    """A stream in which all is finite, and the rows that are to be NaN.

    These are the first row that sees what is not finite, and all rows after it; all rows, if such a
    row came before, which the level of an account tells.
    """
    real = stream.real
    new = None if real is None else real[:, real.shape[1] - stream.query.shape[1] :]
    query, key, value, mask, broken = clean(
        stream.query, stream.key, stream.value, Pairs(stream.mask, stream.mask_index, new, real),
        stream.sharpness, "later", options=(stream.sharpness, stream.lam),
        others=() if level is None else (level,),
    )  # fmt: skip
    return stream._replace(query=query, key=key, value=value, mask=mask), broken


def sort_real(stream: Stream) -> tuple[Stream, Int[Tensor, "B n"] | None]:
    """Move real tokens to the front, in their order: then every sequence begins with a block."""
    if stream.real is None:
        return stream, None
    order = (~stream.real).int().argsort(dim=-1, stable=True)
    mask, index = stream.mask, stream.mask_index
    if mask is not None and index is not None:
        size, n = order.shape
        mask = _rearranged(_rearranged(mask[index].expand(size, n, n), order).mT, order).mT
        index = torch.arange(size, device=order.device)
    tokens: dict[str, Any] = {
        name: _rearranged(getattr(stream, name), order) for name in ("query", "key", "value")
    }
    real = stream.real.gather(1, order)
    return stream._replace(mask=mask, mask_index=index, real=real, **tokens), order


def unsort(rows: Float[Tensor, "B n e"], order: Int[Tensor, "B n"] | None) -> Tensor:
    """Move rows back to where they came from."""
    return rows if order is None else _rearranged(rows, order.argsort(-1))


def _rearranged(rows: Shaped[Tensor, "B n e"], order: Int[Tensor, "B n"]) -> Tensor:
    # not take_along_dim, which fixes the length of a program that is exported
    return rows.gather(1, order[..., None].expand_as(rows))


def _real(
    query_mask: Bool[Tensor, "B n"] | None, key_mask: Bool[Tensor, "B m"] | None, m: int
) -> Bool[Tensor, "B m"] | None:
    """Query t and its key are one token: what hides either hides both."""
    if query_mask is None:
        return key_mask
    earlier = m - query_mask.shape[1]
    if earlier:
        ones = query_mask.new_ones(query_mask.shape[0], earlier)
        query_mask = torch.cat([ones, query_mask], 1)
    return query_mask if key_mask is None else query_mask & key_mask
