"""Who competes: torch's softmax attention, our backends, and the dense code that people write."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bistoch.functional import (
    OPERATORS,
    balance,
    causal_elastic_attention,
    elastic_attention,
)
from bistoch.lab.bench.cases import COARSE, Direction, Scores, Setting

SDPA, CAUSAL_SDPA, LOOP = "sdpa", "causal sdpa", "plain loop"
# the largest error of a result of a long sequence, as a share of its largest entry
LONG_ERROR = 5e-5


class Task(NamedTuple):
    """What a contender is given: float32 tensors, and the gradient that arrives from above."""

    inputs: tuple[Tensor, ...]
    cotangent: Tensor
    setting: Setting
    scores: Scores = "random"


class Calls(NamedTuple):
    """A contender bound to its task: what is timed, and how a result is read.

    `read` gives the output of `forward()`, and the output with all gradients of `train()`.
    """

    forward: Callable[[], Any]
    train: Callable[[], Any]
    read: Callable[[Any], tuple[Tensor, ...]]


def _linear(direction: Direction, iters: int) -> int:
    return 0


def keeps_graph(direction: Direction, iters: int) -> int:
    """Matrices alive in log-domain code with autograd: two in the graph for each iteration.

    >>> keeps_graph("forward", 10), keeps_graph("forward+backward", 10)
    (4, 26)
    """
    return 4 if direction == "forward" else 2 * iters + 6


@dataclass(frozen=True)
class Contender:
    """One way to compute; `expected` names the right result, `matrices` counts n x m ones alive.

    `package` is the library it needs, which then runs in a process of its own. `efforts` multiplies
    the iterations of one that takes other steps to the limit: the first that suffices is timed.
    `longest` is the number of tokens beyond which it is not run. `tolerance` is what one that
    computes in half precision may be off by.
    """

    name: str
    prepare: Callable[[Task], Calls]
    expected: str
    matrices: Callable[[Direction, int], int] = _linear
    package: str | None = None
    has_gradient: bool = True
    any_lam: bool = True
    efforts: tuple[int, ...] = (1,)
    longest: int | None = None
    tolerance: float = 0.0

    @property
    def dense(self) -> bool:
        """Whether memory grows with n x m."""
        return self.matrices("forward", 1) > 0

    @property
    def takes_setting(self) -> bool:
        """Whether elasticity and iterations are asked of it."""
        return self.expected in ("elastic", "elastic coarse", "limit", "balance", "heat")


def torch_calls(function: Callable[..., Tensor], task: Task) -> Calls:
    """Bind a differentiable function of the inputs.

    >>> task = Task((torch.ones(2, 2),), torch.ones(2, 2), Setting())
    >>> calls = torch_calls(torch.square, task)
    >>> [tensor.tolist() for tensor in calls.read(calls.train())]
    [[[1.0, 1.0], [1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0]]]
    """
    leaves = tuple(x.detach().requires_grad_() for x in task.inputs)

    def forward() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (function(*task.inputs),)

    def train() -> tuple[Tensor, ...]:
        output = function(*leaves)
        # a plan may be made of positions alone: its queries and keys then have the gradient zero
        grads = torch.autograd.grad(output, leaves, task.cotangent, materialize_grads=True)
        return output.detach(), *grads

    return Calls(forward, train, lambda result: result)


def attention_contenders(device: str = "cpu") -> dict[str, Contender]:
    """Softmax attention, every backend of the elastic operator on a device, and two dense codes.

    >>> list(attention_contenders())[:2]
    ['sdpa', 'elastic reference']
    """
    return _by_name(
        Contender(SDPA, _call(scaled_dot_product_attention), "softmax"),
        *_backends("elastic", elastic_attention, "elastic", device),
        Contender("dense log-domain", _prepare_dense_log, "elastic", keeps_graph),
        Contender("dense scaling", _prepare_dense_scaling, "elastic", lambda *_: 5),
    )


def balance_contenders(device: str = "cpu") -> dict[str, Contender]:
    """The plain torch loop, and `balance` by every backend on a device.

    >>> next(iter(balance_contenders()))
    'plain loop'
    """
    loop = Contender(LOOP, _prepare_plain_loop, "balance", keeps_graph)
    return _by_name(loop, *_backends("balance", balance, "balance", device))


def operator_contenders() -> dict[str, Contender]:
    """Softmax attention of torch, and every row of OPERATORS with its default options.

    >>> list(operator_contenders())[:2]
    ['sdpa', 'softmax']
    """
    rows = [
        Contender(
            name, _call(row.attention), f"{name} plan", has_gradient=row.differentiable,
            longest=row.longest,
        )
        for name, row in OPERATORS.items()
    ]  # fmt: skip
    return _by_name(Contender(SDPA, _call(scaled_dot_product_attention), "softmax"), *rows)


def causal_contenders(device: str = "cpu") -> dict[str, Contender]:
    """Causal attention of torch, and causal balance by every backend on a device that streams.

    >>> list(causal_contenders())
    ['sdpa', 'causal_elastic streaming', 'causal_elastic cpu']
    """
    softmax = _call(scaled_dot_product_attention, is_causal=True)
    left_out = ("reference", "triton" if device == "cpu" else "cpu")
    rows = [
        Contender(
            f"causal_elastic {backend}", _call(causal_elastic_attention, backend=backend),
            "causal elastic",
        )
        for backend in OPERATORS["causal_elastic"].backends if backend not in left_out
    ]  # fmt: skip
    return _by_name(Contender(SDPA, softmax, "causal softmax"), *rows)


def long_contenders() -> dict[str, Contender]:
    """Softmax attention, and what is meant for long sequences, each with its default options.

    >>> list(long_contenders())[:3]
    ['sdpa', 'monarch', 'elastic_monarch']
    """
    structured = ("monarch", "elastic_monarch", "lowrank")
    # float32 sums over so many tokens round more than those of short sequences
    rows = [
        Contender(name, _call(OPERATORS[name].attention), f"{name} itself", tolerance=LONG_ERROR)
        for name in structured
    ]
    softmax = Contender(SDPA, _call(scaled_dot_product_attention), "softmax", tolerance=LONG_ERROR)
    elastic = [
        Contender("elastic", _elastic, "elastic", tolerance=LONG_ERROR),
        Contender(
            f"elastic coarse={COARSE}", partial(_elastic, coarse=COARSE), "elastic coarse",
            tolerance=LONG_ERROR,
        ),
    ]  # fmt: skip
    return _by_name(softmax, *rows, *elastic)


def long_causal_contenders() -> dict[str, Contender]:
    """Causal softmax attention, and what approximates it.

    >>> list(long_causal_contenders())
    ['causal sdpa', 'delta']
    """
    softmax = _call(scaled_dot_product_attention, is_causal=True)
    delta = _call(OPERATORS["delta"].attention)
    return _by_name(
        Contender(CAUSAL_SDPA, softmax, "causal softmax", tolerance=LONG_ERROR),
        Contender("delta", delta, "delta itself", tolerance=LONG_ERROR),
    )


def _elastic(task: Task, coarse: int | None = None) -> Calls:
    lam, iters = task.setting.lam, task.setting.iters
    return torch_calls(partial(elastic_attention, lam=lam, iters=iters, coarse=coarse), task)


def _by_name(*rows: Contender) -> dict[str, Contender]:
    return {row.name: row for row in rows}


def _backends(
    name: str, function: Callable[..., Tensor], expected: str, device: str
) -> list[Contender]:
    """One of ours by every backend, with the elasticity and the iterations of the task."""
    elsewhere = "triton" if device == "cpu" else "cpu"

    def bind(backend: str, task: Task) -> Calls:
        lam, iters = task.setting.lam, task.setting.iters
        return torch_calls(partial(function, lam=lam, iters=iters, backend=backend), task)

    return [
        Contender(
            f"{name} {backend}", partial(bind, backend), expected,
            keeps_graph if backend == "reference" else _linear,
        )
        for backend in OPERATORS["elastic"].backends if backend != elsewhere
    ]  # fmt: skip


def _call(function: Callable[..., Tensor], **options: Any) -> Callable[[Task], Calls]:
    """Call a function with these options."""
    return lambda task: torch_calls(partial(function, **options), task)


# what follows is written as papers and projects write it, on purpose without a line of ours


def _prepare_dense_log(task: Task) -> Calls:
    lam, iters = task.setting.lam, task.setting.iters

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        column = scores.new_zeros(*scores.shape[:-2], 1, scores.shape[-1])
        for _ in range(iters):
            row = -torch.logsumexp(scores + column, -1, keepdim=True)
            column = -lam * torch.logsumexp(scores + row, -2, keepdim=True)
        return (scores + column).softmax(-1) @ value

    return torch_calls(attend, task)


def _prepare_dense_scaling(task: Task) -> Calls:
    lam, iters = task.setting.lam, task.setting.iters

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        kernel = (scores - scores.detach().amax(-1, keepdim=True)).exp()
        column = kernel.new_ones(*kernel.shape[:-2], kernel.shape[-1], 1)
        for _ in range(iters):
            row = 1 / (kernel @ column)
            column = 1 / (kernel.mT @ row)
            column = column if lam == 1 else column**lam
        return (kernel @ (column * value)) / (kernel @ column)

    return torch_calls(attend, task)


def _prepare_plain_loop(task: Task) -> Calls:
    def plan(scores: Tensor) -> Tensor:
        # log-domain normalisation of rows and columns in turn, ending on rows
        for _ in range(task.setting.iters):
            scores = scores - torch.logsumexp(scores, -1, keepdim=True)
            scores = scores - torch.logsumexp(scores, -2, keepdim=True)
        return scores.softmax(-1)

    return torch_calls(plan, task)
