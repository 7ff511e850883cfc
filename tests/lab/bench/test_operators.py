"""Every kind of operator can be timed: what the table promises less of, and what runs away."""

from types import MappingProxyType

import pytest
import torch

import bistoch
from bistoch.lab.bench import Options, contenders, plan, run
from bistoch.lab.bench import expected as expected_module
from bistoch.lab.bench.cases import Case, Setting
from bistoch.lab.bench.measure import Entry, TimeLimits, measure, refusal
from bistoch.lab.store import Store

LIMITS = TimeLimits(rounds=1, sample=0.0)


def mean_attention(query, key, value):
    return mean_plan(query, key) @ value


def mean_plan(query, key):
    if query.shape[-2] != key.shape[-2]:
        raise ValueError("mean: there must be as many queries as keys")
    return torch.full((*query.shape[:-1], key.shape[-2]), 1 / key.shape[-2], dtype=query.dtype)


def running_attention(query, key, value):
    count = torch.arange(1, value.shape[-2] + 1, dtype=value.dtype)
    return (value * query.mean(-1, keepdim=True)).cumsum(-2) / count[:, None]


def running_plan(query, key):
    count = torch.arange(1, query.shape[-2] + 1, dtype=query.dtype)
    weights = query.mean(-1)[..., None, :] / count[:, None]
    return weights.tril()


def even_only(query, key, value):
    if query.shape[-2] % 2:
        raise ValueError("even: the number of tokens must be even")
    return mean_attention(query, key, value)


def row(name, attention, plan, **promises):
    usual = {"rows_exact": True, "columns": "free", "differentiable": True, "causal": False,
             "order_free": True, "source": "here", "backends": ("torch",)}  # fmt: skip
    return bistoch.Operator(name=name, attention=attention, plan=plan, **(usual | promises))


TABLE = MappingProxyType({
    "square": row("square", mean_attention, mean_plan, square=True, static=True, masks="none"),
    "running": row("running", running_attention, running_plan, causal=True, masks="padding"),
    "short": row("short", mean_attention, mean_plan, longest=5),
    "even": row("even", even_only, mean_plan),
    "wrong": row("wrong", lambda q, k, v: 2 * v, mean_plan),
})  # fmt: skip


@pytest.fixture
def table(monkeypatch):
    for module in (expected_module, contenders):
        monkeypatch.setattr(module, "OPERATORS", TABLE)


def entries():
    return [Entry(row, Setting()) for row in contenders.operator_contenders().values()]


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("direction", ["forward", "forward+backward"])
def test_all_kinds_are_verified_and_timed(case, expected, direction):
    cells = measure(case, direction, entries(), LIMITS, expected, lambda call, count: 1.0)
    found = {cell.contender: (cell.status, cell.reason) for cell in cells}
    # a plan that reads positions alone has gradients of zero, which are proven too
    assert found["square"] == found["running"] == ("measured", None)
    status, reason = found["short"]
    assert (status, reason[:41]) == ("skipped", "its cost grows too fast beyond 5 tokens, ")
    assert found["even"] == ("failed", "ValueError: even: the number of tokens must be even")
    assert found["wrong"][0] == "wrong"
    proven = {cell.contender: cell.verified_by for cell in cells}
    assert proven["running"] == "its own plan in float64"


def test_a_verification_that_does_not_fit_is_not_begun():
    entry = next(e for e in entries() if e.contender.name == "anneal")
    huge = Case("n=200000", "attention", (1, 1, 200_000, 4), "random")
    assert "verifying its plan in float64 would need" in refusal(huge, "forward", entry)
    # the graph of a hundred iterations is larger than that of ten
    small = Case("n=64", "attention", (1, 1, 64, 4), "random")
    sizes = [
        expected_module.verification_bytes(small, f"{name} plan", Setting(), "forward+backward")
        for name in ("softmax", "elastic", "anneal")
    ]
    assert sizes == sorted(sizes)
    assert sizes[2] > 5 * sizes[1]


def test_a_short_sequence_comes_before_a_long_one():
    assert Options(operators=True, n=(4096,)).sizes == (64, 4096)
    assert Options(operators=True, n=(8,)).sizes == (8,)
    assert Options(n=(4096,)).sizes == (4096,)


@pytest.mark.parametrize(("seconds", "tried"), [((1e-3, 1e-2), True), ((1e-3, 4.0), False)])
def test_growth_beyond_the_plan_is_foreseen(tmp_path, seconds, tried):
    options = Options(operators=True, n=(64, 128, 256), heads=1, dim=4)
    cells = run.Cells(Store(tmp_path), {})
    groups = [g for g in plan.plan(options) if g.direction == "forward"]
    entry = groups[0].entries[1]
    for group, time in zip(groups, seconds, strict=False):
        cell = run._blank(group, entry)
        cell.seconds, cell.memory = time, 1
        cells.add([cell])
    # four seconds at 128 would be 16 at 256 if only the plan grew, but it was a thousandth at 64
    assert (run._too_large(groups[2], entry, options, cells) is None) == tried
