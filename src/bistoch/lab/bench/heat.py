"""One heat step of a cloud by our passes, by dense code, by POT and by GeomLoss.

Each contender takes as many iterations as bring the error of the displacement below 0.1 %.
"""

import math
import warnings
from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor

from bistoch.flows import heat_step
from bistoch.functional import ConvergenceWarning
from bistoch.lab.bench.cases import EPS, Direction, Setting
from bistoch.lab.bench.contenders import Calls, Contender, Task, torch_calls

OURS = "heat_step"
# two iterations, and twice as many until the result is accurate
FEWEST = Setting(lam=1.0, iters=2)
EFFORTS = tuple(2**power for power in range(14))

Solve = Callable[[Tensor, float, int], Tensor]


def heat_contenders() -> dict[str, Contender]:
    """Our step first, which is the baseline; then dense code and libraries, installed or not.

    >>> list(heat_contenders())[:2]
    ['heat_step', 'dense averaged']
    """
    rows = (
        (OURS, _ours, None),
        ("dense averaged", _dense, None),
        ("heat by POT log", _pot("sinkhorn_log"), "ot"),
        ("heat by POT knopp", _pot("sinkhorn_knopp"), "ot"),
        ("heat by GeomLoss", _geomloss, "geomloss"),
    )
    return {
        name: Contender(
            name, _prepare(solve), "heat", _linear if name == OURS else _dense_matrices, package,
            has_gradient=False, efforts=EFFORTS,
        )
        for name, solve, package in rows
    }  # fmt: skip


def _linear(direction: Direction, iters: int) -> int:
    return 0


def _dense_matrices(direction: Direction, iters: int) -> int:
    return 6


def _prepare(solve: Solve) -> Callable[[Task], Calls]:
    def prepare(task: Task) -> Calls:
        eps, iters = EPS[task.scores], task.setting.iters

        def displacement(x: Tensor) -> Tensor:
            # libraries warn where they stop short; here the error is measured
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return (solve(x, eps, iters) - x)[None]

        return torch_calls(displacement, task)

    return prepare


def _ours(x: Tensor, eps: float, iterations: int) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return heat_step(x, eps, tol=1e-30, iters=iterations)


# what follows is written as people write it, on purpose without a line of ours


def _dense(x: Tensor, eps: float, iterations: int) -> Tensor:
    scores = -torch.cdist(x, x).square() / (2 * eps) - math.log(len(x))
    g = x.new_zeros(len(x))
    for _ in range(iterations):
        g = (g - torch.logsumexp(scores + g, -1)) / 2
    return 2 * x - (scores + g).softmax(-1) @ x


def _pot(solver: str) -> Solve:
    def solve(x: Tensor, eps: float, iterations: int) -> Tensor:
        plan = getattr(import_module("ot.bregman"), solver)(
            x.new_full((len(x),), 1 / len(x)), x.new_full((len(x),), 1 / len(x)),
            torch.cdist(x, x).square() / 2, eps, numItermax=iterations, stopThr=0, warn=False,
        )  # fmt: skip
        return 2 * x - len(x) * plan @ x

    return solve


def _geomloss(x: Tensor, eps: float, iterations: int) -> Tensor:
    geomloss = import_module("geomloss")
    # it cools from the diameter to the blur: a diameter a hair above keeps eps where it is
    hair, blur = 1e-6, math.sqrt(eps)
    solve = geomloss.SamplesLoss(
        "sinkhorn", p=2, blur=blur, diameter=blur * math.exp(iterations * hair),
        scaling=math.exp(-hair), debias=False, potentials=True, backend="tensorized",
    )  # fmt: skip
    weights = x.new_full((1, len(x)), 1 / len(x))
    row, column = (p.reshape(-1) for p in solve(weights, x[None], weights, x[None]))
    cost = torch.cdist(x, x).square() / 2
    plan = ((row[:, None] + column - cost) / eps).softmax(-1)
    return 2 * x - plan @ x
