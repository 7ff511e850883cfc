"""Plans of many small matrices at once: vector lanes on CPUs, forward and exact backward.

For matrices that fit the caches by the dozen, what costs is not arithmetic but everything around
it. So the plan and its gradient are one kernel each, and nothing is kept between them but scores.
"""

import numpy as np
import torch
from torch import Tensor

from bistoch.functional._export import is_open
from bistoch.functional.backends import assume_constant_result
from bistoch.functional.elastic import gradient, streaming
from bistoch.functional.elastic.broken import cleaned, shown
from bistoch.functional.elastic.cpu import launch
from bistoch.functional.elastic.operator import (
    Upstream,
    inputs_of,
    refuse_second,
    refuse_tangents,
    room,
)
from bistoch.functional.kernels import kernel_module
from bistoch.functional.problem import Balance, GivenScores, Problem, dense_scores, part_of

# pairs of one matrix up to which a group of them, with what their gradient needs, stay in the cache
LARGEST = 64 * 64


def fits(problem: Problem) -> bool:
    """Whether the matrices are small enough, and so few iterations that the workspace holds all."""
    (_, n, m), size = problem.scores.shape, problem.scores.like.element_size()
    if is_open(n, m) or n * m > LARGEST:
        return False
    return _workspace(n, m, problem.balance.iters, size) <= launch.WORKSPACE_BYTES


# a number of the machine and the sizes: nothing for a compiler to trace
@assume_constant_result
def _workspace(n: int, m: int, iters: int, element_size: int) -> int:
    elements = kernel_module("elastic.cpu.lanes_job").group_elements(n, m, iters, True)
    return kernel_module("kernels.runtime").threads() * elements * element_size


def plan(problem: Problem[GivenScores]) -> tuple[Tensor, Tensor] | None:
    """As `solve`; None if the matrices do not fit."""
    return solve(problem) if fits(problem) else None


def solve(problem: Problem[GivenScores]) -> tuple[Tensor, Tensor]:
    """The plans of a batch of scores that are given, and their errors."""
    scores, balance = dense_scores(problem.scores), problem.balance
    start = balance.start
    if start is not None and start.shape[-1]:
        # what all columns share is invisible in a plan; without it the factors stay in range
        least, most = start.detach().aminmax(dim=-1, keepdim=True)
        start = start - (least + most) / 2
    balance = balance._replace(start=start)
    tensors = (field for field in (scores, *balance) if isinstance(field, Tensor))
    refuse_tangents("balance_lanes", tensors, 'choose backend="reference"')
    plan, error = balance_lanes(scores, *balance)
    if balance.log_row_mass is not None:
        plan = plan * balance.log_row_mass.exp()[..., None]
    return plan, error


@torch.library.custom_op("bistoch::balance_lanes", mutates_args=())
def balance_lanes(
    scores: Tensor,
    lam: Tensor,
    omega: Tensor | None,
    log_mass: Tensor,
    log_row_mass: Tensor | None,
    start: Tensor | None,
    iters: int,
    tol: float | None,
) -> tuple[Tensor, Tensor]:
    """The plan of every matrix, minus infinity being a forbidden pair, and its column error."""
    balance = Balance(lam, omega, log_mass, log_row_mass, start, iters, tol)
    plan, error = _dense_like(scores), _dense_like(lam)
    unsafe = _run(scores, balance, {"plan": plan, "error": error}, backward=False)
    if unsafe.numel():
        problem, value = _in_logs(scores, balance, unsafe)
        clean, _, broken = cleaned(problem, None, options_too=True)
        found = shown(streaming.replay(clean, value)[0], broken, iters)
        plan[unsafe], error[unsafe] = found.output, found.error
    return plan, error


@balance_lanes.register_fake
def _(scores, lam, *_):
    return _dense_like(scores), _dense_like(lam)


@torch.library.custom_op("bistoch::balance_lanes_backward", mutates_args=())
def balance_lanes_backward(
    plan_grad: Tensor,
    scores: Tensor,
    lam: Tensor,
    omega: Tensor | None,
    log_mass: Tensor,
    log_row_mass: Tensor | None,
    start: Tensor | None,
    iters: int,
    tol: float | None,
    options_too: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the scores and, if asked for, of the options."""
    balance = Balance(lam, omega, log_mass, log_row_mass, start, iters, tol)
    scores_grad = _dense_like(scores)
    grads = dict(zip(OPTION_NAMES, _differentiable(*balance.tensors()), strict=True))
    grads = {f"{name}_grad": _dense_like(option).zero_() for name, option in grads.items()}
    tensors = {"plan_grad": plan_grad.contiguous(), "scores_grad": scores_grad}
    unsafe = _run(scores, balance, tensors | (grads if options_too else {}), backward=True)
    if unsafe.numel():
        _differentiate_in_logs(scores, balance, unsafe, plan_grad, scores_grad, grads)
    lams, omegas, masses, row_masses, starts = grads.values()
    return scores_grad, lams, omegas, masses, row_masses, starts


@balance_lanes_backward.register_fake
def _(plan_grad, scores, *options):
    return tuple(_dense_like(tensor) for tensor in (scores, *_differentiable(*options[:5])))


# what has a gradient beside the scores
OPTION_NAMES = ("lam", "omega", "log_mass", "log_row_mass", "start")


def _differentiable(lam, omega, log_mass, log_row_mass, start) -> tuple[Tensor, ...]:
    """Tensors like the gradients of the options; empty for one that is not there."""
    none = log_mass[:, :0]
    row_mass, first = (none if option is None else option for option in (log_row_mass, start))
    return lam, lam, log_mass, row_mass, first


def _dense_like(tensor: Tensor) -> Tensor:
    """Room that kernels can fill by its address, whatever the layout of what it is like."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:6])
    ctx.steps = inputs[6:]
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx, plan_grad, _):
    needed = ctx.needs_input_grad
    options_too = any(needed[1:6])
    grads = balance_lanes_backward(plan_grad, *ctx.saved_tensors, *ctx.steps, options_too)
    # steps that were chosen have no gradient, nor what is not there
    kept = (grad if need else None for grad, need in zip(grads, needed, strict=False))
    return (*kept, None, None)


balance_lanes.register_autograd(_differentiate, setup_context=_setup_context)
balance_lanes_backward.register_autograd(refuse_second("balance_lanes"))


def _run(scores: Tensor, balance: Balance, tensors: dict[str, Tensor], *, backward: bool) -> Tensor:
    """Describe the work as a job of numbers and addresses, and let the kernels do it.

    Returns which matrices are out of the range of the kernels.
    """
    runtime, layout = kernel_module("kernels.runtime"), kernel_module("elastic.cpu.lanes_job")
    kernels = kernel_module("elastic.cpu.kernels")
    batch, n, m = scores.shape
    workers = max(1, min(runtime.threads(), -(-batch // layout.LANES)))
    elements = layout.group_elements(n, m, balance.iters, backward)
    unsafe = torch.zeros(batch, dtype=torch.int64)
    named = tensors | {
        "scores": scores, "lam": balance.lam, "unsafe": unsafe,
        "log_mass": balance.log_mass, "workspace": scores.new_empty(workers * elements),
    }  # fmt: skip
    more = {name: getattr(balance, name) for name in ("omega", "log_row_mass", "start")}
    named |= {name: option for name, option in more.items() if option is not None}
    # kept by name until the kernels are done: contiguous copies must outlive their addresses
    arrays = {field: tensor.contiguous() for field, tensor in named.items()}
    reals = np.array(
        [-1.0 if balance.tol is None else balance.tol, 8 * torch.finfo(scores.dtype).eps]
    )
    counters = np.zeros(2, np.int64)
    job = dict.fromkeys(layout.FIELDS, 0)
    job |= {f"{field}_at": tensor.data_ptr() for field, tensor in arrays.items()}
    job |= {
        "next_group": counters.ctypes.data, "next_worker": counters.ctypes.data + 8,
        "batch": batch, "n": n, "m": m, "iters": balance.iters, "backward": int(backward),
        "reals_at": reals.ctypes.data, "workspace_stride": elements,
    }  # fmt: skip
    if batch * n * m:
        numbers = np.array([job[field] for field in layout.FIELDS], np.int64)
        kernel = kernels.plans(backward, scores.dtype)
        call, arguments = runtime.entry(kernel, numbers.ctypes.data, workers)
        call(*arguments)
    return unsafe.nonzero().flatten()


def _in_logs(scores: Tensor, balance: Balance, some: Tensor) -> tuple[Problem, Tensor]:
    """Some of the matrices as a problem for tiles; with values of one, its output is the plan."""
    given = GivenScores(scores[some], None, None)
    batch, _, m = given.shape
    value = torch.eye(m, dtype=scores.dtype).expand(batch, m, m)
    return Problem(given, part_of(balance, some)), value


def _differentiate_in_logs(
    scores: Tensor,
    balance: Balance,
    some: Tensor,
    plan_grad: Tensor,
    scores_grad: Tensor,
    grads: dict[str, Tensor],
) -> None:
    problem, value = _in_logs(scores, balance, some)
    problem, _, broken = cleaned(problem, None, options_too=True)
    arriving = plan_grad[some]
    if broken is not None:
        arriving = arriving.masked_fill(broken[..., None], torch.nan)
    found, history = streaming.replay(problem, value)
    own = room(inputs_of(problem, value), True)
    upstream = Upstream(arriving, torch.zeros_like(found.row), torch.zeros_like(found.column))
    gradient.backward(problem, value, found, history, upstream, own)
    scores_grad[some] = own.bias
    for name, grad in grads.items():
        if grad.numel():
            grad[some] = getattr(own, name.removesuffix("_grad"))
