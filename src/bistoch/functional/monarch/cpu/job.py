"""What a job tells the kernels, and where the numbers of one head lie while it is worked on.

Queries come in groups of `members`, keys in blocks of `width`. The scores of all groups with one
block are a tile `base[p, i]`, those of all blocks with one group a tile `tilt[k, l]`; rows of tiles
have strides of whole vectors. Without balance there is one tile of each kind, made again when it is
needed; iterations of the columns keep them all.
"""

from bistoch.functional.elastic.cpu.head import padded
from bistoch.functional.kernels.array import vector
from bistoch.functional.kernels.job import reader
from bistoch.functional.kernels.runtime import address_of, jit, matmul, size_of

# areas of the workspace of a head, in numbers; those behind BACKWARD only for the backward
FORWARD = (
    "q", "k", "v", "o", "bias", "shift", "log_mass", "real", "mean", "slope", "answer", "record",
    "middle", "offset", "constant", "highest", "sums", "weights",
)  # fmt: skip
BACKWARD = (
    "dq", "dk", "dv", "d_bias", "d_log_mass", "d_column", "d_received", "d_total", "d_asked",
    "d_mean", "d_next", "d_slope", "d_answer", "d_tile",
)  # fmt: skip

# tiles, each kind in a tensor of its own, since these are the large ones
TILES = ("base", "tilt", "d_base", "d_tilt")

# the numbers of a job in their order; names ending in _at are addresses, in _in areas
FIELDS = (
    "next_head", "next_worker", "gemm", "batch", "n", "m", "d", "e",
    "groups", "members", "blocks", "width",
    "group_stride", "member_stride", "block_stride", "width_stride", "mean_stride", "answer_stride",
    "updates", "steps", "evaluations", "stored", "keep", "record_size",
    "members_at", "keys_at", "own_at",
    "query_at", "key_at", "value_at", "sharpness_at", "bias_at", "real_at", "lam_at", "omega_at",
    "log_mass_at", "output_at", "records_at", "means_at",
    "output_grad_at", "query_grad_at", "key_grad_at", "value_grad_at", "sharpness_grad_at",
    "bias_grad_at", "lam_grad_at", "omega_grad_at", "log_mass_grad_at",
    "workspace_at", "workspace_stride",
    *(f"{name}_in" for name in (*FORWARD, *BACKWARD)),
    *(f"{name}_at" for name in TILES),
    *(f"{name}_size" for name in TILES),
)  # fmt: skip
_job_at = reader(FIELDS)


def strides(groups: int, members: int, blocks: int, width: int, d: int, e: int, size: int):
    """From row to row: whole vectors, and never a power of two where rows are far apart.

    There the same feature of all rows would compete for the same lines of the cache.
    """
    return {
        "group_stride": padded(groups, size),
        "member_stride": padded(members, size),
        "block_stride": padded(blocks, size),
        "width_stride": padded(width, size),
        "mean_stride": padded(blocks * d, size) + padded(1, size),
        "answer_stride": padded(blocks * e, size) + padded(1, size),
    }


def record_numbers(sizes: dict[str, int]) -> int:
    """What is kept of one evaluation: columns, and logs of sums, each as two numbers.

    The sums are what columns received, totals of blocks, what groups asked, and those of rows.
    """
    return (
        3 * sizes["blocks"] * sizes["width_stride"]
        + 2 * sizes["blocks"] * sizes["group_stride"]
        + 2 * sizes["groups"] * (sizes["block_stride"] + sizes["member_stride"])
    )


def areas(sizes: dict[str, int], backward: bool, size: int) -> dict[str, int]:
    """Where every area begins, in numbers, and under "end" how many they are together."""
    groups, blocks = sizes["groups"], sizes["blocks"]
    keys, wide = blocks * sizes["width"], blocks * sizes["width_stride"]
    queries = groups * sizes["members"]
    d, e = sizes["d"], sizes["e"]
    mean, answer = groups * sizes["mean_stride"], groups * sizes["answer_stride"]
    base, tilt = groups * sizes["width_stride"], blocks * sizes["member_stride"]
    longest = max(sizes[f"{name}_stride"] for name in ("group", "member", "block", "width"))
    numbers = {
        "q": queries * d, "k": keys * d, "v": keys * e, "o": queries * e, "bias": wide,
        "shift": wide, "log_mass": wide, "real": groups * sizes["member_stride"], "mean": mean,
        "slope": mean, "answer": answer, "record": sizes["record_size"],
        "middle": d, "offset": groups * sizes["block_stride"], "constant": longest,
        "highest": longest, "sums": longest, "weights": max(base, tilt),
        "dq": queries * d, "dk": keys * d, "dv": keys * e, "d_bias": wide, "d_log_mass": wide,
        "d_column": wide, "d_received": wide, "d_total": blocks * sizes["group_stride"],
        "d_asked": groups * sizes["block_stride"], "d_mean": mean, "d_next": mean, "d_slope": mean,
        "d_answer": answer, "d_tile": max(base, tilt),
    }  # fmt: skip
    found, end = {}, 0
    for name in (*FORWARD, *(BACKWARD if backward else ())):
        found[f"{name}_in"] = end
        # an odd number of vectors, so that areas do not begin at the same lines of the cache
        end += padded(numbers[name], size) + padded(1, size)
    return found | {"end": end}


def tile_numbers(sizes: dict[str, int], backward: bool) -> dict[str, int]:
    """How many numbers of every kind of tile one worker needs."""
    groups, blocks, stored = sizes["groups"], sizes["blocks"], sizes["stored"]
    base = groups * sizes["width_stride"] * (blocks if stored else 1)
    tilt = blocks * sizes["member_stride"] * (groups if stored else 1)
    # gradients of tiles that are not kept need no room
    return {"base": base, "tilt": tilt} | (
        {"d_base": base, "d_tilt": tilt} if backward and stored else {}
    )


@jit
def open_job(pointer):
    """The numbers of a job by name."""
    return _job_at(address_of(pointer))


@jit
def multiply(gemm, ta, tb, rows, columns, inner, a, lda, b, ldb, beta, c, ldc, like):
    """C = A B + beta C for row-major matrices; ta and tb say which is stored transposed."""
    matmul(gemm, tb, ta, columns, rows, inner, like(1), b, ldb, a, lda, beta, c, ldc)


@jit
def record_at(job, index, space, evaluation, like):
    """Where the record of an evaluation begins: the columns, K rows of keys."""
    if job.keep:
        behind = (index * job.evaluations + evaluation) * job.record_size
        return job.records_at + behind * size_of(like)
    return space + job.record_in * size_of(like)


@jit
def received_in(job, like):
    """How far behind its beginning a record has what columns received, in bytes."""
    return job.blocks * job.width_stride * size_of(like)


@jit
def total_in(job, like):
    """How far behind it has the totals [k, p]."""
    return 3 * job.blocks * job.width_stride * size_of(like)


@jit
def asked_in(job, like):
    """How far behind it has what groups ask of blocks [p, k]."""
    return total_in(job, like) + 2 * job.blocks * job.group_stride * size_of(like)


@jit
def row_sum_in(job, like):
    """How far behind it has the row potentials [p, l], plus infinity for a query that is none."""
    return asked_in(job, like) + 2 * job.groups * job.block_stride * size_of(like)


@jit
def mean_at(job, index, space, update, like):
    """Where the mean queries of an update begin, [p, k, d]; the first are made again if needed."""
    if job.keep and update:
        behind = (index * (job.updates - 1) + update - 1) * job.groups * job.mean_stride
        return job.means_at + behind * size_of(like)
    return space + job.mean_in * size_of(like)


@jit
def worker_of(job, space, like):
    """Whose workspace this is."""
    return (space - job.workspace_at) // (job.workspace_stride * size_of(like))


@jit
def base_at(job, space, block, like):
    """Where the tile of a block begins."""
    behind = block * job.groups * job.width_stride if job.stored else 0
    return job.base_at + (worker_of(job, space, like) * job.base_size + behind) * size_of(like)


@jit
def d_base_at(job, space, block, like):
    """Where its gradient begins."""
    behind = block * job.groups * job.width_stride
    return job.d_base_at + (worker_of(job, space, like) * job.d_base_size + behind) * size_of(like)


@jit
def tilt_at(job, space, group, like):
    """Where the tile of a group begins."""
    behind = group * job.blocks * job.member_stride if job.stored else 0
    return job.tilt_at + (worker_of(job, space, like) * job.tilt_size + behind) * size_of(like)


@jit
def d_tilt_at(job, space, group, like):
    """Where its gradient begins."""
    behind = group * job.blocks * job.member_stride
    return job.d_tilt_at + (worker_of(job, space, like) * job.d_tilt_size + behind) * size_of(like)


@jit
def fill(at, length, number, like):
    """Put a number everywhere."""
    some = vector(at, length, like)
    for j in range(length):
        some[j] = number
