"""Loss spikes and the spread over seeds."""

import pytest

from bistoch.lab.reproduce.stability import compare_spreads, count_spikes


def test_a_spike_is_more_than_twice_what_was_usual():
    quiet = [1.0 - step / 1000 for step in range(200)]
    assert count_spikes(quiet)["share"] == 0
    assert count_spikes(quiet)["largest"] < 1
    found = count_spikes([*quiet, 1.9, *quiet[:49], 0.2])
    assert found["share"] == pytest.approx(1 / 201)
    assert found["largest"] > 2
    # too short to say
    assert count_spikes(quiet[:50]) == {"steps": 0, "share": 0.0, "largest": 0.0}


def test_spreads_of_a_few_seeds_are_rarely_told_apart():
    ours, theirs = [0.90, 0.91, 0.92], [0.85, 0.90, 0.95]
    assert compare_spreads("", ours, theirs).holds == "inconclusive"
    many = [x + 1e-3 * k for k in range(9) for x in theirs]
    few = [x + 1e-3 * k for k in range(9) for x in ours]
    assert compare_spreads("", few, many).holds == "yes"
    assert compare_spreads("", many, few).holds == "no, the opposite"
    assert compare_spreads("", ours, [0.9, 0.9, 0.9]).measured == "not measured"
