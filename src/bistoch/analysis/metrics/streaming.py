"""Metrics of plans too long to be written down: from the potentials, tile by tile.

Memory is linear in n + m; sixteen thousand tokens need a few megabytes instead of a gigabyte.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional.elastic.tiles import parts
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.inputs.tensors import check_broadcast, check_device
from bistoch.functional.pose import ScoreOptions, pose_scores
from bistoch.functional.precision import full_precision
from bistoch.functional.problem import row_softmax


class StreamedPlan(NamedTuple):
    """What can be said of a plan without keeping it.

    `entropy` is that of `row_entropy`, `sums` those of `column_sums`; hand the sums to `load_of`
    and the functions of a load, or divide them by n for the sink score. `diagonal` is the attention
    that token i pays to itself, and empty unless there are as many queries as keys.
    """

    entropy: Float[Tensor, "*b n"]
    sums: Float[Tensor, "*b m"]
    diagonal: Float[Tensor, "*b r"]


@full_precision
@torch.no_grad()
def stream_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    column: Float[Tensor, "..."] | None = None,
    eps: Option = 1.0,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> StreamedPlan:
    """Row entropies, column sums and diagonal of a plan that is never written down.

        P = softmax_row(q k^T * scale / eps + bias + column)

    Args:
        query, key, eps, mask, query_mask, key_mask, scale: as for `bistoch.elastic_attention`.
        column: the column potential that `bistoch.elastic_potentials` found for them, `(*b, m)`;
            without one the plan is that of softmax.

    >>> import bistoch
    >>> q, k = torch.randn(2, 8, 5, 4).unbind()
    >>> found = stream_plan(q, k, column=bistoch.elastic_potentials(q, k, iters=100).column)
    >>> bool(torch.allclose(found.sums, torch.ones(8, 5), atol=1e-3))
    True
    """
    batch = inputs.check_tokens("stream_plan", query, key)
    options = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    posed = pose_scores("stream_plan", batch, query, key, options)
    (size, n, _), m = posed.query.shape, posed.key.shape[1]
    if column is None:
        column = posed.query.new_zeros(size, m)
    else:
        inputs.check_floating("stream_plan", "column", column, axes="(*b, m)", rank=1)
        check_broadcast("stream_plan", "column", column, (*batch, m), "(*b, m) =")
        check_device("stream_plan", "column", column, query.device)
        # minus infinity marks a key that no query may see, which the scores say too
        column = column.to(posed.query).expand(*batch, m).reshape(size, m)
    entropy, sums = posed.query.new_zeros(size, n), posed.query.new_zeros(size, m)
    diagonal = posed.query.new_zeros(size, n if n == m else 0)
    for part in parts(posed):
        some = part.batch
        for rows, scores in part.tiles():
            plan = row_softmax(scores + column[some, None, :])
            entropy[some, rows] = 0 - (plan * torch.where(plan > 0, plan, 1).log()).sum(-1)
            sums[some] += plan.sum(-2)
            if n == m:
                diagonal[some, rows] = plan.diagonal(rows.start, dim1=-2, dim2=-1)
    return StreamedPlan(
        entropy.reshape(*batch, n), sums.reshape(*batch, m), diagonal.reshape(*batch, -1)
        if n == m and n else diagonal.reshape(*batch, 0),
    )  # fmt: skip
