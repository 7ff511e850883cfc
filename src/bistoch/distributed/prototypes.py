"""Codes of samples over prototypes where every rank has some of the samples."""

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from bistoch.distributed.scores import share_scores
from bistoch.functional.inputs import Option
from bistoch.functional.pose import BalanceOptions, ScoreOptions
from bistoch.functional.precision import full_precision
from bistoch.functional.prototypes import find_codes


@full_precision
def prototype_codes(
    scores: Float[Tensor, "*b n m"],
    *,
    eps: Option = 0.05,
    lam: Option = 1.0,
    iters: int = 3,
    query_mask: Bool[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
    backend: str = "auto",
    group: Any = None,
    mesh: DeviceMesh | None = None,
) -> Float[Tensor, "*b n m"]:
    """`bistoch.prototype_codes` of the samples of all ranks; the codes of those of this one.

    With `lam = 1` these are the codes that SwAV and DINOv2 compute over processes, for every number
    of iterations and without overflow: an iteration exchanges the largest and the sum of one number
    per prototype. Ranks may have different numbers of samples, also none.

    Args:
        scores: the samples of this rank, and all prototypes.
        query_mask: of the samples of this rank.
        column_mass: shares of all prototypes, the same on all ranks.
        group, mesh: the ranks, a process group or a device mesh with one axis; by default all.

    Others are those of `bistoch.prototype_codes`, the same on all ranks. Gradients are those of the
    sum of the losses of all ranks. Reference: docs/distributed_training.md.
    """
    operator = "prototype_codes"
    pairs = ScoreOptions(eps, None, None, query_mask, None)
    options = BalanceOptions(lam, None, iters, None, column_mass)
    backend, pairs, options = share_scores(operator, scores, pairs, options, backend, group, mesh)
    return find_codes(operator, scores, pairs, options, backend)
