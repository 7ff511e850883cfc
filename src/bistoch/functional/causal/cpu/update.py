"""The rule of the account, and its derivative: all that the kernels know of the update of a bias.

What a block leaves behind are the column sums of its plan; a bias is made of the account alone.
Vectors over keys go in whole vectors of the machine, a little further than there are keys: what is
there is finite, and is not read.
"""

import numpy as np

from bistoch.functional.causal.problem import TIE
from bistoch.functional.kernels.array import start_of
from bistoch.functional.kernels.math import (
    choose_above,
    exponentials,
    logarithms,
)
from bistoch.functional.kernels.runtime import exponential, jit, larger, logarithm, size_of
from bistoch.functional.kernels.vector import (
    add_vectors,
    lanes_of,
    larger_vectors,
    load,
    multiply_add,
    multiply_vectors,
    spread,
    store,
    total,
)


@jit
def receive(received, sums, bias, stop, like):
    """Add what the rows of a block gave, the bias taken out again, to what keys have received."""
    size = size_of(like)
    least, one, minus = spread(like(np.finfo(like).tiny)), spread(like(1)), spread(like(-1))
    zero = spread(like(0))
    received, sums, bias = start_of(received), start_of(sums), start_of(bias)
    for j in range(0, stop * size, lanes_of(like) * size):
        before, sum = load(received + j, like), load(sums + j, like)
        mass = multiply_add(load(bias + j, like), minus, logarithms(larger_vectors(sum, least)))
        high = larger_vectors(before, mass)
        # minus the distance of the two logs
        low = multiply_add(high, spread(like(-2)), add_vectors(before, mass))
        after = add_vectors(high, logarithms(add_vectors(one, exponentials(low))))
        store(received + j, choose_above(sum, least, after, before))
        store(sums + j, zero)


@jit
def level_of(received, wanted, like):
    """The log of wanted over received of the keys of a block together, and that of received."""
    highest, all_received, fair = like(-np.inf), like(0), like(0)
    for j in range(len(received)):
        highest = larger(highest, received[j])
    for j in range(len(received)):
        all_received += exponential(received[j] - highest)
        fair += wanted[j]
    together = highest + logarithm(all_received)
    return logarithm(fair) - together, together


@jit
def open_keys(received, wanted, level, prior, like):
    """New keys start where those of the block before stand, but not above what is fair."""
    received[:] = logarithm(prior) - min(level, like(0))
    wanted[:] = prior


@jit
def weigh(received, wanted, lam, bias, stop, like):
    """The bias that follows from an account: `lam` times the log of wanted over received."""
    size, lam, minus = size_of(like), spread(lam), spread(like(-1))
    received, wanted, bias = start_of(received), start_of(wanted), start_of(bias)
    for j in range(0, stop * size, lanes_of(like) * size):
        ratio = multiply_add(load(received + j, like), minus, logarithms(load(wanted + j, like)))
        store(bias + j, multiply_vectors(lam, ratio))


@jit
def weigh_back(received, wanted, lam, bias_grad, received_grad, stop, like):
    """Add the gradient of a bias to that of the account; return that of lam."""
    size, less, lam_grad = size_of(like), spread(-lam), spread(like(0))
    minus = spread(like(-1))
    received, wanted = start_of(received), start_of(wanted)
    bias_grad, received_grad = start_of(bias_grad), start_of(received_grad)
    for j in range(0, stop * size, lanes_of(like) * size):
        ratio = multiply_add(load(received + j, like), minus, logarithms(load(wanted + j, like)))
        grad = load(bias_grad + j, like)
        lam_grad = multiply_add(grad, ratio, lam_grad)
        store(received_grad + j, multiply_add(grad, less, load(received_grad + j, like)))
    return total(lam_grad)


@jit
def open_back(received, wanted, received_grad, opened_grad, like):
    """Hand the gradient of keys that were opened to those of the block before."""
    level, together = level_of(received, wanted, like)
    level_grad = like(0)
    for j in range(len(opened_grad)):
        level_grad -= opened_grad[j]
        opened_grad[j] = like(0)
    # the slope at the kink is zero, see `problem.tie`
    if level < like(-TIE * np.finfo(like).eps):
        for j in range(len(received)):
            received_grad[j] -= level_grad * exponential(received[j] - together)


@jit
def receive_back(before, after, bias, received_grad, sums_grad, stop, like):
    """From the account after a block to the one before, and to the column sums of its plan.

    received = log(e^before + sum e^-bias); what the sums owe to the bias is not counted here.
    """
    size, minus = size_of(like), spread(like(-1))
    before, after, bias = start_of(before), start_of(after), start_of(bias)
    received_grad, sums_grad = start_of(received_grad), start_of(sums_grad)
    for j in range(0, stop * size, lanes_of(like) * size):
        grad, less = load(received_grad + j, like), multiply_vectors(minus, load(after + j, like))
        share = exponentials(multiply_add(load(bias + j, like), minus, less))
        store(sums_grad + j, multiply_vectors(grad, share))
        kept = exponentials(add_vectors(load(before + j, like), less))
        store(received_grad + j, multiply_vectors(grad, kept))
