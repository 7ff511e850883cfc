"""A run about long sequences: what repeats, what is extrapolated, and what the verb writes."""

import json

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import bistoch
from bistoch.cli import app
from bistoch.lab.bench import Options, plan, run, run_bench
from bistoch.lab.bench.cases import DISTINCT, Case, Setting, long_sequence
from bistoch.lab.bench.expected import ExpectedResults, check_results
from bistoch.lab.bench.measure import measure
from bistoch.lab.bench.plot import draw_bench

REPEATED = Case("n=21", "attention", (1, 2, 21, 4), "random", 7)


def test_tokens_repeat_in_their_order():
    query, *_ = REPEATED.inputs()
    assert query.shape == (1, 2, 21, 4)
    assert torch.equal(query[:, :, :7], query[:, :, 14:])
    assert torch.equal(REPEATED.cotangent()[:, :, :7], REPEATED.cotangent()[:, :, 7:14])


def test_the_expected_result_of_copies_is_exact(tmp_path):
    query, key, value = (x.double().requires_grad_() for x in REPEATED.inputs())
    output = bistoch.elastic_attention(query, key, value, iters=3, backend="reference")
    grads = torch.autograd.grad(output, (query, key, value), REPEATED.cotangent().double())
    expected = ExpectedResults(tmp_path)
    right = expected.get(REPEATED, "elastic", Setting(1.0, 3), "forward+backward")
    errors = check_results(right, (output.detach(), *grads)).errors
    assert len(errors) == 4
    assert max(errors.values()) < 1e-13
    case = Case("n=96", "attention", (1, 1, 96, 4), "random", 32)
    query, key, value = (x.double() for x in case.inputs())
    output = bistoch.elastic_attention(query, key, value, coarse=16, backend="reference")
    right = expected.get(case, "elastic coarse", Setting(), "forward")
    assert max(check_results(right, (output,)).errors.values()) < 1e-13


def test_long_plans_are_those_of_the_operator_itself(tmp_path, monkeypatch):
    case = Case("n=40", "attention", (1, 1, 40, 4), "random")
    results = ExpectedResults(tmp_path)
    plans = results.get(case, "monarch itself", Setting(), "forward")
    assert plans.verified_by == "its own plan in float64"
    monkeypatch.setattr("bistoch.lab.bench.expected.REFERENCE_BYTES", 1 << 10)
    (tmp_path / "again").mkdir()
    itself = ExpectedResults(tmp_path / "again").get(case, "monarch itself", Setting(), "forward")
    assert itself.verified_by.startswith("itself, and its own plan of 512 tokens")
    assert torch.allclose(itself.tensors[0], plans.tensors[0], rtol=0, atol=1e-12)


@pytest.fixture
def pretended(monkeypatch):
    """Times that grow with n^2, and no work."""
    monkeypatch.setattr(run, "load_average", lambda: 0.0)

    def pretend(group, todo, limits, expected, device):
        found = [run._blank(group, entry) for entry in todo]
        for cell in found:
            cell.seconds = 1e-7 * group.case.n**2 * (1 if "sdpa" in cell.contender else 1e-3)
            base = group.predicted.seconds if group.predicted else 1e-7 * group.case.n**2
            cell.baseline, cell.baseline_extrapolated = "sdpa", group.predicted is not None
            cell.ratio, cell.memory, cell.others = cell.seconds / base, 1 << 20, 0.0
        return found

    monkeypatch.setattr(run, "_measure_here", pretend)


@pytest.mark.usefixtures("pretended")
def test_softmax_beyond_the_limit_is_extrapolated_and_marked(tmp_path, capsys):
    options = Options(n=(1024, 65536), backward=False, long=True, threads=1)
    path = run_bench(options, tmp_path, Console(width=120))
    cells = {(c["contender"], c["shape"][-2]): c for c in json.loads(path.read_text())["cells"]}
    for name in ("sdpa", "causal sdpa"):
        cell = cells[name, 65536]
        assert cell["status"] == "extrapolated"
        assert cell["seconds"] == pytest.approx(1e-7 * 65536**2)
        assert cell["reason"] == "extrapolated from n=1024 by the number of pairs"
    for name in ("monarch", "elastic_monarch", "lowrank", "delta", "elastic", "elastic coarse=16"):
        assert not cells[name, 1024]["baseline_extrapolated"]
        assert cells[name, 65536]["baseline_extrapolated"]
        assert cells[name, 65536]["ratio"] == pytest.approx(1e-3)
    said = capsys.readouterr().out
    assert "~429.50 s" in said
    assert "~0.001" in said
    assert "extrapolated from the longest sequence" in said


def test_ratios_to_a_baseline_that_is_known(tmp_path):
    options = Options(n=(16,), heads=1, dim=4, rounds=1, long=True)
    group = plan.plan(options)[0]
    known = run._blank(group, group.entries[0])
    known.status, known.seconds, known.ratio = "extrapolated", 100.0, 1.0
    (tmp_path / "expected").mkdir()
    found = measure(
        group.case, "forward", group.entries[1:], options.limits,
        ExpectedResults(tmp_path / "expected"), known=known,
    )  # fmt: skip
    assert [cell.status for cell in found] == ["measured"] * len(found)
    assert all(cell.ratio == cell.seconds / 100 for cell in found)
    assert all(cell.baseline_extrapolated for cell in found)
    lines = draw_bench([known, *found], growth=True).axes[0].lines
    assert lines
    assert all(line.get_markerfacecolor() == "white" for line in lines)


def test_the_plan_of_a_long_run():
    groups = plan.plan(Options(long=True))
    assert {group.case.n for group in groups} == {2**k for k in range(9, 17)}
    assert {group.case.shape[1] for group in groups} == {2}
    assert long_sequence(DISTINCT, 2, 64).distinct is None
    assert groups[-1].case.distinct == DISTINCT
    assert groups[-1].entries[0].contender.name == "causal sdpa"


def test_the_verb_measures_what_is_meant_for_long_sequences(tmp_path):
    words = ["bench", "--long", "--n", "16", "--n", "35", "--rounds", "1", "--heads", "1"]
    words += ["--dim", "4", "--threads", "1", "--out", str(tmp_path)]
    result = CliRunner(env={"COLUMNS": "120", "NO_COLOR": "1"}).invoke(app, words)
    assert result.exit_code == 0, result.output
    results = json.loads((tmp_path / "long.json").read_text())
    assert results["command"].endswith("--long")
    assert {cell["status"] for cell in results["cells"]} == {"measured"}
    assert {cell["baseline"] for cell in results["cells"]} == {"sdpa", "causal sdpa"}
    assert (tmp_path / "long.png").read_bytes().startswith(b"\x89PNG")
