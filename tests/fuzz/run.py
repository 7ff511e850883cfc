"""From the number of a call to its findings."""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from fuzz import check_calls, check_operators, check_scores, illegal, legal, promises
from fuzz.call import Call

KINDS: dict[str, tuple[int, Callable[[int], Call], Callable[[Call, int], None]]] = {
    "operator": (50, legal.operator_call, check_operators.check_operator),
    "scores": (12, legal.scores_call, check_scores.check_scores),
    "logs": (4, legal.logs_call, check_scores.check_logs),
    "match": (6, legal.match_call, check_scores.check_match),
    "hard": (2, legal.hard_call, check_scores.check_hard),
    "potentials": (6, legal.potentials_call, check_scores.check_potentials),
    "moments": (3, legal.moments_call, check_calls.check_moments),
    "steps": (5, legal.steps_call, check_calls.check_steps),
    "layer": (6, legal.layer_call, check_calls.check_layer),
    "poisoned": (10, legal.poisoned_call, check_calls.check_poisoned),
    "illegal": (10, illegal.illegal_call, illegal.check_illegal),
}


class Finding(NamedTuple):
    """A promise that was not kept: the number of the call, what is wrong, and the program."""

    number: int
    kind: str
    sentence: str
    lines: str

    def __str__(self) -> str:
        return f"\n# number {self.number}, {self.kind}: {self.sentence}\n{self.lines}\n"


def name_of(number: int) -> str:
    """Which kind of call has this number."""
    weights = [weight for weight, _, _ in KINDS.values()]
    return random.Random(number).choices([*KINDS], weights)[0]


def run(numbers: Iterable[int], current: Any = None, kinds: Iterable[str] = KINDS):
    """Make the calls of these numbers; count them, and return what was found."""
    counts: Counter = Counter()
    findings = []
    promises.counts.clear()
    for number in numbers:
        if current is not None:
            current.value = number
        kind = name_of(number)
        if kind not in kinds:
            continue
        _, draw, judge = KINDS[kind]
        call = draw(number)
        counts[f"draws: {kind}"] += 1
        try:
            judge(call, number)
        except Exception as error:
            sentence = f"{call.function}: {type(error).__name__}: {error}"
            findings.append(Finding(number, kind, sentence, call.lines()))
    counts["calls: legal"] = promises.counts["legal"]
    counts["calls: illegal"] = counts["draws: illegal"]
    return counts, findings
