"""Exponentials and logarithms of whole vectors, for both precisions."""

import math

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils
from numba.extending import intrinsic

# x = k log 2 + r: one over log 2, log 2 in two parts, what makes a sum end in the digits of k, the
# bits of a mantissa, the lowest x, and the polynomial of (exp(r) - 1 - r) / r^2, highest power
# first
_FLOAT = (
    1.4426950408889634, -0.693359375, 2.12194440e-4, 1.5 * 2**23, 23, -87.0,
    (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
     5.0000001201e-1),
)  # fmt: skip
_DOUBLE = (
    1.4426950408889634, -0.693145751953125, -1.42860682030941723212e-6, 1.5 * 2**52, 52, -708.0,
    tuple(1 / math.factorial(k) for k in range(13, 1, -1)),
)  # fmt: skip
# the polynomial of (log(1 + r) - r + r^2 / 2) / r^3 in float32, highest power first
_LOGARITHM = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip


@intrinsic
def exponentials(typing, x):
    """`exp` of every place, x negative or moderate: exactly zero below the range of the dtype."""
    bits = x.scalar.bitwidth
    log2e, high, low, magic, mantissa, least, polynomial = _FLOAT if bits == 32 else _DOUBLE

    def generate(context, builder, signature, arguments):
        kind = context.get_value_type(x)
        whole = ir.VectorType(ir.IntType(bits), x.lanes)
        fma = _declare(builder, kind, f"llvm.fma.v{x.lanes}f{bits}", 3)

        def number(value):
            return ir.Constant(kind, [value] * x.lanes)

        (value,) = arguments
        # no flag of fast arithmetic here: k is what is left of a sum that is rounded on purpose
        rounded = builder.call(fma, [value, number(log2e), number(magic)])
        k = builder.fsub(rounded, number(magic))
        r = builder.call(fma, [k, number(high), value])
        r = builder.call(fma, [k, number(low), r])
        p = number(polynomial[0])
        for coefficient in polynomial[1:]:
            p = builder.call(fma, [p, r, number(coefficient)])
        p = builder.fadd(builder.call(fma, [p, builder.fmul(r, r), r]), number(1.0))
        shift = ir.Constant(whole, [mantissa] * x.lanes)
        exponent = builder.shl(builder.bitcast(rounded, whole), shift)
        found = builder.bitcast(builder.add(builder.bitcast(p, whole), exponent), kind)
        inside = builder.fcmp_ordered(">", value, number(least))
        return builder.select(inside, found, number(0.0))

    return x(x), generate


@intrinsic
def logarithms(typing, x):
    """`log` of every place, for positive normal x."""
    bits = x.scalar.bitwidth

    def generate(context, builder, signature, arguments):
        kind = context.get_value_type(x)
        if bits == 64:
            log = _declare(builder, kind, f"llvm.log.v{x.lanes}f64", 1)
            return builder.call(log, arguments)
        fma = _declare(builder, kind, f"llvm.fma.v{x.lanes}f32", 3)
        whole = ir.VectorType(ir.IntType(32), x.lanes)

        def number(value):
            return ir.Constant(kind, [value] * x.lanes)

        def integer(value):
            return ir.Constant(whole, [value] * x.lanes)

        # x = 2^k (1 + r), with 1 + r from sqrt(1/2) to sqrt(2): these are the bits of sqrt(1/2)
        inside = builder.bitcast(arguments[0], whole)
        above = builder.ashr(builder.sub(inside, integer(0x3F3504F3)), integer(23))
        rest = builder.sub(inside, builder.shl(above, integer(23)))
        r = builder.fsub(builder.bitcast(rest, kind), number(1.0))
        k = builder.sitofp(above, kind)
        p = number(_LOGARITHM[0])
        for coefficient in _LOGARITHM[1:]:
            p = builder.call(fma, [p, r, number(coefficient)])
        z = builder.fmul(r, r)
        small = builder.fmul(builder.fmul(r, z), p)
        small = builder.call(fma, [z, number(-0.5), small])
        small = builder.call(fma, [k, number(-2.12194440e-4), small])
        return builder.call(fma, [k, number(0.693359375), builder.fadd(r, small)])

    return x(x), generate


@intrinsic
def square_roots(typing, x):
    """The square root of every place."""

    def generate(context, builder, signature, arguments):
        bits = x.scalar.bitwidth
        kind = context.get_value_type(x)
        root = _declare(builder, kind, f"llvm.sqrt.v{x.lanes}f{bits}", 1)
        return builder.call(root, arguments)

    return x(x), generate


def _declare(builder, kind, name: str, arguments: int):
    """One of the compiler's own functions, for vectors."""
    function = ir.FunctionType(kind, [kind] * arguments)
    return cgutils.get_or_insert_function(builder.module, function, name)


@intrinsic
def choose_above(typing, a, b, yes, no):
    """Place by place, the one number where a is above b, else the other."""

    def generate(context, builder, signature, arguments):
        a, b, yes, no = arguments
        return builder.select(builder.fcmp_ordered(">", a, b), yes, no)

    return a(a, a, a, a), generate
