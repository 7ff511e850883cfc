"""From tokens to heads and back, with the checks that every attention layer makes on the way."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bistoch.functional import inputs
from bistoch.functional.inputs import Option


def check_division(layer: str, dim_name: str, dim: int, heads_name: str, heads: int) -> None:
    """Check that the features can be shared out evenly among the heads."""
    inputs.check_count(layer, dim_name, dim, least=1)
    inputs.check_count(layer, heads_name, heads, least=1)
    if dim % heads:
        raise ValueError(
            f"{layer}: {dim_name} must be divisible by {heads_name}, but {dim} = "
            f"{dim // heads} * {heads} + {dim % heads}; "
            f"use for example {dim_name}={(dim // heads + 1) * heads} or another {heads_name}"
        )


def check_heads(operator: str, heads: int | None) -> int:
    """Check that the number of heads is given where something is learned per head."""
    if heads is None:
        raise ValueError(
            f"{operator}: learn='head' needs heads, the number of heads; "
            f"write for example {operator}(learn='head', heads=8)"
        )
    inputs.check_count(operator, "heads", heads, least=1)
    return heads


def one_per_head(start: Option, heads: int) -> Float[Tensor, "heads"]:
    """Where a number that every head learns starts: a number, or one for each head."""
    device = start.device if isinstance(start, Tensor) else None
    return torch.ones(heads, device=device) * start


def check_features(layer: str, name: str, tokens: Tensor, features: int) -> None:
    """Check that an argument is one sequence of tokens, or a batch of them, as wide as a layer."""
    inputs.check_floating(layer, name, tokens, axes="(batch, length, features)", rank=2)
    if tokens.ndim > 3:
        raise ValueError(
            f"{layer}: {name} must have 3 axes (batch, length, features), or 2 for one sequence, "
            f"but its shape is {tuple(tokens.shape)}; flatten the leading axes into one"
        )
    inputs.check_width(layer, name, tokens, features)


def project(
    layer: str, name: str, tokens: Tensor, projection: nn.Linear
) -> Float[Tensor, "... features"]:
    """Project checked tokens; if that fails, say what does not fit to the weights."""
    check_features(layer, name, tokens, projection.in_features)
    try:
        return projection(tokens)
    except RuntimeError as error:
        explain_misfit(layer, name, tokens, projection.weight, error)
        raise


def explain_misfit(
    layer: str, name: str, tokens: Tensor, weight: Tensor, error: RuntimeError
) -> None:
    """Say which device or dtype made a product fail.

    It is not asked before: hooks may move tokens or weights, and autocast converts them.
    """
    if tokens.device != weight.device:
        raise ValueError(
            f"{layer}: {name} must be on the device of the layer, {weight.device}, but it is on "
            f"{tokens.device}; move it with {name}.to({str(weight.device)!r})"
        ) from error
    if tokens.dtype != weight.dtype:
        raise TypeError(
            f"{layer}: {name} must have the dtype of the layer, {weight.dtype}, but it is "
            f"{tokens.dtype}; convert one of them, for example {name}.to({weight.dtype})"
        ) from error


def split_heads(
    tokens: Float[Tensor, "*batch length features"], heads: int
) -> Float[Tensor, "*batch heads length size"]:
    """Cut the features into heads, and give the heads an axis before the sequence.

    >>> import torch
    >>> split_heads(torch.zeros(2, 5, 12), heads=3).shape
    torch.Size([2, 3, 5, 4])
    """
    return tokens.unflatten(-1, (heads, tokens.shape[-1] // heads)).transpose(-3, -2)


def merge_heads(
    heads: Float[Tensor, "*batch heads length size"],
) -> Float[Tensor, "*batch length features"]:
    """Put the heads side by side again: the inverse of `split_heads`.

    >>> import torch
    >>> tokens = torch.randn(2, 5, 12)
    >>> torch.equal(merge_heads(split_heads(tokens, heads=3)), tokens)
    True
    """
    return heads.transpose(-3, -2).flatten(-2)
