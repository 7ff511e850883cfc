"""The elastic operator on CPUs: Numba kernels in a bounded workspace, forward and exact backward.

Every problem runs in the kernels, both ways, whatever its size. What `streaming` does here is part
of this backend and documented as such (docs/cpu.md): the gradient of a head whose factors leave the
range of floats, which only logarithms can hold, and results without a single pair of tokens.

Numba is imported, and its kernels are compiled or read from its cache, at the first call.
"""

import numpy as np
import torch
from torch import Tensor

from bistoch.functional.elastic import gradient, streaming
from bistoch.functional.elastic.broken import cleaned, shown
from bistoch.functional.elastic.cpu.layout import job_form
from bistoch.functional.elastic.operator import (
    Gradients,
    History,
    Upstream,
    empty,
    empty_history,
    register,
)
from bistoch.functional.kernels import kernel_module
from bistoch.functional.kernels.workspace import borrow, give_back
from bistoch.functional.problem import (
    Balance,
    GivenScores,
    Problem,
    Scores,
    Solution,
    part_of,
)

# bytes of working memory for all threads together; a head that needs more is computed without
# storing its matrices, in blocks of rows that are made again in every pass
WORKSPACE_BYTES = 256 << 20
# bytes of a kernel matrix up to which every thread works on a head of its own; beyond, the heads of
# two threads would push each other out of the cache, and all threads share one head
OWN_HEAD_BYTES = 2 << 20
# pairs of a head up to which one kernel without phases solves it, which compiles within seconds
SMALL_HEAD = 128 * 128
# iterations from which on K may be kept in bytes where it does not fit
FEWEST_CODED = 4
# bytes of a block of rows between its product, its exponentials and its first use
BLOCK_BYTES = 512 << 10


def _forward(
    problem: Problem,
    value: Tensor,
    solution: Solution,
    history: History | None,
    *,
    look: bool = True,
) -> None:
    """Small heads by their own kernel, and what it leaves, as all others, by those with phases."""
    if _is_empty(problem):
        # nothing to compute, only zeros and minus infinities to put into their places
        streaming.forward(problem, value, solution, history)
        return
    _, n, m = problem.scores.shape
    small = n * m <= SMALL_HEAD and problem.balance.omega is not None
    marks = _run(problem, value, solution, history, look=look, small=small)
    if marks.any():
        _solve_marked(marks, problem, value, solution, history)


def _solve_marked(
    marks: np.ndarray,
    problem: Problem,
    value: Tensor,
    solution: Solution,
    history: History | None,
) -> None:
    """Heads that the first kernel left: out of its range, or what they hold needs a look."""
    out_of_range = kernel_module("kernels.nonfinite").OUT_OF_RANGE
    left, suspicious = (
        torch.from_numpy(np.flatnonzero(some))
        for some in (marks == out_of_range, marks > out_of_range)
    )
    if len(left):
        part, values = _part(problem, left), value[left]
        found = empty(part, values)
        kept = None if history is None else empty_history(part)
        # they were looked at already
        _run(part, values, found, kept, look=False)
        _put(left, solution, history, found, kept)
    if len(suspicious):
        _solve_cleaned(suspicious, problem, value, solution, history)


def _put(
    some: Tensor,
    solution: Solution,
    history: History | None,
    found: Solution,
    kept: History | None,
) -> None:
    """What was found for some heads of a batch into its place."""
    for field, own in zip((*solution, *(history or ())), (*found, *(kept or ())), strict=True):
        field[some] = own


def _backward(
    problem: Problem,
    value: Tensor,
    solution: Solution,
    history: History,
    upstream: Upstream,
    grads: Gradients,
) -> None:
    if _is_empty(problem):
        # no pair of tokens, so nothing depends on anything
        for field in grads:
            field.zero_()
        return
    out_of_range = kernel_module("kernels.nonfinite").OUT_OF_RANGE
    marks = _run(problem, value, solution, history, upstream, grads)
    for index in np.flatnonzero(marks == out_of_range):
        _differentiate_in_logs(int(index), problem, value, solution, upstream, grads)
    others = np.flatnonzero(marks > out_of_range)
    if len(others):
        some = torch.from_numpy(others)
        _differentiate_cleaned(some, problem, value, solution, history, upstream, grads)


def _solve_cleaned(
    some: Tensor, problem: Problem, value: Tensor, solution: Solution, history: History | None
) -> None:
    """Heads in which the kernels saw numbers that are not finite, or tokens that are very large.

    They are solved with zeros in the place of what is not finite, and what depends on it is NaN.
    """
    part, values, broken = cleaned(_part(problem, some), value[some], options_too=True)
    found = empty(part, values)
    kept = None if history is None else empty_history(part)
    _forward(part, values, found, kept, look=False)
    _put(some, solution, history, shown(found, broken, part.balance.iters), kept)


def _differentiate_cleaned(
    some: Tensor,
    problem: Problem,
    value: Tensor,
    solution: Solution,
    history: History,
    upstream: Upstream,
    grads: Gradients,
) -> None:
    """The gradients of those heads: NaN is what arrives at rows that are NaN."""
    part, values, broken = cleaned(_part(problem, some), value[some], options_too=True)
    found = Solution(*(field[some] for field in solution))
    kept = History(*(field[some] for field in history))
    arriving = upstream.of(some)
    if broken is not None:
        row = torch.zeros_like(found.row) if arriving.row is None else arriving.row
        arriving = Upstream(
            arriving.output.masked_fill(broken[..., None], torch.nan),
            row.masked_fill(broken, torch.nan),
            arriving.column,
        )
    given = isinstance(part.scores, GivenScores)
    own = Gradients._make(torch.empty_like(field) for field in grads.part_of(some, given))
    marks = _run(part, values, found, kept, arriving, own, look=False)
    for index in np.flatnonzero(marks):
        _differentiate_in_logs(int(index), part, values, found, arriving, own)
    if not given:
        # of a mask that all heads may share
        grads.bias.add_(own.bias)
    for name, field in grads._asdict().items():
        if name != "bias" or (given and field.numel()):
            field[some] = getattr(own, name)


def _differentiate_in_logs(
    index: int,
    problem: Problem,
    value: Tensor,
    solution: Solution,
    upstream: Upstream,
    grads: Gradients,
) -> None:
    """One head whose factors leave the range of the kernels, by `streaming` from the start.

    The kernels multiply factors; where those differ by more than floats can hold, logarithms are
    the only way to the same gradient, and tiles of rows the way to have them in linear memory.
    The history is made anew, since in the log domain its row potentials must be the rounded ones.
    """
    some = slice(index, index + 1)
    # with a tolerance that nothing reaches, steps that were chosen are chosen again
    scores, balance = _part(problem, some)
    one = Problem(scores, balance._replace(iters=int(solution.iterations[index]), tol=-1.0))
    found, history = streaming.replay(one, value[some])
    own = grads.part_of(some, isinstance(problem.scores, GivenScores))
    for field in own:
        # what the kernels had written before they gave up
        if field is not own.bias:
            field.zero_()
    gradient.backward(one, value[some], found, history, upstream.of(some), own)


def _part(problem: Problem, some: slice | Tensor) -> Problem:
    return Problem(part_of(problem.scores, some), part_of(problem.balance, some))


def _is_empty(problem: Problem) -> bool:
    # BLAS leaves its result untouched when there is nothing to add up
    return 0 in problem.scores.shape


def _run(
    problem: Problem,
    value: Tensor,
    solution: Solution,
    history: History | None,
    upstream: Upstream | None = None,
    grads: Gradients | None = None,
    *,
    look: bool = True,
    small: bool = False,
) -> np.ndarray:
    """Describe the work as a job of numbers and addresses, and let the kernels do it.

    Forward, or backward if there are gradients; returns a mark for each head, zero if it is done,
    else why it was left. Without `look` they compute with whatever there is.
    """
    runtime = kernel_module("kernels.runtime")
    scores, balance = problem
    tokens = _tokens(scores)
    (batch, n, m), d, e = scores.shape, tokens.query.shape[2], value.shape[2]
    dtype, mask = scores.like.dtype, tokens.mask
    exact_error = grads is None and (e == 0 or balance.tol is not None)
    start, _ = runtime.team_entry()
    # without a team whose members know their numbers, no head can be shared
    threads = runtime.threads() if start else min(runtime.threads(), batch)
    form = job_form(
        (batch, n, m, d, e, balance.iters, dtype.itemsize), dtype, balance.tol,
        None if mask is None else (tuple(mask.shape), mask.dtype), grads is not None, exact_error,
        look, small, threads, (WORKSPACE_BYTES, OWN_HEAD_BYTES if start else 1 << 60, BLOCK_BYTES),
        _may_code(balance, dtype, e),
    )  # fmt: skip
    workers = form.layout.workers
    room = borrow(workers * form.layout.workspace_stride, dtype)
    # in the order of the fields of a job
    tensors = [
        tokens.query, tokens.key, value, tokens.mask, tokens.mask_index, tokens.query_mask,
        tokens.key_mask, tokens.sharpness, *balance.tensors(), *solution,
    ]  # fmt: skip
    tensors += [None] * len(History._fields) if history is None else history
    if upstream is not None and grads is not None:
        tensors += [
            *upstream, grads.query, grads.key, grads.value, grads.sharpness, grads.lam, grads.omega,
            grads.log_mass, grads.log_row_mass, grads.start,
        ]  # fmt: skip
    # kept until the kernels are done: contiguous copies must outlive their addresses
    kept = [None if tensor is None else tensor.contiguous() for tensor in tensors]
    numbers = form.numbers.copy()
    numbers[form.tensors : form.tensors + len(kept)] = [
        0 if tensor is None else tensor.data_ptr() for tensor in kept
    ]
    numbers[form.workspace] = room.data_ptr()
    # as numbers.ctypes.data, without an object in between
    at = numbers.__array_interface__["data"][0]
    for field, place in form.inside.items():
        numbers[field] = at + 8 * place
    mask_grads = None
    if grads is not None and grads.bias.numel():
        owners = max(workers, form.layout.slots)
        mask_grads = grads.bias.new_zeros(owners, *grads.bias.shape)
        numbers[form.mask_grad] = mask_grads.data_ptr()
    call, arguments = runtime.entry(form.leader, at, workers)
    call(*arguments)
    give_back(room)
    if grads is not None and mask_grads is not None:
        torch.sum(mask_grads, 0, out=grads.bias)
    return numbers[form.unsafe :]


def _may_code(balance: Balance, dtype: torch.dtype, features: int) -> bool:
    """Whether iterations will converge, so that it does not matter how they got there.

    They must be plain ones of float32, and enough of them. Who wants potentials alone wants them
    as exact as they can be.
    """
    plain = balance.omega is not None and balance.tol is None
    return plain and dtype == torch.float32 and features > 0 and balance.iters >= FEWEST_CODED


def _tokens(scores: Scores | GivenScores) -> Scores:
    """Scores as the kernels read them: a matrix that is given is a bias between no features."""
    if isinstance(scores, Scores):
        return scores
    (batch, n, m), given = scores.shape, scores.given
    return Scores(
        query=given.new_empty(batch, n, 0),
        key=given.new_empty(batch, m, 0),
        mask=given,
        mask_index=torch.arange(batch, device="cpu"),
        query_mask=scores.query_mask,
        key_mask=scores.key_mask,
        sharpness=given.new_ones(batch),
    )


solve = register("elastic_cpu", _forward, _backward, fills=True)
