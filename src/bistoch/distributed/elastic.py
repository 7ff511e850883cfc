"""The elastic family over ranks: rows sharded, one sum per key and iteration between them."""

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from bistoch.distributed.agree import (
    agree,
    check_backend,
    check_pairs,
    mask_numbers,
    share_mask,
    tokens_fact,
)
from bistoch.distributed.collectives import RankGroup, rank_group
from bistoch.distributed.ring_api import solve_ring
from bistoch.functional import inputs
from bistoch.functional.elastic.api import Potentials, as_potentials, attend, find_potentials
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import BalanceOptions, ScoreOptions, pose
from bistoch.functional.precision import full_precision

# how ranks get at the keys of the others
Keys = Literal["gather", "ring"]


@full_precision
def elastic_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    lam: Option = 1.0,
    eps: Option = 1.0,
    omega: Option | None = None,
    iters: int = 10,
    tol: float | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
    group: Any = None,
    mesh: DeviceMesh | None = None,
    keys: Keys = "gather",
) -> Float[Tensor, "*b n e"]:
    """`bistoch.elastic_attention` of a sequence that is sharded over ranks; the rows of this one.

        h_j = log b_j - log sum_r exp(LSE_i in rank r (S_ij + f_i))       the one sum over ranks

    Every rank passes its own tokens. What belongs to keys (`key`, `value`, `key_mask`,
    `column_mass`) is sharded like them, what belongs to queries like these; a `mask` has the rows
    of this rank and the columns of all. Shards may be uneven or empty. The result is that of one
    process with everything, to rounding, and so is every gradient of the sum of the losses of all
    ranks; those of `lam`, `eps` and `omega` are whole on every rank. Other arguments are those of
    `bistoch.elastic_attention`.

    Args:
        backend: "auto" (streaming), "reference" or "streaming".
        group, mesh: the ranks, a process group or a device mesh with one axis; by default all.
        keys: "gather" (keys and values of all ranks on every rank, once) or "ring" (they are passed
            round in every pass: memory per rank is linear in the size of a shard).

    Reference: docs/distributed.md.
    """
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    options = BalanceOptions(lam, omega, iters, tol, column_mass)
    return _attend(
        "elastic_attention", query, key, value, pairs, options, backend, group, mesh, keys
    )


@full_precision
def sinkhorn_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    eps: Option = 1.0,
    omega: Option | None = None,
    iters: int = 10,
    tol: float | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
    group: Any = None,
    mesh: DeviceMesh | None = None,
    keys: Keys = "gather",
) -> Float[Tensor, "*b n e"]:
    """`bistoch.sinkhorn_attention` over ranks: `elastic_attention` of this module at `lam = 1`."""
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    options = BalanceOptions(1.0, omega, iters, tol, column_mass)
    return _attend(
        "sinkhorn_attention", query, key, value, pairs, options, backend, group, mesh, keys
    )


@full_precision
def elastic_potentials(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
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
    scale: float | None = None,
    backend: str = "auto",
    group: Any = None,
    mesh: DeviceMesh | None = None,
    keys: Keys = "gather",
) -> Potentials:
    """`bistoch.elastic_potentials` over ranks: those of the queries and keys of this rank.

    Arguments are those of `elastic_attention`; `row_mass` is sharded like queries and `start` like
    keys. The error, and what follows from it, is that of the whole plan on every rank.
    """
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    options = BalanceOptions(lam, omega, iters, tol, column_mass, row_mass, start)
    ranks = rank_group("elastic_potentials", group, mesh)
    backend, table = _agree(ranks, query, key, None, pairs, options, backend, keys)
    if keys == "ring":
        pairs, options = _replicate(ranks, table, pairs, options)
        solved = solve_ring(ranks, [row[1] for row in table], query, key, None, pairs, options)
        return as_potentials(solved, tol, inputs.check_tokens(ranks.operator, query, key), mask)
    whole = _gather(ranks, table, key, None, pairs, options)
    batch = inputs.check_tokens(ranks.operator, query, whole.key)
    problem = pose(ranks.operator, batch, query, whole.key, whole.pairs, whole.options)
    found = find_potentials(ranks.operator, problem, batch, whole.pairs.mask, backend)
    own = found.column.split([row[1] for row in table], -1)[ranks.rank]
    return found._replace(column=own)


def _attend(
    operator: str, query: Tensor, key: Tensor, value: Tensor, pairs: ScoreOptions,
    options: BalanceOptions, backend: str, group: Any, mesh: DeviceMesh | None, keys: Keys,
) -> Tensor:  # fmt: skip
    ranks = rank_group(operator, group, mesh)
    backend, table = _agree(ranks, query, key, value, pairs, options, backend, keys)
    if keys == "ring":
        pairs, options = _replicate(ranks, table, pairs, options)
        found = solve_ring(ranks, [row[1] for row in table], query, key, value, pairs, options)
        batch = inputs.check_tokens(operator, query, key, value)
        return found.output.reshape(*batch, *found.output.shape[1:]).to(query.dtype)
    whole = _gather(ranks, table, key, value, pairs, options)
    return attend(operator, query, whole.key, whole.value, whole.pairs, whole.options, backend)


def _agree(
    ranks: RankGroup, query: Tensor, key: Tensor, value: Tensor | None, pairs: ScoreOptions,
    options: BalanceOptions, backend: str, keys: Keys,
) -> tuple[str, list[list[int]]]:  # fmt: skip
    """The backend, and for each rank its rows, its keys, and the last two axes of its mask."""
    operator = ranks.operator

    def check() -> dict[str, Any]:
        tokens = (query, key) if value is None else (query, key, value)
        batch = inputs.check_tokens(operator, *tokens)
        inputs.check_choice(operator, "keys", keys, ("gather", "ring"))
        names = ("query", "key", "value")
        facts = {name: tokens_fact(x) for name, x in zip(names, tokens, strict=False)}
        facts["backend"], facts["keys"] = check_backend(operator, backend), keys
        if keys == "ring" and backend == "reference":
            raise ValueError(
                f'{operator}: expected keys="gather" with backend="reference", which keeps whole '
                'rows of scores; with keys="ring" choose backend="auto"'
            )
        n, m = query.shape[-2], key.shape[-2]
        return facts | check_pairs(operator, batch, query, n, m, pairs, options)

    def numbers() -> tuple[int, ...]:
        return query.shape[-2], key.shape[-2], *mask_numbers(pairs.mask)

    device = query.device if isinstance(query, Tensor) else torch.device("cpu")
    table = agree(ranks, check, numbers, device)
    if options.moves_columns():
        queries, total = (sum(row[axis] for row in table) for axis in (0, 1))
        inputs.warn_half_padding(
            operator, queries, total, pairs.mask, pairs.query_mask, pairs.key_mask
        )
    return check_backend(operator, backend), table


class _Whole(NamedTuple):
    """What belongs to keys, of all ranks."""

    key: Tensor
    value: Tensor
    pairs: ScoreOptions
    options: BalanceOptions


def _gather(
    ranks: RankGroup, table: list[list[int]], key: Tensor, value: Tensor | None,
    pairs: ScoreOptions, options: BalanceOptions,
) -> _Whole:  # fmt: skip
    """All that belongs to keys, and options whose gradients are whole."""
    sizes, own = [row[1] for row in table], key.shape[-2]

    def gather(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        return ranks.gather(x.expand(*x.shape[:-1], own), -1, sizes)

    pairs, options = _replicate(ranks, table, pairs, options)
    pairs = pairs._replace(key_mask=gather(pairs.key_mask))
    options = options._replace(
        column_mass=gather(options.column_mass), start=gather(options.start), shards=ranks
    )
    key = ranks.gather(key, -2, sizes)
    value = key[..., :0] if value is None else ranks.gather(value, -2, sizes)
    return _Whole(key, value, pairs, options)


def _replicate(
    ranks: RankGroup, table: list[list[int]], pairs: ScoreOptions, options: BalanceOptions
) -> tuple[ScoreOptions, BalanceOptions]:
    """Options that all ranks have, with whole gradients."""
    mask = share_mask(ranks, pairs.mask, table, sum(row[1] for row in table))
    lam, omega = replicated(ranks, options.lam), replicated(ranks, options.omega)
    pairs = pairs._replace(eps=replicated(ranks, pairs.eps), mask=mask)
    return pairs, options._replace(lam=lam, omega=omega)


def replicated(ranks: RankGroup, option: Any) -> Any:
    """An option that all ranks have alike; a tensor gets its whole gradient."""
    if isinstance(option, Tensor) and option.requires_grad:
        return ranks.replicated(option)
    return option
