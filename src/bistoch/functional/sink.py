"""Softmax with a sink: a logit of its own takes a share of every row, so that no key has to."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional._nonfinite import clean_scores, show
from bistoch.functional.elastic.api import solve
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import ScoreOptions, flatten, per_problem, pose_scores
from bistoch.functional.precision import full_precision
from bistoch.functional.problem import (
    Solution,
    dense_scores,
    free_columns,
    no_values,
    row_softmax,
)


@full_precision
def sink_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    logit: Option = 0.0,
    eps: Option = 1.0,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n e"]:
    """Attend with the softmax beside a sink that takes its share of every row and gives nothing.

    Arguments are those of `sink_plan`.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 8, 5, 4).unbind()
    >>> bistoch.sink_attention(q, k, v, logit=torch.zeros(8)).shape
    torch.Size([8, 5, 4])
    """
    operator = "sink_attention"
    batch = inputs.check_tokens(operator, query, key, value)
    inputs.check_logit(operator, "logit", logit, batch, query.device)
    options = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    # the sink is none of the keys: what is added to all of their scores counts
    scores = pose_scores(operator, batch, query, key, options, bias="levels")
    found = solve(operator, free_columns(scores), flatten(value, batch), backend)
    output = found.output * _left(found, logit, batch)
    return output.reshape(*batch, *output.shape[1:]).to(query.dtype)


@full_precision
def sink_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    logit: Option = 0.0,
    eps: Option = 1.0,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n m"]:
    """Softmax beside a sink, a key of score `logit` that has no value: rows sum to less than one.

        P_ij = exp(S_ij) / (exp(logit) + sum_k exp(S_ik)),   S = q k^T * scale / eps + bias

    Args:
        query, key, mask, query_mask, key_mask, scale, eps: as for `elastic_attention`.
        logit: score of the sink; 0 is "softmax plus one", and the lower, the closer to softmax. A
            number, or a tensor that broadcasts to the leading axes (one per head); differentiable.
        backend: as for `elastic_attention`; the result of `sink_attention` comes from its solvers,
            in memory linear in n + m unless it is "reference".

    >>> import torch, bistoch
    >>> bistoch.sink_plan(torch.zeros(1, 2), torch.ones(3, 2))
    tensor([[0.2500, 0.2500, 0.2500]])

    Reference: Agarwal et al., gpt-oss model card, 2025.
    """
    operator = "sink_plan"
    batch = inputs.check_tokens(operator, query, key)
    inputs.check_logit(operator, "logit", logit, batch, query.device)
    options = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    scores = pose_scores(operator, batch, query, key, options, bias="levels")
    found = solve(operator, free_columns(scores), no_values(scores), backend)
    scores, _, broken = clean_scores(scores, None, "row")
    plan = show(row_softmax(dense_scores(scores)) * _left(found, logit, batch), broken)
    return plan.reshape(*batch, *plan.shape[1:]).to(query.dtype)


def _left(found: Solution, logit: Option, batch: torch.Size) -> Float[Tensor, "B n 1"]:
    """What the sink leaves of every row that softmax shares out; all of one that sees no key."""
    total = -found.row.masked_fill(found.row == -torch.inf, 0)
    return (total - per_problem(logit, batch, total)[:, None]).sigmoid()[..., None]
