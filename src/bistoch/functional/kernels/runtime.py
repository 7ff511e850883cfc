"""What the CPU kernels stand on: fast exp and log, the BLAS and the thread team of torch itself.

Everything here is Numba source, so no compiler is needed. Kernels run on the OpenMP team that torch
already keeps warm: no second pool competes for the cores, and `torch.set_num_threads` is honoured.
"""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from bistoch._fork import openmp_library, use_one_thread_after_a_lost_team
from bistoch.functional.kernels.compile import PART
from bistoch.functional.kernels.compile import body as body
from bistoch.functional.kernels.compile import jit as jit

_float, _double, _i32, _i64 = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)
_pointer = ir.IntType(8).as_pointer()


@intrinsic
def address_of(typing, pointer):
    """Where a pointer points, as a number."""

    def generate(context, builder, signature, arguments):
        return builder.ptrtoint(arguments[0], _i64)

    return types.int64(pointer), generate


@intrinsic
def kind_of(typing, pointer):
    """The kind of float that a kernel is compiled for: np.float32 or np.float64."""

    def generate(context, builder, signature, arguments):
        return context.get_dummy_value()

    return types.NumberClass(pointer.dtype)(pointer), generate


@intrinsic
def no_inline(typing):
    """Mark the function that calls this as `noinline`, which compiles faster."""

    def generate(context, builder, signature, arguments):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def larger(typing, a, b):
    """The larger of two floats, in the form that the vectoriser knows."""
    kind = {types.float32: _float, types.float64: _double}[a]

    def generate(context, builder, signature, arguments):
        maximum = builder.module.declare_intrinsic(
            "llvm.maxnum", [kind], ir.FunctionType(kind, [kind, kind])
        )
        return builder.call(maximum, arguments, fastmath=("nnan", "nsz"))

    return a(a, a), generate


@intrinsic
def rounded_sum(typing, a, b):
    """The sum of two floats, rounded before it is used: never reassociated with another one."""

    def generate(context, builder, signature, arguments):
        # an instruction with a flag of its own is given no others
        return builder.fadd(*arguments, flags=("contract",))

    return a(a, b), generate


@intrinsic
def _fused(typing, a, b, c):
    """The sum `a * b + c` rounded once, and safe from being reassociated."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(_float, [_float] * 3)
        return builder.call(builder.module.declare_intrinsic("llvm.fma", [_float], kind), arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


@intrinsic
def _power_of_two(typing, exponent):
    """2^k as float32 for a whole number k held in a float32, by writing the exponent bits."""

    def generate(context, builder, signature, arguments):
        whole = builder.fptosi(arguments[0], _i32)
        return builder.bitcast(builder.shl(builder.add(whole, _i32(127)), _i32(23)), _float)

    return types.float32(types.float32), generate


@intrinsic
def _split_exponent(typing, x):
    """The exponent of a positive normal float32 such that the rest lies in [sqrt(1/2), sqrt(2))."""

    def generate(context, builder, signature, arguments):
        # bits of sqrt(1/2)
        above = builder.sub(builder.bitcast(arguments[0], _i32), _i32(0x3F3504F3))
        return builder.sitofp(builder.ashr(above, _i32(23)), _float)

    return types.float32(types.float32), generate


def exponential(x):
    """`exp(x)` for x <= 0 or moderate, exactly zero below the range of the dtype."""
    raise NotImplementedError("only inside compiled kernels")


@overload(exponential, jit_options=PART)
def _exponential(x):
    f = np.float32
    if x == types.float64:
        return lambda x: np.exp(x) if x > -700.0 else 0.0

    def float32(x):
        # Cody and Waite: x = k log 2 + r, with a polynomial for exp(r)
        k = np.floor(x * f(1.4426950408889634) + f(0.5))
        r = _fused(k, f(2.12194440e-4), _fused(k, f(-0.693359375), x))
        p = f(1.9875691500e-4)
        p = p * r + f(1.3981999507e-3)
        p = p * r + f(8.3334519073e-3)
        p = p * r + f(4.1665795894e-2)
        p = p * r + f(1.6666665459e-1)
        p = p * r + f(5.0000001201e-1)
        p = p * r * r + r + f(1.0)
        return p * _power_of_two(k) if x > f(-87.0) else f(0.0)

    return float32


def logarithm(x):
    """`log(x)` for a positive normal x."""
    raise NotImplementedError("only inside compiled kernels")


@overload(logarithm, jit_options=PART)
def _logarithm(x):
    f = np.float32
    if x == types.float64:
        return lambda x: np.log(x)

    def float32(x):
        k = _split_exponent(x)
        # in two factors, since 2^-k alone may leave the range
        half = np.floor(k * f(0.5))
        r = x * _power_of_two(-half) * _power_of_two(half - k) - f(1.0)
        p = f(7.0376836292e-2)
        p = p * r + f(-1.1514610310e-1)
        p = p * r + f(1.1676998740e-1)
        p = p * r + f(-1.2420140846e-1)
        p = p * r + f(1.4249322787e-1)
        p = p * r + f(-1.6668057665e-1)
        p = p * r + f(2.0000714765e-1)
        p = p * r + f(-2.4999993993e-1)
        p = p * r + f(3.3333331174e-1)
        z = r * r
        small = _fused(k, f(-2.12194440e-4), _fused(z, f(-0.5), r * z * p))
        return _fused(k, f(0.693359375), r + small)

    return float32


@intrinsic
def size_of(typing, like):
    """Bytes of one number of a type."""

    def generate(context, builder, signature, arguments):
        return _i64(like.dtype.bitwidth // 8)

    return types.int64(like), generate


@intrinsic
def take_next(typing, address):
    """Add one to the int64 at an address and return what it was, atomically."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _i64.as_pointer())
        return builder.atomic_rmw("add", pointer, _i64(1), "seq_cst")

    return types.int64(types.int64), generate


@intrinsic
def matmul(typing, gemm, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    """C = alpha op(A) op(B) + beta C for column-major matrices given by address, through BLAS."""
    scalar = {types.float32: _float, types.float64: _double}[alpha]

    def generate(context, builder, signature, arguments):
        gemm, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc = arguments

        def reference(value, kind):
            if kind is not scalar:
                value = builder.trunc(value, kind)
            return builder.bitcast(cgutils.alloca_once_value(builder, value), _pointer)

        i8 = ir.IntType(8)
        pointers = [
            reference(ta, i8), reference(tb, i8),
            reference(m, _i32), reference(n, _i32), reference(k, _i32), reference(alpha, scalar),
            builder.inttoptr(a, _pointer), reference(lda, _i32),
            builder.inttoptr(b, _pointer), reference(ldb, _i32), reference(beta, scalar),
            builder.inttoptr(c, _pointer), reference(ldc, _i32),
        ]  # fmt: skip
        # Fortran passes the lengths of the two characters behind the visible arguments
        kind = ir.FunctionType(ir.VoidType(), [_pointer] * 13 + [_i64] * 2)
        function = builder.inttoptr(gemm, kind.as_pointer())
        builder.call(function, [*pointers, _i64(1), _i64(1)])
        return context.get_dummy_value()

    i = types.int64
    return types.void(i, i, i, i, i, i, alpha, i, i, i, i, alpha, i, i), generate


@intrinsic
def start_team(typing, start, function, record, members):
    """Run the body at an address on a team of threads, through the runtime's own entry."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [_pointer, _pointer, _i32, _i32])
        start, function, record, members = arguments
        builder.call(
            builder.inttoptr(start, kind.as_pointer()),
            [
                builder.inttoptr(function, _pointer),
                builder.inttoptr(record, _pointer),
                builder.trunc(members, _i32),
                _i32(0),
            ],
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def call_body(typing, function, record):
    """Call the body at an address in this thread."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [_pointer])
        function, record = arguments
        builder.call(
            builder.inttoptr(function, kind.as_pointer()), [builder.inttoptr(record, _pointer)]
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def thread_number(typing, function):
    """Which member of the team this thread is, asked from the runtime's function at an address."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(_i32, [])
        number = builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [])
        return builder.sext(number, _i64)

    return types.int64(types.int64), generate


# characters that BLAS understands
PLAIN, TRANSPOSED = ord("N"), ord("T")


@cache
def gemm_address(dtype: torch.dtype) -> int:
    """The matrix product of torch's own BLAS if it is visible, else of scipy's."""
    name = {torch.float32: "sgemm", torch.float64: "dgemm"}[dtype]
    for library in sorted((Path(torch.__file__).parent / "lib").glob("*torch_cpu*")):
        try:
            return _address(getattr(ctypes.CDLL(str(library)), f"{name}_"))
        except (OSError, AttributeError):
            continue
    from scipy.linalg import cython_blas

    functions: dict[str, object] = dict(cython_blas.__pyx_capi__)
    unpack = ctypes.pythonapi.PyCapsule_GetPointer
    label = ctypes.pythonapi.PyCapsule_GetName
    unpack.restype, unpack.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    label.restype, label.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return int(unpack(functions[name], label(functions[name])))


def _address(function) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def team_entry() -> tuple[int, int]:
    """Addresses in torch's OpenMP runtime: start a team, and tell a member's number; or zeros."""
    library = openmp_library()
    if library is None:
        return 0, 0
    return _address(library.GOMP_parallel), _address(library.omp_get_thread_num)


def threads() -> int:
    """How many threads kernels may use: torch's number."""
    use_one_thread_after_a_lost_team()
    return torch.get_num_threads()


def entry(body: int, job: int, team: int) -> tuple[Callable[..., Any], tuple[int, ...]]:
    """What runs the body at an address on a team of threads, to be called with these arguments.

    Every member calls the body with the same job.
    """
    start, _ = team_entry()
    if team == 1:
        return _BODY(body), (job,)
    if start:
        return _TEAM(start), (body, job, team, 0)
    return _run_pool, (body, job, team)


def _run_pool(body: int, job: int, team: int) -> None:
    with ThreadPoolExecutor(team) as pool:
        list(pool.map(_BODY(body), [job] * team))


@cache
def _function(kind, address: int):
    """A function of the machine as one of Python; making it takes longer than calling it."""
    return kind(address)


_BODY = partial(_function, ctypes.CFUNCTYPE(None, ctypes.c_void_p))
_TEAM = partial(
    _function,
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint),
)
