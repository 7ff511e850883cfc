"""From what a user passed to checked `Scores`, or a `Problem`, with one leading axis."""

import math
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional._masks import Bias, as_bias, forbid_low, read_bias
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.inputs.tensors import as_number, values_are_at_hand
from bistoch.functional.precision import working_dtype as working_dtype
from bistoch.functional.problem import Balance, GivenScores, Problem, Scores, Shards

# how a float mask is read: very low numbers forbid a pair, unless its score could make up for that;
# and in a row without any others only "differences" count. In "rows" that stand alone scores have
# no say, since they may be those of later keys; "levels" are rows that depend on what is added to
# all scores. Where rows see no later key, "numbers" forbid whatever their row holds. Or they are
# "scores": what is finite is possible
Reading = Literal["differences", "rows", "levels", "numbers", "scores"]

# numbers in a tensor of equal numbers that is kept for other calls
LARGEST_CONSTANT = 1 << 15


class ScoreOptions(NamedTuple):
    """Everything a user may say about scores beside the tokens, not yet checked."""

    eps: Option
    scale: float | None
    mask: Mask | None
    query_mask: Tensor | None
    key_mask: Tensor | None


class BalanceOptions(NamedTuple):
    """Everything a user may say about the balance of columns, not yet checked."""

    lam: Option
    omega: Option | None
    iters: int
    tol: float | None
    column_mass: Tensor | None = None
    row_mass: Tensor | None = None
    start: Tensor | None = None
    # who has the other queries; None if all are here
    shards: Shards | None = None
    # from every how manyth query all iterations but the last are made; None for all queries
    coarse: int | None = None

    def moves_columns(self) -> bool:
        """Whether columns are weighed against each other, so that rows depend on each other."""
        return self.iters > 0 and (isinstance(self.lam, Tensor) or self.lam > 0)


def pose(
    operator: str,
    batch: torch.Size,
    query: Tensor,
    key: Tensor,
    pairs: ScoreOptions,
    options: BalanceOptions,
) -> Problem[Scores]:
    """Check every option and flatten the leading axes of tokens that were checked already."""
    n, m = query.shape[-2], key.shape[-2]
    row_mass, counts = check_balance(operator, batch, n, m, query, options)
    scores = pose_scores(operator, batch, query, key, pairs, counts=counts, shards=options.shards)
    if options.moves_columns() and options.shards is None:
        inputs.warn_half_padding(operator, n, m, pairs.mask, pairs.query_mask, pairs.key_mask)
    return Problem(scores, pose_balance(operator, batch, scores, options, row_mass))


def pose_scores(
    operator: str,
    batch: torch.Size,
    query: Tensor,
    key: Tensor,
    options: ScoreOptions,
    *,
    bias: Reading = "differences",
    counts: Bool[Tensor, "B n"] | None = None,
    shards: Shards | None = None,
    columns: int | None = None,
) -> Scores:
    """As `pose`, for scores alone; queries that do not count are not there.

    If processes have shards of the keys too, `columns` says how many there are for a mask.
    """
    shape, device, mask = (*batch, query.shape[-2], key.shape[-2]), query.device, options.mask
    if mask is not None:
        whole = shape if columns is None else (*shape[:-1], columns)
        inputs.check_mask(operator, mask, whole, device)
    query_mask, key_mask = pose_padding(operator, shape, device, options, counts)
    inputs.check_eps(operator, options.eps, batch, device)
    inputs.check_scale(operator, options.scale)

    query, key = flatten(query, batch), flatten(key, batch)
    scale = as_number(options.scale)
    if scale is None:
        scale = 1 / math.sqrt(max(query.shape[-1], 1))
    sharpness = _sharpness(scale, options.eps, batch, query)
    mask, mask_index = _share_mask(mask, batch, query)
    has_bias = mask is not None and mask.dtype != torch.bool
    if mask is not None and has_bias and bias == "numbers":
        mask = forbid_low(mask, query.dtype)
    elif mask is not None and mask_index is not None and has_bias and bias != "scores":
        if bias == "differences":
            reach = _reach(query, key, sharpness, query_mask, key_mask, shards)
            read, mask_index = _read_shared(mask, mask_index, query.dtype, reach)
        else:
            read = read_bias(mask, query.dtype)
        if bias == "levels":
            mask = read.bias + read.level
        else:
            mask = read.bias
            # beside such a bias the scores are lost to rounding: only the bias decides. A product,
            # since a NaN must stay one
            query = query * ~read.lost[mask_index]
    return Scores(query, key, mask, mask_index, query_mask, key_mask, sharpness)


def pose_padding(
    operator: str,
    shape: tuple[int, ...],
    device: torch.device,
    options: ScoreOptions,
    counts: Bool[Tensor, "B n"] | None,
) -> tuple[Bool[Tensor, "B n"] | None, Bool[Tensor, "B m"] | None]:
    """Which queries and which keys are real, for scores of a shape; None for all."""
    *batch, n, m = shape
    size, query_mask, key_mask = math.prod(batch), options.query_mask, options.key_mask
    if query_mask is not None:
        inputs.check_padding(operator, "query_mask", query_mask, (*batch, n), device)
        query_mask = query_mask.expand(*batch, n).reshape(size, n)
    if key_mask is not None:
        inputs.check_padding(operator, "key_mask", key_mask, (*batch, m), device)
        key_mask = key_mask.expand(*batch, m).reshape(size, m)
    if counts is not None:
        query_mask = counts if query_mask is None else query_mask & counts
    return query_mask, key_mask


def check_balance(
    operator: str, batch: torch.Size, n: int, m: int, like: Tensor, options: BalanceOptions
) -> tuple[Float[Tensor, "B n"] | None, Bool[Tensor, "B n"] | None]:
    """Check every option; return the row masses in working precision, and which are not zero."""
    device, row_mass, counts = like.device, options.row_mass, None
    if options.column_mass is not None:
        inputs.check_column_mass(operator, options.column_mass, (*batch, m), device)
    if row_mass is not None:
        inputs.check_row_mass(operator, row_mass, (*batch, n), device)
        size = math.prod(batch)
        # a query of mass zero is one that is not there
        counts = (row_mass > 0).expand(*batch, n).reshape(size, n)
        row_mass = row_mass.expand(*batch, n).reshape(size, n).to(working_dtype(like.dtype))
        row_mass = torch.where(counts, row_mass, 1)
    if options.start is not None:
        inputs.check_start(operator, options.start, (*batch, m), device)
    inputs.check_lam(operator, options.lam, batch, device)
    if options.omega is not None:
        inputs.check_omega(operator, options.omega, batch, device)
    inputs.check_count(operator, "iters", options.iters)
    if options.coarse is not None:
        inputs.check_count(operator, "coarse", options.coarse, least=1)
    inputs.check_tol(operator, options.tol)
    return row_mass, counts


def pose_balance(
    operator: str,
    batch: torch.Size,
    scores: Scores | GivenScores,
    options: BalanceOptions,
    row_mass: Float[Tensor, "B n"] | None,
) -> Balance:
    """Options that were checked, as one number or vector for each problem."""
    like, m = scores.like, scores.shape[2]
    # steps are chosen from errors, and only a tolerance watches them
    omega = 1.0 if options.omega is None and options.tol is None else options.omega
    return Balance(
        lam=per_problem(options.lam, batch, like),
        omega=None if omega is None else per_problem(omega, batch, like),
        log_mass=_log_mass(operator, options, batch, scores, row_mass),
        log_row_mass=None if row_mass is None else row_mass.log(),
        start=_start(options.start, (*batch, m), like),
        iters=options.iters,
        tol=as_number(options.tol),
        shards=options.shards,
    )


def flatten(tokens: Tensor, batch: torch.Size) -> Float[Tensor, "B length features"]:
    """Tokens in working precision with one leading axis instead of many."""
    tokens = tokens.to(working_dtype(tokens.dtype))
    length, features = tokens.shape[-2:]
    if tokens.shape[:-2] == batch:
        return tokens.reshape(math.prod(batch), length, features)
    return tokens.expand(*batch, length, features).reshape(math.prod(batch), length, features)


def _share_mask(
    mask: Mask | None, batch: torch.Size, like: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """A mask keeps its own size; the index says which problem uses which of its matrices."""
    if mask is None:
        return None, None
    mask = mask[(None,) * (len(batch) + 2 - mask.ndim)]
    if mask.dtype != torch.bool:
        mask = as_bias(mask, like.dtype)
        if mask.shape[-2] == 1:
            # it is small, and so is read for each problem alone
            mask = mask.expand(*batch, 1, mask.shape[-1])
    own = mask.shape[:-2]
    count = math.prod(own)
    index = torch.arange(count, device=like.device).reshape(own)
    return mask.reshape(count, *mask.shape[-2:]), index.expand(batch).reshape(-1)


def _reach(
    query: Float[Tensor, "B n d"],
    key: Float[Tensor, "B m d"],
    sharpness: Float[Tensor, "B"],
    query_mask: Tensor | None,
    key_mask: Tensor | None,
    shards: Shards | None,
) -> Float[Tensor, "B"]:
    """By how much the scores of a row can differ: twice the longest query times the longest key."""
    reach = 2 * sharpness.detach().abs()
    for tokens, real in ((query, query_mask), (key, key_mask)):
        # what is not finite is told elsewhere, and is no reason to read a mask in another way
        lengths = tokens.detach().nan_to_num(0.0, 0.0, 0.0).norm(dim=-1)
        lengths = lengths if real is None else lengths * real
        longest = lengths.amax(-1) if lengths.shape[1] else torch.zeros_like(reach)
        reach = reach * (longest if shards is None else shards.max(longest))
    return reach


def _read_shared(
    mask: Float[Tensor, "M #n #m"], index: Int[Tensor, "B"], dtype: torch.dtype, reach: Tensor
) -> tuple[Bias, Int[Tensor, "B"]]:
    """Read a mask that several problems may share, and say which of the results each one uses.

    Where their scores make them read it differently, every problem gets a mask of its own. That is
    rare; where values cannot be read, it is done for all of them together.
    """
    none = reach.new_zeros(mask.shape[0])
    highest = none.scatter_reduce(0, index, reach, "amax", include_self=False)
    read = read_bias(mask, dtype, highest[:, None, None])
    if index.shape[0] > mask.shape[0] and values_are_at_hand(mask):
        lowest = none.scatter_reduce(0, index, reach, "amin", include_self=False)
        other = read_bias(mask, dtype, lowest[:, None, None])
        same = torch.equal(read.bias.isinf(), other.bias.isinf())
        if not (same and torch.equal(read.lost, other.lost)):
            read = read_bias(mask[index], dtype, reach[:, None, None])
            index = torch.arange(index.shape[0], device=index.device)
    return read, index


def _sharpness(scale: float, eps: Option, batch: torch.Size, like: Tensor) -> Float[Tensor, "B"]:
    """What dot products are multiplied with; one over eps may be too much for the dtype of eps."""
    if isinstance(eps, Tensor):
        return scale / per_problem(eps, batch, like)
    return per_problem(scale / as_number(eps), batch, like)


def per_problem(option: Option, batch: torch.Size, like: Tensor) -> Float[Tensor, "B"]:
    """A number, or a tensor over the leading axes, as one number for each problem."""
    if isinstance(option, Tensor):
        return option.to(like).expand(batch).reshape(-1)
    return _filled((like.shape[0],), as_number(option), like)


def _filled(shape: tuple[int, ...], number: float, like: Tensor) -> Tensor:
    """One number everywhere; small ones are made once, unless the call is traced."""
    if _is_watched() or math.prod(shape) > LARGEST_CONSTANT:
        return like.new_full(shape, number)
    return _constant(shape, number, like.dtype, like.device)


def _is_watched() -> bool:
    """Whether what is made now may belong to a compiler, a trace, a transform or a mode."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
    )


@lru_cache(maxsize=256)
def _constant(
    shape: tuple[int, ...], number: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    # made in inference mode, it could not be used outside of it
    with torch.inference_mode(False):
        return torch.full(shape, number, dtype=dtype, device=device)


def _start(
    start: Tensor | None, shape: tuple[int, ...], like: Tensor
) -> Float[Tensor, "B m"] | None:
    if start is None:
        return None
    # the potential of a key that no query could see, where it comes from
    start = start.to(like.dtype).masked_fill(start == -torch.inf, 0)
    return start.expand(shape).reshape(like.shape[0], shape[-1])


def _log_mass(
    operator: str,
    options: BalanceOptions,
    batch: torch.Size,
    scores: Scores | GivenScores,
    row_mass: Float[Tensor, "B n"] | None,
) -> Float[Tensor, "B m"]:
    """The log of the column targets, scaled to sum to the number of real queries or their masses.

    The scale is invisible in the plan; with the right one the potentials do not drift.
    """
    (size, n, m), like, mass, shards = (
        scores.shape,
        scores.like,
        options.column_mass,
        options.shards,
    )
    query_mask, key_mask = scores.query_mask, scores.key_mask
    is_plain = mass is None and query_mask is None and key_mask is None and shards is None
    # a logarithm of sizes would fix them in a program that is exported for any length
    if is_plain and not _is_watched():
        return _filled((size, m), math.log(max(n, 1) / max(m, 1)), like)
    if mass is None:
        log_mass = like.new_zeros(size, m)
    else:
        log_mass = mass.to(like.dtype).log().expand(*batch, m).reshape(size, m)
    queries = like.new_full((size,), n) if query_mask is None else query_mask.sum(-1)
    if row_mass is not None and query_mask is not None:
        queries = row_mass.masked_fill(~query_mask, 0).sum(-1)
    if shards is not None:
        queries = shards.sum(queries.to(like.dtype))
    is_empty = queries == 0
    queries = torch.where(is_empty, 1, queries).to(like.dtype)
    offered = log_mass if key_mask is None else log_mass.masked_fill(~key_mask, -torch.inf)
    offered = offered.exp().sum(-1)
    offered = offered if shards is None else shards.sum_columns(offered)
    # a problem without a real query or key has no columns to balance
    if mass is not None and row_mass is not None:
        is_empty = is_empty | (offered == 0)
        inputs.check_equal_masses(operator, queries, torch.where(is_empty, queries, offered))
    wanted = queries / torch.where(offered > 0, offered, 1)
    return log_mass + wanted.log()[:, None]
