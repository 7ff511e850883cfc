"""Arrays over memory that belongs to others, and their parts, in the form that compiles fastest."""

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array


def _array_at(context, builder, kind, address, shape):
    """An array over memory that it does not own."""
    size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    strides = [context.get_constant(types.intp, size)]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    array = make_array(kind)(context, builder)
    data = builder.inttoptr(address, array.data.type)
    populate_array(array, data, shape, strides, context.get_constant(types.intp, size), None)
    return array._getvalue()


@intrinsic
def vector(typing, address, length, like):
    """A vector at an address."""
    kind = types.Array(like.dtype, 1, "C")

    def generate(context, builder, signature, arguments):
        return _array_at(context, builder, kind, arguments[0], [arguments[1]])

    return kind(types.int64, types.int64, like), generate


@intrinsic
def matrix(typing, address, rows, columns, like):
    """A row-major matrix at an address."""
    kind = types.Array(like.dtype, 2, "C")

    def generate(context, builder, signature, arguments):
        return _array_at(context, builder, kind, arguments[0], list(arguments[1:3]))

    return kind(types.int64, types.int64, types.int64, like), generate


@intrinsic
def start_of(typing, array):
    """The address of the first number of an array."""

    def generate(context, builder, signature, arguments):
        data = make_array(array)(context, builder, arguments[0]).data
        return builder.ptrtoint(data, context.get_value_type(types.int64))

    return types.int64(array), generate


@intrinsic
def part(typing, array, first, last):
    """`array[first:last]` for numbers known to be in range, which compiles faster."""

    def generate(context, builder, signature, arguments):
        value, first, last = arguments
        whole = make_array(array)(context, builder, value)
        _, *others = cgutils.unpack_tuple(builder, whole.shape)
        step, *_ = cgutils.unpack_tuple(builder, whole.strides)
        start = builder.ptrtoint(whole.data, first.type)
        address = builder.add(start, builder.mul(first, step))
        return _array_at(context, builder, array, address, [builder.sub(last, first), *others])

    return array(array, types.int64, types.int64), generate


@intrinsic
def row_at(typing, array, index):
    """The address of a row of a matrix, or of a number of a vector."""

    def generate(context, builder, signature, arguments):
        whole = make_array(array)(context, builder, arguments[0])
        step, *_ = cgutils.unpack_tuple(builder, whole.strides)
        start = builder.ptrtoint(whole.data, arguments[1].type)
        return builder.add(start, builder.mul(arguments[1], step))

    return types.int64(array, types.int64), generate
