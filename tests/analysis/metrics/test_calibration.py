"""Calibration: known answers, other implementations, and what no rescaling can change."""

import math

import numpy as np
import pytest
import torch

from bistoch.analysis.metrics import (
    auroc,
    brier_score,
    calibration_error,
    negative_log_likelihood,
    predictive_entropy,
)


@pytest.fixture
def predicted():
    generator = torch.Generator().manual_seed(0)
    scores = 2 * torch.randn(3, 211, 5, generator=generator, dtype=torch.float64)
    return scores, scores.softmax(-1), torch.randint(5, (3, 211), generator=generator)


def test_uniform_probabilities_have_known_scores():
    p, target = torch.full((7, 4), 0.25).double(), torch.arange(7) % 4
    assert negative_log_likelihood(p, target).item() == pytest.approx(math.log(4))
    assert brier_score(p, target).item() == pytest.approx(0.75)
    # the first class is chosen, and right for two samples of seven
    assert calibration_error(p, target).item() == pytest.approx(2 / 7 - 0.25)
    assert predictive_entropy(p).tolist() == pytest.approx([math.log(4)] * 7)


def test_certain_answers_are_right_or_as_wrong_as_possible():
    p, right = torch.eye(3), torch.arange(3)
    wrong = (right + 1) % 3
    for metric in (negative_log_likelihood, brier_score, calibration_error):
        assert metric(p, right).item() == 0
    assert brier_score(p, wrong).item() == 2
    assert calibration_error(p, wrong).item() == 1
    # a probability of zero is not an infinite loss
    assert 80 < negative_log_likelihood(p, wrong).item() < 90


def test_proper_scores_agree_with_torch_and_a_loop(predicted):
    scores, p, target = predicted
    for one in range(3):
        loss = torch.nn.functional.cross_entropy(scores[one], target[one])
        torch.testing.assert_close(negative_log_likelihood(p, target)[one], loss)
    by_hand = [
        sum((p[1, i, c] - float(c == target[1, i])) ** 2 for c in range(5)).item()
        for i in range(211)
    ]
    assert brier_score(p, target)[1].item() == pytest.approx(np.mean(by_hand))


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_calibration_error_is_that_of_a_loop_over_bins(predicted, bins):
    _, p, target = predicted
    confidence, chosen = p[2].max(-1)
    right, total = chosen == target[2], 0.0
    for place in range(bins):
        inside = (confidence > place / bins) & (confidence <= (place + 1) / bins)
        if inside.any():
            gap = right[inside].double().mean() - confidence[inside].mean()
            total += inside.double().mean().item() * abs(gap.item())
    assert calibration_error(p, target, bins=bins)[2].item() == pytest.approx(total)


def test_a_bin_holds_its_upper_edge():
    # one bin with 0.5 and one with 0.75: together they would cancel
    p = torch.tensor([[0.5, 0.5], [0.75, 0.25]])
    target = torch.tensor([0, 1])
    assert calibration_error(p, target, bins=2).item() == pytest.approx((0.5 + 0.75) / 2)


def test_auroc_counts_pairs_and_half_of_ties():
    generator = torch.Generator().manual_seed(1)
    inside = torch.randint(6, (2, 31), generator=generator).double()
    outside = torch.randint(2, 8, (2, 23), generator=generator).double()
    pairs = outside[:, :, None] - inside[:, None]
    wanted = ((pairs > 0).double() + (pairs == 0) / 2).mean((-2, -1))
    torch.testing.assert_close(auroc(inside, outside), wanted)
    torch.testing.assert_close(auroc(outside, inside), 1 - wanted)
    # only the order counts
    torch.testing.assert_close(auroc(inside.exp(), outside.exp()), wanted)
    assert auroc(torch.zeros(3), torch.ones(2)).item() == 1


def test_auroc_agrees_with_scipy():
    from scipy.stats import mannwhitneyu

    generator = np.random.default_rng(0)
    a, b = generator.normal(size=101), generator.normal(0.5, size=57)
    wanted = mannwhitneyu(b, a).statistic / (101 * 57)
    assert auroc(torch.tensor(a), torch.tensor(b)).item() == pytest.approx(wanted)


def test_half_precision_is_read_and_returned_as_float32(predicted):
    _, p, target = predicted
    for metric in (negative_log_likelihood, brier_score, calibration_error):
        found = metric(p.half(), target)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, metric(p, target).float(), atol=5e-3, rtol=5e-3)
