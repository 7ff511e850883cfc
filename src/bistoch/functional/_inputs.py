"""The one door for user input: every check and every error sentence of the operators lives here.

A sentence names the operator, the argument, what was expected in words, what came in numbers, and
the remedy.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

if TYPE_CHECKING:
    from bistoch.functional._operator import Operator

Option = float | Float[Tensor, "..."]
Mask = Bool[Tensor, "..."] | Float[Tensor, "..."]


def check_tokens(
    operator: str, query: Tensor, key: Tensor, value: Tensor | None = None
) -> torch.Size:
    """Check that query, key and value belong together; return their common leading axes."""
    tokens = {"query": query, "key": key} | ({} if value is None else {"value": value})
    for name, tensor in tokens.items():
        check_floating(operator, name, tensor, axes="(*b, length, features)", rank=2)
    for name, tensor in tokens.items():
        if tensor.dtype != query.dtype:
            raise TypeError(
                f"{operator}: {name} must have the dtype of query, {query.dtype}, but it is "
                f"{tensor.dtype}; convert one of them, for example {name}.to(query.dtype)"
            )
        if tensor.device != query.device:
            raise ValueError(
                f"{operator}: {name} must be on the device of query, {query.device}, but it is on "
                f"{tensor.device}; move it with {name}.to(query.device)"
            )
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            f"{operator}: query and key must have the same number of features (their last axis), "
            f"but query has {query.shape[-1]} and key has {key.shape[-1]}; project them to one size"
        )
    if value is not None and value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"{operator}: value must have one row per key (axis -2), but there are "
            f"{key.shape[-2]} keys and {value.shape[-2]} values"
        )
    if all(tensor.shape[:-2] == query.shape[:-2] for tensor in tokens.values()):
        return query.shape[:-2]
    try:
        return torch.broadcast_shapes(*(tensor.shape[:-2] for tensor in tokens.values()))
    except RuntimeError:
        shapes = ", ".join(f"{name} {tuple(t.shape[:-2])}" for name, t in tokens.items())
        raise ValueError(
            f"{operator}: the leading axes (batch, heads) must broadcast together, "
            f"but they are {shapes}; expand or unsqueeze them to match"
        ) from None


def check_floating(operator: str, name: str, tensor: Tensor, *, axes: str, rank: int) -> None:
    """Check that an argument is a real floating-point tensor with at least `rank` axes."""
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"{operator}: {name} must be a torch.Tensor of shape {axes}, "
            f"but it is a {type(tensor).__name__}; wrap it with torch.as_tensor"
        )
    if not tensor.is_floating_point():
        raise TypeError(
            f"{operator}: {name} must be a floating-point tensor, but its dtype is "
            f"{tensor.dtype}; convert it, for example {name}.float()"
        )
    if tensor.ndim < rank:
        raise ValueError(
            f"{operator}: {name} must have at least {rank} axes, {axes}, "
            f"but its shape is {tuple(tensor.shape)}; add an axis with unsqueeze"
        )


def check_mask(operator: str, mask: Mask, shape: Sequence[int], device: torch.device) -> None:
    """Check a boolean mask or a float bias that broadcasts to the scores."""
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise TypeError(
            f"{operator}: mask must be a boolean tensor (True = may attend) or a float bias added "
            f"to the scores, but it is {_kind(mask)}; convert it, for example mask.bool()"
        )
    _check_broadcast(operator, "mask", mask, shape, "the scores, (*b, n, m) =")
    _check_device(operator, "mask", mask, device)


def check_shared_mask(operator: str, mask: Mask, reason: str) -> None:
    """Check that a mask or bias is the same for all queries: it may hide keys, but no pairs."""
    if isinstance(mask, Tensor) and mask.ndim > 1 and mask.shape[-2] != 1:
        raise ValueError(
            f"{operator}: mask must be the same for all queries, with size one along axis -2, "
            f"because {reason}; but its shape is {tuple(mask.shape)}; hide whole tokens with "
            "query_mask and key_mask, or use softmax_attention"
        )


def check_square(operator: str, query: Tensor, key: Tensor, reason: str) -> None:
    """Check that there are as many queries as keys."""
    if query.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"{operator}: there must be as many queries as keys, because {reason}; "
            f"but there are {query.shape[-2]} queries and {key.shape[-2]} keys"
        )


def check_inner(operator: str, row: "Operator") -> None:
    """Check that single rows of an operator can be computed, each with a mask of its own."""
    if not row.rows_stand_alone:
        raise ValueError(
            f"{operator}: inner must be an operator whose rows can be computed one by one (causal, "
            f"columns free, any mask), but {row.name!r} is not; use inner='softmax'"
        )


def check_padding(
    operator: str, name: str, mask: Tensor, shape: Sequence[int], device: torch.device
) -> None:
    """Check a boolean mask over queries or over keys, True where the token is real."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise TypeError(
            f"{operator}: {name} must be a boolean tensor, True where the token is real, "
            f"but it is {_kind(mask)}; convert it, for example {name}.bool()"
        )
    axes = "(*b, n) =" if name == "query_mask" else "(*b, m) ="
    _check_broadcast(operator, name, mask, shape, axes)
    _check_device(operator, name, mask, device)


def check_column_mass(
    operator: str, mass: Tensor, shape: Sequence[int], device: torch.device
) -> None:
    """Check the wanted column sums: positive, one per key."""
    check_floating(operator, "column_mass", mass, axes="(*b, m)", rank=1)
    _check_broadcast(operator, "column_mass", mass, shape, "(*b, m) =")
    _check_device(operator, "column_mass", mass, device)
    if _values_are_at_hand(mass) and not bool(((mass > 0) & mass.isfinite()).all()):
        raise ValueError(
            f"{operator}: column_mass must be positive and finite for every key, but its smallest "
            f"entry is {mass.min().item():g}; leave a key out with key_mask instead of mass zero"
        )


def check_lam(operator: str, lam: Option, batch: Sequence[int]) -> None:
    """Check the elasticity."""
    _check_option(
        operator, "lam", lam, batch, "in [0, 1]: 0 is softmax, 1 doubly stochastic", _unit
    )


def check_omega(operator: str, omega: Option, batch: Sequence[int]) -> None:
    """Check the step of the column update."""
    _check_option(operator, "omega", omega, batch, "in (0, 2): 1 is the plain step", _step)


def check_eps(operator: str, eps: Option, batch: Sequence[int]) -> None:
    """Check the temperature."""
    _check_option(
        operator, "eps", eps, batch, "positive and finite; for eps -> 0 use hard_plan", _positive
    )


def check_scale(operator: str, scale: float | None) -> None:
    """Check the factor of the dot products."""
    if scale is not None and not (_is_number(scale) and math.isfinite(scale)):
        raise ValueError(
            f"{operator}: scale must be a finite number or None for 1/sqrt(features), "
            f"but it is {scale!r}"
        )


def check_noise(operator: str, noise: float) -> None:
    """Check the size of random noise."""
    if not (_is_number(noise) and 0 <= noise < math.inf):
        raise ValueError(f"{operator}: noise must be zero or positive, but it is {noise!r}")


def check_count(operator: str, name: str, count: int, *, least: int = 0) -> None:
    """Check a whole number, such as a number of iterations."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(
            f"{operator}: {name} must be a whole number, but it is a {type(count).__name__}; "
            f"write for example {name}=10"
        )
    if count < least:
        raise ValueError(f"{operator}: {name} must be at least {least}, but it is {count}")


def check_tol(operator: str, tol: float | None) -> None:
    """Check the optional stop on the column error."""
    if tol is not None and not (_is_number(tol) and 0 < tol < math.inf):
        raise ValueError(
            f"{operator}: tol must be a positive number (the column error to stop at) or None to "
            f"run all iterations, but it is {tol!r}"
        )


def check_choice(operator: str, name: str, value: str, choices: Sequence[str]) -> None:
    """Check a word against the words that are known."""
    if value not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{operator}: {name} must be one of {known}, but it is {value!r}")


def _check_option(operator, name, value, batch, wanted, holds) -> None:
    if isinstance(value, Tensor):
        check_floating(operator, name, value, axes="broadcastable to *b", rank=0)
        _check_broadcast(operator, name, value, batch, "the leading axes *b =")
        if _values_are_at_hand(value):
            wrong = value.detach()[~holds(value.detach())]
            if wrong.numel():
                raise ValueError(
                    f"{operator}: every entry of {name} must be {wanted}; "
                    f"but one is {wrong[0].item():g}"
                )
    elif not _is_number(value):
        raise TypeError(
            f"{operator}: {name} must be a number or a floating-point tensor, "
            f"but it is {_kind(value)}"
        )
    elif not holds(value):
        raise ValueError(f"{operator}: {name} must be {wanted}; but it is {value!r}")


def _unit(x):
    return (x >= 0) & (x <= 1)


def _step(x):
    return (x > 0) & (x < 2)


def _positive(x):
    return (x > 0) & (x < math.inf)


def _check_broadcast(operator, name, tensor, shape, meaning) -> None:
    wanted = torch.Size(shape)
    try:
        fits = torch.broadcast_shapes(tensor.shape, wanted) == wanted
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{operator}: {name} must broadcast to {meaning} {tuple(wanted)}, "
            f"but its shape is {tuple(tensor.shape)}; insert axes of size one where it is shared"
        )


def _check_device(operator, name, tensor, device) -> None:
    if tensor.device != device:
        raise ValueError(
            f"{operator}: {name} must be on the device of the other tensors, {device}, "
            f"but it is on {tensor.device}; move it with {name}.to({str(device)!r})"
        )


def _is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of dtype {value.dtype}"
    return f"a {type(value).__name__}"


def _values_are_at_hand(tensor: Tensor) -> bool:
    # reading a value would break a compiled graph, and would stall an accelerator
    return not torch.compiler.is_compiling() and tensor.device.type == "cpu" and tensor.numel() > 0
