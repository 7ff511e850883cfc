"""The benchmark of flows proves a step before it times it."""

import json

import pytest
import torch
from rich.console import Console

from bistoch.lab.bench import flows
from bistoch.lab.bench.flows import FlowCase, FlowPace, measure_case, run_flow_bench


def test_contenders_agree_with_each_other():
    cells = {cell.contender: cell for cell in measure_case(FlowCase("line", 60, 0.3), FlowPace(1))}
    for name in ("bistoch", "dense averaged", "POT log", "POT knopp"):
        assert cells[name].status == "measured", cells[name]
        assert cells[name].error <= flows.ACCURACY
        assert cells[name].seconds > 0
    # alternating needs more iterations than the symmetric update
    assert cells["POT log"].iterations >= cells["bistoch"].iterations


def test_a_wrong_contender_is_not_timed(monkeypatch):
    monkeypatch.setattr(
        flows, "contenders", lambda: {
            "wrong": (lambda x, eps, count: 2 * x, False, None),
            "broken": (lambda x, eps, count: 1 / 0, False, None),
            "absent": (lambda x, eps, count: x, False, "no_such_package"),
        },
    )  # fmt: skip
    wrong, broken, absent = measure_case(FlowCase("line", 20, 0.5), FlowPace(1, 0.1))
    assert (wrong.status, broken.status, absent.status) == ("inaccurate", "failed", "skipped")
    assert wrong.seconds is None
    assert "ZeroDivisionError" in broken.reason


@pytest.mark.parametrize("law", ["line", "plane", "pixels"])
def test_clouds_are_the_same_every_time(law):
    case = FlowCase(law, 7, 1.0)
    assert torch.equal(case.particles(), case.particles())
    assert len(case.particles()) == 7


def test_results_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(flows, "cases", lambda sizes: [FlowCase("plane", 31, 0.5)])
    path = run_flow_bench(
        (31,), rounds=1, threads=1, quick=True, out=tmp_path, console=Console(quiet=True)
    )
    kept = json.loads(path.read_text())
    assert {cell["n"] for cell in kept["cells"]} == {31}
    assert kept["accuracy"] == flows.ACCURACY
