"""Loops over the rows of a strip, in whole vectors: where all time goes that is not a product."""

import numpy as np

from bistoch.functional.kernels.array import vector
from bistoch.functional.kernels.math import exponentials
from bistoch.functional.kernels.runtime import jit, size_of
from bistoch.functional.kernels.vector import (
    add_vectors,
    lanes_of,
    larger_vectors,
    largest,
    load,
    multiply_add,
    multiply_vectors,
    spread,
    store,
    total,
)


@jit
def close_row(at, seen, width, number, like):
    """Put a number behind the keys that a row sees, up to whole vectors, and zeros behind that."""
    size = size_of(like)
    step = lanes_of(like) * size
    row = vector(at, width, like)
    end = (seen * size + step - 1) // step * step
    for j in range(seen, end // size):
        row[j] = number
    zero = spread(like(0))
    for j in range(end, width * size, step):
        store(at + j, zero)
    return end


@jit
def soften(at, bias, end, like):
    """Turn scores into `exp(row + bias - max)`; return the maximum and one over the sum.

    Both are zero if there is nothing to see.
    """
    step, zero = lanes_of(like) * size_of(like), like(0)
    high = spread(like(-np.inf))
    for j in range(0, end, step):
        high = larger_vectors(add_vectors(load(at + j, like), load(bias + j, like)), high)
    highest = largest(high)
    if highest == -np.inf:
        highest = zero
    down, sums = spread(-highest), spread(zero)
    for j in range(0, end, step):
        x = add_vectors(load(at + j, like), load(bias + j, like))
        x = exponentials(add_vectors(x, down))
        store(at + j, x)
        sums = add_vectors(sums, x)
    rest = total(sums)
    return highest, like(1) / rest if rest > zero else zero


@jit
def add_rows(at, step, rows, width, factor, sums, like):
    """Add rows times their factors to sums over keys, eight rows at a time."""
    size = size_of(like)
    wide = lanes_of(like) * size
    even = rows - rows % 8
    for i in range(0, even, 8):
        here = at + i * step
        f0, f1, f2, f3 = (
            spread(factor[i]), spread(factor[i + 1]), spread(factor[i + 2]), spread(factor[i + 3]),
        )  # fmt: skip
        f4, f5, f6, f7 = (
            spread(factor[i + 4]), spread(factor[i + 5]), spread(factor[i + 6]),
            spread(factor[i + 7]),
        )  # fmt: skip
        for j in range(0, width * size, wide):
            # two sums, so that no addition waits for the one before
            a = multiply_add(load(here + j, like), f0, load(sums + j, like))
            b = multiply_vectors(load(here + j + step, like), f1)
            a = multiply_add(load(here + j + 2 * step, like), f2, a)
            b = multiply_add(load(here + j + 3 * step, like), f3, b)
            a = multiply_add(load(here + j + 4 * step, like), f4, a)
            b = multiply_add(load(here + j + 5 * step, like), f5, b)
            a = multiply_add(load(here + j + 6 * step, like), f6, a)
            b = multiply_add(load(here + j + 7 * step, like), f7, b)
            store(sums + j, add_vectors(a, b))
    for i in range(even, rows):
        f = spread(factor[i])
        for j in range(0, width * size, wide):
            x = multiply_add(load(at + i * step + j, like), f, load(sums + j, like))
            store(sums + j, x)


@jit
def plan_again(at, bias, grad, sums_grad, end, shift, factor, like):
    """Turn scores into the row of the plan that the forward had; return `<row, grad + sums_grad>`.

    `grad` is what arrives at the row through the result, `sums_grad` through its column sums.
    """
    step = lanes_of(like) * size_of(like)
    down, scale, dot = spread(-shift), spread(factor), spread(like(0))
    for j in range(0, end, step):
        x = add_vectors(load(at + j, like), load(bias + j, like))
        x = multiply_vectors(exponentials(add_vectors(x, down)), scale)
        store(at + j, x)
        arriving = add_vectors(load(grad + j, like), load(sums_grad + j, like))
        dot = multiply_add(x, arriving, dot)
    return total(dot)


@jit
def differentiate_rows(at, grad, step, rows, width, dots, sums_grad, bias_grad, like):
    """Turn gradients of the plan into those of the scores, four rows at a time.

        dS = P (dP + sums_grad - dot),   bias_grad += column sums of P (dP - dot)

    What a bias does to the sums themselves is taken out of them again.
    """
    size = size_of(like)
    wide = lanes_of(like) * size
    even = rows - rows % 4
    for i in range(0, even, 4):
        p, g = at + i * step, grad + i * step
        d0, d1, d2, d3 = (
            spread(-dots[i]), spread(-dots[i + 1]), spread(-dots[i + 2]), spread(-dots[i + 3]),
        )  # fmt: skip
        for j in range(0, width * size, wide):
            more, sums = load(sums_grad + j, like), load(bias_grad + j, like)
            p0, p1 = load(p + j, like), load(p + j + step, like)
            p2, p3 = load(p + j + 2 * step, like), load(p + j + 3 * step, like)
            x0 = multiply_vectors(p0, add_vectors(load(g + j, like), d0))
            x1 = multiply_vectors(p1, add_vectors(load(g + j + step, like), d1))
            x2 = multiply_vectors(p2, add_vectors(load(g + j + 2 * step, like), d2))
            x3 = multiply_vectors(p3, add_vectors(load(g + j + 3 * step, like), d3))
            store(g + j, multiply_add(p0, more, x0))
            store(g + j + step, multiply_add(p1, more, x1))
            store(g + j + 2 * step, multiply_add(p2, more, x2))
            store(g + j + 3 * step, multiply_add(p3, more, x3))
            sums = add_vectors(sums, add_vectors(add_vectors(x0, x1), add_vectors(x2, x3)))
            store(bias_grad + j, sums)
    for i in range(even, rows):
        p, g, down = at + i * step, grad + i * step, spread(-dots[i])
        for j in range(0, width * size, wide):
            row = load(p + j, like)
            x = multiply_vectors(row, add_vectors(load(g + j, like), down))
            store(g + j, multiply_add(row, load(sums_grad + j, like), x))
            store(bias_grad + j, add_vectors(x, load(bias_grad + j, like)))
