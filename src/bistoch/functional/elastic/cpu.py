"""The elastic operator on CPUs: Numba kernels in a bounded workspace, forward and exact backward.

Numba is imported, and its kernels are compiled or read from its cache, at the first call.
"""

from functools import cache, lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bistoch.functional._backend import BackendUnavailableError
from bistoch.functional.elastic import gradient, streaming
from bistoch.functional.elastic.operator import Gradients, History, Upstream, register
from bistoch.functional.elastic.problem import Problem, Solution

# bytes of working memory for all threads together; a head that needs more is computed without
# storing its kernel matrix
WORKSPACE_BYTES = 256 << 20
# bytes of a kernel matrix up to which every thread works on a head of its own; beyond, the heads of
# two threads would push each other out of the cache, and all threads share one head
OWN_HEAD_BYTES = 2 << 20
# bytes of a block of rows between its product, its exponentials and its first use
BLOCK_BYTES = 512 << 10


def _forward(problem: Problem, value: Tensor, solution: Solution, history: History | None) -> None:
    device = problem.query.device
    if device.type != "cpu":
        raise BackendUnavailableError(
            f'the backend "cpu" works on CPU tensors, but these are on {device}; move them with '
            '.cpu(), or choose backend="streaming"'
        )
    if _is_empty(problem):
        streaming.forward(problem, value, solution, history)
        return
    _run(
        problem,
        value,
        solution,
        backward=False,
        exact_error=int(value.shape[2] == 0 or problem.tol is not None),
        tensors={} if history is None else _history(history),
    )


def _backward(
    problem: Problem,
    value: Tensor,
    solution: Solution,
    history: History,
    upstream: Upstream,
    grads: Gradients,
) -> None:
    (batch, n, _), m = problem.query.shape, problem.key.shape[1]
    size = problem.query.element_size()
    # two matrices, and the two thin ones whose product holds all iterations
    elements = 2 * n * kernel_module("cpu_head").padded(m, size) + 2 * problem.iters * (n + m)
    if _is_empty(problem) or elements * size > WORKSPACE_BYTES:
        gradient.backward(problem, value, solution, history, upstream, grads)
        return
    unsafe = torch.zeros(batch, dtype=torch.int64)
    arriving = {f"{name}_grad": field.contiguous() for name, field in upstream._asdict().items()}
    leaving = {f"{name}_grad": field for name, field in grads._asdict().items() if name != "mask"}
    _run(
        problem,
        value,
        solution,
        backward=True,
        mask_grad=grads.mask if grads.mask.numel() else None,
        tensors={"unsafe": unsafe} | arriving | leaving | _history(history),
    )
    for index in unsafe.nonzero().flatten().tolist():
        _differentiate_in_logs(index, problem, value, solution, upstream, grads)


def _differentiate_in_logs(
    index: int,
    problem: Problem,
    value: Tensor,
    solution: Solution,
    upstream: Upstream,
    grads: Gradients,
) -> None:
    """One head whose factors leave the range of the kernels, by `streaming` from the start.

    The history is made anew, since in the log domain its row potentials must be the rounded ones.
    """
    some = slice(index, index + 1)
    fields: dict[str, Any] = {
        name: field[some] if isinstance(field, Tensor) and name != "mask" else field
        for name, field in problem._asdict().items()
    }
    # with a tolerance that nothing reaches, steps that were chosen are chosen again
    fields |= {"iters": int(solution.iterations[index]), "tol": -1.0}
    one = Problem(**fields)
    found, history = streaming.replay(one, value[some])
    own = {n: field if n == "mask" else field[some] for n, field in grads._asdict().items()}
    for name in ("lam", "omega", "log_mass"):
        # what the kernels had added before they gave up
        own[name].zero_()
    arriving = Upstream(*(field[some] for field in upstream))
    gradient.backward(one, value[some], found, history, arriving, Gradients(**own))


def _is_empty(problem: Problem) -> bool:
    # BLAS leaves its result untouched when there is nothing to add up
    return 0 in (*problem.query.shape[:2], problem.key.shape[1])


def _history(history: History) -> dict[str, Tensor]:
    return {f"{name}_history": field for name, field in history._asdict().items()}


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


@lru_cache(maxsize=256)
def _layout(
    sizes: tuple[int, ...], backward: bool, threads: int, limits: tuple[int, ...]
) -> Layout:
    head = kernel_module("cpu_head")
    batch, n, m, d, e, iters, size = sizes
    workspace_bytes, own_head_bytes, block_bytes = limits
    shared = batch < threads or n * m * size > own_head_bytes
    workers, slots = (1, threads) if shared else (min(threads, batch), 1)
    slots = max(1, min(slots, -(-n // 8)))
    block = max(8, min(256, block_bytes // max(m * size, 1)) // 8 * 8)
    block = max(1, min(block, n) if n <= 128 else block)
    stride = head.padded(m, size)
    elements = head.head_elements(n, m, e, stride, iters, n, backward)
    each = slots * head.slot_elements(m, d, e, stride, block, backward)
    stored = n
    if not backward and workers * (elements + each) * size > workspace_bytes:
        stored = block * slots
        elements = head.head_elements(n, m, e, stride, iters, stored, backward)
    return Layout(workers, slots, block, stored, stride, head.padded(elements + each, size))


def _run(
    problem: Problem,
    value: Tensor,
    solution: Solution,
    *,
    backward: bool,
    exact_error: int = 0,
    mask_grad: Tensor | None = None,
    tensors: dict[str, Tensor],
) -> None:
    """Describe the work as a job of numbers and addresses, and let the kernels do it."""
    runtime, head = kernel_module("cpu_runtime"), kernel_module("cpu_head")
    kernels = kernel_module("cpu_kernels")
    (batch, n, d), m, e = problem.query.shape, problem.key.shape[1], value.shape[2]
    dtype, iters = problem.query.dtype, problem.iters
    start, number = runtime.team_entry()
    # without a team whose members know their numbers, nobody can share a head
    threads = runtime.threads() if start else min(runtime.threads(), batch)
    limits = (WORKSPACE_BYTES, OWN_HEAD_BYTES if start else 1 << 60, BLOCK_BYTES)
    sizes = (batch, n, m, d, e, iters, dtype.itemsize)
    layout = _layout(sizes, backward, threads, limits)
    workers, slots = layout.workers, layout.slots
    workspace = torch.empty(workers * layout.workspace_stride, dtype=dtype)

    owners = max(workers, slots)
    mask_grads = None
    if mask_grad is not None:
        mask_grads = mask_grad if owners == 1 else mask_grad.new_zeros(owners, *mask_grad.shape)
    named = tensors | problem._asdict() | solution._asdict() | {"value": value}
    # kept by name until the kernels are done: contiguous copies must outlive their addresses
    kept = {name: part.contiguous() for name, part in named.items() if isinstance(part, Tensor)}
    # one piece of memory: the job, two counters, two real numbers, and the phases of every worker
    counters = len(head.FIELDS)
    reals, phases = counters + 2, counters + 4
    numbers = np.zeros(phases + workers * (head.PHASE_COUNT + slots), np.int64)
    at = numbers.ctypes.data
    tol = -1.0 if problem.tol is None else problem.tol
    numbers[reals:phases].view(np.float64)[:] = tol, 8 * torch.finfo(dtype).eps
    job = dict.fromkeys(head.FIELDS, 0) | kernels.addresses(backward, dtype)
    job |= {f"{name}_at": tensor.data_ptr() for name, tensor in kept.items()}
    job |= _mask_layout(problem, head) | layout._asdict()
    job |= {
        "self_at": at, "next_head": at + 8 * counters, "next_worker": at + 8 * (counters + 1),
        "reals_at": at + 8 * reals, "phase_at": at + 8 * phases,
        "start": start, "number": number, "gemm": runtime.gemm_address(dtype),
        "batch": batch, "n": n, "m": m, "d": d, "e": e, "iters": iters,
        "backward": int(backward), "exact_error": exact_error,
        "workspace_at": workspace.data_ptr(),
        "mask_grad_at": 0 if mask_grads is None else mask_grads.data_ptr(),
        "mask_grad_size": 0 if mask_grad is None else mask_grad.numel(),
    }  # fmt: skip
    numbers[:counters] = [job[name] for name in head.FIELDS]
    runtime.run(kernels.leader(backward, dtype), at, workers)
    if mask_grad is not None and mask_grads is not None and mask_grads is not mask_grad:
        torch.sum(mask_grads, 0, out=mask_grad)


@cache
def kernel_module(name: str) -> Any:
    """One of the modules that hold kernels; they need Numba, and are imported when first used."""
    try:
        return import_module(f"bistoch.functional.elastic.{name}")
    except ImportError as error:
        raise BackendUnavailableError(
            'the backend "cpu" needs Numba, which cannot be imported here; install it with '
            'pip install numba, or choose backend="streaming"'
        ) from error


def _mask_layout(problem: Problem, head) -> dict[str, int]:
    if problem.mask is None:
        return {}
    _, rows, columns = problem.mask.shape
    return {
        "mask_kind": head.BOOLEAN if problem.mask.dtype == torch.bool else head.BIAS,
        "mask_stride": rows * columns,
        "mask_row_stride": 0 if rows == 1 else columns,
        "mask_column_stride": 0 if columns == 1 else 1,
    }


solve = register("elastic_cpu", _forward, _backward)
