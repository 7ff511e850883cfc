"""Plans of score matrices whose rows are sharded over ranks; all ranks have all columns."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from bistoch.distributed.agree import agree, check_backend, check_pairs, mask_numbers, share_mask
from bistoch.distributed.collectives import rank_group
from bistoch.distributed.elastic import replicated
from bistoch.functional import inputs
from bistoch.functional.elastic.api import Potentials, balance_scores, find_potentials
from bistoch.functional.elastic.scores import pose_given
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import BalanceOptions, ScoreOptions
from bistoch.functional.precision import full_precision


@full_precision
def balance(
    scores: Float[Tensor, "*b n m"],
    *,
    lam: Option = 1.0,
    eps: Option = 1.0,
    omega: Option | None = None,
    iters: int = 10,
    tol: float | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    row_mass: Float[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
    start: Float[Tensor, "..."] | None = None,
    backend: str = "auto",
    group: Any = None,
    mesh: DeviceMesh | None = None,
) -> Float[Tensor, "*b n m"]:
    """`bistoch.balance` of scores whose rows are sharded over ranks; the rows of this one.

    Every rank passes its rows of the scores, of the mask, of `query_mask` and `row_mass`, and all
    of what belongs to columns: `key_mask`, `column_mass` and `start` are the same on all ranks, as
    are `lam`, `eps` and `omega`, and have whole gradients on all of them. Other arguments are those
    of `bistoch.balance`, `group` and `mesh` those of `bistoch.distributed.elastic_attention`.
    """
    pairs = ScoreOptions(eps, None, mask, query_mask, key_mask)
    options = BalanceOptions(lam, omega, iters, tol, column_mass, row_mass, start)
    backend, pairs, options = share_scores("balance", scores, pairs, options, backend, group, mesh)
    return balance_scores("balance", scores, pairs, options, backend)


@full_precision
def balance_potentials(
    scores: Float[Tensor, "*b n m"],
    *,
    lam: Option = 1.0,
    eps: Option = 1.0,
    omega: Option | None = None,
    iters: int = 10,
    tol: float | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    row_mass: Float[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
    start: Float[Tensor, "..."] | None = None,
    backend: str = "auto",
    group: Any = None,
    mesh: DeviceMesh | None = None,
) -> Potentials:
    """`bistoch.balance_potentials` over ranks: those of the rows of this one, and of all columns.

    Arguments are those of `balance`.
    """
    operator = "balance_potentials"
    pairs = ScoreOptions(eps, None, mask, query_mask, key_mask)
    options = BalanceOptions(lam, omega, iters, tol, column_mass, row_mass, start)
    backend, pairs, options = share_scores(operator, scores, pairs, options, backend, group, mesh)
    problem = pose_given(operator, scores, pairs, options)
    return find_potentials(operator, problem, scores.shape[:-2], pairs.mask, backend)


def share_scores(
    operator: str, scores: Tensor, pairs: ScoreOptions, options: BalanceOptions, backend: str,
    group: Any, mesh: DeviceMesh | None,
) -> tuple[str, ScoreOptions, BalanceOptions]:  # fmt: skip
    """Agree on the arguments of a call, and make them those of ranks that share the rows."""
    ranks = rank_group(operator, group, mesh)

    def check() -> dict[str, Any]:
        inputs.check_floating(operator, "scores", scores, axes="(*b, n, m)", rank=2)
        (*_, n, m), batch = scores.shape, scores.shape[:-2]
        grad = ", requires grad" if scores.requires_grad else ""
        facts = {"number of columns": m, "scores": f"{scores.dtype}{grad}"}
        facts["backend"] = check_backend(operator, backend)
        return facts | check_pairs(operator, batch, scores, n, m, pairs, options)

    def numbers() -> tuple[int, ...]:
        return scores.shape[-2], scores.shape[-1], *mask_numbers(pairs.mask)

    device = scores.device if isinstance(scores, Tensor) else torch.device("cpu")
    table = agree(ranks, check, numbers, device)
    m = scores.shape[-1]
    if options.moves_columns():
        queries = sum(row[0] for row in table)
        inputs.warn_half_padding(operator, queries, m, pairs.mask, pairs.query_mask, pairs.key_mask)
    mask = share_mask(ranks, pairs.mask, table, m)
    pairs = pairs._replace(eps=replicated(ranks, pairs.eps), mask=mask)
    shared = {
        name: replicated(ranks, getattr(options, name))
        for name in ("lam", "omega", "column_mass", "start")
    }
    return check_backend(operator, backend), pairs, options._replace(**shared, shards=ranks)
