"""Free slack: every row and column may stay single for a price, and nothing limits how many do.

    f_i = -log(e^z_i + sum_j e^(S_ij + g_j)),     g_j = -log(e^w_j + sum_i e^(S_ij + f_i))

The potential of what stays single is zero for ever, so these are not the steps of the elastic
solvers, which move every column.
"""

import torch
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional.backends import BackendUnavailableError
from bistoch.functional.elastic.api import ConvergenceWarning
from bistoch.functional.elastic.logs import log_row_softmax
from bistoch.functional.elastic.reference import logsumexp
from bistoch.functional.matching.iterations import Iterations, Slack, iterate, step
from bistoch.functional.matching.problem import Logs, Sides

BACKENDS = ("reference", "streaming", "cpu")


def solve(
    operator: str,
    sides: Sides,
    iters: int,
    tol: float | None,
    backend: str,
    *,
    start_on_rows: bool,
) -> Logs:
    """Iterate row and column steps, end on a row step, and say what stayed single.

    Args:
        operator: the function that was called.
        sides: what to match, with slack for single rows and columns.
        iters, tol: every problem stops where an iteration would change its column potentials by
            `tol` at most.
        backend: "reference" keeps all that autograd needs, the others only potentials: "streaming"
            with every step in logarithms, "cpu" by products with a matrix where that is exact.
        start_on_rows: whether the first step is one of rows, from column potentials of zero, or a
            column step before the first iteration.
    """
    scores, _, _, _, row_slack, column_slack = sides
    column = torch.zeros_like(column_slack)
    if not start_on_rows:
        column = step(scores.mT, torch.zeros_like(row_slack), column_slack)
    slack, chosen = Slack(scores, row_slack, column_slack), _choose(backend, scores)
    if chosen == "reference":
        column = iterate(slack, column, iters, tol, by_products=False).columns[-1]
    else:
        column = Iterations.apply(*slack, column, iters, tol, chosen == "cpu")
    logs = torch.cat([scores + column[..., None, :], row_slack[..., None]], -1)
    logs = log_row_softmax(logs)
    found = Logs(logs[..., :-1], logs[..., -1], column_slack + column, column[..., :0].sum(-1))
    with torch.no_grad():
        # what columns and their single shares sum to, in logs
        total = logsumexp(torch.cat([found.plan, found.columns[..., None, :]], -2), -2)
        if total.shape[-1]:
            found = found._replace(error=total.masked_fill(total == -torch.inf, 0).abs().amax(-1))
    _warn_if_far(operator, found.error, iters, tol)
    return found


def _choose(backend: str, scores: Tensor) -> str:
    """Products look at what they computed, which a compiler or an accelerator would wait for."""
    on_cpu = scores.device.type == "cpu"
    if backend == "auto":
        return "cpu" if on_cpu and not torch.compiler.is_compiling() else "streaming"
    if backend == "cpu" and not on_cpu:
        raise BackendUnavailableError(
            f'the backend "cpu" works on CPU tensors, but these are on {scores.device}; move them '
            'with .cpu(), or choose backend="streaming"'
        )
    return backend


def _warn_if_far(operator: str, error: Tensor, iters: int, tol: float | None) -> None:
    if tol is None or torch.compiler.is_compiling() or not error.numel():
        return
    worst = error.max().item()
    if worst > tol:
        inputs.warn_caller(
            f"{operator}: the column error is {worst:.3g} after iters={iters}, above tol={tol:g}; "
            "raise iters, or raise eps",
            ConvergenceWarning,
        )
