"""The eight-token study: its protocol, and ours beside the paper's."""

from dataclasses import asdict

import pytest
import torch
from rich.console import Console

from bistoch.lab.reproduce import qdsformer, qdsformer_plans
from bistoch.lab.reproduce.qdsformer import STUDY
from bistoch.lab.study import Results, Row, Settings, run_study
from bistoch.lab.train import Setup, new_model, open_task


@pytest.mark.usefixtures("quick_reports")
def test_the_eight_token_study(tmp_path, monkeypatch):
    smoke = Settings(out=tmp_path, seeds=(0,), smoke=True)
    sizes = qdsformer.sizes(smoke)
    setup = Setup(sizes.data, sizes.model, "softmax", sizes.recipe, 0)
    assert new_model(setup, open_task(sizes.data)).positions.shape == (8, 128)
    assert qdsformer.sizes(Settings(out=tmp_path)).data == "fashion-mnist"
    assert len(STUDY.seeds) >= 3
    names = [operator.split("(")[0] for operator in qdsformer.OPERATORS]
    pairs = ("orthogonal", "elastic", "quantum")
    assert names == ["softmax", "sinkhorn", *(name for name in pairs for _ in range(2))]
    assert sum("learn='head'" in operator for operator in qdsformer.OPERATORS) == 1

    def open_part(data, samples=None):
        task = open_task(data)
        for split in ("train", "test"):
            task.samples[split], task.labels[split] = (
                task.samples[split][:30],
                task.labels[split][:30],
            )
        return task

    # the smoke run as it is, on fewer pictures
    monkeypatch.setattr(qdsformer, "_open", open_part)
    monkeypatch.setattr(qdsformer_plans, "VARIED", 4)
    for name in list(qdsformer.OPERATORS)[2:]:
        monkeypatch.delitem(qdsformer.OPERATORS, name)
    for data, few in (("fashion-mnist", 1), ("mnist", 2)):
        names = dict(list(qdsformer.PARTS[data].items())[:few])
        monkeypatch.setitem(qdsformer.PARTS, data, names)
    page = run_study(STUDY, smoke, Console(quiet=True)).read_text(encoding="utf-8")
    assert "smoke run" in page
    assert "softmax 88.9 ± 0.1" in page
    assert "circuit makes one plan of every input" in page


def test_a_part_of_a_data_set_is_its_first_samples():
    whole, part = (qdsformer._open("fashion-mnist-small", count) for count in (None, 20))
    assert (part.count("train"), part.count("test")) == (20, 20)
    rows = torch.arange(20)
    for split in ("train", "test"):
        for one, other in zip(whole.batch(split, rows), part.batch(split, rows), strict=True):
            torch.testing.assert_close(one, other)


def results_of(epochs, **scores):
    rows = [
        Row(name, seed, {"samples": 4000}, {
            "test": {"accuracy": x, "loss": 1.0}, "attention": {"peak": [1.0, 2.0]},
            "curve": [{"accuracy": x + 0.01}, {"accuracy": x}],
            "spikes": {"steps": 350, "share": 0.0, "largest": 1.5 + x},
        })
        for name, values in scores.items() for seed, x in enumerate(values)
    ]  # fmt: skip
    seconds = dict.fromkeys(scores, 0.5)
    rows.append(Row("time", 0, {}, {"seconds": seconds}))
    return Results(rows, {"recipe": asdict(qdsformer.recipe_of(epochs))})


def test_the_study_compares_with_what_is_published():
    scores = {"softmax": (0.885, 0.887, 0.886), "sinkhorn(backend='cpu')": (0.90, 0.902, 0.901)}
    table, steady = qdsformer.tables(results_of(None, **scores))
    assert [row[:2] for row in steady.rows] == [["fashion-mnist, all", name] for name in scores]
    assert table.rows[0] == [
        "softmax", "88.60 ± 0.10", "", "89.60 ± 0.10", "1.000 ± 0.000", "1.50 ± 0.00",
        "1.00", "softmax 88.9 ± 0.1",
    ]  # fmt: skip
    assert table.rows[1][2] == "+1.50 [+1.50, +1.50]"
    assert table.rows[2][-1] == "circuit of 16 layers 90.0 ± 0.2"
    assert "loosely" not in table.caption
    shorter, _ = qdsformer.tables(results_of(12, **scores))
    assert "12 epochs with a tenth of the rate from epochs 7 and 11 on, not for 50" in (
        shorter.caption
    )
    (verdict,) = qdsformer.checks(results_of(None, **scores))
    assert verdict.holds == "yes"


@pytest.mark.parametrize("epochs", range(1, 51))
def test_a_shorter_study_falls_at_the_same_shares(epochs):
    recipe = qdsformer.recipe_of(epochs)
    assert recipe.epochs == epochs
    assert all(1 < decay <= epochs for decay in recipe.milestones)
    if epochs >= 5:
        shares = [decay / epochs for decay in recipe.milestones]
        assert shares == pytest.approx([31 / 50, 45 / 50], abs=0.5 / epochs + 1e-9)


def test_parts_are_compared_with_softmax_on_the_same_part():
    circuit = "quantum(layers=8)"
    scores = {"softmax": (0.885, 0.887, 0.886)}
    for data, lead in (("fashion-mnist", 0.02), ("mnist", -0.02)):
        scores[qdsformer.part_of(data, "softmax")] = (0.80, 0.81, 0.82)
        scores[qdsformer.part_of(data, circuit)] = (0.80 + lead, 0.811 + lead, 0.82 + lead)
    results = results_of(10, **scores)
    _, fashion, digits, steady = qdsformer.tables(results)
    assert [row[0] for row in fashion.rows] == ["softmax", circuit]
    assert fashion.head[2] == "difference to softmax"
    assert (fashion.rows[1][2][:5], digits.rows[1][2][:5]) == ("+2.03", "-1.97")
    assert fashion.rows[1][-1] == "circuit 90.0 ± 0.2"
    assert "first 4000" in fashion.caption
    lines = [row[:4] for row in steady.rows]
    assert lines[0] == ["fashion-mnist, all", "softmax", "0.10", "0.1"]
    assert lines[2] == ["fashion-mnist", circuit, "1.00", "0.2"]
    verdicts = {one.claim: one.holds for one in qdsformer.checks(results)}
    assert verdicts["part of fashion-mnist: quantum(layers=8): a higher accuracy than softmax"] == (
        "yes"
    )
    assert verdicts["part of mnist: quantum(layers=8): a higher accuracy than softmax"] == (
        "no, the opposite"
    )
    assert verdicts["part of mnist: quantum(layers=8): closer seeds than softmax"] == "inconclusive"
