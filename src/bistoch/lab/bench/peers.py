"""Outside libraries as contenders, each in a process of its own: POT, OTT-JAX and GeomLoss.

POT and OTT begin with a column step; started from the row potentials of the scores they take our
steps exactly, and are verified against the same iterations. GeomLoss moves both potentials half-way
at once; it may take as many steps as it needs to come as close to the limit as we do.
"""

import math
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from bistoch.lab.bench.cases import Direction
from bistoch.lab.bench.contenders import Calls, Contender, Task, keeps_graph, torch_calls

# for each package: its name for people, and its name in the extra
PACKAGES = {"ot": "POT", "ott": "OTT-JAX", "geomloss": "GeomLoss"}
EXTRA = 'pip install "bistoch[bench]"'


def peer_contenders() -> dict[str, Contender]:
    """All contenders from outside libraries, installed or not.

    >>> list(peer_contenders())
    ['POT log', 'POT knopp', 'OTT', 'GeomLoss']
    """
    rows = (
        Contender(
            "POT log", _prepare_pot_log, "elastic", keeps_graph, package="ot", any_lam=False
        ),
        Contender(
            "POT knopp", _prepare_pot_knopp, "elastic", _keeps_kernels, package="ot", any_lam=False
        ),
        Contender("OTT", _prepare_ott, "elastic", keeps_graph, package="ott"),
        Contender(
            "GeomLoss", _prepare_geomloss, "limit", lambda *_: 6, package="geomloss",
            # its potentials carry the gradient of the transport cost only, not that of the plan
            has_gradient=False, any_lam=False, efforts=(1, 2, 4, 8, 16, 32),
        ),
    )  # fmt: skip
    return {row.name: row for row in rows}


def missing_packages() -> dict[str, str]:
    """Libraries that are not installed, each with the way to install it."""
    absent = [name for package, name in PACKAGES.items() if find_spec(package) is None]
    return dict.fromkeys(absent, EXTRA)


def _keeps_kernels(direction: Direction, iters: int) -> int:
    return 4 if direction == "forward" else 8


def _prepare_pot_log(task: Task) -> Calls:
    return _pot(task, "sinkhorn_log")


def _prepare_pot_knopp(task: Task) -> Calls:
    return _pot(task, "sinkhorn_knopp")


def _pot(task: Task, solver: str) -> Calls:
    solve, iters = getattr(import_module("ot.bregman"), solver), task.setting.iters

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, (n, d), m = query.shape[:-2], query.shape[-2:], key.shape[-2]
        ones, mass = query.new_ones(n), query.new_full((m,), n / m)
        outputs = []
        # POT solves one problem at a time
        for q, k, v in zip(*(x.flatten(0, -3) for x in (query, key, value)), strict=True):
            scores = q @ k.mT / d**0.5
            start = (-scores.logsumexp(-1), torch.zeros_like(mass))
            plan = solve(
                ones, mass, -scores, 1.0, numItermax=iters, stopThr=0, warn=False, warmstart=start
            )
            outputs.append(plan @ v)
        return torch.stack(outputs).reshape(*batch, n, -1)

    return torch_calls(attend, task)


def _prepare_ott(task: Task) -> Calls:
    jax, jnp = import_module("jax"), import_module("jax.numpy")
    geometry = import_module("ott.geometry.geometry")
    linear_problem = import_module("ott.problems.linear.linear_problem")
    sinkhorn = import_module("ott.solvers.linear.sinkhorn")
    lam, iters = task.setting.lam, task.setting.iters
    # without implicit differentiation: the gradient of the iterations that ran, as ours
    solver = sinkhorn.Sinkhorn(
        threshold=0.0, min_iterations=iters, max_iterations=iters, inner_iterations=iters,
        implicit_diff=None,
    )  # fmt: skip

    def attend(query, key, value):
        n, m = query.shape[0], key.shape[0]
        scores = query @ key.T / query.shape[1] ** 0.5
        space = geometry.Geometry(cost_matrix=-scores, epsilon=1.0)
        mass = jnp.full(m, n / m)
        problem = linear_problem.LinearProblem(space, a=jnp.ones(n), b=mass, tau_b=lam)
        start = (-jax.scipy.special.logsumexp(scores, 1), jnp.zeros(m))
        return solver(problem, init=start).matrix @ value

    def differentiate(query, key, value, cotangent):
        output, pull = jax.vjp(jax.vmap(attend), query, key, value)
        return output, *pull(cotangent)

    flat = [
        jnp.asarray(x.flatten(0, -3).numpy()) for x in (*task.inputs, task.cotangent)
    ]  # fmt: skip
    forward, train = jax.jit(jax.vmap(attend)), jax.jit(differentiate)
    return Calls(
        forward=lambda: jax.block_until_ready((forward(*flat[:3]),)),
        train=lambda: jax.block_until_ready(train(*flat)),
        read=lambda result: tuple(torch.tensor(jax.device_get(x)) for x in result),
    )


def _prepare_geomloss(task: Task) -> Calls:
    geomloss, iters = import_module("geomloss"), task.setting.iters
    # it cools from the diameter to the blur: a diameter a hair above keeps eps at one throughout
    hair = 1e-6

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scale = query.shape[-1] ** -0.5
        solve = geomloss.SamplesLoss(
            "sinkhorn", p=1, blur=1.0, diameter=math.exp(iters * hair), scaling=math.exp(-hair),
            cost=lambda x, y: -scale * (x @ y.mT), debias=False, potentials=True,
            backend="tensorized",
        )  # fmt: skip
        q, k, v = (x.flatten(0, -3) for x in (query, key, value))
        row, column = solve(q.new_ones(q.shape[:-1]), q, k.new_ones(k.shape[:-1]), k)
        plan = (scale * (q @ k.mT) + row[:, :, None] + column[:, None, :]).exp()
        return (plan @ v).reshape(value.shape)

    return torch_calls(attend, task)
