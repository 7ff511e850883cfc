"""Checks of what an operator is set up with: numbers, words, and tensors of one per problem."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bistoch.functional.inputs.kinds import Option
from bistoch.functional.inputs.tensors import (
    check_broadcast,
    check_device,
    check_floating,
    is_number,
    kind,
    values_are_at_hand,
)

if TYPE_CHECKING:
    from bistoch.functional._operator import Operator

# why there is one for each problem, and not for each token
ONE_EPS = (
    "insert axes of size one where it is shared; for a temperature of each query or key divide the "
    "queries or keys by it, or the scores of balance: only their product with the scale is seen"
)
ONE_LAM = (
    "insert axes of size one where it is shared; rows are always exact, so they have no lam, and "
    "all columns of a problem share one: kernels keep it as one number. To pull some columns less, "
    "choose their column_mass, or free them with a price in match"
)

# what machines count with
MOST = 2**63 - 1


def check_inner(operator: str, row: "Operator") -> None:
    """Check that single rows of an operator can be computed, each with a mask of its own."""
    if not row.rows_stand_alone:
        raise ValueError(
            f"{operator}: inner must be an operator whose rows can be computed one by one (causal, "
            f"columns free, any mask), but {row.name!r} is not; use inner='softmax'"
        )


def check_logit(
    operator: str,
    name: str,
    logit: Option,
    batch: Sequence[int],
    device: torch.device | None = None,
) -> None:
    """Check a number that is added beside or to the scores, perhaps one per head."""
    _check_option(operator, name, logit, batch, device, "finite", _finite)


def check_lam(
    operator: str, lam: Option, batch: Sequence[int], device: torch.device | None = None
) -> None:
    """Check the elasticity."""
    wanted = "in [0, 1]: 0 is softmax, 1 doubly stochastic"
    _check_option(operator, "lam", lam, batch, device, wanted, _unit, remedy=ONE_LAM)


def check_omega(
    operator: str, omega: Option, batch: Sequence[int], device: torch.device | None = None
) -> None:
    """Check the step of the column update."""
    wanted = "in (0, 2): 1 is the plain step"
    _check_option(operator, "omega", omega, batch, device, wanted, _step)


def check_eps(
    operator: str, eps: Option, batch: Sequence[int], device: torch.device | None = None
) -> None:
    """Check the temperature."""
    wanted = "positive and finite; for eps -> 0 use hard_plan"
    _check_option(operator, "eps", eps, batch, device, wanted, _positive, remedy=ONE_EPS)


def check_scale(operator: str, scale: float | None) -> None:
    """Check the factor of the dot products."""
    if scale is not None:
        wanted = "a finite number, or None for 1/sqrt(features)"
        _check_number(operator, "scale", scale, wanted, _finite, 0.125)


def check_finite(operator: str, name: str, value: float, *, example: float) -> None:
    """Check a number of which nothing is asked but that it is one."""
    _check_number(operator, name, value, "a finite number", _finite, example)


def check_probability(operator: str, name: str, value: float) -> None:
    """Check a probability, such as that of dropping an entry."""
    _check_number(operator, name, value, "a number in [0, 1]", _unit, 0.1)


def check_decay(operator: str, decay: float) -> None:
    """Check how much of an average is kept at every step."""
    wanted = "a number in [0, 1), what is kept of the average"
    _check_number(operator, "decay", decay, wanted, lambda x: _unit(x) and x < 1, 0.9)


def check_capacity_factor(operator: str, capacity: float | None) -> None:
    """Check how much more than an even share an expert takes."""
    if capacity is not None:
        wanted = "a positive number, in units of an even share, or None to drop nothing"
        _check_number(operator, "capacity", capacity, wanted, _positive, 1.25)


def check_top_k(operator: str, top_k: int, experts: int) -> None:
    """Check that a token can choose so many experts."""
    check_count(operator, "top_k", top_k, least=1)
    if top_k > experts:
        raise ValueError(
            f"{operator}: top_k must be at most the number of experts, but top_k={top_k} and "
            f"experts={experts}; choose fewer of them"
        )


def check_noise(operator: str, noise: float) -> None:
    """Check the size of random noise."""
    _check_number(operator, "noise", noise, "a number, zero or positive", _not_negative, 1.0)


def check_count(operator: str, name: str, count: int, *, least: int = 0) -> None:
    """Check a whole number, such as a number of iterations."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(
            f"{operator}: {name} must be a whole number, but it is {kind(count)}; "
            f"write for example {name}=10"
        )
    if count < least:
        raise ValueError(
            f"{operator}: {name} must be at least {least}, but it is {count}; "
            f"write for example {name}=10"
        )
    if count > MOST:
        raise ValueError(
            f"{operator}: {name} must be at most {MOST}, but it is {count:.3g}; "
            f"write for example {name}=10"
        )


def check_flag(operator: str, name: str, flag: bool) -> None:
    """Check what is either true or false, and nothing that merely counts as one of them."""
    if not isinstance(flag, bool):
        raise TypeError(
            f"{operator}: {name} must be True or False, but it is {kind(flag)}; "
            f"write for example {name}=True"
        )


def check_generator(operator: str, generator: torch.Generator | None, device: torch.device) -> None:
    """Check a source of random numbers: it must live where the numbers are drawn."""
    if generator is None:
        return
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"{operator}: generator must be a torch.Generator or None, but it is "
            f"{kind(generator)}; make one with torch.Generator().manual_seed(0)"
        )
    if generator.device.type != device.type:
        raise ValueError(
            f"{operator}: generator must be on the device of the tensors, {device}, but it is on "
            f"{generator.device}; make it with torch.Generator({str(device)!r})"
        )


def check_ridge(operator: str, ridge: float) -> None:
    """Check what keeps a decomposition defined."""
    _check_number(operator, "ridge", ridge, "a positive number, small against 1", _positive, 1e-4)


def check_prior(operator: str, prior: float) -> None:
    """Check the mass that stands for what is not known yet."""
    wanted = "a positive number, a mass that is small against 1"
    _check_number(operator, "prior", prior, wanted, _positive, 0.01)


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
    operator: str,
    theta: Tensor,
    length: int,
    batch: Sequence[int],
    tokens: int,
    device: torch.device,
) -> None:
    """Check the factors of the angles: one per angle, or per score if there are more of them."""
    check_floating(operator, "theta", theta, axes="(*b, angles)", rank=1)
    if theta.shape[-1] != length:
        raise ValueError(
            f"{operator}: theta must have {length} entries in its last axis for a circuit that "
            f"counts {tokens} tokens, but its shape is {tuple(theta.shape)}; change qubits, "
            "ancilla, layers or ansatz to those it was made for, or make another"
        )
    check_broadcast(operator, "theta", theta, (*batch, length), "(*b, angles) =")
    check_device(operator, "theta", theta, device)


def check_tol(operator: str, tol: float | None) -> None:
    """Check the optional stop on the column error."""
    if tol is not None:
        wanted = "a positive number (the column error to stop at), or None to run all iterations"
        _check_number(operator, "tol", tol, wanted, _positive, 1e-3)


def check_blur(
    operator: str, eps: Option, batch: Sequence[int], device: torch.device | None = None
) -> None:
    """Check the temperature of a sort, where the number zero is the sort itself."""
    if isinstance(eps, Tensor):
        wanted = "positive and finite; for a hard sort pass the number eps=0.0"
        _check_option(operator, "eps", eps, batch, device, wanted, _positive)
    else:
        wanted = "zero, for a hard sort, or positive and finite"
        _check_option(operator, "eps", eps, batch, device, wanted, _not_negative)


def check_tau(
    operator: str, tau: Option, batch: Sequence[int], device: torch.device | None = None
) -> None:
    """Check how strongly cheap slices are preferred."""
    wanted = "zero, for equal weights, or positive and finite"
    _check_option(operator, "tau", tau, batch, device, wanted, _not_negative)


def check_rank(operator: str, rank: int | None, pivots: Tensor) -> None:
    """Check that a rank, if there is one, is the number of the pivots that were given."""
    if rank is not None and rank != pivots.shape[-2]:
        raise ValueError(
            f"{operator}: rank must be the number of pivots, but rank={rank} and there are "
            f"{pivots.shape[-2]} pivots; leave rank out when you pass pivots"
        )


def check_text(operator: str, name: str, value: str, example: str) -> None:
    """Check that an argument is a text."""
    if not isinstance(value, str):
        raise TypeError(
            f"{operator}: {name} must be a text such as {example!r}, but it is {kind(value)}"
        )


def check_literals(operator: str, options: Mapping[str, object]) -> None:
    """Check that options can be written down in a program that is exported for any length."""
    for name, value in options.items():
        if not (value is None or isinstance(value, str | int | float)):
            raise TypeError(
                f"{operator}: {name} cannot be part of a program that is exported for any length, "
                f"since it is {kind(value)}; leave it out, or export for one length"
            )


def refuse_watcher(operator: str, backend: str, watcher: str) -> None:
    """Refuse a backend with operations of its own to tools that know only those of torch."""
    raise NotImplementedError(
        f"{operator}: {watcher} knows only operations of torch, but backend={backend!r} has its "
        'own; choose backend="reference"'
    )


def refuse_triton(operator: str, dtype: torch.dtype, features: int, values: int) -> None:
    """Refuse tokens and values that the kernels of the backend "triton" do not know."""
    raise NotImplementedError(
        f'{operator}: the backend "triton" works on float16, bfloat16 and float32 tokens and '
        f"values of at most 256 features, but here it would work in {dtype} on {features} and "
        f'{values} features; choose backend="streaming"'
    )


def refuse_step_gradient(operator: str) -> None:
    """Refuse a gradient through a step of decoding by the backend "triton"."""
    raise NotImplementedError(
        f'{operator}: the kernels of the backend "triton" for steps have no gradient, but an input '
        'requires one; call it under torch.no_grad(), or choose backend="streaming"'
    )


def check_choice(operator: str, name: str, value: str, choices: Sequence[str]) -> None:
    """Check a word against the words that are known."""
    if isinstance(value, str) and value in choices:
        return
    known = ", ".join(repr(choice) for choice in choices)
    sentence = f"{operator}: {name} must be one of {known}, but it is"
    if isinstance(value, str):
        raise ValueError(f"{sentence} {value!r}")
    raise TypeError(f"{sentence} {kind(value)}")


def _check_option(operator, name, value, batch, device, wanted, holds, remedy=None) -> None:
    if isinstance(value, Tensor):
        check_floating(operator, name, value, axes="broadcastable to *b", rank=0)
        check_broadcast(operator, name, value, batch, "the leading axes *b =", remedy)
        # torch, too, lets a single number of the CPU meet tensors elsewhere
        if device is not None and (value.ndim or value.device.type != "cpu"):
            check_device(operator, name, value, device)
        if values_are_at_hand(value):
            wrong = value.detach()[~holds(value.detach())]
            if wrong.numel():
                raise ValueError(
                    f"{operator}: every entry of {name} must be {wanted}; "
                    f"but one is {wrong[0].item():g}"
                )
    elif not is_number(value):
        raise TypeError(
            f"{operator}: {name} must be a number or a floating-point tensor, "
            f"but it is {kind(value)}; write for example {name}=0.5"
        )
    elif not holds(value):
        raise ValueError(f"{operator}: {name} must be {wanted}; but it is {value!r}")


def _check_number(operator, name, value, wanted, holds, example) -> None:
    if not is_number(value):
        raise TypeError(
            f"{operator}: {name} must be {wanted}, but it is {kind(value)}; "
            f"write for example {name}={example}"
        )
    if not holds(value):
        raise ValueError(
            f"{operator}: {name} must be {wanted}, but it is {value!r}; "
            f"write for example {name}={example}"
        )


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
