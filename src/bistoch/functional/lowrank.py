"""Attention through a few pivots: two thin balanced plans, glued into one of rank r."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional._nonfinite import Pairs, clean_values, show
from bistoch.functional.elastic import BACKENDS, elastic_plan, elastic_potentials
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import working_dtype
from bistoch.functional.precision import full_precision
from bistoch.functional.softmax import softmax_plan

# how many of the fixed pivots are used by default
RANK = 16

# a pivot that receives less than this receives nothing: its log must stay finite in float32
LEAST = 1e-30


class _Options(NamedTuple):
    """Everything a user may say beside the tokens, not yet checked."""

    pivots: Tensor | None
    rank: int | None
    pivot_mass: Tensor | None
    lam: Option
    eps: Option
    iters: int
    mask: Mask | None
    query_mask: Tensor | None
    key_mask: Tensor | None
    scale: float | None
    backend: str


@full_precision
def lowrank_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    pivots: Float[Tensor, "..."] | None = None,
    rank: int | None = None,
    pivot_mass: Float[Tensor, "..."] | None = None,
    lam: Option = 1.0,
    eps: Option = 1.0,
    iters: int = 10,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n e"]:
    """Attend through r pivots, in time and memory O((n + m) r): queries to pivots, pivots to keys.

        P = A diag(1/c) B^T,   A and B plans of the queries and of the keys to the pivots
        columns of B are pulled towards those of A,   c = B^T 1 is what they came to

    Arguments are those of `lowrank_plan`. Nothing of size n x m is made, forward or backward.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 8, 50, 4).unbind()
    >>> bistoch.lowrank_attention(q, k, v, rank=5).shape
    torch.Size([8, 50, 4])

    Reference: Shahbazi et al., LOTFormer: doubly-stochastic linear attention via low-rank optimal
    transport, 2025.
    """
    operator = "lowrank_attention"
    batch = inputs.check_tokens(operator, query, key, value)
    options = _Options(
        pivots, rank, pivot_mass, lam, eps, iters, mask, query_mask, key_mask, scale, backend
    )
    sides = _solve(operator, batch, query, key, options)
    pairs = Pairs(query_mask=query_mask, key_mask=key_mask)
    found = clean_values(value.to(sides.to_keys.dtype), query.shape[-2], pairs)
    output = show(sides.to_pivots @ (sides.to_keys @ found.value), found.broken)
    return _without_padding(output, key.shape[-2], query_mask, key_mask).to(query.dtype)


@full_precision
def lowrank_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    pivots: Float[Tensor, "..."] | None = None,
    rank: int | None = None,
    pivot_mass: Float[Tensor, "..."] | None = None,
    lam: Option = 1.0,
    eps: Option = 1.0,
    iters: int = 10,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n m"]:
    """The plan of `lowrank_attention` as a matrix of rank r at most: rows sum to one.

        P = A diag(1/c) B^T,   c = B^T 1

    Rows are exact after any number of iterations; columns tend to n/m with `lam = 1`.

    Args:
        query, key, query_mask, key_mask, scale, backend: as for `elastic_attention`.
        pivots: (*b, r, d), the points through which all attention passes; learned ones live in
            `bistoch.nn.LowRank`. By default those of `fixed_pivots`.
        rank: how many pivots, 16 by default. With `pivots` it may be left out.
        pivot_mass: (*b, r), what share of the queries each pivot should receive; only ratios
            matter. By default all the same.
        lam: elasticity of the key side in [0, 1]: at 1 the columns of P tend to n/m, at 0 every
            key chooses its pivots freely.
        eps: temperature of both sides; small is sharp.
        iters: iterations of either side.
        mask: must be None, since pairs meet only through pivots.

    >>> import torch, bistoch
    >>> q, k = torch.randn(2, 50, 4).unbind()
    >>> plan = bistoch.lowrank_plan(q, k, rank=3, iters=100)
    >>> torch.linalg.matrix_rank(plan, rtol=1e-5).item()
    3
    >>> [bool(torch.allclose(plan.sum(axis), torch.ones(50), atol=1e-4)) for axis in (-1, -2)]
    [True, True]
    """
    operator = "lowrank_plan"
    batch = inputs.check_tokens(operator, query, key)
    options = _Options(
        pivots, rank, pivot_mass, lam, eps, iters, mask, query_mask, key_mask, scale, backend
    )
    sides = _solve(operator, batch, query, key, options)
    plan = sides.to_pivots @ sides.to_keys
    return _without_padding(plan, key.shape[-2], query_mask, key_mask).to(query.dtype)


def fixed_pivots(
    rank: int, features: int, device: torch.device | None = None
) -> Float[Tensor, "rank features"]:
    """Pivots that depend on nothing but their number and size, spread like random directions.

        z_kl = sqrt(2) cos((2k + 1) (l + 1)^2),   k, l = 0, 1, 2, ...

    >>> pivots = fixed_pivots(3, 4)
    >>> pivots.shape, torch.equal(pivots, fixed_pivots(5, 4)[:3])
    (torch.Size([3, 4]), True)
    """
    # phases in float64: far out, float32 has no digits left for an angle
    pivot, feature = (
        torch.arange(size, dtype=torch.float64, device=device) for size in (rank, features)
    )
    # and then float32, so that tokens of every precision meet the same pivots
    return (2**0.5 * torch.cos((2 * pivot[:, None] + 1) * (feature + 1) ** 2)).float()


class _Sides(NamedTuple):
    """The thin plans whose product is the plan; rows of both sum to one."""

    to_pivots: Float[Tensor, "*b n r"]
    to_keys: Float[Tensor, "*b r m"]


def _solve(
    operator: str, batch: torch.Size, query: Tensor, key: Tensor, options: _Options
) -> _Sides:
    pivots = _check(operator, batch, query, key, options)
    query, key = (
        tokens.to(pivots.dtype).expand(*batch, *tokens.shape[-2:]) for tokens in (query, key)
    )
    eps, iters, scale, backend = options.eps, options.iters, options.scale, options.backend
    if isinstance(eps, Tensor):
        # used three times: what comes back is added up before it is rounded to the dtype of eps
        eps = eps.to(pivots.dtype)
    to_pivots = elastic_plan(
        query, pivots, eps=eps, iters=iters, query_mask=options.query_mask,
        column_mass=options.pivot_mass, scale=scale, backend=backend,
    )  # fmt: skip
    # the keys have to match what the pivots did receive, and not what they should have received
    received = to_pivots.sum(-2).clamp_min(LEAST)
    # of a plan that is NaN, and so is the result, whatever the keys do
    received = received.nan_to_num(1.0)
    row = elastic_potentials(
        key, pivots, lam=options.lam, eps=eps, iters=iters, query_mask=options.key_mask,
        column_mass=received, scale=scale, backend=backend,
    ).row  # fmt: skip
    # a column of B over its sum is a softmax over the keys, in which the column potential cancels:
    # no sum is divided by, so none can be too small for that
    to_keys = softmax_plan(
        pivots, key, eps=eps, mask=row[..., None, :], key_mask=options.key_mask, scale=scale
    )
    return _Sides(to_pivots, to_keys)


def _without_padding(
    rows: Float[Tensor, "*b n e"],
    m: int,
    query_mask: Bool[Tensor, "..."] | None,
    key_mask: Bool[Tensor, "..."] | None,
) -> Float[Tensor, "*b n e"]:
    """Rows of padded queries, and rows without a key, are zero: zero times NaN is not."""
    if m == 0:
        return torch.zeros_like(rows)
    if key_mask is not None:
        rows = rows.masked_fill(~key_mask.any(-1)[..., None, None], 0)
    return rows if query_mask is None else rows.masked_fill(~query_mask[..., None], 0)


def _check(
    operator: str, batch: torch.Size, query: Tensor, key: Tensor, options: _Options
) -> Float[Tensor, "*#b r d"]:
    """Check all options in the words of this operator; return the pivots in working precision."""
    inputs.refuse_pairs(operator, options.mask, "queries and keys meet only through pivots")
    inputs.check_lam(operator, options.lam, batch, query.device)
    inputs.check_eps(operator, options.eps, batch, query.device)
    inputs.check_count(operator, "iters", options.iters)
    inputs.check_scale(operator, options.scale)
    inputs.check_choice(operator, "backend", options.backend, ("auto", *BACKENDS))
    for name, mask, tokens in (
        ("query_mask", options.query_mask, query),
        ("key_mask", options.key_mask, key),
    ):
        if mask is not None:
            inputs.check_padding(operator, name, mask, (*batch, tokens.shape[-2]), query.device)
    n, m = query.shape[-2], key.shape[-2]
    inputs.warn_half_padding(operator, n, m, None, options.query_mask, options.key_mask)
    rank, pivots = options.rank, options.pivots
    if rank is not None:
        inputs.check_count(operator, "rank", rank, least=1)
    if pivots is None:
        # made where they are used: a GPU would wait for a copy from the host in every call
        rank = RANK if rank is None else rank
        pivots = fixed_pivots(rank, query.shape[-1], query.device)
    else:
        inputs.check_vectors(operator, "pivots", pivots, query, batch)
        inputs.check_rank(operator, rank, pivots)
    if options.pivot_mass is not None:
        shape = (*batch, pivots.shape[-2])
        inputs.check_column_mass(operator, options.pivot_mass, shape, query.device, of="pivot")
    return pivots.to(working_dtype(query.dtype))
