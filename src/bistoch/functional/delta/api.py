"""Delta attention: sparse causal attention, put right by a few dense rows and what they change."""

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional._export import export_whole, is_open
from bistoch.functional._nonfinite import show
from bistoch.functional.backends import (
    HAS_NUMBA,
    Backend,
    BackendUnavailableError,
    choose_backend,
)
from bistoch.functional.delta.inner import inner_operator, safe_softmax, softmax_sharpness
from bistoch.functional.delta.mass import plan_with_mass
from bistoch.functional.delta.tokens import CORRECTIONS, Rule, Tokens, pose_tokens
from bistoch.functional.inputs import Mask

_MODULES = {
    "reference": "bistoch.functional.delta.reference",
    "cpu": "bistoch.functional.delta.operator",
}
BACKENDS = tuple(_MODULES)

# pairs of tokens, over the whole batch, below which compiling kernels takes longer than it saves
SMALL = 1 << 16


@partial(export_whole, kernels_too=True)
def delta_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    window: int = 256,
    sink: int = 16,
    stride: int = 16,
    correction: str = "delta",
    tail: int = 0,
    inner: str = "softmax",
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n e"]:
    """Attend causally to a window and the first keys, corrected by every `stride`-th dense row.

        result_i = P*_i v + (P_g v - P*_g v),   g = the last multiple of `stride` up to i

    P is causal attention, P* the same over the last `window` and the first `sink` keys only. Causal
    by itself, without a mask. Nothing of size n x n exists, forward or backward.

    Args:
        query, key, value: tokens, as many queries as keys; the leading axes broadcast.
        window: how many of the latest keys, its own among them, a row sees.
        sink: how many of the first keys a row sees.
        stride: one row of so many is dense; 1 makes all rows dense.
        correction: "delta", what a dense row changes is added to all rows up to the next one;
            "mass", these rows mix in what the dense row sees beyond its sink and window, by the
            share of a softmax over all keys that this would have for their own query;
            "recompute", a dense row takes the place of its sparse one and changes no other; "none",
            the sparse rows alone.
        tail: how many of the last rows are dense besides, for decoding that continues from there.
        inner: the operator that makes the rows, a text such as "softmax(eps=0.5)". It must be one
            whose rows can be computed one by one.
        mask: a boolean mask or a bias that is the same for all queries, (..., 1, n).
        query_mask, key_mask: True where the token is real. Query t and key t are one token here: a
            mask on either hides both, and window, sink, stride and tail count real tokens only.
        backend: "auto", "reference" (torch's own products, any device) or "cpu" (Numba kernels for
            softmax rows).

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 2, 8, 100, 4).unbind()
    >>> bistoch.delta_attention(q, k, v, window=16, sink=4, stride=8).shape
    torch.Size([2, 8, 100, 4])

    Reference: Willette, Lee, Hwang, Delta Attention, 2025.
    """
    operator = "delta_attention"
    batch = inputs.check_tokens(operator, query, key, value)
    rule = Rule(window, sink, stride, correction, tail)
    inputs.check_choice(operator, "backend", backend, ("auto", *BACKENDS))
    n, e = query.shape[-2], value.shape[-1]
    inputs.check_choice(operator, "correction", correction, CORRECTIONS)
    sharpness = softmax_sharpness(operator, inner, query.shape[-1])
    _check_mass(operator, correction, inner, sharpness)
    chosen = _choose(operator, backend, inner, correction, sharpness, query, batch)
    tokens, value = pose_tokens(
        operator, batch, query, key, value, rule, mask, query_mask, key_mask, sharpness
    )
    attend = _inner(operator, inner, "attention", tokens, sharpness)
    if n == 0:
        return query @ key.mT @ value.to(query.dtype)
    rule = rule._replace(tail=min(tail, n))
    output = chosen.solve(tokens, value, rule, attend, sharpness)
    output = show(tokens.unsort(output), tokens.broken)
    return output.expand(*batch, n, e).to(query.dtype)


def _check_mass(operator: str, correction: str, inner: str, sharpness: float | None) -> None:
    if correction == "mass" and sharpness is None:
        raise ValueError(
            f"{operator}: correction='mass' compares sums of exponentials, which only softmax rows "
            f"have, but inner is {inner!r}; use inner='softmax' or correction='delta'"
        )


def _inner(
    operator: str, inner: str, part: str, tokens: Tokens, sharpness: float | None
) -> Callable[..., Tensor]:
    """The operator that makes the rows, or a slower one if scores may be too large."""
    if sharpness is not None and tokens.may_overflow():
        return safe_softmax(sharpness, part)
    return inner_operator(operator, inner, part)


def _choose(
    operator: str,
    backend: str,
    inner: str,
    correction: str,
    sharpness: float | None,
    query: Tensor,
    batch: torch.Size,
) -> Backend:
    """Who computes: the kernels, where they can run and there is work enough for them."""
    n = query.shape[-2]
    enough = is_open(n, *batch) or math.prod(batch) * n * n >= SMALL
    able = (
        sharpness is not None and correction != "mass" and query.device.type == "cpu" and HAS_NUMBA
    )
    auto = "cpu" if able and enough else "reference"
    if backend == "cpu" and (sharpness is None or correction == "mass"):
        raise BackendUnavailableError(
            f'{operator}: the backend "cpu" has kernels for softmax rows without the correction '
            f"'mass', but inner is {inner!r} and correction {correction!r}; choose backend=\"auto\""
        )
    return choose_backend(operator, backend, _MODULES, query.device, auto)


@partial(export_whole, kernels_too=True)
def delta_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    window: int = 256,
    sink: int = 16,
    stride: int = 16,
    correction: str = "delta",
    tail: int = 0,
    inner: str = "softmax",
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n m"]:
    """The plan of `delta_attention` as a dense matrix, for study, from two dense plans.

    Rows sum to one, no row sees a later key, and some entries are negative: a key that a dense row
    had in its window loses what the correction takes from it, also where it has left the window.
    Arguments are those of `delta_attention`.

    >>> import torch, bistoch
    >>> q, k = torch.randn(2, 30, 4).unbind()
    >>> plan = bistoch.delta_plan(q, k, window=4, sink=2, stride=5)
    >>> bool(torch.allclose(plan.sum(-1), torch.ones(30))), bool((plan < 0).any())
    (True, True)
    """
    operator = "delta_plan"
    batch = inputs.check_tokens(operator, query, key)
    rule = Rule(window, sink, stride, correction, tail)
    inputs.check_choice(operator, "backend", backend, ("auto", *BACKENDS))
    inputs.check_choice(operator, "correction", correction, CORRECTIONS)
    sharpness = softmax_sharpness(operator, inner, query.shape[-1])
    _check_mass(operator, correction, inner, sharpness)
    tokens, _ = pose_tokens(
        operator, batch, query, key, None, rule, mask, query_mask, key_mask, sharpness
    )
    make = _inner(operator, inner, "plan", tokens, sharpness)
    n = query.shape[-2]
    rows, keys = torch.arange(n, device=query.device)[:, None], torch.arange(n, device=query.device)
    causal = tokens.bias_of(keys <= rows, slice(None))
    sparse = tokens.bias_of(rule.sees(rows, keys), slice(None))
    dense = make(tokens.query, tokens.key, mask=causal)
    if correction == "mass" and sharpness is not None:
        plan = plan_with_mass(tokens, rule, sharpness)
    else:
        plan = make(tokens.query, tokens.key, mask=sparse)
    if correction in ("delta", "recompute"):
        plan = rule.correct(plan, dense[..., ::stride, :])
    if tail:
        plan = torch.where(tokens.after(tokens.first_of(tail))[0][..., None], dense, plan)
    plan = show(tokens.unsort(tokens.unsort(plan).mT).mT, tokens.broken)
    return plan.expand(*batch, n, n).to(query.dtype)
