"""Many small matrices side by side, one in each vector lane: where their numbers lie, and loops.

A group is LANES matrices; every loop ends in a loop over its lanes, so that a matrix of any size,
3 x 5 as well, fills the vectors.
"""

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from bistoch.functional.elastic.cpu.head import whole
from bistoch.functional.kernels.array import matrix, start_of, vector
from bistoch.functional.kernels.job import reader
from bistoch.functional.kernels.nonfinite import is_broken
from bistoch.functional.kernels.runtime import (
    address_of,
    jit,
    no_inline,
    size_of,
    take_next,
)

LANES = 32

# the numbers of a job in their order; names ending in _at are addresses
FIELDS = (
    "next_group", "next_worker", "batch", "n", "m", "iters", "backward",
    "reals_at", "scores_at", "lam_at", "omega_at", "log_mass_at", "log_row_mass_at", "start_at",
    "plan_at", "error_at", "unsafe_at",
    "plan_grad_at", "scores_grad_at", "lam_grad_at", "omega_grad_at", "log_mass_grad_at",
    "log_row_mass_grad_at", "start_grad_at",
    "workspace_at", "workspace_stride",
)  # fmt: skip
# the real numbers of a job: the tolerance, and relative changes that are no more than rounding
TOL, STILL = range(2)
REALS = 2
_job_at = reader(FIELDS)

# what a group has: matrices, vectors over keys, vectors over queries, and one number of each lane
KERNEL, PLAN, GRAD, RESCALE = range(4)
COLUMN, LOG_MASS, LAM, DEAD, SHUT, RESIDUAL, HIGH, COLUMN_GRAD, SCALED, RECEIVED = range(10)
# the forward has residuals where the backward has gradients
OLD, NOW = SCALED, RECEIVED
FACTOR, ROW_GRAD, MASS, WEIGHED, MASS_GRAD = range(5)
(
    OMEGA,
    REST,
    LOWEST,
    BEFORE,
    UNSAFE,
    STEPS,
    TAKEN,
    FAR,
    SIZE,
    LEAST,
    GAINED,
    CHANGED,
    LEVEL,
    LIVE,
) = range(14)
MATRICES, KEY_VECTORS, QUERY_VECTORS, NUMBERS = 4, 10, 5, 14


def group_elements(n: int, m: int, iters: int, backward: bool) -> int:
    """How many numbers the work on one group needs."""
    rows = MATRICES * n * m + KEY_VECTORS * m + QUERY_VECTORS * n + NUMBERS
    kept = iters if backward else 1
    return LANES * (rows + kept * (n + 2 * m + 1) + m)


@jit
def open_job(pointer):
    """The numbers of a job by name."""
    return _job_at(address_of(pointer))


@jit
def next_group(job):
    """The first matrix of a group that is not taken."""
    return LANES * take_next(job.next_group)


@jit
def lanes(space, behind, rows, like):
    """So many rows of one number per lane, in the workspace of a group."""
    return matrix(space + behind * LANES * size_of(like), rows, LANES, like)


@jit
def pairs(job, space, which, like):
    """A matrix of every lane; row `i m + j` is entry (i, j)."""
    return lanes(space, which * job.n * job.m, job.n * job.m, like)


@jit
def over_keys(job, space, which, like):
    """A vector over keys of every lane."""
    return lanes(space, MATRICES * job.n * job.m + which * job.m, job.m, like)


@jit
def over_queries(job, space, which, like):
    """A vector over queries of every lane."""
    behind = MATRICES * job.n * job.m + KEY_VECTORS * job.m + which * job.n
    return lanes(space, behind, job.n, like)


@jit
def behind_vectors(job):
    """Where the numbers of the lanes begin, and behind them the factors of the iterations."""
    return MATRICES * job.n * job.m + KEY_VECTORS * job.m + QUERY_VECTORS * job.n


@jit
def numbers(job, space, which, like):
    """One number of every lane, as a matrix of one row."""
    return lanes(space, behind_vectors(job) + which, 1, like)


@jit
def number(job, space, which, like):
    """One number of every lane."""
    return numbers(job, space, which, like)[0]


@jit
def kept(job):
    """Of how many iterations the factors are kept: of all for the backward, else of the last."""
    return job.iters if job.backward else 1


@jit
def row_factors(job, space, slot, like):
    """The row factors of an iteration."""
    return lanes(space, behind_vectors(job) + NUMBERS + slot * job.n, job.n, like)


@jit
def inverse_totals(job, space, slot, like):
    """One over the column totals of an iteration, one for a key that no query may see."""
    behind = behind_vectors(job) + NUMBERS + kept(job) * job.n
    return lanes(space, behind + slot * job.m, job.m, like)


@jit
def column_factors(job, space, slot, like):
    """The column factors before an iteration; behind the last, those of the plan."""
    behind = behind_vectors(job) + NUMBERS + kept(job) * (job.n + job.m)
    return lanes(space, behind + slot * job.m, job.m, like)


@jit
def steps_taken(job, space, slot, like):
    """The step of every lane in an iteration, zero for a lane that had stopped."""
    behind = behind_vectors(job) + NUMBERS + kept(job) * (job.n + 2 * job.m) + job.m
    return lanes(space, behind + slot, 1, like)[0]


@jit
def spread_out(source, first, batch, target):
    """Numbers of consecutive matrices into the lanes; lanes without one repeat the last."""
    rows = len(target)
    for lane in range(LANES):
        start = min(first + lane, batch - 1) * rows
        for r in range(rows):
            target[r, lane] = source[start + r]


@jit
def gather(source, first, batch, target):
    """Numbers of the lanes back to where their matrices lie."""
    rows = len(source)
    for lane in range(min(LANES, batch - first)):
        start = (first + lane) * rows
        for r in range(rows):
            target[start + r] = source[r, lane]


@jit
def report_unsafe(job, first, space, like):
    """Say which matrices are left to others: out of range, or with numbers that are not finite."""
    unsafe, count = numbers(job, space, UNSAFE, like), min(LANES, job.batch - first)
    look = has_broken(job, first, count, like)
    for lane in range(count):
        left = unsafe[0, lane] > like(0) or (look and has_broken(job, first + lane, 1, like))
        whole(job.unsafe_at)[first + lane] = 1 if left else 0


@jit
def has_broken(job, first, count, like):
    """Whether a NaN or an infinity is in so many matrices or their options; not minus infinity."""
    no_inline()
    size = size_of(like)
    keys, pairs = job.m * size, job.n * job.m * size
    masses = job.log_row_mass_at + first * job.n * size
    return (
        is_broken(job.scores_at + first * pairs, count * job.n * job.m, True, like)
        or is_broken(job.log_mass_at + first * keys, count * job.m, False, like)
        or (job.log_row_mass_at != 0 and is_broken(masses, count * job.n, False, like))
        or (
            job.start_at != 0 and is_broken(job.start_at + first * keys, count * job.m, False, like)
        )
        or is_broken(job.lam_at + first * size, count, False, like)
        or (job.omega_at != 0 and is_broken(job.omega_at + first * size, count, False, like))
    )


def _vector_operation(operate):
    def typed(typing, target, a, b, like):
        scalar = {4: ir.FloatType(), 8: ir.DoubleType()}[like.dtype.bitwidth // 8]
        align, kind = like.dtype.bitwidth // 8, ir.VectorType(scalar, LANES)

        def generate(context, builder, signature, arguments):
            places = [builder.inttoptr(part, kind.as_pointer()) for part in arguments[:3]]
            parts = [builder.load(place, align=align) for place in places]
            builder.store(operate(builder, *parts), places[0], align=align)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, like), generate

    return typed


def _fused(builder, target, a, b):
    together = ("contract",)
    return builder.fadd(builder.fmul(a, b, flags=together), target, flags=together)


def _largest(builder, target, a, b):
    for other in (a, b):
        target = builder.select(builder.fcmp_ordered(">", target, other), target, other)
    return target


# a loop over so few lanes would be unrolled before it could become a vector operation, so the two
# that matter are written as such, on all lanes at three addresses:
# target += a * b, and target = max(target, a, b)
add_product = intrinsic(_vector_operation(_fused))
keep_largest = intrinsic(_vector_operation(_largest))


@jit
def row_products(job, block, weight, sums, like):
    """`K w` of every row and lane."""
    wide = LANES * size_of(like)
    at_block, at_weight, at_sums = start_of(block), start_of(weight), start_of(sums)
    fill(flat(sums), like(0))
    for j in range(job.m):
        for i in range(job.n):
            entry = at_block + (i * job.m + j) * wide
            add_product(at_sums + i * wide, entry, at_weight + j * wide, like)


@jit
def column_products(job, block, factor, sums, like):
    """`K^T u` of every column and lane."""
    wide = LANES * size_of(like)
    at_block, at_factor, at_sums = start_of(block), start_of(factor), start_of(sums)
    fill(flat(sums), like(0))
    for i in range(job.n):
        for j in range(job.m):
            entry = at_block + (i * job.m + j) * wide
            add_product(at_sums + j * wide, entry, at_factor + i * wide, like)


@jit
def weigh_rows(job, space, factor, like):
    """Row factors as the column step counts them: as they are, or times the row masses."""
    if not job.log_row_mass_at:
        return factor
    used = over_queries(job, space, WEIGHED, like)
    multiply(flat(factor), flat(over_queries(job, space, MASS, like)), flat(used))
    return used


@jit
def multiply(a, b, result):
    """Place by place."""
    for r in range(len(result)):
        result[r] = a[r] * b[r]


@jit
def add_outer(job, block, factor, weight, like):
    """`block += u w^T` of every lane."""
    wide = LANES * size_of(like)
    at_block, at_factor, at_weight = start_of(block), start_of(factor), start_of(weight)
    for i in range(job.n):
        for j in range(job.m):
            entry = at_block + (i * job.m + j) * wide
            add_product(entry, at_factor + i * wide, at_weight + j * wide, like)


@jit
def largest_of(rows, result, start, like):
    """The largest entry of every lane."""
    wide = LANES * size_of(like)
    fill(flat(result), start)
    for j in range(len(rows)):
        row = start_of(rows) + j * wide
        keep_largest(start_of(result), row, row, like)


@jit
def flat(rows):
    """All rows as one vector: loops of unknown length are vectorised, short ones unrolled."""
    # reshape would ask the runtime whether it may
    return vector(start_of(rows), rows.size, rows.dtype.type)


@jit
def fill(places, number):
    """One number everywhere."""
    for r in range(len(places)):
        places[r] = number
