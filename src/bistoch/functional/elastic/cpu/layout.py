"""How the CPU kernels share their work: threads, blocks, workspace, and the job they read."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from bistoch.functional._nonfinite import largest_score
from bistoch.functional.kernels import kernel_module

# rows whose distance is a multiple of this share sets of the first-level cache
SET_BYTES = 2048


class Layout(NamedTuple):
    """How the work on a batch of heads is shared out, and how large its pieces are."""

    # threads with a head of their own; or one, and slots that share its rows
    workers: int
    slots: int
    block: int
    stored_rows: int
    stride: int
    # numbers of workspace for each worker
    workspace_stride: int
    # rows of K of which codes are kept
    coded_rows: int = 0


@lru_cache(maxsize=256)
def _layout(
    sizes: tuple[int, ...],
    backward: bool,
    small: bool,
    threads: int,
    limits: tuple[int, ...],
    coding: bool = False,
) -> Layout:
    head = kernel_module("elastic.cpu.head")
    batch, n, m, d, e, iters, size = sizes
    workspace_bytes, own_head_bytes, block_bytes = limits
    shared = not small and (batch < threads or n * m * size > own_head_bytes)
    workers, slots = (1, threads) if shared else (min(threads, batch), 1)
    slots = max(1, min(slots, -(-n // 8)))
    # products of fewer rows with all keys are slow
    block = max(64, min(256, block_bytes // max(m * size, 1)) // 8 * 8)
    block = max(1, min(block, n) if n <= 128 else block)
    stride = head.padded(m, size)
    if stride * size % SET_BYTES == 0:
        # else the same place of eight rows would lie in one set of the first-level cache
        stride += head.padded(1, size)
    # without an iteration, a row is used once
    stored = n if iters or backward else min(n, block * slots)

    def elements() -> int:
        each = head.slot_elements(m, d, e, stride, block, backward)
        own = head.head_elements(n, m, e, stride, iters, stored, backward)
        return head.padded(own + slots * each, size)

    at_once = workspace_bytes // (elements() * size)
    if at_once:
        # fewer heads at a time rather than heads that are not stored
        workers = min(workers, at_once)
    else:
        # rows in work at a time: of K, or of the three matrices of the backward
        rows = workspace_bytes // (workers * (3 if backward else 1) * stride * size)
        slots = max(1, min(slots, rows // 8))
        block = max(8, min(block, rows // slots // 8 * 8))
        stored = block * slots
    coded = 0
    if not at_once and not backward and coding:
        room = workspace_bytes // workers - (elements() + stride + head.padded(n, size)) * size
        coded = min(n, max(room // stride, 0) // 8 * 8)
        # where most rows would be made again in every pass, codes save little
        coded = coded if 2 * coded >= n else 0
    extra = (stride + head.padded(n, size)) * size + coded * stride if coded else 0
    whole = head.padded(elements() + -(-extra // size), size)
    return Layout(workers, slots, block, stored, stride, whole, coded)


class Form(NamedTuple):
    """A job without its addresses: the same for all calls of the same sizes."""

    layout: Layout
    leader: int
    # the job, two counters, three real numbers, the phases of every worker, and a mark per head
    numbers: np.ndarray
    # where parts of it are, and the fields of the job that point there
    inside: dict[int, int]
    unsafe: int
    # fields for the mask's gradient and the workspace, and the first of those for tensors
    mask_grad: int
    workspace: int
    tensors: int


@lru_cache(maxsize=256)
def job_form(
    sizes: tuple[int, ...],
    dtype: torch.dtype,
    tol: float | None,
    mask: tuple[tuple[int, ...], torch.dtype] | None,
    backward: bool,
    exact_error: bool,
    look: bool,
    small: bool,
    threads: int,
    limits: tuple[int, ...],
    coding: bool = False,
) -> Form:
    """The job of all calls of the same sizes and options.

    Args:
        sizes: problems, queries, keys, features of keys and values, iterations, bytes of a number.
        dtype, tol, mask: of the problem; of a mask its shape and dtype.
        backward: which direction.
        exact_error: whether the column error of the last iteration is wanted.
        look: whether kernels look for numbers that are not finite.
        small: whether one kernel without phases does it all.
        threads: at most so many.
        limits: bytes of the workspace, of a head with a thread of its own, and of a block.
        coding: whether K may be kept in bytes where it does not fit.
    """
    runtime, head = kernel_module("kernels.runtime"), kernel_module("elastic.cpu.head")
    kernels = kernel_module("elastic.cpu.kernels")
    start, number = runtime.team_entry()
    batch, n, m, d, e, iters, _ = sizes
    layout = _layout(sizes, backward, small, threads, limits, coding)
    if small and layout.stored_rows != n:
        # only the phases work on parts of a head
        small, layout = False, _layout(sizes, backward, False, threads, limits, coding)
    phases = {} if small else kernels.phases(backward, dtype, layout.coded_rows > 0)
    job = dict.fromkeys(head.FIELDS, 0) | phases | layout._asdict()
    job |= _mask_layout(mask, head) | {
        "start": start, "number": number, "gemm": runtime.gemm_address(dtype),
        "batch": batch, "n": n, "m": m, "d": d, "e": e, "iters": iters,
        "backward": int(backward), "look": int(look),
        # what codes have led to is accepted by its error
        "exact_error": int(exact_error or layout.coded_rows > 0),
    }  # fmt: skip
    counters = len(head.FIELDS)
    reals, records = counters + 2, counters + 5
    unsafe = records + layout.workers * (head.PHASE_COUNT + layout.slots)
    numbers = np.zeros(unsafe + batch, np.int64)
    numbers[:counters] = [job[name] for name in head.FIELDS]
    numbers[reals:records].view(np.float64)[:] = (
        -1.0 if tol is None else tol, 8 * torch.finfo(dtype).eps, largest_score(dtype) / max(d, 1),
    )  # fmt: skip
    place = {name: i for i, name in enumerate(head.FIELDS)}
    inside = {
        place["self_at"]: 0, place["next_head_at"]: counters, place["next_worker_at"]: counters + 1,
        place["reals_at"]: reals, place["phase_at"]: records, place["unsafe_at"]: unsafe,
    }  # fmt: skip
    leader = kernels.alone(dtype) if small else kernels.leader(backward, dtype)
    where = place["mask_grad_at"], place["workspace_at"], place["query_at"]
    return Form(layout, leader, numbers, inside, unsafe, *where)


def _mask_layout(mask: tuple[tuple[int, ...], torch.dtype] | None, head) -> dict[str, int]:
    if mask is None:
        return {}
    (count, rows, columns), dtype = mask
    return {
        "mask_kind": head.BOOLEAN if dtype == torch.bool else head.BIAS,
        "mask_stride": rows * columns,
        "mask_row_stride": 0 if rows == 1 else columns,
        "mask_column_stride": 0 if columns == 1 else 1,
        "mask_grad_size": count * rows * columns,
    }
