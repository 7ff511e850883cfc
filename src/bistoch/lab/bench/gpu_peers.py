"""Outside libraries as contenders on a GPU: FlashSinkhorn, entropic transport in Triton kernels.

It solves `min <C, P> - eps H(P)` for `C = |x - y|^2 / 2`, one problem of float32 points at a time;
norms go into the potentials, so with `eps = sqrt(d)` its plans are those of dot-product scores. It
starts from other potentials than ours, and may take as many steps as it needs to come as close to
the limit as we do. It has gradients of the transport cost, not of the plan.
"""

from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from bistoch.lab.bench.contenders import Calls, Contender, Task, torch_calls

PACKAGE = "flash_sinkhorn"
# beyond it, its expected result in float64 takes minutes: the limit of the iterations, on the CPU
LONGEST = 8192


def gpu_peers() -> dict[str, Contender]:
    """Contenders from outside libraries on a GPU, installed or not.

    >>> list(gpu_peers())
    ['FlashSinkhorn']
    """
    row = Contender(
        "FlashSinkhorn", _prepare, "limit", has_gradient=False, any_lam=False,
        efforts=(1, 2, 4, 8, 16, 32), longest=LONGEST,
    )  # fmt: skip
    return {row.name: row}


def installed_gpu_peers() -> dict[str, Contender]:
    """Those that are installed; they compute with torch, so they need no process of their own."""
    return {} if missing_gpu_peers() else gpu_peers()


def missing_gpu_peers() -> dict[str, str]:
    """Libraries that are not installed, each with the way to install it."""
    return {} if find_spec(PACKAGE) else {"FlashSinkhorn": "pip install flash-sinkhorn"}


def _prepare(task: Task) -> Calls:
    kernels, iters = import_module(f"{PACKAGE}.kernels"), task.setting.iters

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        n, (m, d) = query.shape[-2], key.shape[-2:]
        eps, ones, mass = d**0.5, query.new_ones(n), query.new_full((m,), n / m)
        flat = (x.flatten(0, -3) for x in (query, key, value))
        outputs = []
        for q, k, v in zip(*flat, strict=True):
            # its second potential is that of the queries, so that it ends on a row step, as we do
            on_keys, on_queries = kernels.sinkhorn_flashstyle_alternating(
                k, q, mass, ones, eps=eps, n_iters=iters, cost_scale=0.5, allow_tf32=False
            )
            outputs.append(
                kernels.apply_plan_mat_flashstyle(
                    k, q, on_keys - k.square().sum(1) / 2, on_queries - q.square().sum(1) / 2,
                    mass.log(), ones.log(), v, eps=eps, axis=0, cost_scale=0.5,
                )
            )  # fmt: skip
        return torch.stack(outputs).reshape((*value.shape[:-2], n, -1))

    return torch_calls(attend, task)
