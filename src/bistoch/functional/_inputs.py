"""The one door for user input: every check and every error sentence of the operators lives here.

A sentence names the operator, the argument, what was expected in words, what came in numbers, and
the remedy.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

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
    operator: str, mass: Tensor, shape: Sequence[int], device: torch.device, *, of: str = "column"
) -> None:
    """Check the wanted sums of columns, or what pivots should receive: positive, one for each."""
    name, axes = f"{of}_mass", "(*b, m)" if of == "column" else f"(*b, {of}s)"
    check_floating(operator, name, mass, axes=axes, rank=1)
    _check_broadcast(operator, name, mass, shape, f"{axes} =")
    _check_device(operator, name, mass, device)
    if _values_are_at_hand(mass) and not bool(((mass > 0) & mass.isfinite()).all()):
        remedy = "leave a key out with key_mask" if of == "column" else f"leave a {of} out"
        raise ValueError(
            f"{operator}: {name} must be positive and finite everywhere, but its smallest "
            f"entry is {mass.min().item():g}; {remedy} instead of mass zero"
        )


def check_square(operator: str, query: Tensor, key: Tensor) -> None:
    """Check that there are as many queries as keys."""
    if query.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"{operator}: there must be as many queries as keys, because its plan is square, but "
            f"there are {query.shape[-2]} queries and {key.shape[-2]} keys; use sinkhorn or elastic"
        )


def check_equal_padding(
    operator: str, query_mask: Tensor | None, key_mask: Tensor | None, length: int
) -> None:
    """Check that padding leaves as many queries as keys."""
    masks = [mask for mask in (query_mask, key_mask) if mask is not None]
    if not masks or not all(_values_are_at_hand(mask) for mask in masks):
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


def check_variance(operator: str, name: str, variance: Tensor, tokens: Tensor) -> None:
    """Check the variances of Gaussian tokens: one for each feature, none of them negative."""
    check_floating(operator, name, variance, axes="(*b, length, features)", rank=2)
    of = name.removesuffix("_variance")
    _check_broadcast(operator, name, variance, tokens.shape, f"the shape of {of},")
    _check_device(operator, name, variance, tokens.device)
    if _values_are_at_hand(variance) and not bool(((variance >= 0) & variance.isfinite()).all()):
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
    _check_broadcast(operator, "weight", weight, shape, "(*b, n, m) =")
    _check_device(operator, "weight", weight, device)


def check_logit(operator: str, name: str, logit: Option, batch: Sequence[int]) -> None:
    """Check a number that is added beside or to the scores, perhaps one per head."""
    _check_option(operator, name, logit, batch, "finite", _finite)


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


def check_ridge(operator: str, ridge: float) -> None:
    """Check what keeps a decomposition defined."""
    if not (_is_number(ridge) and 0 < ridge < math.inf):
        raise ValueError(
            f"{operator}: ridge must be a positive number, small against 1, but it is {ridge!r}"
        )


def check_circuit(
    operator: str, ansatz: str, layers: int, ancilla: int, ansaetze: Sequence[str]
) -> None:
    """Check what a circuit is made of."""
    check_choice(operator, "ansatz", ansatz, ansaetze)
    check_count(operator, "layers", layers)
    check_count(operator, "ancilla", ancilla)


def check_qubits(operator: str, qubits: int, tokens: int) -> None:
    """Check that so many qubits can count the tokens."""
    check_count(operator, "qubits", qubits)
    if 2**qubits < tokens:
        raise ValueError(
            f"{operator}: qubits must be able to count all tokens, but {qubits} of them count "
            f"{2**qubits}, and there are {tokens}; take {(tokens - 1).bit_length()}, or None"
        )


def check_theta(
    operator: str, theta: Tensor, length: int, batch: Sequence[int], tokens: int
) -> None:
    """Check the factors of the angles: one per angle, or per score if there are more of them."""
    check_floating(operator, "theta", theta, axes="(*b, angles)", rank=1)
    if theta.shape[-1] != length:
        raise ValueError(
            f"{operator}: theta must have {length} entries in its last axis for a circuit that "
            f"counts {tokens} tokens, but its shape is {tuple(theta.shape)}; change qubits, "
            "ancilla, layers or ansatz to those it was made for, or make another"
        )
    _check_broadcast(operator, "theta", theta, (*batch, length), "(*b, angles) =")


def check_tol(operator: str, tol: float | None) -> None:
    """Check the optional stop on the column error."""
    if tol is not None and not (_is_number(tol) and 0 < tol < math.inf):
        raise ValueError(
            f"{operator}: tol must be a positive number (the column error to stop at) or None to "
            f"run all iterations, but it is {tol!r}"
        )


def refuse_pairs(operator: str, mask: Mask | None, reason: str) -> None:
    """Refuse a mask over pairs, in an operator that can only leave out whole tokens."""
    if mask is not None:
        raise NotImplementedError(
            f"{operator}: mask must be None, since {reason}; leave out whole tokens with "
            "query_mask and key_mask, or use elastic_attention"
        )


def check_blur(operator: str, eps: Option, batch: Sequence[int]) -> None:
    """Check the temperature of a sort, where the number zero is the sort itself."""
    if isinstance(eps, Tensor):
        wanted = "positive and finite; for a hard sort pass the number eps=0.0"
        _check_option(operator, "eps", eps, batch, wanted, _positive)
    else:
        wanted = "zero, for a hard sort, or positive and finite"
        _check_option(operator, "eps", eps, batch, wanted, _not_negative)


def check_tau(operator: str, tau: Option, batch: Sequence[int]) -> None:
    """Check how strongly cheap slices are preferred."""
    wanted = "zero, for equal weights, or positive and finite"
    _check_option(operator, "tau", tau, batch, wanted, _not_negative)


def check_vectors(
    operator: str, name: str, vectors: Tensor, query: Tensor, batch: Sequence[int]
) -> None:
    """Check directions, pivots and their like: at least one vector, as wide as a query."""
    check_floating(operator, name, vectors, axes="(*b, count, features)", rank=2)
    _check_device(operator, name, vectors, query.device)
    count, features = vectors.shape[-2:]
    if features != query.shape[-1] or count == 0:
        raise ValueError(
            f"{operator}: {name} must be at least one vector with as many features as a query, "
            f"{query.shape[-1]}, but there are {count} with {features}; "
            f"give {name} the shape (*b, count, {query.shape[-1]})"
        )
    shape = (*batch, count, features)
    _check_broadcast(operator, name, vectors, shape, "(*b, count, features) =")


def check_rank(operator: str, rank: int | None, pivots: Tensor) -> None:
    """Check that a rank, if there is one, is the number of the pivots that were given."""
    if rank is not None and rank != pivots.shape[-2]:
        raise ValueError(
            f"{operator}: rank must be the number of pivots, but rank={rank} and there are "
            f"{pivots.shape[-2]} pivots; leave rank out when you pass pivots"
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


def _not_negative(x):
    return (x >= 0) & (x < math.inf)


def _positive(x):
    return (x > 0) & (x < math.inf)


def _finite(x):
    return (x > -math.inf) & (x < math.inf)


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
