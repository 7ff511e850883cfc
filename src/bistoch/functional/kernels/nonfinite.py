"""Looking at the numbers that kernels read, by their bits.

Kernels are compiled for numbers that are never NaN, so no comparison of floats can find one. As
integers, floats without their sign are in order: above all numbers is infinity, and above it are
the NaN.
"""

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from bistoch.functional.kernels.array import vector
from bistoch.functional.kernels.runtime import jit, size_of
from bistoch.functional.kernels.vector import fold, lanes_of, load, spread

# what a kernel says of a head: that its factors are out of range, or that its numbers need a look
OUT_OF_RANGE, LOOK_AGAIN = 1, 2


@intrinsic
def bits_of(typing, x):
    """The bits of a float as an integer."""

    def generate(context, builder, signature, arguments):
        bits = builder.bitcast(arguments[0], ir.IntType(x.bitwidth))
        return bits if x.bitwidth == 64 else builder.zext(bits, ir.IntType(64))

    return types.int64(x), generate


@intrinsic
def _larger_magnitudes(typing, kept, x):
    """Place by place, the bits of the float of larger magnitude."""
    bits = x.scalar.bitwidth

    def generate(context, builder, signature, arguments):
        kind = ir.VectorType(ir.IntType(bits), x.lanes)
        before, now = (builder.bitcast(part, kind) for part in arguments)
        magnitude = builder.and_(now, ir.Constant(kind, [(1 << (bits - 1)) - 1] * x.lanes))
        above = builder.icmp_signed(">", magnitude, before)
        larger = builder.select(above, magnitude, before)
        return builder.bitcast(larger, context.get_value_type(x))

    return x(x, x), generate


@intrinsic
def _without_minus_infinity(typing, x):
    """Zero in its place."""
    bits, mantissa = x.scalar.bitwidth, {32: 23, 64: 52}[x.scalar.bitwidth]

    def generate(context, builder, signature, arguments):
        kind = ir.VectorType(ir.IntType(bits), x.lanes)
        now = builder.bitcast(arguments[0], kind)
        # sign and exponent are full of ones
        lowest = ir.Constant(kind, [(1 << bits) - (1 << mantissa)] * x.lanes)
        zero = ir.Constant(kind, [0] * x.lanes)
        kept = builder.select(builder.icmp_unsigned("==", now, lowest), zero, now)
        return builder.bitcast(kept, context.get_value_type(x))

    return x(x), generate


@intrinsic
def _largest_place(typing, x):
    """The largest of all places, as integers without a sign."""
    bits = x.scalar.bitwidth

    def generate(context, builder, signature, arguments):
        def join(low, high):
            return builder.select(builder.icmp_signed(">", low, high), low, high)

        kind = ir.VectorType(ir.IntType(bits), x.lanes)
        found = fold(builder, x, builder.bitcast(arguments[0], kind), join)
        return found if bits == 64 else builder.zext(found, ir.IntType(64))

    return types.int64(x), generate


@intrinsic
def integers(typing, like):
    """The integers that are as long as a float."""

    def generate(context, builder, signature, arguments):
        return context.get_dummy_value()

    return types.NumberClass(types.Integer.from_bitwidth(like.dtype.bitwidth))(like), generate


@jit
def largest_bits(at, count, forgiving, like):
    """The bits of the largest magnitude of so many floats; a forgiving look allows minus infinity.

    In whole vectors, of which the last may overlap the one before, and few numbers one by one.
    """
    lanes, size = lanes_of(like), size_of(like)
    if count < lanes:
        return _largest_of_few(at, count, forgiving, like)
    most = spread(like(0))
    last = count - lanes
    for j in range(0, count, lanes):
        x = load(at + (j if j < last else last) * size, like)
        if forgiving:
            x = _without_minus_infinity(x)
        most = _larger_magnitudes(most, x)
    return _largest_place(most)


@jit
def is_broken(at, count, forgiving, like):
    """Whether a NaN or an infinity is among so many floats."""
    return largest_bits(at, count, forgiving, like) >= bits_of(like(np.inf))


@jit
def _largest_of_few(at, count, forgiving, like):
    bits = vector(at, count, integers(like))
    infinity, most = bits_of(like(np.inf)), 0
    for j in range(count):
        # the sign is the highest bit
        magnitude = bits[j] & ((1 << (8 * size_of(like) - 1)) - 1)
        if not (forgiving and bits[j] < 0 and magnitude == infinity):
            most = magnitude if magnitude > most else most
    return most
