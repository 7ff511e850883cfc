"""Nothing is timed that was not proven, and ratios are what the clock says; no time is tested."""

import re

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import bistoch
from bistoch.functional import BackendUnavailableError
from bistoch.lab.bench import measure as module
from bistoch.lab.bench.cases import Case, Setting
from bistoch.lab.bench.contenders import Contender, attention_contenders, torch_calls
from bistoch.lab.bench.expected import check_results
from bistoch.lab.bench.measure import Entry, TimeLimits, measure

LIMITS = TimeLimits(rounds=3, sample=0.0, limit=10.0, budget=1e6)
SDPA = Entry(attention_contenders()["sdpa"], Setting())


def contender(name, function, truth="elastic", **more):
    return Entry(
        Contender(name, lambda task: torch_calls(function, task), truth, **more), Setting()
    )


def right(*inputs):
    return bistoch.elastic_attention(*inputs, backend="reference")


def slightly_wrong(*inputs):
    return right(*inputs) * 1.001


def broken(*inputs):
    return right(*inputs) * torch.nan


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 1.001 * grad


def wrong_gradient(query, key, value):
    return right(WrongGradient.apply(query), key, value)


@pytest.mark.parametrize("direction", ["forward", "forward+backward"])
@pytest.mark.parametrize("function", [slightly_wrong, broken])
def test_a_wrong_contender_gets_no_time(case, expected, direction, function):
    asked = []

    def timer(call, count):
        asked.append(call)
        return 1.0

    good, liar = contender("good", right), contender("liar", function)
    cells = measure(case, direction, [SDPA, liar, good], LIMITS, expected, timer)
    assert [cell.status for cell in cells] == ["measured", "wrong", "measured"]
    assert (cells[1].seconds, cells[1].ratio, cells[1].samples) == (None, None, [])
    # every tensor is off by the same share, so that rounding decides which one is named
    assert re.match("wrong: .* off by", cells[1].reason)
    # two of three were ever called by the clock: once to set the pace, then in every round
    assert len(set(asked)) == 2
    assert len(asked) == 2 * (1 + LIMITS.rounds)


def test_a_wrong_gradient_is_seen_only_where_it_is_used(case, expected):
    entries = [SDPA, contender("bent", wrong_gradient)]
    forward = measure(case, "forward", entries, LIMITS, expected, lambda call, count: 1.0)
    both = measure(case, "forward+backward", entries, LIMITS, expected, lambda call, count: 1.0)
    assert forward[1].status == "measured"
    assert both[1].status == "wrong"
    assert "query gradient off by 0.001" in both[1].reason
    assert set(both[0].errors) == {"output", "query gradient", "key gradient", "value gradient"}


def test_ratios_are_best_over_best_in_turns(case, expected):
    # what the clock will say: the pace first, then round by round
    says = {"sdpa": [9.0, 4.0, 2.0, 3.0], "slow": [9.0, 8.0, 5.0, 7.0]}
    order = []

    def named(name, function):
        def run(*inputs):
            order.append(name)
            return function(*inputs)

        return run

    entries = [
        contender("sdpa", named("sdpa", scaled_dot_product_attention), "softmax"),
        contender("slow", named("slow", right)),
    ]

    def timer(call, count):
        call()
        return says[order[-1]].pop(0)

    first, second = measure(case, "forward", entries, LIMITS, expected, timer)
    assert (first.seconds, second.seconds) == (2.0, 5.0)
    assert (first.ratio, second.ratio) == (1.0, 2.5)
    assert second.baseline == "sdpa"
    assert second.baseline_seconds == 2.0
    assert second.samples == [8.0, 5.0, 7.0]
    assert order[-6:] == ["sdpa", "slow"] * 3


def test_a_slow_call_is_timed_once_but_never_the_baseline(case, expected):
    entries = [SDPA, contender("slow", right)]
    cells = measure(case, "forward", entries, LIMITS, expected, lambda call, count: 50.0)
    assert [cell.timed_once for cell in cells] == [False, True]
    assert [len(cell.samples) for cell in cells] == [LIMITS.rounds, 1]
    assert cells[1].ratio == 1.0


def test_short_calls_are_repeated_and_long_ones_get_fewer_rounds(case, expected):
    counts = []

    def timer(call, count):
        counts.append(count)
        return 0.01

    measure(case, "forward", [SDPA], LIMITS._replace(sample=0.05), expected, timer)
    assert counts == [1, 5, 5, 5]
    cells = measure(case, "forward", [SDPA], LIMITS._replace(budget=0.02), expected, timer)
    assert len(cells[0].samples) == 2


def test_trouble_inside_a_contender_is_a_cell(case, expected):
    def fail(*_):
        raise RuntimeError("no luck\nat all")

    def lacking(*_):
        raise BackendUnavailableError("needs a compiler")

    huge = contender("huge", fail, matrices=lambda *_: 10**12)
    entries = [SDPA, contender("bad", fail), contender("lacking", lacking), huge]
    cells = measure(case, "forward", entries, LIMITS, expected, lambda call, count: 1.0)
    assert [cell.status for cell in cells] == ["measured", "failed", "skipped", "skipped"]
    assert cells[1].reason == "RuntimeError: no luck"
    assert cells[2].reason == "needs a compiler"
    assert cells[3].reason.startswith("would need about")


def test_without_a_baseline_there_are_no_ratios(case, expected):
    entries = [contender("sdpa", slightly_wrong), contender("good", right)]
    cells = measure(case, "forward", entries, LIMITS, expected, lambda call, count: 1.0)
    assert [cell.status for cell in cells] == ["wrong", "failed"]
    assert cells[1].ratio is None
    assert "nothing to compare with" in cells[1].reason


def test_what_an_entry_cannot_do_is_said(case):
    no_gradient = contender("one way", right, has_gradient=False)
    assert module.refusal(case, "forward", no_gradient) is None
    assert "no gradient" in module.refusal(case, "forward+backward", no_gradient)
    balanced = Contender("balanced", lambda task: None, "elastic", any_lam=False)
    assert module.refusal(case, "forward", Entry(balanced, Setting(1.0, 5))) is None
    assert "lam = 1" in module.refusal(case, "forward", Entry(balanced, Setting(0.5, 5)))


def test_another_way_to_the_limit_may_take_more_steps(expected):
    case = Case("n=32", "attention", (1, 2, 32, 8), "peaked")

    def prepare(task):
        def damped(*inputs):
            return bistoch.elastic_attention(*inputs, omega=0.4, iters=task.setting.iters)

        return torch_calls(damped, task)

    slow = Contender("damped", prepare, "limit", efforts=(1, 2, 4, 8))
    hasty = Contender("hasty", prepare, "limit", efforts=(1,))
    entries = [SDPA, Entry(slow, Setting(iters=5)), Entry(hasty, Setting(iters=5))]
    _, found, refused = measure(case, "forward", entries, LIMITS, expected, lambda call, count: 1.0)
    assert found.status == "measured"
    assert found.iterations_taken > found.iters == 5
    assert refused.status == "wrong"


def test_peaked_scores_are_what_they_say():
    case = Case("n=512", "attention", (1, 2, 512, 64), "peaked")
    query, key, _ = case.inputs()
    scores = query @ key.mT / 8
    sink = 512 // 3
    others = torch.cat([scores[..., :sink], scores[..., sink + 1 :]], -1)
    assert others.std().item() == pytest.approx(4, rel=0.1)
    assert (scores[..., sink].mean() - others.mean()).item() == pytest.approx(8, rel=0.1)


def test_long_sequences_are_proven_by_a_stand_in_that_is_proven(expected, monkeypatch):
    from bistoch.lab.bench import expected as module_expected

    case = Case("n=40", "attention", (1, 5, 40, 4), "random")
    whole = expected.get(case, "elastic", Setting(), "forward+backward")
    monkeypatch.setattr(module_expected, "REFERENCE_BYTES", 1000)
    monkeypatch.setattr(module_expected, "VERIFIED_ENTRIES", 1000)
    streamed = module_expected._solve(case, "elastic", Setting(), "forward+backward")
    assert whole.verified_by == "reference in float64"
    assert streamed.verified_by == "streaming in float64"
    assert (whole.problems, streamed.problems) == ((0, 1, 2, 3, 4), (0, 4))
    for some, all_of_it in zip(streamed.tensors, whole.tensors, strict=True):
        assert torch.allclose(some, all_of_it[[0, 4]], atol=1e-12)
    again = expected.get(case, "elastic", Setting(), "forward+backward")
    assert check_results(again, whole.tensors).errors["output"] == 0
