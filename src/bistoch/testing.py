"""What tests of your own models may ask: no earlier result knows of a later token."""

from collections.abc import Callable

import torch
from torch import Tensor

from bistoch.functional import inputs


def assert_causal(
    function: Callable[..., Tensor],
    *tokens: Tensor,
    axis: int = -2,
    at: int | None = None,
    gradient: bool = True,
    generator: torch.Generator | None = None,
) -> None:
    """Raise AssertionError if a result depends on a later token.

    Tokens from one place on are replaced by others: earlier results must stay the same, bit by bit.
    Then the gradient of earlier results with respect to later tokens must be zero, exactly.

    Args:
        function: takes the tokens and returns a tensor with as many results along `axis`. A model,
            an operator, anything; it must give the same result when it is called again.
        tokens: floating-point tensors, (..., n, features). Without any: three, (2, 13, 8), as
            queries, keys and values.
        axis: along which tokens follow each other, in tokens and result.
        at: the first token that is replaced; by default every place is tried.
        gradient: whether to ask for the gradient too, for a function that has one.
        generator: the source of the tokens that are put in.

    >>> import torch, bistoch
    >>> from bistoch.testing import assert_causal
    >>> assert_causal(bistoch.causal_elastic_attention)
    >>> past = torch.ones(13, 13, dtype=torch.bool).tril()
    >>> assert_causal(lambda q, k, v: bistoch.sinkhorn_attention(q, k, v, mask=past))
    Traceback (most recent call last):
    AssertionError: assert_causal: result ... changed by ...: the future leaks into it
    """
    if not tokens:
        tokens = torch.randn(3, 2, 13, 8, generator=generator).unbind()
    for tensor in tokens:
        inputs.check_floating("assert_causal", "tokens", tensor, axes="(..., n, features)", rank=1)
    tokens = tuple(tensor.detach() for tensor in tokens)
    length = tokens[0].shape[axis]
    places = range(1, length) if at is None else [at]
    with torch.no_grad():
        before = _call(function, tokens, axis, length)
        for place in places:
            others = [_replace(tensor, axis, place, generator) for tensor in tokens]
            _compare(before, _call(function, others, axis, length), axis, place)
    if gradient:
        for place in places:
            _check_gradient(function, tokens, axis, place)


def _call(function: Callable[..., Tensor], tokens, axis: int, length: int) -> Tensor:
    result = function(*tokens)
    if not isinstance(result, Tensor) or result.shape[axis] != length:
        shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise ValueError(
            f"assert_causal: function must return a tensor with {length} results along axis {axis},"
            f" one per token, but it returned {shape}"
        )
    return result


def _replace(tensor: Tensor, axis: int, place: int, generator: torch.Generator | None) -> Tensor:
    other = tensor.clone()
    later = other.narrow(axis, place, tensor.shape[axis] - place)
    later.copy_(3 * torch.randn(later.shape, generator=generator, dtype=tensor.dtype))
    return other


def _compare(before: Tensor, after: Tensor, axis: int, place: int) -> None:
    before, after = before.narrow(axis, 0, place), after.narrow(axis, 0, place)
    # two that are not numbers are the same here
    same = (before == after) | (before.isnan() & after.isnan())
    if not same.all():
        change = (after - before).abs().nan_to_num(torch.inf).movedim(axis, 0).flatten(1).amax(1)
        first = int(change.nonzero()[0])
        raise AssertionError(
            f"assert_causal: result {first} changed by {change[first]:.2g} when the tokens from "
            f"{place} on were replaced: the future leaks into it"
        )


def _check_gradient(function: Callable[..., Tensor], tokens, axis: int, place: int) -> None:
    leaves = [tensor.clone().requires_grad_() for tensor in tokens]
    result = function(*leaves).narrow(axis, 0, place)
    if not result.requires_grad:
        raise ValueError("assert_causal: the result has no gradient; pass gradient=False")
    found = torch.autograd.grad(result.square().sum(), leaves, allow_unused=True)
    for number, slope in enumerate(found):
        if slope is None:
            continue
        later = slope.narrow(axis, place, slope.shape[axis] - place)
        if later.count_nonzero():
            raise AssertionError(
                f"assert_causal: the results before {place} have a gradient of up to "
                f"{later.abs().max():.2g} with respect to later tokens, in argument {number}"
            )
