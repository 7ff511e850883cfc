"""Checks of what an operator is set up with: numbers, words, and tensors of one per problem."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from bistoch.functional._inputs.kinds import Option
from bistoch.functional._inputs.tensors import (
    check_broadcast,
    check_floating,
    is_number,
    kind,
    values_are_at_hand,
)

if TYPE_CHECKING:
    from bistoch.functional._operator import Operator


def check_inner(operator: str, row: "Operator") -> None:
    """Check that single rows of an operator can be computed, each with a mask of its own."""
    if not row.rows_stand_alone:
        raise ValueError(
            f"{operator}: inner must be an operator whose rows can be computed one by one (causal, "
            f"columns free, any mask), but {row.name!r} is not; use inner='softmax'"
        )


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
    if scale is not None and not (is_number(scale) and math.isfinite(scale)):
        raise ValueError(
            f"{operator}: scale must be a finite number or None for 1/sqrt(features), "
            f"but it is {scale!r}"
        )


def check_noise(operator: str, noise: float) -> None:
    """Check the size of random noise."""
    if not (is_number(noise) and 0 <= noise < math.inf):
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
    if not (is_number(ridge) and 0 < ridge < math.inf):
        raise ValueError(
            f"{operator}: ridge must be a positive number, small against 1, but it is {ridge!r}"
        )


def check_prior(operator: str, prior: float) -> None:
    """Check the mass that stands for what is not known yet."""
    if not (is_number(prior) and 0 < prior < math.inf):
        raise ValueError(
            f"{operator}: prior must be a positive number, a mass that is small against 1, but it "
            f"is {prior!r}"
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
    check_broadcast(operator, "theta", theta, (*batch, length), "(*b, angles) =")


def check_tol(operator: str, tol: float | None) -> None:
    """Check the optional stop on the column error."""
    if tol is not None and not (is_number(tol) and 0 < tol < math.inf):
        raise ValueError(
            f"{operator}: tol must be a positive number (the column error to stop at) or None to "
            f"run all iterations, but it is {tol!r}"
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
        check_broadcast(operator, name, value, batch, "the leading axes *b =")
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
            f"but it is {kind(value)}"
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
