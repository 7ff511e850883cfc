"""Calls take turns, warm-up does not count, and every call has its own rounds."""

import pytest

from bistoch.lab.timing import Rounds, best_times, time_in_turns


def test_calls_take_turns_after_the_warm_up():
    order = []

    def timer(call, count):
        call()
        return float(len(order))

    calls = {name: (lambda name=name: order.append(name)) for name in "ab"}
    samples = time_in_turns(calls, 2, warmup=1, timer=timer)
    assert order == ["a", "b"] * 3
    assert samples == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_every_call_has_its_own_rounds_and_repeats():
    counts = []
    plan = {"a": Rounds(3, repeats=5), "b": Rounds(1)}
    samples = time_in_turns(
        dict.fromkeys(plan, lambda: None),
        plan,
        timer=lambda call, count: counts.append(count) or 1.0,
    )
    assert counts == [5, 1, 5, 5]
    assert {name: len(some) for name, some in samples.items()} == {"a": 3, "b": 1}


def test_a_record_of_times_says_what_else_ran():
    found = best_times({"a": lambda: None}, rounds=3)
    assert found["seconds"]["a"] == pytest.approx(0, abs=0.1)
    assert 0 <= found["others"] <= 1
