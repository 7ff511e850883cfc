"""Loops over the rows of tiles, in whole vectors: where all time goes that is not a product."""

import numpy as np

from bistoch.functional.kernels.array import vector
from bistoch.functional.kernels.math import choose_above, exponentials, logarithms
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
def soften(row, shift, more, end, out, like):
    """Write `exp(row + shift + more - max)`; return the maximum and the sum, zero if all are -inf.

    With `out` zero only the numbers are wanted.
    """
    step, zero = lanes_of(like) * size_of(like), like(0)
    high, sums, by = spread(like(-np.inf)), spread(zero), spread(more)
    for j in range(0, end, step):
        x = add_vectors(add_vectors(load(row + j, like), load(shift + j, like)), by)
        high = larger_vectors(x, high)
    highest = largest(high)
    if highest == -np.inf:
        if out:
            for j in range(0, end, step):
                store(out + j, sums)
        return highest, zero
    down = spread(-highest)
    for j in range(0, end, step):
        x = add_vectors(add_vectors(load(row + j, like), load(shift + j, like)), by)
        x = exponentials(add_vectors(x, down))
        if out:
            store(out + j, x)
        sums = add_vectors(sums, x)
    return highest, total(sums)


@jit
def scale_row(at, end, factor, like):
    """Multiply a row."""
    step, by = lanes_of(like) * size_of(like), spread(factor)
    for j in range(0, end, step):
        store(at + j, multiply_vectors(load(at + j, like), by))


@jit
def add_over_rows(tile, stride, rows, constant, end, sums, highest, rest, dead, like):
    """The sum over rows of `exp(row + constant of the row)`: largest log, and the log over it.

    Two numbers, so that weights sum to one at any size of the scores. Where there is no row, the
    first is `dead` and the second zero.
    """
    size = size_of(like)
    step, by = lanes_of(like) * size, vector(constant, rows, like)
    least = spread(like(-np.inf))
    zero = spread(like(0))
    for j in range(0, end, step):
        store(highest + j, least)
        store(sums + j, zero)
    for i in range(rows):
        if by[i] > -np.inf:
            at, more = tile + i * stride * size, spread(by[i])
            for j in range(0, end, step):
                x = add_vectors(load(at + j, like), more)
                store(highest + j, larger_vectors(x, load(highest + j, like)))
    for j in range(0, end, step):
        x = load(highest + j, like)
        store(highest + j, choose_above(x, least, x, zero))
    minus = spread(like(-1))
    for i in range(rows):
        if by[i] > -np.inf:
            at, more = tile + i * stride * size, spread(by[i])
            for j in range(0, end, step):
                x = add_vectors(load(at + j, like), more)
                x = exponentials(multiply_add(load(highest + j, like), minus, x))
                store(sums + j, add_vectors(x, load(sums + j, like)))
    none = spread(dead)
    for j in range(0, end, step):
        x = load(sums + j, like)
        store(highest + j, choose_above(x, zero, load(highest + j, like), none))
        store(rest + j, choose_above(x, zero, logarithms(x), zero))


@jit
def keep_real(at, real, end, number, like):
    """Put a number wherever `real` is zero."""
    step, zero, other = lanes_of(like) * size_of(like), spread(like(0)), spread(number)
    for j in range(0, end, step):
        store(at + j, choose_above(load(real + j, like), zero, load(at + j, like), other))


@jit
def negate_sum(a, b, end, out, like):
    """Write minus the sum of two rows."""
    step, minus = lanes_of(like) * size_of(like), spread(like(-1))
    for j in range(0, end, step):
        x = add_vectors(load(a + j, like), load(b + j, like))
        store(out + j, multiply_vectors(x, minus))


@jit
def add_rows(a, b, end, out, like):
    """Write the sum of two rows."""
    step = lanes_of(like) * size_of(like)
    for j in range(0, end, step):
        store(out + j, add_vectors(load(a + j, like), load(b + j, like)))


@jit
def share_of_row(row, shift, more, highest, rest, end, out, like):
    """Write `exp(row + shift + more - highest - rest)`: the weights of a row that was softened."""
    step = lanes_of(like) * size_of(like)
    by, down, less = spread(more), spread(-highest), spread(-rest)
    for j in range(0, end, step):
        x = add_vectors(add_vectors(load(row + j, like), load(shift + j, like)), by)
        store(out + j, exponentials(add_vectors(add_vectors(x, down), less)))


@jit
def share_of_columns(row, more, highest, rest, end, out, like):
    """Write `exp(row + more - highest - rest)`: a row of weights that were summed over rows."""
    step, by, minus = lanes_of(like) * size_of(like), spread(more), spread(like(-1))
    for j in range(0, end, step):
        x = add_vectors(load(row + j, like), by)
        x = multiply_add(load(highest + j, like), minus, x)
        store(out + j, exponentials(multiply_add(load(rest + j, like), minus, x)))


@jit
def dot_rows(a, b, end, like):
    """The inner product of two rows."""
    step, sums = lanes_of(like) * size_of(like), spread(like(0))
    for j in range(0, end, step):
        sums = multiply_add(load(a + j, like), load(b + j, like), sums)
    return total(sums)


@jit
def sum_row(at, end, like):
    """The sum of a row."""
    step, sums = lanes_of(like) * size_of(like), spread(like(0))
    for j in range(0, end, step):
        sums = add_vectors(load(at + j, like), sums)
    return total(sums)


@jit
def receive_backward(row, more, highest, rest, d_received, d_row, end, like):
    """The column step of one row: `d_row += C d_received`, C as in `share_of_columns`.

    Returns the sum of what was added.
    """
    step, by, minus = lanes_of(like) * size_of(like), spread(more), spread(like(-1))
    sums = spread(like(0))
    for j in range(0, end, step):
        x = add_vectors(load(row + j, like), by)
        x = multiply_add(load(highest + j, like), minus, x)
        x = exponentials(multiply_add(load(rest + j, like), minus, x))
        x = multiply_vectors(x, load(d_received + j, like))
        store(d_row + j, add_vectors(x, load(d_row + j, like)))
        sums = add_vectors(sums, x)
    return total(sums)


@jit
def softmax_backward(weights, arriving, more, end, like):
    """`weights (arriving + more)` in the place of what arrives."""
    step, by = lanes_of(like) * size_of(like), spread(more)
    for j in range(0, end, step):
        x = multiply_vectors(load(weights + j, like), add_vectors(load(arriving + j, like), by))
        store(arriving + j, x)


@jit
def multiply_rows(weights, factor, end, out, like):
    """Write a row times a number."""
    step, by = lanes_of(like) * size_of(like), spread(factor)
    for j in range(0, end, step):
        store(out + j, multiply_vectors(load(weights + j, like), by))


@jit
def add_row(row, end, sums, like):
    """Add a row to sums."""
    step = lanes_of(like) * size_of(like)
    for j in range(0, end, step):
        store(sums + j, add_vectors(load(row + j, like), load(sums + j, like)))


@jit
def subtract_share(weights, sums, d_row, end, like):
    """`d_row -= weights sums`; return the sum of what is left."""
    step, minus, left = lanes_of(like) * size_of(like), spread(like(-1)), spread(like(0))
    for j in range(0, end, step):
        x = multiply_vectors(load(weights + j, like), minus)
        x = multiply_add(x, load(sums + j, like), load(d_row + j, like))
        store(d_row + j, x)
        left = add_vectors(left, x)
    return total(left)
