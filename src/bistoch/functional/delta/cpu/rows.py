"""Loops over the rows of a strip, in whole vectors: where all time goes that is not a product."""

import numpy as np

from bistoch.functional.kernels.array import vector
from bistoch.functional.kernels.math import exponentials
from bistoch.functional.kernels.runtime import exponential, jit, size_of
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
def whole_lanes(length, like):
    """A length in whole vectors."""
    wide = lanes_of(like)
    return (length + wide - 1) // wide * wide


@jit
def fill(at, first, last, number, like):
    """Put a number at some places of a row."""
    row = vector(at, last, like)
    for j in range(first, last):
        row[j] = number


@jit
def soften(at, bias, end, before, sum_before, like):
    """Turn scores into `exp(row + bias - max)`; return the maximum and the sum.

    If a part of the row was softened before, its maximum and its sum are continued.
    """
    step = lanes_of(like) * size_of(like)
    end = end * size_of(like)
    high = spread(before)
    for j in range(0, end, step):
        high = larger_vectors(add_vectors(load(at + j, like), load(bias + j, like)), high)
    highest = largest(high)
    if highest == -np.inf:
        highest = like(0)
    down, sums = spread(-highest), spread(like(0))
    for j in range(0, end, step):
        x = add_vectors(load(at + j, like), load(bias + j, like))
        x = exponentials(add_vectors(x, down))
        store(at + j, x)
        sums = add_vectors(sums, x)
    return highest, total(sums) + sum_before * exponential(before - highest)


@jit
def clear(at, first, last, like):
    """Zeros from one place of a row to another, both whole vectors."""
    zero, size = spread(like(0)), size_of(like)
    for j in range(first * size, last * size, lanes_of(like) * size):
        store(at + j, zero)


@jit
def plan_again(at, bias, grad, end, shift, factor, like):
    """Turn scores into the row of the plan that the forward had; return its product with a row."""
    step, end = lanes_of(like) * size_of(like), end * size_of(like)
    down, scale, dot = spread(-shift), spread(factor), spread(like(0))
    for j in range(0, end, step):
        x = add_vectors(load(at + j, like), load(bias + j, like))
        x = multiply_vectors(exponentials(add_vectors(x, down)), scale)
        store(at + j, x)
        dot = multiply_add(x, load(grad + j, like), dot)
    return total(dot)


@jit
def score_grad(at, grad, end, dot, like):
    """Turn the gradient of a row of the plan into that of its scores: `P (dP - dot)`."""
    step, end, down = lanes_of(like) * size_of(like), end * size_of(like), spread(-dot)
    for j in range(0, end, step):
        x = multiply_vectors(load(at + j, like), add_vectors(load(grad + j, like), down))
        store(grad + j, x)


@jit
def add_columns(at, step, rows, columns, sums, like):
    """Add rows to sums over their columns."""
    for i in range(rows):
        row = vector(at + i * step, columns, like)
        for j in range(columns):
            sums[j] += row[j]


@jit
def times(at, count, factor, like):
    """Multiply a row by a number."""
    row = vector(at, count, like)
    for c in range(count):
        row[c] *= factor
