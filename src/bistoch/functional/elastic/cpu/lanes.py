"""Plans of many small matrices at once: vector lanes on CPUs, forward and exact backward.

For matrices that fit the caches by the dozen, what costs is not arithmetic but everything around
it. So the plan and its gradient are one kernel each, and nothing is kept between them but scores.
"""

from typing import Any, NamedTuple

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


class Given(NamedTuple):
    """The arguments of the operator: scores, and then the fields of `Balance`."""

    scores: Any
    lam: Any
    omega: Any
    log_mass: Any
    log_row_mass: Any
    start: Any
    iters: Any
    tol: Any

    def options(self) -> tuple[Any, ...]:
        """What has a gradient beside the scores."""
        return self.lam, self.omega, self.log_mass, self.log_row_mass, self.start

    def steps(self) -> tuple[Any, Any]:
        """What is no tensor."""
        return self.iters, self.tol


class Gradients(NamedTuple):
    """Those of all tensors that were given; empty for one that is not there."""

    scores: Tensor
    lam: Tensor
    omega: Tensor
    log_mass: Tensor
    log_row_mass: Tensor
    start: Tensor


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
    """The plans of a batch of scores that are given, and their errors; None if they do not fit."""
    if not fits(problem):
        return None
    scores, balance = dense_scores(problem.scores), problem.balance
    start = balance.start
    if start is not None and start.shape[-1]:
        # what all columns share is invisible in a plan; without it the factors stay in range
        least, most = start.detach().aminmax(dim=-1, keepdim=True)
        start = start - (least + most) / 2
    balance = balance._replace(start=start)
    tensors = (field for field in (scores, *balance) if isinstance(field, Tensor))
    refuse_tangents("balance_lanes", tensors, 'choose backend="reference"')
    plan, error = balance_lanes(scores, *balance.tensors(), balance.iters, balance.tol)
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
    grads = _room(scores, *balance.tensors(), iters, tol)
    options = grads._asdict()
    scores_grad = options.pop("scores")
    for option in options.values():
        option.zero_()
    tensors = {"plan_grad": plan_grad.contiguous(), "scores_grad": scores_grad}
    if options_too:
        tensors |= {f"{name}_grad": option for name, option in options.items()}
    unsafe = _run(scores, balance, tensors, backward=True)
    if unsafe.numel():
        _differentiate_in_logs(scores, balance, unsafe, plan_grad, grads)
    return grads


@balance_lanes_backward.register_fake
def _(plan_grad, *arguments):
    *given, _options_too = arguments
    return tuple(_room(*given))


def _room(scores, lam, omega, log_mass, log_row_mass, start, iters, tol) -> Gradients:
    """Room for all gradients; steps that were chosen have some too, which is not used."""
    none = log_mass[:, :0]
    row_mass, first = (none if option is None else option for option in (log_row_mass, start))
    return Gradients(*(_dense_like(x) for x in (scores, lam, lam, log_mass, row_mass, first)))


def _dense_like(tensor: Tensor) -> Tensor:
    """Room that kernels can fill by its address, whatever the layout of what it is like."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _setup_context(ctx, inputs, output) -> None:
    given, (_plan, error) = Given._make(inputs), output
    ctx.save_for_backward(given.scores, *given.options())
    ctx.steps = given.steps()
    ctx.mark_non_differentiable(error)


def _differentiate(ctx, plan_grad, _):
    needed = Given._make(ctx.needs_input_grad)
    options_too = any(needed.options())
    grads = Gradients._make(
        balance_lanes_backward(plan_grad, *ctx.saved_tensors, *ctx.steps, options_too)
    )
    # steps that were chosen have no gradient, nor what is not there, nor iters and tol
    kept = {name: grad for name, grad in grads._asdict().items() if getattr(needed, name)}
    return tuple(kept.get(name) for name in Given._fields)


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
    scores: Tensor, balance: Balance, some: Tensor, plan_grad: Tensor, grads: Gradients
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
    for name, grad in grads._asdict().items():
        if grad.numel():
            grad[some] = own.bias if name == "scores" else getattr(own, name)
