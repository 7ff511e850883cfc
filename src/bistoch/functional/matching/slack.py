"""Free slack: every row and column may stay single for a price, and nothing limits how many do.

    f_i = -log(e^z_i + sum_j e^(S_ij + g_j)),     g_j = -log(e^w_j + sum_i e^(S_ij + f_i))

The potential of what stays single is zero for ever, so these are not the steps of the elastic
solvers, which move every column.
"""

import torch
from torch import Tensor

from bistoch.functional.backends import BackendUnavailableError
from bistoch.functional.elastic.api import warn_if_far
from bistoch.functional.elastic.logs import log_row_softmax
from bistoch.functional.elastic.reference import logsumexp
from bistoch.functional.kernels.gpu import (
    HAS_TRITON,
    check_new_enough,
    device_type,
    is_interpreted,
    is_new_enough,
)
from bistoch.functional.matching.iterations import Iterations, Slack, iterate, step
from bistoch.functional.matching.problem import Logs, Sides, Steps

BACKENDS = ("reference", "streaming", "cpu", "triton")


def solve(operator: str, sides: Sides, steps: Steps) -> Logs:
    """Iterate row and column steps, for sides with slack, and say what stayed single.

    Every problem stops where an iteration would change its column potentials by `tol` at most. The
    backend "reference" keeps all that autograd needs, the others only potentials: "streaming" with
    every step in logarithms, "cpu" by products with a matrix where that is exact, and "triton" in
    logarithms by kernels that read the scores once for each step.
    """
    iters, tol, backend, start_on_rows = steps
    scores, row_slack, column_slack = sides.scores, sides.row_slack, sides.column_slack
    column = torch.zeros_like(column_slack)
    if not start_on_rows:
        column = step(scores.mT, torch.zeros_like(row_slack), column_slack)
    slack, chosen = Slack(scores, row_slack, column_slack), _choose(backend, scores)
    if chosen == "reference":
        column = iterate(slack, column, iters, tol, by_products=False).columns[-1]
    else:
        column = Iterations.apply(*slack, column, iters, tol, chosen)
    logs = torch.cat([scores + column[..., None, :], row_slack[..., None]], -1)
    logs = log_row_softmax(logs)
    found = Logs(logs[..., :-1], logs[..., -1], column_slack + column, column[..., :0].sum(-1))
    with torch.no_grad():
        # what columns and their single shares sum to, in logs
        total = logsumexp(torch.cat([found.plan, found.columns[..., None, :]], -2), -2)
        if total.shape[-1]:
            found = found._replace(error=total.masked_fill(total == -torch.inf, 0).abs().amax(-1))
    warn_if_far(operator, steps, found.error, "raise iters, or raise eps")
    return found


def _choose(backend: str, scores: Tensor) -> str:
    """Products look at what they computed, which a compiler or an accelerator would wait for."""
    on_cpu = scores.device.type == "cpu"
    known = HAS_TRITON and (scores.dtype == torch.float32 or is_interpreted())
    on_gpu = scores.device.type == "cuda" and is_new_enough(scores.device)
    if backend == "auto" and on_gpu and known:
        return "triton"
    if backend == "auto":
        return "cpu" if on_cpu and not torch.compiler.is_compiling() else "streaming"
    if backend not in BACKENDS:
        raise BackendUnavailableError(
            f"match: prices are worked on by the backends {', '.join(BACKENDS)}, but backend is "
            f"{backend!r}; choose one of them, or pass a bin_score instead of prices"
        )
    if backend == "triton" and not (known and scores.device.type == device_type()):
        raise BackendUnavailableError(
            'the backend "triton" works on float32 tensors of a GPU and needs Triton (pip install '
            f"'bistoch[gpu]'), but these are {scores.dtype} on {scores.device}; choose "
            'backend="streaming"'
        )
    if backend == "triton":
        check_new_enough("match", scores.device)
    if backend == "cpu" and not on_cpu:
        raise BackendUnavailableError(
            f'the backend "cpu" works on CPU tensors, but these are on {scores.device}; move them '
            'with .cpu(), or choose backend="streaming"'
        )
    return backend
