"""A NaN or an infinity in the input shows: every row that depends on it is NaN, on every backend.

Backends would lose it, each in its own way: kernels are compiled for numbers that are finite, a
sort or a comparison takes a NaN for an ordinary number, and an infinite score may look like a pair
that is forbidden. So the input is looked at once, before a backend is chosen. Backends compute with
zeros in the place of what is not finite, and the rows that depend on it are made NaN afterwards.

A call in eager mode on a CPU pays one sum per input, O((n + m) d), and nothing else if all is well.
Where a value cannot be read without stopping a compiler or an accelerator, the same is computed
without a branch.
"""

import math
import sys
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bistoch.functional.precision import working_dtype
from bistoch.functional.problem import GivenScores, Scores

# which rows depend on a token: those that see it; all of the problem, since columns connect them;
# or the first row that sees it and all later ones
Reach = Literal["row", "problem", "later"]

# scores may be as large as the largest number over this: what is added to them, a mask of the
# lowest number or a potential, then cannot overflow
HEADROOM = 2.0**26
# pairs that are looked at together
PAIRS = 1 << 22


class Clean(NamedTuple):
    """What backends compute with, and the rows that are to be NaN; None if there can be none.

    A token that is masked, and a bias between tokens that are masked, breaks nothing.
    """

    query: Float[Tensor, "*#b n d"]
    key: Float[Tensor, "*#b m d"]
    value: Any
    mask: Tensor | None
    broken: Bool[Tensor, "*#b n"] | None


class Pairs(NamedTuple):
    """Who may see whom; the queries are the last n of the m tokens if a row sees no later key."""

    # boolean (True = may attend) or a float bias, broadcastable to (*b, n, m)
    mask: Tensor | None = None
    # if there is one, the mask is (M, #n, #m), and this says which of the M is whose
    mask_index: Int[Tensor, "B"] | None = None
    query_mask: Bool[Tensor, "*#b n"] | None = None
    key_mask: Bool[Tensor, "*#b m"] | None = None


def clean(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"] | None,
    pairs: Pairs,
    sharpness: Float[Tensor, "*#b"] | float | None,
    reach: Reach,
    *,
    options: Sequence[Tensor | None] = (),
    others: Sequence[Tensor] = (),
) -> Clean:
    """Take out what is not finite, and find the rows that depend on it.

    Args:
        query, key, value: tokens in working precision; value is None if only the plan is wanted.
        pairs: which of them see each other, and the bias between them.
        sharpness: factor of the dot products. A row that has a score too large for the precision is
            broken too: sums of |q| |k| are compared, so that no order of summation matters. None
            if no score can be.
        reach: which rows depend on a token.
        options: tensors with one leading axis that were refused before if they could be read; what
            is not finite breaks all rows of its problem.
        others: as options, but not looked at before.

    >>> x = torch.ones(1, 3, 2)
    >>> x[0, 1, 0] = torch.nan
    >>> found = clean(x, x, x, Pairs(), torch.ones(1), "later")
    >>> found.broken, bool(found.query.isfinite().all())
    (tensor([[False,  True,  True]]), True)
    """
    inputs = (query, key, value, pairs.mask, sharpness, *others)
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    if _is_at_hand(tensors) and _is_ordinary(*inputs):
        return Clean(query, key, value, pairs.mask, None)
    with torch.no_grad():
        numbers = [tensor for tensor in (*options, *others) if tensor is not None]
        broken = _broken_rows(query, key, value, pairs, sharpness, reach, numbers)
    return Clean(
        _zeroed(query), _zeroed(key), None if value is None else _zeroed(value),
        _finite_bias(pairs.mask), broken,
    )  # fmt: skip


def clean_scores(
    scores: Scores | GivenScores,
    value: Tensor | None,
    reach: Reach,
    *,
    factor: float | None = 1.0,
    options: Sequence[Tensor | None] = (),
    options_too: bool = False,
) -> tuple[Any, Any, Any]:
    """As `clean`, for `Scores`: these, the values and the rows that are to be NaN.

    The factor is by how much scores grow on their way; None if they cannot become too large.
    Options were refused before if they could be read; inside of an operator they are looked at too.
    """
    if isinstance(scores, GivenScores):
        others = [x for x in options if x is not None] if options_too else []
        return _clean_given(scores, value, reach, options, others)
    sharpness = scores.sharpness if factor == 1.0 else None
    if factor is not None and factor != 1.0:
        sharpness = scores.sharpness * factor
    options = (scores.sharpness, *options)
    found = clean(
        scores.query, scores.key, value,
        Pairs(scores.mask, scores.mask_index, scores.query_mask, scores.key_mask),
        sharpness, reach,
        options=options,
        others=tuple(x for x in options if x is not None) if options_too else (),
    )  # fmt: skip
    scores = scores._replace(query=found.query, key=found.key, mask=found.mask)
    return scores, found.value, found.broken


def _clean_given(scores: GivenScores, value, reach, options, others) -> tuple[Any, Any, Any]:
    """Nothing is multiplied, so no score can become too large."""
    given, tensors = scores.given, [x for x in (value, *others) if x is not None]
    if _is_at_hand([given, *tensors]) and _is_finite(given, tensors):
        return scores, value, None
    with torch.no_grad():
        pairs = Pairs(given, None, scores.query_mask, scores.key_mask)
        size, n, m = given.shape
        bad_key = torch.zeros(size, m, dtype=torch.bool, device=given.device)
        if value is not None:
            bad_key = ~value.isfinite().all(-1)
        broken = bad_key.new_zeros(size, n)
        if given.numel():
            sees, hit, _ = _look_at_pairs(pairs, bad_key, n, reach)
            broken = _reach_rows(hit, sees, reach, [x for x in options if x is not None])
    scores = scores._replace(given=given.nan_to_num(0.0, 0.0, -torch.inf))
    return scores, None if value is None else _zeroed(value), broken


def seeing_rows(scores: Scores | GivenScores) -> Bool[Tensor, "B n"]:
    """The rows that may see a key, of scores that are clean."""
    (size, n, m), like = scores.shape, scores.like
    nothing = torch.zeros(size, m, dtype=torch.bool, device=like.device)
    if not n or not m:
        return nothing.new_zeros(size, n)
    if isinstance(scores, GivenScores):
        pairs = Pairs(scores.given, None, scores.query_mask, scores.key_mask)
    else:
        pairs = Pairs(scores.mask, scores.mask_index, scores.query_mask, scores.key_mask)
    look = _look_at_tokens if pairs.mask is None else _look_at_pairs
    return look(pairs, nothing, n, "problem").sees


def clean_values(value: Float[Tensor, "*b m e"], n: int, pairs: Pairs) -> Clean:
    """As `clean`, for a plan that is made without tokens, or looks at them by itself."""
    query, key = (value.new_empty(size, 0) for size in (n, value.shape[-2]))
    return clean(query, key, value, pairs, None, "problem")


def show(
    rows: Float[Tensor, "*b n e"], broken: Bool[Tensor, "*#b n"] | None
) -> Float[Tensor, "*b n e"]:
    """Make broken rows NaN, and with them the gradients of all that they were made of.

    >>> show(torch.ones(1, 2, 1), torch.tensor([[False, True]])).squeeze()
    tensor([1., nan])
    """
    if broken is None:
        return rows
    # a factor, since what is filled in has a gradient of zero
    return rows * torch.where(broken, torch.nan, 1.0).to(rows.dtype)[..., None]


def _is_at_hand(tensors: Sequence[Tensor]) -> bool:
    """Whether values can be read: no compiler, tracer, transform, mode, subclass or accelerator."""
    # a loop, which is quicker than a generator
    for tensor in tensors:
        if not tensor.is_cpu or type(tensor) not in (Tensor, torch.nn.Parameter):
            return False
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
    )


def _is_ordinary(query, key, value, mask, sharpness, *others) -> bool:
    """Whether nothing can be wrong: one sum per tensor, which no NaN and no infinity survives."""
    # no score is larger than the product of the lengths of all queries and of all keys
    largest, limit = _length(query) * _length(key), largest_score(query.dtype)
    if sharpness is None:
        limit = sys.float_info.max
    else:
        factor = _length(sharpness) if isinstance(sharpness, Tensor) else abs(sharpness)
        largest *= max(factor, 1.0)
    if not largest <= limit:
        return False
    return _is_finite(mask, [tensor for tensor in (value, *others) if tensor is not None])


def _is_finite(bias: Tensor | None, tensors: Sequence[Tensor]) -> bool:
    """Whether tensors are finite, and a bias but for minus infinity: a pair that is forbidden."""
    is_bias = bias is not None and bias.dtype != torch.bool and bias.numel() > 0
    if bias is not None and is_bias and not bias.detach().amax().item() < math.inf:
        return False
    return all(
        math.isfinite(tensor.detach().sum(dtype=working_dtype(tensor.dtype)).item())
        for tensor in tensors
    )


def _length(tensor: Tensor) -> float:
    return torch.linalg.vector_norm(tensor.detach(), dtype=working_dtype(tensor.dtype)).item()


def largest_score(dtype: torch.dtype) -> float:
    """How large a score may be."""
    return torch.finfo(working_dtype(dtype)).max / HEADROOM


def _broken_rows(query, key, value, pairs, sharpness, reach, numbers) -> Bool[Tensor, "*b n"]:
    n, m = query.shape[-2], key.shape[-2]
    bad_query, bad_key = ~query.isfinite().all(-1), ~key.isfinite().all(-1)
    if value is not None:
        bad_key = bad_key | ~value.isfinite().all(-1)
    if n == 0 or bad_key.numel() == 0:
        return bad_query & False
    look = _look_at_tokens if pairs.mask is None else _look_at_pairs
    sees, hit, seen = look(pairs, bad_key, n, reach)
    broken = sees & bad_query | hit
    if sharpness is not None:
        # the largest number of every feature among the keys that a row may see
        largest = _zeroed(key).abs() * seen[..., None]
        if reach == "later":
            largest = largest.cummax(-2).values[..., m - n :, :]
        else:
            largest = largest.amax(-2, keepdim=True)
        largest = largest.to(working_dtype(key.dtype))
        sums, limit = (_zeroed(query).abs() * largest).sum(-1), largest_score(query.dtype)
        factor = sharpness.abs()[..., None] if isinstance(sharpness, Tensor) else abs(sharpness)
        fits = (sums <= limit) & (sums * factor <= limit)
        broken = broken | sees & ~fits
    return _reach_rows(broken, sees, reach, numbers)


def _reach_rows(broken, sees, reach: Reach, numbers: Sequence[Tensor]) -> Bool[Tensor, "*b n"]:
    """The rows that depend on broken ones, or on numbers that are not finite."""
    for tensor in numbers:
        broken = broken | ~tensor.isfinite().reshape(tensor.shape[0], -1).all(-1, keepdim=True)
    if reach == "problem":
        broken = broken.any(-1, keepdim=True)
    elif reach == "later":
        broken = broken.cumsum(-1) > 0
    return broken & sees


class _Look(NamedTuple):
    """The rows that see a key, those that see something broken, and the keys that are seen."""

    sees: Bool[Tensor, "*#b n"]
    hit: Bool[Tensor, "*#b n"]
    seen: Bool[Tensor, "*#b m"]


def _look_at_tokens(pairs: Pairs, bad_key: Bool[Tensor, "*#b m"], n: int, reach: Reach) -> _Look:
    """Without a mask there is no need for pairs."""
    real = torch.ones_like(bad_key) if pairs.key_mask is None else pairs.key_mask
    bad = bad_key & real
    if reach == "later":
        last = bad_key.shape[-1] - n
        sees, hit = ((x.cumsum(-1) > 0)[..., last:] for x in (real, bad))
    else:
        sees, hit = (x.any(-1, keepdim=True).expand(*x.shape[:-1], n) for x in (real, bad))
    if pairs.query_mask is not None:
        sees, hit = sees & pairs.query_mask, hit & pairs.query_mask
        real = real & pairs.query_mask.any(-1, keepdim=True)
    return _Look(sees, hit, real)


def _look_at_pairs(pairs: Pairs, bad_key: Bool[Tensor, "*#b m"], n: int, reach: Reach) -> _Look:
    """As many rows at a time as there is room for."""
    parts, seen = [], torch.zeros_like(bad_key)
    tiles = [slice(None)]
    # a compiler makes nothing that is not needed
    if not torch.compiler.is_compiling():
        step = max(1, PAIRS // bad_key.numel())
        tiles = [slice(x, x + step) for x in range(0, n, step)]
    for rows in tiles:
        allowed, wrong = _allowed(pairs, rows, bad_key, n, reach)
        parts.append((allowed.any(-1), (allowed & (wrong | bad_key[..., None, :])).any(-1)))
        seen = seen | allowed.any(-2)
    sees, hit = (torch.cat(part, -1) for part in zip(*parts, strict=True))
    return _Look(sees, hit, seen)


def _allowed(pairs: Pairs, rows: slice, like: Bool[Tensor, "*#b m"], n: int, reach: Reach):
    """Which keys some rows may see, and where the bias between them is not a number to add."""
    m = like.shape[-1]
    mask = torch.atleast_2d(pairs.mask)
    mask = mask if mask.shape[-2] == 1 else mask[..., rows, :]
    mask = mask if pairs.mask_index is None else mask[pairs.mask_index]
    place = torch.arange(n, device=like.device)[rows]
    mask = mask.expand(*mask.shape[:-2], place.shape[0], m)
    if mask.dtype == torch.bool:
        allowed, wrong = mask, torch.zeros_like(mask)
    else:
        # a NaN is no minus infinity
        allowed, wrong = mask != -torch.inf, ~(mask < torch.inf)
    if reach == "later":
        allowed = allowed & (torch.arange(m, device=like.device) <= place[:, None] + m - n)
    if pairs.key_mask is not None:
        allowed = allowed & pairs.key_mask[..., None, :]
    if pairs.query_mask is not None:
        allowed = allowed & pairs.query_mask[..., rows, None]
    return allowed, wrong


def _zeroed(tensor: Tensor) -> Tensor:
    return tensor.nan_to_num(0.0, 0.0, 0.0)


def _finite_bias(mask: Tensor | None) -> Tensor | None:
    """A mask without what is neither a number nor minus infinity."""
    if mask is None or mask.dtype == torch.bool:
        return mask
    return mask.nan_to_num(0.0, 0.0, -torch.inf)
