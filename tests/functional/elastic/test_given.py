"""Scores that are given: the gradients of single heads that the CPU kernels leave to others."""

import pytest
import torch

import bistoch
from bistoch.functional.elastic.api import solve
from bistoch.functional.elastic.scores import pose_given
from bistoch.functional.pose import BalanceOptions, ScoreOptions

# too large for lanes
SHAPE = (3, 67, 71)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("head", [0, 1, 2])
def test_a_head_out_of_range_keeps_its_gradient_for_itself(head):
    scores, weights = draw(*SHAPE), draw(*SHAPE, seed=1)
    scores[head] *= 1000
    found = []
    for backend in ("reference", "streaming", "cpu"):
        leaf = scores.clone().requires_grad_()
        plan = bistoch.balance(leaf, iters=4, backend=backend)
        found.append(torch.autograd.grad((plan * weights).sum(), leaf)[0])
    for grad in found[1:]:
        torch.testing.assert_close(grad, found[0], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("backend", ["reference", "streaming", "cpu"])
def test_a_broken_head_breaks_no_other(backend):
    scores, value = draw(*SHAPE), draw(3, 71, 5, seed=1)
    pairs = ScoreOptions(1.0, None, None, None, None)

    def differentiate(scores):
        leaf = scores.clone().requires_grad_()
        problem = pose_given("test", leaf, pairs, BalanceOptions(0.7, 1.0, 4, None))
        output = solve("test", problem, value, backend).output
        return output.detach(), torch.autograd.grad(output.sin().sum(), leaf)[0]

    wanted = differentiate(scores)
    scores[1, 2, 3] = torch.nan
    for ours, theirs in zip(differentiate(scores), wanted, strict=True):
        torch.testing.assert_close(ours[[0, 2]], theirs[[0, 2]])
        assert ours[1].isnan().all()


@pytest.mark.parametrize("m", [1, 3])
def test_row_potentials_of_rows_of_low_biases(m):
    # all scores of a row are equal, so beside the bias they do not differ more than it is rounded
    scores = draw(4, 5, 1).expand(4, 5, m).clone().requires_grad_()
    mask = torch.full((5, m), -1e5, dtype=torch.float64)
    found = bistoch.balance_potentials(scores, mask=mask, iters=1)
    logits = scores + mask + found.column[:, None, :]
    torch.testing.assert_close(found.row, -logits.logsumexp(-1), atol=1e-9, rtol=0)
    (slope,) = torch.autograd.grad(found.row.sum(), scores)
    torch.testing.assert_close(slope.sum(-1), -torch.ones(4, 5).double(), atol=1e-9, rtol=0)
