"""A short run of the fuzzer, and what shows that it would find something."""

import inspect

import bistoch
from bistoch.functional.elastic import reference
from fuzz import illegal, legal
from fuzz.run import run

FUNCTIONS = [inspect.unwrap(getattr(bistoch, name)) for name in illegal.FUNCTIONS]


def test_a_short_run_finds_nothing():
    counts, findings = run(range(500), kinds=("operator", "scores", "layer", "illegal"))
    assert counts["calls: legal"] > 100
    assert not findings, "\n".join(map(str, findings))


def test_every_argument_of_every_function_is_drawn():
    legal_ones = {*legal.OPTIONS, *legal.TOKENS, *legal.MASKS}
    for function in FUNCTIONS:
        assert inspect.signature(function).parameters.keys() <= legal_ones
        assert inspect.signature(function).parameters.keys() <= illegal.ILLEGAL.keys()


def test_columns_that_do_not_move_are_found(monkeypatch):
    monkeypatch.setattr(reference, "column_step", lambda scores, row, mass, *more: mass * 0)
    _, findings = run(range(300), kinds=("scores",))
    assert any("plan is off" in finding.sentence for finding in findings)


def test_a_number_stands_for_the_same_call_for_ever():
    numbers = range(5, 25)
    for draw in (legal.operator_call, legal.poisoned_call, illegal.illegal_call):
        assert [draw(n).lines() for n in numbers] == [draw(n).lines() for n in numbers]
