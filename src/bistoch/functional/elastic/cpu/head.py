"""What a job tells the kernels, where a head's numbers lie, and the loops that all kernels share.

Kernels meet as C functions of one pointer, so that each is compiled once: a job is a row of int64
numbers, sizes and addresses, and every kernel opens the few arrays that it needs.
"""

import numpy as np
from numba import from_dtype, types
from numba.extending import intrinsic

from bistoch.functional.elastic.cpu.rows import exponentiate
from bistoch.functional.kernels.array import matrix, start_of, vector
from bistoch.functional.kernels.nonfinite import LOOK_AGAIN, bits_of, is_broken, largest_bits
from bistoch.functional.kernels.runtime import (
    PLAIN,
    TRANSPOSED,
    address_of,
    call_body,
    exponential,
    jit,
    larger,
    matmul,
    no_inline,
    size_of,
    start_team,
    take_next,
    thread_number,
)
from bistoch.functional.kernels.vector import BYTES

# the numbers of a job in their order; names ending in _at are addresses
FIELDS = (
    # the team
    "self_at", "next_head_at", "next_worker_at", "start", "number", "phase_at", "slots", "gemm",
    "build_body", "iterate_body", "finish_body", "prepare_body", "step_body", "scatter_body",
    "iterate_codes_body",
    # sizes
    "batch", "n", "m", "d", "e", "stride", "iters", "block", "stored_rows", "backward",
    "exact_error", "look", "coded_rows",
    # what else there is to know
    "reals_at", "mask_kind", "mask_stride", "mask_row_stride", "mask_column_stride",
    "mask_grad_at", "mask_grad_size", "unsafe_at", "workspace_at", "workspace_stride",
    # inputs
    "query_at", "key_at", "value_at", "mask_at", "mask_index_at", "query_mask_at", "key_mask_at",
    "sharpness_at", "lam_at", "omega_at", "log_mass_at", "log_row_mass_at", "start_at",
    # the solution and its history
    "output_at", "row_at", "column_at", "error_at", "iterations_at", "row_history_at",
    "peak_history_at", "log_total_history_at", "omega_history_at",
    # gradients that arrive and leave
    "output_grad_at", "row_grad_at", "column_grad_at", "query_grad_at", "key_grad_at",
    "value_grad_at", "sharpness_grad_at", "lam_grad_at", "omega_grad_at", "log_mass_grad_at",
    "log_row_mass_grad_at", "start_grad_at",
)  # fmt: skip
JOB = from_dtype(np.dtype([(name, np.int64) for name in FIELDS]))

NO_MASK, BOOLEAN, BIAS = 0, 1, 2

# a phase as a member of the team finds it; behind it, one number per slot: has it been taken?
PHASE_FIELDS = ("job_at", "index", "space", "owner", "flag", "t")
PHASE = from_dtype(np.dtype([(name, np.int64) for name in PHASE_FIELDS]))
PHASE_COUNT = len(PHASE_FIELDS)

# vectors of a head in its workspace: over queries, and over keys
FACTOR, SHIFT, GRAD = range(3)
COLUMN, ABSORBED, WEIGHT, TOTAL, PEAK, STEP, COLUMN_GRAD = range(7)
QUERY_VECTORS, KEY_VECTORS = 3, 7
# the forward has residuals where the backward has gradients, and row factors times row masses
RESIDUAL = COLUMN_GRAD
WEIGHED = GRAD
# vectors over keys that every slot has for itself
SUM, PARTIAL = range(2)


def padded(length: int, size: int) -> int:
    """A length in whole vectors, for numbers of so many bytes: rows of K and vectors over keys.

    What is behind the last key is zero in K and in column factors, so passes need not stop at it.
    """
    lanes = BYTES // size
    return -(-length // lanes) * lanes


def head_elements(
    n: int, m: int, e: int, stride: int, iters: int, stored: int, backward: bool
) -> int:
    """How many numbers the work on one head needs, beside its slots."""
    more = (stored * stride + 2 * iters * (n + m)) if backward else m * e
    return stored * stride + QUERY_VECTORS * n + KEY_VECTORS * stride + more


def slot_elements(m: int, d: int, e: int, stride: int, block: int, backward: bool) -> int:
    """How many numbers each member of a team needs."""
    return 2 * stride + ((block * stride + m * (d + e) + 1) if backward else 0)


@intrinsic(prefer_literal=True)
def _record_at(typing, address, kind):
    """The record of a known layout at an address."""
    record = {"job": JOB, "phase": PHASE}[kind.literal_value]

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(record))

    return record(types.int64, kind), generate


@jit
def open_job(address):
    """The numbers of a job by name."""
    return _record_at(address, "job")


@jit
def open_phase(pointer):
    """The numbers of a phase by name."""
    return _record_at(address_of(pointer), "phase")


@jit
def of_head(address, index, rows, columns, like):
    """The matrix of one head in a batch of them."""
    return matrix(address + index * rows * columns * size_of(like), rows, columns, like)


@jit
def whole(address):
    """A vector of int64 that starts at an address, to be read at one place."""
    return vector(address, 1 << 40, np.int64)


@jit
def kernel_of(job, space, like):
    """The stored matrix: K in the forward, P in the backward."""
    return matrix(space, job.stored_rows, job.stride, like)


@jit
def block_place(job, start, slot):
    """Where a block of rows is kept; without room for all, each slot has one for all its own."""
    return start if job.stored_rows == job.n else slot * job.block


@jit
def over_queries(job, space, which, like):
    """A vector of the head over its queries."""
    behind = (job.stored_rows + KEY_VECTORS) * job.stride + which * job.n
    return vector(space + behind * size_of(like), job.n, like)


@jit
def over_keys(job, space, which, like):
    """A vector of the head over its keys."""
    behind = (job.stored_rows + which) * job.stride
    return vector(space + behind * size_of(like), job.m, like)


@jit
def over_columns(job, space, which, like):
    """The same in whole vectors, for a pass over K."""
    behind = (job.stored_rows + which) * job.stride
    return vector(space + behind * size_of(like), job.stride, like)


@jit
def clear_padding(job, space, like):
    """Let nothing be behind the last key."""
    for which in range(KEY_VECTORS):
        over_columns(job, space, which, like)[job.m :] = like(0)


@jit
def behind_vectors(job, space, like):
    """Where the larger things of a head begin: weighted values, or what the backward needs."""
    behind = (job.stored_rows + KEY_VECTORS) * job.stride + QUERY_VECTORS * job.n
    return space + behind * size_of(like)


@jit
def low_rank(job, space, like):
    """The two flat matrices whose product rescales the plan in the backward, two rows a step."""
    left = behind_vectors(job, space, like) + job.stored_rows * job.stride * size_of(like)
    right = left + 2 * job.n * job.iters * size_of(like)
    return matrix(left, 2 * job.iters, job.n, like), matrix(right, 2 * job.iters, job.m, like)


@jit
def slot_at(job, space, number, like):
    """Where the part of the workspace begins that belongs to one member of the team."""
    own = 2 * job.stride
    behind = job.m * job.e
    if job.backward:
        own += job.block * job.stride + job.m * (job.d + job.e) + 1
        behind = job.stored_rows * job.stride + 2 * job.iters * (job.n + job.m)
    return behind_vectors(job, space, like) + (behind + number * own) * size_of(like)


@jit
def of_slot(job, space, number, which, like):
    """A vector over keys, in whole vectors, that belongs to one member of the team."""
    start = slot_at(job, space, number, like)
    return vector(start + which * job.stride * size_of(like), job.stride, like)


@jit
def spare_rows(job, space, like):
    """Some rows of scratch, at least one, between phases of the forward."""
    rows = min(job.block, job.m * job.e // job.stride)
    if rows:
        # where the weighted values are while the last phase uses them
        return matrix(behind_vectors(job, space, like), rows, job.stride, like)
    return matrix(of_slot(job, space, 0, PARTIAL, like).ctypes.data, 1, job.stride, like)


@jit
def run_phase(job, body, index, space, owner, flag, t):
    """Do one phase of a head on all its slots, alone or with the team."""
    # in a batch of heads every worker has a record of its own
    length = PHASE_COUNT + job.slots
    record = vector(job.phase_at + owner * 8 * length, length, np.int64)
    record[0], record[1], record[2] = job.self_at, index, space
    record[3], record[4], record[5] = owner, flag, t
    for slot in range(job.slots):
        record[PHASE_COUNT + slot] = 0
    if job.slots == 1:
        call_body(body, start_of(record))
    else:
        start_team(job.start, body, start_of(record), job.slots)


@jit
def next_slot(job, pointer, tried):
    """A slot that is not taken, this thread's own first; -1 when there is none left."""
    mine = thread_number(job.number) if job.slots > 1 else 0
    taken = address_of(pointer) + 8 * PHASE_COUNT
    for offset in range(tried, job.slots):
        slot = (mine + offset) % job.slots
        if take_next(taken + 8 * slot) == 0:
            return slot
    return -1


@jit
def rows_of_slot(job, slot):
    """The rows of a slot: whole groups of eight, as even as they can be."""
    groups = (job.n + 7) // 8
    first = min(8 * (groups * slot // job.slots), job.n)
    return first, min(8 * (groups * (slot + 1) // job.slots), job.n)


@jit
def look(job, index, slot, like):
    """Mark a head with numbers that are not finite, or tokens of which a score might overflow.

    Each slot looks at the tokens of its share of the rows, and at as large a part of the keys.
    """
    no_inline()
    m, d, e, size = job.m, job.d, job.e, size_of(like)
    sharpness = vector(job.sharpness_at, job.batch, like)[index]
    limit = vector(job.reals_at, 3, np.float64)[2] / larger(abs(sharpness), like(1))
    # a product of two below the root of what it may be is below that
    most = bits_of(like(np.sqrt(limit)))
    first, last = rows_of_slot(job, slot)
    queries = job.query_at + (index * job.n + first) * d * size
    start, stop = m * slot // job.slots, m * (slot + 1) // job.slots
    count, keys = stop - start, index * m + start
    masses = job.log_row_mass_at + (index * job.n + first) * size
    if (
        largest_bits(queries, (last - first) * d, False, like) > most
        or largest_bits(job.key_at + keys * d * size, count * d, False, like) > most
        or is_broken(job.value_at + keys * e * size, count * e, False, like)
        or is_broken(job.log_mass_at + keys * size, count, False, like)
        or (job.start_at != 0 and is_broken(job.start_at + keys * size, count, False, like))
        or (job.log_row_mass_at != 0 and is_broken(masses, last - first, False, like))
        or is_broken(job.sharpness_at + index * size, 1, False, like)
        or is_broken(job.lam_at + index * size, 1, False, like)
        or (job.omega_at != 0 and is_broken(job.omega_at + index * size, 1, False, like))
    ):
        whole(job.unsafe_at)[index] = LOOK_AGAIN


@jit
def write_scores(job, index, first, last, block, like):
    """Scores of rows [first, last) into a block, minus infinity where forbidden."""
    m, d, size, zero = job.m, job.d, size_of(like), like(0)
    if d:
        sharpness = vector(job.sharpness_at, job.batch, like)[index]
        matmul(
            job.gemm, TRANSPOSED, PLAIN, m, last - first, d, sharpness,
            job.key_at + index * m * d * size, d,
            job.query_at + (index * job.n + first) * d * size, d, zero, start_of(block),
            job.stride,
        )  # fmt: skip
    else:
        block[:] = zero
    if job.mask_kind != NO_MASK or job.query_mask_at or job.key_mask_at:
        forbid(job, index, first, last, block, like)


@jit
def forbid(job, index, first, last, block, like):
    """Add the bias, and put minus infinity wherever a query may not see a key."""
    no_inline()
    n, m = job.n, job.m
    never = like(-np.inf)
    stride = job.mask_column_stride
    which = whole(job.mask_index_at)[index] if job.mask_kind != NO_MASK else 0
    for i in range(first, last):
        row = block[i - first]
        start = which * job.mask_stride + i * job.mask_row_stride
        if job.mask_kind == BIAS:
            bias = vector(job.mask_at + start * size_of(like), (m - 1) * stride + 1, like)
            # minus infinity forbids a pair
            if job.look and is_broken(start_of(bias), len(bias), True, like):
                whole(job.unsafe_at)[index] = LOOK_AGAIN
            for j in range(m):
                row[j] += bias[j * stride]
        elif job.mask_kind == BOOLEAN:
            bits = vector(job.mask_at + start, (m - 1) * stride + 1, np.uint8)
            for j in range(m):
                row[j] = row[j] if bits[j * stride] else never
        if job.key_mask_at:
            real = vector(job.key_mask_at + index * m, m, np.uint8)
            for j in range(m):
                row[j] = row[j] if real[j] else never
        if job.query_mask_at and not vector(job.query_mask_at + index * n, n, np.uint8)[i]:
            row[:] = never


@jit
def build_block(job, index, space, first, last, block, like):
    """A block of rows of `K = exp(S + absorbed - rowmax)` with its row factors 1 / sum."""
    absorbed = over_keys(job, space, ABSORBED, like)
    factor, shift = over_queries(job, space, FACTOR, like), over_queries(job, space, SHIFT, like)
    one, zero = like(1), like(0)
    write_scores(job, index, first, last, block, like)
    for i in range(first, last):
        highest, rest = exponentiate(block[i - first, : job.m], absorbed)
        block[i - first, job.m :] = zero
        shift[i] = highest
        factor[i] = one / rest if rest > zero else zero


@jit
def row_mass(job, index, i, like):
    """What a query counts in the column step."""
    place = job.log_row_mass_at + index * job.n * size_of(like)
    return exponential(vector(place, job.n, like)[i]) if job.log_row_mass_at else like(1)


@jit
def weigh_rows(job, index, space, first, last, like):
    """Row factors as column totals count them: as they are, or times the row masses."""
    factor = over_queries(job, space, FACTOR, like)
    if not job.log_row_mass_at:
        return factor
    used = over_queries(job, space, WEIGHED, like)
    for i in range(first, last):
        used[i] = factor[i] * row_mass(job, index, i, like)
    return used


@jit
def copy(source, target):
    """Numbers from one vector to another; an assignment of slices would take long to compile."""
    for j in range(len(target)):
        target[j] = source[j]


@jit
def gather_totals(job, space, like):
    """The column totals of all slots, always in the same order."""
    totals = over_keys(job, space, TOTAL, like)
    copy(of_slot(job, space, 0, SUM, like), totals)
    for number in range(1, job.slots):
        more = of_slot(job, space, number, SUM, like)
        for j in range(job.m):
            totals[j] += more[j]
    return totals
