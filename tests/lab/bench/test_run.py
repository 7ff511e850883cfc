"""A run goes on where it stopped, tells what it kept and what was missing, and the verb runs it."""

import json
import sys

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import bistoch
from bistoch.cli import app
from bistoch.lab.bench import Options, plan, run, run_bench, worker
from bistoch.lab.bench.cases import Setting, sequence
from bistoch.lab.bench.contenders import Contender
from bistoch.lab.bench.expected import ExpectedResults
from bistoch.lab.bench.measure import Entry, TimeLimits, measure

TINY = Options(n=(8, 16), heads=1, dim=4, rounds=1, threads=1)
ABSENT = {"POT": "pip", "OTT-JAX": "pip", "GeomLoss": "pip"}


@pytest.fixture
def alone(monkeypatch):
    """Nobody else on the machine, and no libraries to start processes for."""
    monkeypatch.setattr(run, "load_average", lambda: 0.0)
    for module in (run, plan):
        monkeypatch.setattr(module, "missing_packages", lambda: ABSENT)


def quiet():
    return Console(quiet=True)


def verb(*words):
    return CliRunner(env={"COLUMNS": "120", "NO_COLOR": "1"}).invoke(app, ["bench", *words])


@pytest.mark.usefixtures("alone")
def test_a_finished_run_is_not_repeated(tmp_path, measured):
    path = run_bench(TINY, tmp_path, quiet())
    first, measured[:] = list(measured), []
    assert len(first) == len(set(first)) > 10
    run_bench(TINY, tmp_path, quiet())
    assert measured == []
    results = json.loads(path.read_text())
    assert len(results["cells"]) == len(first)
    assert any(f"{len(first)} of {len(first)} cells were kept" in n for n in results["notes"])


@pytest.mark.usefixtures("alone")
def test_a_killed_run_goes_on(tmp_path, measured, monkeypatch):
    working = run._measure_here

    def killed(group, *rest):
        if group.case.n == 16:
            raise KeyboardInterrupt
        return working(group, *rest)

    monkeypatch.setattr(run, "_measure_here", killed)
    with pytest.raises(KeyboardInterrupt):
        run_bench(TINY, tmp_path, quiet())
    assert not (tmp_path / "bench.json").exists()
    before, measured[:] = set(measured), []
    assert {key[1] for key in before} == {(1, 1, 8, 4)}
    monkeypatch.setattr(run, "_measure_here", working)
    run_bench(TINY, tmp_path, quiet())
    assert before.isdisjoint(measured)
    assert {key[1] for key in measured} == {(1, 1, 16, 4)}
    results = json.loads((tmp_path / "bench.json").read_text())
    assert {tuple(cell["shape"]) for cell in results["cells"]} == {(1, 1, 8, 4), (1, 1, 16, 4)}


@pytest.mark.usefixtures("alone")
def test_what_failed_or_was_skipped_is_measured_again(tmp_path, measured, monkeypatch):
    working = run._measure_here

    def failing(group, *rest):
        cells = working(group, *rest)
        cells[1].status, cells[2].status, cells[3].status = "failed", "skipped", "wrong"
        return cells

    monkeypatch.setattr(run, "_measure_here", failing)
    options = Options(n=(8,), heads=1, dim=4, rounds=1, threads=1, backward=False)
    run_bench(options, tmp_path, quiet())
    unfinished = {measured[place] for place in (1, 2, -2, -3)}
    measured.clear()
    monkeypatch.setattr(run, "_measure_here", working)
    results = json.loads(run_bench(options, tmp_path, quiet()).read_text())
    assert len(measured) == 4
    assert len(unfinished & set(measured)) >= 2
    assert sum(cell["status"] == "wrong" for cell in results["cells"]) == 2


@pytest.mark.usefixtures("alone", "measured")
def test_other_options_start_anew(tmp_path):
    run_bench(TINY, tmp_path, quiet())
    run_bench(Options(n=(8,), heads=1, dim=4, rounds=2), tmp_path, quiet())
    results = json.loads((tmp_path / "bench.json").read_text())
    assert any("bench.previous.json" in note for note in results["notes"])
    assert "cells" in json.loads((tmp_path / "bench.previous.json").read_text())
    # a file of something else is no result, and is replaced
    (tmp_path / "bench.json").write_text("{")
    run_bench(TINY, tmp_path, quiet())
    assert json.loads((tmp_path / "bench.json").read_text())["cells"]


@pytest.mark.usefixtures("measured")
def test_a_busy_machine_and_missing_libraries_are_told(tmp_path, alone, monkeypatch, capsys):
    monkeypatch.setattr(run, "load_average", lambda: 99.0)
    run_bench(TINY, tmp_path, Console(width=120))
    said = capsys.readouterr().out
    notes = json.loads((tmp_path / "bench.json").read_text())["notes"]
    assert "doubtful: " in said
    for sentence in ("the machine was busy at the start", "OTT-JAX is not installed: pip"):
        assert sentence in said
        assert any(sentence in note for note in notes)


@pytest.mark.usefixtures("alone", "measured")
def test_what_would_take_hours_is_not_tried(tmp_path, measured):
    options = Options(n=(64, 65536), heads=1, dim=4)
    results = json.loads(run_bench(options, tmp_path, quiet()).read_text())
    # one second at 64 tokens predicts twelve days
    said = [cell["reason"] for cell in results["cells"] if cell["shape"][-2] == 65536]
    assert said
    assert all("too slow" in reason for reason in said)
    assert {key[1][-2] for key in measured} == {64}


def test_the_plan_of_a_full_run():
    groups = plan.plan(Options())
    sizes = [g.case.n for g in groups if g.case.name.startswith("n=") and g.package is None]
    assert sizes == sorted(sizes)
    assert (min(sizes), max(sizes)) == (64, 16384)
    longest = next(g for g in groups if g.case.n == 16384)
    assert longest.case.shape == (1, 1, 16384, 64)
    assert not any(entry.contender.dense for entry in longest.entries)
    assert {"ViT batch", "100000 4x4"} <= {g.case.name for g in groups}
    assert {g.case.scores for g in groups} == {"random", "peaked"}


def test_the_verb_measures_writes_and_draws(tmp_path):
    words = ("--n", "16", "--rounds", "1", "--heads", "1", "--dim", "4", "--threads", "1")
    result = verb(*words, "--out", str(tmp_path / "deep" / "down"))
    assert result.exit_code == 0, result.output
    results = json.loads((tmp_path / "deep" / "down" / "bench.json").read_text())
    assert results["command"] == (
        "bistoch bench --n 16 --dim 4 --heads 1 --threads 1 --rounds 1"
    )  # fmt: skip
    assert {"processor", "cores", "caches", "versions", "threads", "load_average_at_start"} <= set(
        results["machine"]
    )
    status = {cell["contender"]: cell["status"] for cell in results["cells"]}
    for name in ("sdpa", "elastic streaming", "dense log-domain", "dense scaling"):
        assert status[name] == "measured"
        assert name in result.stdout
    # POT is installed with the tools of development; it expected from a process of its own
    assert status["POT log"] == status["POT knopp"] == "measured"
    picture = (tmp_path / "deep" / "down" / "bench.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert sorted(path.name for path in (tmp_path / "deep" / "down").iterdir()) == [
        ".cells", "bench.json", "bench.png"
    ]  # fmt: skip


def test_the_verb_times_all_operators(tmp_path):
    words = ("--operators", "--n", "8", "--rounds", "1", "--heads", "1", "--dim", "4")
    result = verb(*words, "--no-backward", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    results = json.loads((tmp_path / "operators.json").read_text())
    measured = [cell["contender"] for cell in results["cells"] if cell["ratio"]]
    assert measured == ["sdpa", *bistoch.OPERATORS]
    assert (tmp_path / "operators.png").read_bytes().startswith(b"\x89PNG")


def test_the_verb_times_causal_balance(tmp_path):
    words = ("--causal", "--n", "8", "--n", "70", "--rounds", "1", "--heads", "1", "--dim", "4")
    result = verb(*words, "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "is_causal=True" in result.output
    results = json.loads((tmp_path / "causal.json").read_text())
    measured = {cell["contender"] for cell in results["cells"] if cell["ratio"]}
    assert measured == {"sdpa", "causal_elastic streaming", "causal_elastic cpu"}
    assert {cell["verified_by"] for cell in results["cells"]} == {"reference in float64"}
    assert (tmp_path / "causal.png").read_bytes().startswith(b"\x89PNG")
    result = verb("--causal", "--operators")
    assert "choose one" in result.output


@pytest.mark.usefixtures("alone")
def test_without_the_drawing_library_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run._draw(tmp_path / "bench.json", [], run._head(TINY)["configuration"], Console(width=200))
    assert "no picture: drawing a picture needs matplotlib" in capsys.readouterr().out
    assert not (tmp_path / "bench.png").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--n", "0"], "n must be at least 1"),
        (["--rounds", "0"], "rounds must be at least 1"),
        (["--lam", "2"], "lam must be in [0, 1]"),
        (["--iters", "-1"], "iters must not be negative"),
        (["--threads", "0"], "threads must be at least 1"),
    ],
)
def test_a_mistake_is_one_sentence(words, sentence):
    result = verb(*words)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_dying_process_is_a_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(worker.sys, "executable", "false")
    group = next(iter(plan._peer_groups(TINY)))
    child = worker.Worker(1, TINY.limits, tmp_path)
    cells = child.measure(group.case, group.direction, group.entries)
    assert {cell.status for cell in cells} == {"failed"}
    assert all("its process died" in cell.reason for cell in cells)
    assert not child.alive
    child.close()


def test_a_device_is_passed_on_and_checked(tmp_path, monkeypatch):
    refused = CliRunner().invoke(app, ["bench", "--device", "mps", "--out", str(tmp_path)])
    assert refused.exit_code == 2
    assert "bench: device must be cpu, cuda or cuda:0, but it is 'mps'" in refused.stderr
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    options = Options(n=(8,), device="cuda")
    assert options.command() == "bistoch bench --n 8 --device cuda"
    assert options.configuration()["device"] == "cuda"
    assert all(group.package is None for group in plan.plan(options))


def test_contenders_get_their_tensors_on_the_device(tmp_path):
    seen = []

    def prepare(task):
        seen.extend([*task.inputs, task.cotangent])
        raise RuntimeError("seen")

    case = sequence(8, 1, 4, "random")
    entry = Entry(Contender("mine", prepare, "softmax"), Setting())
    measure(
        case,
        "forward",
        [entry],
        TimeLimits(),
        ExpectedResults(tmp_path),
        device=torch.device("meta"),
    )
    assert {x.device.type for x in seen} == {"meta"}


def test_a_process_that_hangs_is_a_cell(tmp_path, monkeypatch):
    program = tmp_path / "hangs"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(worker.sys, "executable", str(program))
    monkeypatch.setattr(worker, "TIMEOUT", 0.1)
    group = next(iter(plan._peer_groups(TINY)))
    child = worker.Worker(1, TINY.limits, tmp_path)
    cells = child.measure(group.case, group.direction, group.entries)
    assert all("after 0.1 s without a result" in cell.reason for cell in cells)
    assert not child.alive
    child.close()
