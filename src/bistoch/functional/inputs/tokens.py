"""Checks of the arguments of a call: tokens, masks, and tensors that belong to tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bistoch.functional.inputs.kinds import Mask
from bistoch.functional.inputs.tensors import (
    check_broadcast,
    check_dense,
    check_device,
    check_floating,
    kind,
    values_are_at_hand,
)


def check_tokens(operator: str, query: Tensor, key: Tensor, *value: Tensor) -> torch.Size:
    """Check that query, key and perhaps a value belong together; return common leading axes."""
    tokens = dict(zip(("query", "key", "value"), (query, key, *value), strict=False))
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
    if value and value[0].shape[-2] != key.shape[-2]:
        raise ValueError(
            f"{operator}: value must have one row per key (axis -2), but there are "
            f"{key.shape[-2]} keys and {value[0].shape[-2]} values"
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


def check_mask(operator: str, mask: Mask, shape: Sequence[int], device: torch.device) -> None:
    """Check a boolean mask or a float bias that broadcasts to the scores."""
    wanted = "a boolean tensor (True = may attend) or a float bias added to the scores"
    check_dense(operator, "mask", mask, wanted)
    if not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise TypeError(
            f"{operator}: mask must be {wanted}, but it is {kind(mask)}; convert it, for example "
            "mask.bool()"
        )
    check_broadcast(operator, "mask", mask, shape, "the scores, (*b, n, m) =")
    check_device(operator, "mask", mask, device)


def check_shared_mask(operator: str, mask: Mask, reason: str) -> None:
    """Check that a mask or bias is the same for all queries: it may hide keys, but no pairs."""
    check_dense(operator, "mask", mask, "a boolean tensor or a float bias")
    if mask.ndim > 1 and mask.shape[-2] != 1:
        raise ValueError(
            f"{operator}: mask must be the same for all queries, with size one along axis -2, "
            f"because {reason}; but its shape is {tuple(mask.shape)}; hide whole tokens with "
            "query_mask and key_mask, or use softmax_attention"
        )


def refuse_pairs(operator: str, mask: Mask | None, reason: str) -> None:
    """Refuse a mask over pairs, in an operator that can only leave out whole tokens."""
    if mask is not None:
        raise NotImplementedError(
            f"{operator}: mask must be None, since {reason}; leave out whole tokens with "
            "query_mask and key_mask, or use elastic_attention"
        )


def check_square(operator: str, query: Tensor, key: Tensor, reason: str) -> None:
    """Check that there are as many queries as keys."""
    if query.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"{operator}: there must be as many queries as keys, because {reason}; "
            f"but there are {query.shape[-2]} queries and {key.shape[-2]} keys"
        )


def check_padding(
    operator: str, name: str, mask: Tensor, shape: Sequence[int], device: torch.device
) -> None:
    """Check a boolean mask over queries or over keys, True where the token is real."""
    wanted = "a boolean tensor, True where the token is real"
    check_dense(operator, name, mask, wanted)
    if mask.dtype != torch.bool:
        raise TypeError(
            f"{operator}: {name} must be {wanted}, but it is {kind(mask)}; convert it, for example "
            f"{name}.bool()"
        )
    axes = "(*b, n) =" if name == "query_mask" else "(*b, m) ="
    check_broadcast(operator, name, mask, shape, axes)
    check_device(operator, name, mask, device)


def check_equal_padding(
    operator: str, query_mask: Tensor | None, key_mask: Tensor | None, length: int
) -> None:
    """Check that padding leaves as many queries as keys."""
    masks = [mask for mask in (query_mask, key_mask) if mask is not None]
    if not masks or not all(values_are_at_hand(mask) for mask in masks):
        return
    queries, keys = (
        torch.tensor(length) if mask is None else mask.sum(-1) for mask in (query_mask, key_mask)
    )
    wrong = (queries != keys).nonzero()
    if wrong.numel():
        queries, keys = torch.broadcast_tensors(queries, keys)
        at = wrong[0].item()
        raise ValueError(
            f"{operator}: padding must leave as many queries as keys, because the plan is square, "
            f"but problem {at} has {queries[at].item()} real queries and {keys[at].item()} real "
            "keys; give the padding of the same tokens as query_mask and as key_mask"
        )


def check_column_mass(
    operator: str, mass: Tensor, shape: Sequence[int], device: torch.device, *, of: str = "column"
) -> None:
    """Check the wanted sums of columns, or what pivots should receive: positive, one for each."""
    name, axes = f"{of}_mass", "(*b, m)" if of == "column" else f"(*b, {of}s)"
    check_floating(operator, name, mass, axes=axes, rank=1)
    check_broadcast(operator, name, mass, shape, f"{axes} =")
    check_device(operator, name, mass, device)
    if values_are_at_hand(mass) and not bool(((mass > 0) & mass.isfinite()).all()):
        remedy = "leave a key out with key_mask" if of == "column" else f"leave a {of} out"
        raise ValueError(
            f"{operator}: {name} must be positive and finite everywhere, but its smallest "
            f"entry is {mass.min().item():g}; {remedy} instead of mass zero"
        )


def check_row_mass(operator: str, mass: Tensor, shape: Sequence[int], device: torch.device) -> None:
    """Check what the rows should sum to: none negative, one for each query."""
    check_floating(operator, "row_mass", mass, axes="(*b, n)", rank=1)
    check_broadcast(operator, "row_mass", mass, shape, "(*b, n) =")
    check_device(operator, "row_mass", mass, device)
    if values_are_at_hand(mass):
        wrong = mass.detach()[~((mass >= 0) & mass.isfinite())]
        if wrong.numel():
            raise ValueError(
                f"{operator}: row_mass must be finite and not negative everywhere, but one entry "
                f"is {wrong[0].item():g}; a query of mass zero counts as padding"
            )


def check_equal_masses(operator: str, rows: Tensor, columns: Tensor) -> None:
    """Check that row masses and column masses of real tokens have the same total."""
    if not values_are_at_hand(rows):
        return
    wrong = ((rows - columns).abs() > 1e-3 * rows).nonzero()
    if wrong.numel():
        at = int(wrong[0])
        raise ValueError(
            f"{operator}: row_mass and column_mass must have the same total over real tokens, but "
            f"in problem {at} the rows sum to {rows[at].item():g} and the columns to "
            f"{columns[at].item():g}; scale one of them, or leave one out"
        )


def check_start(operator: str, start: Tensor, shape: Sequence[int], device: torch.device) -> None:
    """Check column potentials to start from; minus infinity is a key that no query could see."""
    check_floating(operator, "start", start, axes="(*b, m)", rank=1)
    check_broadcast(operator, "start", start, shape, "(*b, m) =")
    check_device(operator, "start", start, device)
    if values_are_at_hand(start) and not bool((start < torch.inf).all()):
        raise ValueError(
            f"{operator}: start must be column potentials, finite or minus infinity, but "
            f"{int((~(start < torch.inf)).sum())} of them are NaN or infinite; pass the `column` "
            "of potentials that were found before, or leave start out"
        )


def check_variance(operator: str, name: str, variance: Tensor, tokens: Tensor) -> None:
    """Check the variances of Gaussian tokens: one for each feature, none of them negative."""
    check_floating(operator, name, variance, axes="(*b, length, features)", rank=2)
    of = name.removesuffix("_variance")
    check_broadcast(operator, name, variance, tokens.shape, f"the shape of {of},")
    check_device(operator, name, variance, tokens.device)
    if values_are_at_hand(variance) and not bool(((variance >= 0) & variance.isfinite()).all()):
        raise ValueError(
            f"{operator}: {name} must be finite and not negative, but its smallest entry is "
            f"{variance.min().item():g}; make it positive, for example with elu(x) + 1"
        )


def check_weight(operator: str, weight: Tensor, shape: Sequence[int], device: torch.device) -> None:
    """Check a learned matrix with one row per query and one column per key."""
    check_floating(operator, "weight", weight, axes="(*b, n, m)", rank=2)
    if tuple(weight.shape[-2:]) != tuple(shape[-2:]):
        raise ValueError(
            f"{operator}: weight must have one row per query and one column per key, "
            f"{tuple(shape[-2:])}, but its shape is {tuple(weight.shape)}; a static plan is made "
            "for one number of tokens: pad the tokens, or learn a weight for this number"
        )
    check_broadcast(operator, "weight", weight, shape, "(*b, n, m) =")
    check_device(operator, "weight", weight, device)


def check_vectors(
    operator: str, name: str, vectors: Tensor, query: Tensor, batch: Sequence[int]
) -> None:
    """Check directions, pivots and their like: at least one vector, as wide as a query."""
    check_floating(operator, name, vectors, axes="(*b, count, features)", rank=2)
    check_device(operator, name, vectors, query.device)
    count, features = vectors.shape[-2:]
    if features != query.shape[-1] or count == 0:
        raise ValueError(
            f"{operator}: {name} must be at least one vector with as many features as a query, "
            f"{query.shape[-1]}, but there are {count} with {features}; "
            f"give {name} the shape (*b, count, {query.shape[-1]})"
        )
    shape = (*batch, count, features)
    check_broadcast(operator, name, vectors, shape, "(*b, count, features) =")
