"""Softmax with a sink: a logit of its own takes a share of every row, so that no key has to."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import _rowmaps, inputs
from bistoch.functional.elastic.api import BACKENDS, solve
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import Options, flatten, per_problem, pose
from bistoch.functional.problem import full_precision
from bistoch.functional.rowwise import weigh_rows


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
    options = Options(0.0, eps, 1.0, 0, None, mask, query_mask, key_mask, None, scale)
    # the sink is none of the keys: what is added to all of their scores counts
    problem = pose(operator, batch, query, key, options, bias="levels")
    found = solve(operator, problem, flatten(value, batch), backend)
    with full_precision(query.device):
        # what softmax shares out, times what the sink leaves of it; a row that sees no key has none
        total = -found.row.masked_fill(found.row == -torch.inf, 0)
        left = (total - per_problem(logit, batch, total)[:, None]).sigmoid()
        output = found.output * left[..., None]
    return output.reshape(*batch, *output.shape[1:]).to(query.dtype)


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
    inputs.check_choice(operator, "backend", backend, ("auto", *BACKENDS))
    batch = inputs.check_tokens(operator, query, key)
    inputs.check_logit(operator, "logit", logit, batch, query.device)

    def weigh(scores: Tensor) -> Tensor:
        return _rowmaps.sink_softmax(scores, per_problem(logit, batch, scores))

    return weigh_rows(
        operator, weigh, query, key, eps, mask, query_mask, key_mask, scale, bias="levels"
    )
