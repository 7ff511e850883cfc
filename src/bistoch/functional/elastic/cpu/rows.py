"""Loops over rows of K, in whole vectors: where all time goes that is not a product."""

import numpy as np

from bistoch.functional.kernels.array import part, start_of
from bistoch.functional.kernels.math import exponentials
from bistoch.functional.kernels.runtime import exponential, jit, larger, size_of
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
def exponentiate(row, bias):
    """Turn scores into `exp(row + bias - max)`; return the maximum and the sum.

    In whole vectors, and what is left one by one.
    """
    m, like = len(row), row.dtype.type
    never, zero, size = like(-np.inf), like(0), size_of(like)
    even, wide = (m - m % lanes_of(like)) * size, lanes_of(like) * size
    at, bias_at, peaks = start_of(row), start_of(bias), spread(never)
    for j in range(0, even, wide):
        x = add_vectors(load(at + j, like), load(bias_at + j, like))
        store(at + j, x)
        peaks = larger_vectors(peaks, x)
    highest = largest(peaks)
    for j in range(even // size, m):
        row[j] += bias[j]
        highest = larger(highest, row[j])
    if highest == never:
        row[:] = zero
        return zero, zero
    sums, shift = spread(zero), spread(-highest)
    for j in range(0, even, wide):
        x = exponentials(add_vectors(load(at + j, like), shift))
        store(at + j, x)
        sums = add_vectors(sums, x)
    rest = total(sums)
    for j in range(even // size, m):
        row[j] = exponential(row[j] - highest)
        rest += row[j]
    return highest, rest


@jit
def add_columns(block, factor, totals):
    """Add `block^T factor` to the totals, for at most eight rows, still in the nearest cache."""
    rows, length = block.shape
    like = totals.dtype.type
    wide, size = lanes_of(like), size_of(like)
    step, at, to = length * size, start_of(block), start_of(totals)
    if rows == 8:
        f0, f1, f2, f3 = spread(factor[0]), spread(factor[1]), spread(factor[2]), spread(factor[3])
        f4, f5, f6, f7 = spread(factor[4]), spread(factor[5]), spread(factor[6]), spread(factor[7])
        for j in range(0, length * size, wide * size):
            # two sums, so that no addition waits for the one before
            a = multiply_add(load(at + j, like), f0, load(to + j, like))
            b = multiply_vectors(load(at + j + step, like), f1)
            a = multiply_add(load(at + j + 2 * step, like), f2, a)
            b = multiply_add(load(at + j + 3 * step, like), f3, b)
            a = multiply_add(load(at + j + 4 * step, like), f4, a)
            b = multiply_add(load(at + j + 5 * step, like), f5, b)
            a = multiply_add(load(at + j + 6 * step, like), f6, a)
            b = multiply_add(load(at + j + 7 * step, like), f7, b)
            store(to + j, add_vectors(a, b))
    else:
        for i in range(rows):
            f = spread(factor[i])
            for j in range(0, length * size, wide * size):
                here = load(at + i * step + j, like)
                store(to + j, multiply_add(here, f, load(to + j, like)))


@jit
def add_rows(block, factor, totals):
    """Add `block^T factor` to the totals, eight rows at a time."""
    for top in range(0, len(block), 8):
        bottom = min(top + 8, len(block))
        add_columns(part(block, top, bottom), part(factor, top, bottom), totals)


@jit
def dot_rows(block, weights, sums):
    """Products of rows with weights, eight rows at a time."""
    rows, length = block.shape
    like = sums.dtype.type
    wide, size, zero = lanes_of(like), size_of(like), like(0)
    step, weights_at = length * size, start_of(weights)
    even = rows - rows % 8
    for i in range(0, even, 8):
        at = start_of(block) + i * step
        s0, s1, s2, s3 = spread(zero), spread(zero), spread(zero), spread(zero)
        s4, s5, s6, s7 = spread(zero), spread(zero), spread(zero), spread(zero)
        for j in range(0, length * size, wide * size):
            w = load(weights_at + j, like)
            s0 = multiply_add(load(at + j, like), w, s0)
            s1 = multiply_add(load(at + j + step, like), w, s1)
            s2 = multiply_add(load(at + j + 2 * step, like), w, s2)
            s3 = multiply_add(load(at + j + 3 * step, like), w, s3)
            s4 = multiply_add(load(at + j + 4 * step, like), w, s4)
            s5 = multiply_add(load(at + j + 5 * step, like), w, s5)
            s6 = multiply_add(load(at + j + 6 * step, like), w, s6)
            s7 = multiply_add(load(at + j + 7 * step, like), w, s7)
        sums[i], sums[i + 1], sums[i + 2], sums[i + 3] = total(s0), total(s1), total(s2), total(s3)
        sums[i + 4], sums[i + 5], sums[i + 6], sums[i + 7] = (
            total(s4), total(s5), total(s6), total(s7)
        )  # fmt: skip
    for i in range(even, rows):
        at, s = start_of(block) + i * step, spread(zero)
        for j in range(0, length * size, wide * size):
            s = multiply_add(load(at + j, like), load(weights_at + j, like), s)
        sums[i] = total(s)


@jit
def dot_rows_twice(block, first, second, sums, others):
    """Products of rows with two vectors of weights, reading the rows once, four at a time."""
    rows, length = block.shape
    like = sums.dtype.type
    wide, size, zero = lanes_of(like), size_of(like), like(0)
    step, first_at, second_at = length * size, start_of(first), start_of(second)
    even = rows - rows % 4
    for i in range(0, even, 4):
        at = start_of(block) + i * step
        s0, s1, s2, s3 = spread(zero), spread(zero), spread(zero), spread(zero)
        t0, t1, t2, t3 = spread(zero), spread(zero), spread(zero), spread(zero)
        for j in range(0, length * size, wide * size):
            v, w = load(first_at + j, like), load(second_at + j, like)
            x0, x1 = load(at + j, like), load(at + j + step, like)
            x2, x3 = load(at + j + 2 * step, like), load(at + j + 3 * step, like)
            s0, t0 = multiply_add(x0, v, s0), multiply_add(x0, w, t0)
            s1, t1 = multiply_add(x1, v, s1), multiply_add(x1, w, t1)
            s2, t2 = multiply_add(x2, v, s2), multiply_add(x2, w, t2)
            s3, t3 = multiply_add(x3, v, s3), multiply_add(x3, w, t3)
        sums[i], sums[i + 1], sums[i + 2], sums[i + 3] = total(s0), total(s1), total(s2), total(s3)
        others[i], others[i + 1], others[i + 2], others[i + 3] = (
            total(t0), total(t1), total(t2), total(t3)
        )  # fmt: skip
    for i in range(even, rows):
        at, s, t = start_of(block) + i * step, spread(zero), spread(zero)
        for j in range(0, length * size, wide * size):
            here = load(at + j, like)
            s = multiply_add(here, load(first_at + j, like), s)
            t = multiply_add(here, load(second_at + j, like), t)
        sums[i], others[i] = total(s), total(t)


@jit
def flush(total, partial):
    """Add the totals of a block to those of the slot, and start anew: short sums round less."""
    for j in range(len(total)):
        total[j] += partial[j]
        partial[j] = total.dtype.type(0)
