"""Intervals are those of scipy's tests, and a verdict needs one that excludes zero."""

import math
import random

import pytest
from scipy.stats import ttest_1samp

from bistoch.lab.stats import bootstrap_difference, difference


@pytest.mark.parametrize("count", [2, 3, 7])
def test_the_interval_over_seeds_is_that_of_a_t_test(count):
    each = [random.Random(count + place).gauss(0.3, 1) for place in range(count)]
    found, right = difference(each), ttest_1samp(each, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((right.low, right.high))


def test_one_seed_decides_nothing():
    found = difference((0.5,))
    assert found.inconclusive
    assert found.verdict(larger=True) == "inconclusive"
    assert found.text(".2f") == "+0.50"


def test_verdicts_have_a_direction():
    up = difference((0.1, 0.11, 0.09))
    assert up.verdict(larger=True) == "yes"
    assert up.verdict(larger=False) == "no, the opposite"
    assert difference((0.1, -0.1, 0.0)).verdict(larger=True) == "inconclusive"


def test_seeds_that_agree_on_a_coarse_score_are_not_certain():
    assert not difference((0.01, 0.01)).inconclusive
    assert difference((0.01, 0.01), grain=0.01).inconclusive


def test_the_bootstrap_agrees_with_student_on_many_samples():
    each = [random.Random(place).gauss(0.2, 1) for place in range(400)]
    ours, right = bootstrap_difference(each), difference(each)
    assert ours.mean == right.mean
    width = right.high - right.low
    assert ours.low == pytest.approx(right.low, abs=0.1 * width)
    assert ours.high == pytest.approx(right.high, abs=0.1 * width)
    assert bootstrap_difference([0.0] * 50).inconclusive
    assert bootstrap_difference([1.0]).high == math.inf
