"""The rule of the account, and its derivative: all that the kernels know of the update of a bias.

What a block leaves behind are the column sums of its plan; a bias is made of the account alone.
"""

import numpy as np

from bistoch.functional.elastic.cpu_runtime import exponential, jit, larger, logarithm


@jit
def log_add(a, b, like):
    """`log(e^a + e^b)`."""
    return larger(a, b) + logarithm(like(1) + exponential(-abs(a - b)))


@jit
def receive(received, sums, bias, like):
    """Add what the rows of a block gave, the bias taken out again, to what keys have received."""
    least = like(np.finfo(like).tiny)
    for j in range(len(received)):
        more = log_add(received[j], logarithm(larger(sums[j], least)) - bias[j], like)
        received[j] = more if sums[j] > least else received[j]


@jit
def level_of(received, wanted, like):
    """The log of wanted over received of the keys of a block together, and that of received."""
    highest, total, fair = like(-np.inf), like(0), like(0)
    for j in range(len(received)):
        highest = larger(highest, received[j])
    for j in range(len(received)):
        total += exponential(received[j] - highest)
        fair += wanted[j]
    together = highest + logarithm(total)
    return logarithm(fair) - together, together


@jit
def open_keys(received, wanted, level, prior, like):
    """New keys start where those of the block before stand, but not above what is fair."""
    received[:] = logarithm(prior) - min(level, like(0))
    wanted[:] = prior


@jit
def weigh(received, wanted, lam, bias, like):
    """The bias that follows from an account: `lam` times the log of wanted over received."""
    for j in range(len(received)):
        bias[j] = lam * (logarithm(wanted[j]) - received[j])


@jit
def weigh_back(received, wanted, lam, bias_grad, received_grad, like):
    """Add the gradient of a bias to that of the account; return that of lam."""
    lam_grad = like(0)
    for j in range(len(received)):
        lam_grad += bias_grad[j] * (logarithm(wanted[j]) - received[j])
        received_grad[j] -= lam * bias_grad[j]
    return lam_grad


@jit
def open_back(received, wanted, received_grad, opened_grad, like):
    """Hand the gradient of keys that were opened to those of the block before."""
    level, together = level_of(received, wanted, like)
    level_grad = like(0)
    for j in range(len(opened_grad)):
        level_grad -= opened_grad[j]
        opened_grad[j] = like(0)
    if level <= like(0):
        for j in range(len(received)):
            received_grad[j] -= level_grad * exponential(received[j] - together)


@jit
def receive_back(before, after, bias, received_grad, sums_grad, like):
    """From the account after a block to the one before, and to the column sums of its plan.

    received = log(e^before + sum e^-bias); what the sums owe to the bias is not counted here.
    """
    for j in range(len(after)):
        grad = received_grad[j]
        sums_grad[j] = grad * exponential(-bias[j] - after[j])
        received_grad[j] = grad * exponential(before[j] - after[j])
