"""Matching with slack against independent float64 code of both published forms."""

import math

import pytest
import torch
from torch.nn.functional import pad

import bistoch
from functional.matching.match_cases import (
    BACKENDS,
    SLACK_BACKENDS,
    M,
    N,
    assert_same,
    every_end,
    logs,
    normal,
    with_grads,
)


def dustbins(scores, alpha, iters, end):
    """As SuperGlue describes it: masses of total one, both potentials from zero, in logs."""
    b, n, m = scores.shape
    alpha = alpha.reshape(-1, 1, 1)
    z = torch.cat([scores, alpha.expand(b, n, 1)], 2)
    z = torch.cat([z, alpha.expand(b, 1, m + 1)], 1)
    rows = torch.tensor([1.0] * n + [m], dtype=torch.float64).log() - math.log(n + m)
    columns = torch.tensor([1.0] * m + [n], dtype=torch.float64).log() - math.log(n + m)
    u, v = z.new_zeros(b, n + 1), z.new_zeros(b, m + 1)
    for _ in range(iters):
        u = rows - torch.logsumexp(z + v[:, None, :], 2)
        v = columns - torch.logsumexp(z + u[:, :, None], 1)
    if end == "rows":
        u = rows - torch.logsumexp(z + v[:, None, :], 2)
    z = z + u[:, :, None] + v[:, None, :] + math.log(n + m)
    return z[:, :-1, :-1], z[:, :-1, -1], z[:, -1, :-1]


def free_slack(scores, row_score, column_score, iters, end):
    """As RPM-Net describes it: the slack row and column take part, and are never normalised."""
    z = pad(scores, (0, 1, 0, 1))
    z = torch.cat([z[:, :, :-1], pad(row_score, (0, 1))[:, :, None]], 2)
    z = torch.cat([z[:, :-1], pad(column_score, (0, 1))[:, None, :]], 1)

    def row_step(z):
        return torch.cat([z[:, :-1].log_softmax(2), z[:, -1:]], 1)

    def column_step(z):
        return torch.cat([z[:, :, :-1].log_softmax(1), z[:, :, -1:]], 2)

    for _ in range(iters):
        z = column_step(row_step(z))
    z = row_step(z) if end == "rows" else z
    return z[:, :-1, :-1], z[:, :-1, -1], z[:, -1, :-1]


@every_end
@pytest.mark.parametrize("iters", [1, 2, 7, 100])
@pytest.mark.parametrize("scale", [1.0, 20.0])
class TestPublishedForms:
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_dustbins(self, backend, scale, iters, end):
        scores, alpha, eps = normal(3, N, M, scale=scale), normal(3), 0.7

        def ours(scores, alpha):
            options = {"eps": eps, "iters": iters, "end": end, "backend": backend}
            return logs(bistoch.match(scores, bin_score=alpha, **options))

        def theirs(scores, alpha):
            return dustbins(scores / eps, alpha / eps, iters, end)

        assert_same(with_grads(ours, scores, alpha), with_grads(theirs, scores, alpha))

    @pytest.mark.parametrize("backend", SLACK_BACKENDS)
    def test_free_slack(self, backend, scale, iters, end):
        leaves = normal(3, N, M, scale=scale), normal(3, N, seed=1), normal(3, M, seed=2)
        eps = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)

        def ours(scores, rows, columns):
            options = {"eps": eps, "iters": iters, "end": end, "backend": backend}
            return logs(bistoch.match(scores, row_price=rows, column_price=columns, **options))

        def theirs(scores, rows, columns):
            cold = eps[:, None]
            return free_slack(scores / cold[..., None], -rows / cold, -columns / cold, iters, end)

        assert_same(with_grads(ours, *leaves), with_grads(theirs, *leaves))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("scale", "least", "most"), [(2.0, 1e-9, 1e-5), (8.0, 1e-3, 1e-1)])
def test_hyperconnections_end_on_columns(backend, scale, least, most):
    """The form of mHC, (row, column) x 20, is balance of the transposed scores from a row step."""
    scores = normal(500, 4, 4, scale=scale)
    wanted = scores.exp()
    for _ in range(20):
        wanted = wanted / wanted.sum(-1, keepdim=True)
        wanted = wanted / wanted.sum(-2, keepdim=True)
    start = -scores.logsumexp(-1)
    found = bistoch.balance(scores.mT, start=start, iters=19, backend=backend).mT
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-10)
    logs = bistoch.log_balance(scores.mT, start=start, iters=19, backend=backend).mT
    torch.testing.assert_close(logs.exp(), wanted, atol=1e-12, rtol=1e-10)
    # what the last row step changes, at the median and at the worst of the matrices
    change = bistoch.balance(scores, iters=20, backend=backend).sub(wanted).abs().amax((-1, -2))
    assert change.max() > least
    assert change.median() < most
