"""Vectors of 64 bytes as values in Numba source, for the few loops that all time is spent in.

Left to itself, the compiler uses half of the widest registers, and checks before every loop whether
its arrays overlap. On machines with shorter registers a vector is several of them.
"""

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic, models, register_model

BYTES = 64


class Vector(types.Type):
    """So many floats as one value."""

    def __init__(self, scalar):
        self.scalar, self.lanes = scalar, BYTES * 8 // scalar.bitwidth
        super().__init__(name=f"Vector({scalar}, {self.lanes})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        scalar = {32: ir.FloatType(), 64: ir.DoubleType()}[kind.scalar.bitwidth]
        super().__init__(manager, kind, ir.VectorType(scalar, kind.lanes))


_KINDS = {scalar: Vector(scalar) for scalar in (types.float32, types.float64)}


def _pointer(context, builder, kind, address):
    return builder.inttoptr(address, context.get_value_type(kind).as_pointer())


@intrinsic
def load(typing, address, like):
    """The floats at an address."""
    kind = _KINDS[like.dtype]

    def generate(context, builder, signature, arguments):
        pointer = _pointer(context, builder, kind, arguments[0])
        return builder.load(pointer, align=kind.scalar.bitwidth // 8)

    return kind(types.int64, like), generate


@intrinsic
def store(typing, address, vector):
    """Put floats at an address."""

    def generate(context, builder, signature, arguments):
        pointer = _pointer(context, builder, vector, arguments[0])
        builder.store(arguments[1], pointer, align=vector.scalar.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(types.int64, vector), generate


@intrinsic
def load_bytes(typing, address, like):
    """As many bytes without sign at an address, as floats."""
    kind = _KINDS[like.dtype]

    def generate(context, builder, signature, arguments):
        small = ir.VectorType(ir.IntType(8), kind.lanes)
        pointer = builder.inttoptr(arguments[0], small.as_pointer())
        whole = ir.VectorType(ir.IntType(32), kind.lanes)
        return builder.sitofp(
            builder.zext(builder.load(pointer, align=1), whole), context.get_value_type(kind)
        )

    return kind(types.int64, like), generate


@intrinsic
def store_bytes(typing, address, vector):
    """Put floats of [0, 256) at an address as bytes, without their fractions."""

    def generate(context, builder, signature, arguments):
        whole = ir.VectorType(ir.IntType(32), vector.lanes)
        small = ir.VectorType(ir.IntType(8), vector.lanes)
        pointer = builder.inttoptr(arguments[0], small.as_pointer())
        builder.store(builder.trunc(builder.fptosi(arguments[1], whole), small), pointer, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, vector), generate


@intrinsic
def spread(typing, number):
    """One float in all places."""
    kind = _KINDS[number]

    def generate(context, builder, signature, arguments):
        vector = ir.Constant(context.get_value_type(kind), ir.Undefined)
        for lane in range(kind.lanes):
            vector = builder.insert_element(vector, arguments[0], ir.IntType(32)(lane))
        return vector

    return kind(number), generate


@intrinsic
def multiply_add(typing, a, b, c):
    """`a * b + c`."""

    def generate(context, builder, signature, arguments):
        together = ("contract",)
        product = builder.fmul(*arguments[:2], flags=together)
        return builder.fadd(product, arguments[2], flags=together)

    return a(a, a, a), generate


@intrinsic
def subtract_product(typing, a, b, c):
    """`c - a * b`."""

    def generate(context, builder, signature, arguments):
        together = ("contract",)
        product = builder.fmul(*arguments[:2], flags=together)
        return builder.fsub(arguments[2], product, flags=together)

    return a(a, a, a), generate


@intrinsic
def subtract_vectors(typing, a, b):
    """`a - b`, place by place."""

    def generate(context, builder, signature, arguments):
        return builder.fsub(*arguments, flags=("contract",))

    return a(a, a), generate


@intrinsic
def multiply_vectors(typing, a, b):
    """`a * b`, place by place."""

    def generate(context, builder, signature, arguments):
        return builder.fmul(*arguments, flags=("contract",))

    return a(a, a), generate


@intrinsic
def add_vectors(typing, a, b):
    """`a + b`, place by place."""

    def generate(context, builder, signature, arguments):
        return builder.fadd(*arguments, flags=("contract",))

    return a(a, a), generate


@intrinsic
def divide_vectors(typing, a, b):
    """`a / b`, place by place."""

    def generate(context, builder, signature, arguments):
        return builder.fdiv(*arguments)

    return a(a, a), generate


@intrinsic
def larger_vectors(typing, a, b):
    """The larger of two, place by place."""

    def generate(context, builder, signature, arguments):
        above = builder.fcmp_ordered(">", *arguments, flags=("nnan", "nsz"))
        return builder.select(above, *arguments)

    return a(a, a), generate


def fold(builder, vector, part, join):
    """All places of a vector joined into one, in halves."""
    count, i32 = vector.lanes, ir.IntType(32)
    while count > 1:
        count //= 2
        low, high = (
            builder.shuffle_vector(
                part,
                part,
                ir.Constant(ir.VectorType(i32, count), list(range(first, first + count))),
            )
            for first in (0, count)
        )
        part = join(low, high)
    return builder.extract_element(part, i32(0))


@intrinsic
def total(typing, vector):
    """The sum of all places."""

    def generate(context, builder, signature, arguments):
        return fold(builder, vector, *arguments, builder.fadd)

    return vector.scalar(vector), generate


@intrinsic
def largest(typing, vector):
    """The largest of all places."""

    def generate(context, builder, signature, arguments):
        def join(low, high):
            return builder.select(builder.fcmp_ordered(">", low, high), low, high)

        return fold(builder, vector, *arguments, join)

    return vector.scalar(vector), generate


@intrinsic
def spaced(typing, like):
    """Numbers that divide [0, 1) evenly, one for each place, near places far apart."""
    kind = _KINDS[like.dtype]
    bits = kind.lanes.bit_length() - 1
    turned = [int(f"{lane:0{bits}b}"[::-1], 2) / kind.lanes for lane in range(kind.lanes)]

    def generate(context, builder, signature, arguments):
        return ir.Constant(context.get_value_type(kind), turned)

    return kind(like), generate


@intrinsic
def lanes_of(typing, like):
    """How many floats of a type a vector has."""
    count = _KINDS[like.dtype].lanes

    def generate(context, builder, signature, arguments):
        return ir.IntType(64)(count)

    return types.int64(like), generate
