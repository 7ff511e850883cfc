"""The benchmark of heat steps verifies a step before it times it."""

import json

import pytest
import torch
from rich.console import Console

from bistoch.lab.bench import Options, run_bench
from bistoch.lab.bench.cases import cloud
from bistoch.lab.bench.contenders import Contender
from bistoch.lab.bench.expected import HEAT_ERROR
from bistoch.lab.bench.heat import EFFORTS, FEWEST, _prepare, heat_contenders
from bistoch.lab.bench.measure import Entry, TimeLimits, measure

LIMITS = TimeLimits(rounds=1, sample=0.0)


def cells_of(case, rows, expected, limits=LIMITS):
    entries = [Entry(row, FEWEST) for row in rows]
    return {cell.contender: cell for cell in measure(case, "forward", entries, limits, expected)}


@pytest.mark.filterwarnings("ignore")  # what a library warns of is not ours to mend
def test_contenders_agree_with_each_other(expected):
    pytest.importorskip("ot")
    rows = [row for row in heat_contenders().values() if row.package != "geomloss"]
    found = cells_of(cloud(61, "plane"), rows, expected)
    for cell in found.values():
        assert cell.status == "measured", cell
        assert cell.errors["output"] <= HEAT_ERROR == pytest.approx(cell.tolerance)
        assert cell.seconds > 0
    # alternating needs more iterations than the symmetric update
    ours, theirs = found["heat_step"], found["heat by POT log"]
    assert theirs.iterations_taken >= ours.iterations_taken


def test_a_wrong_contender_is_not_timed(expected):
    def made(name, solve):
        return Contender(name, _prepare(solve), "heat", has_gradient=False, efforts=EFFORTS[:3])

    rows = [
        heat_contenders()["heat_step"],
        made("wrong", lambda x, eps, count: 2 * x),
        made("broken", lambda x, eps, count: 1 / 0),
    ]
    found = cells_of(cloud(23, "line"), rows, expected)
    assert found["wrong"].status == "wrong"
    assert found["wrong"].seconds is None
    assert "ZeroDivisionError" in found["broken"].reason


def test_more_iterations_are_not_tried_when_they_would_take_too_long(expected):
    tried = []

    def slow(x, eps, count):
        tried.append(count)
        return 2 * x

    row = Contender("slow", _prepare(slow), "heat", has_gradient=False, efforts=EFFORTS)
    ours = heat_contenders()["heat_step"]
    found = cells_of(cloud(11, "line"), [ours, row], expected, LIMITS._replace(limit=0.0))
    assert found["slow"].status == "wrong"
    assert tried == [2, 4]


@pytest.mark.parametrize("law", ["line", "plane", "pixels"])
def test_clouds_are_the_same_every_time(law):
    case = cloud(7, law)
    assert torch.equal(case.particles(), case.particles())
    assert case.particles().shape == case.shape[1:]


def test_results_are_written_and_kept(tmp_path):
    options = Options(n=(31,), rounds=1, threads=1, quick=True, flows=True)
    assert options.command() == "bistoch bench --n 31 --threads 1 --rounds 1 --quick --flows"
    kept = json.loads(run_bench(options, tmp_path, Console(quiet=True)).read_text())
    assert {cell["shape"][-2] for cell in kept["cells"]} == {31}
    assert {cell["scores"] for cell in kept["cells"]} == {"line", "plane", "pixels"}
    assert {cell["baseline"] for cell in kept["cells"]} == {"heat_step"}
    with pytest.raises(ValueError, match="choose one"):
        Options(flows=True, causal=True)
