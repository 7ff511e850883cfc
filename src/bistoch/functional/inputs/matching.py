"""Checks of what a matching is asked for."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from bistoch.functional.inputs.kinds import Option
from bistoch.functional.inputs.tensors import (
    check_broadcast,
    check_dense,
    check_device,
    check_floating,
    is_number,
    kind,
    values_are_at_hand,
)


def check_slack(
    operator: str, bin_score: Option | None, row_price: Option | None, column_price: Option | None
) -> None:
    """Check that a matching has one form of slack, and not two."""
    has_price = row_price is not None or column_price is not None
    if bin_score is not None and has_price:
        raise ValueError(
            f"{operator}: bin_score and prices are two forms of slack, of which only one may be "
            "given, but both are; leave out bin_score, or row_price and column_price"
        )
    if bin_score is None and not has_price:
        raise ValueError(
            f"{operator}: bin_score, row_price or column_price must say what an unmatched row or "
            "column costs, but all are None; pass one, or use balance if everything has a partner"
        )


def check_price(
    operator: str, name: str, price: Option, shape: Sequence[int], device: torch.device
) -> None:
    """Check the price of staying unmatched: a finite number, or one for each row or column."""
    axes = "(*b, n)" if name == "row_price" else "(*b, m)"
    if isinstance(price, Tensor):
        check_floating(operator, name, price, axes=axes, rank=0)
        check_broadcast(operator, name, price, shape, f"{axes} =")
        if price.ndim or price.device.type != "cpu":
            check_device(operator, name, price, device)
        if values_are_at_hand(price) and not bool(price.isfinite().all()):
            wrong = price.detach()[~price.isfinite()]
            raise ValueError(
                f"{operator}: {name} must be finite everywhere, but one entry is "
                f"{wrong[0].item():g}; leave {name} out if nothing may stay unmatched, and "
                "mark padding with query_mask and key_mask"
            )
    elif not is_number(price):
        raise TypeError(
            f"{operator}: {name} must be a number or a floating-point tensor of shape {axes}, but "
            f"it is {kind(price)}; write for example {name}=0.0"
        )
    elif not -float("inf") < price < float("inf"):
        raise ValueError(
            f"{operator}: {name} must be finite, but it is {price!r}; leave {name} out if "
            "nothing may stay unmatched"
        )


def check_capacity(
    operator: str, name: str, capacity: Tensor | int, shape: Sequence[int], device: torch.device
) -> None:
    """Check how much rows or columns can take: whole numbers, none of them negative."""
    axes = "(*b, n)" if name == "row_capacity" else "(*b, m)"
    wanted = f"a whole number, or an integer tensor of shape {axes}"
    if isinstance(capacity, int) and not isinstance(capacity, bool):
        if capacity < 0:
            raise ValueError(
                f"{operator}: {name} must not be negative, but it is {capacity}; write for example "
                f"{name}=1"
            )
        return
    check_dense(operator, name, cast(Tensor, capacity), wanted)
    capacity = cast(Tensor, capacity)
    if capacity.dtype == torch.bool or capacity.is_floating_point() or capacity.is_complex():
        raise TypeError(
            f"{operator}: {name} must be {wanted}, but its dtype is {capacity.dtype}; convert it, "
            f"for example {name}.long(); for masses that are no whole numbers use balance"
        )
    check_broadcast(operator, name, capacity, shape, f"{axes} =")
    check_device(operator, name, capacity, device)
    if values_are_at_hand(capacity) and bool((capacity < 0).any()):
        raise ValueError(
            f"{operator}: {name} must not be negative, but its smallest entry is "
            f"{capacity.min().item()}; write 0 for a row or column that takes nothing"
        )
