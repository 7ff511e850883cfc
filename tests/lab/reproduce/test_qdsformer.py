"""The eight-token study: its protocol, and ours beside the paper's."""

from dataclasses import asdict

import pytest
import torch
from rich.console import Console

from bistoch.lab.reproduce import qdsformer, qdsformer_plans
from bistoch.lab.reproduce.qdsformer import FULL_STUDY, STUDY
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
        names = dict(list(qdsformer.GROUPS[data].items())[:few])
        monkeypatch.setitem(qdsformer.GROUPS, data, names)
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
        scores[qdsformer.cell_of(data, "softmax")] = (0.80, 0.81, 0.82)
        scores[qdsformer.cell_of(data, circuit)] = (0.80 + lead, 0.811 + lead, 0.82 + lead)
    results = results_of(10, **scores)
    _, fashion, digits, steady = qdsformer.tables(results)
    assert [row[0] for row in fashion.rows] == ["softmax", circuit]
    assert fashion.head[2] == "difference to softmax"
    assert (fashion.rows[1][2][:5], digits.rows[1][2][:5]) == ("+2.03", "-1.97")
    assert fashion.rows[1][-1] == "circuit 90.0 ± 0.2"
    assert "first 4000" in fashion.caption
    lines = [row[:4] for row in steady.rows]
    assert lines[0] == ["fashion-mnist, all", "softmax", "0.10", "0.1"]
    assert lines[2] == ["fashion-mnist, part", circuit, "1.00", "0.2"]
    assert lines[4] == ["mnist, all", circuit, "1.00", "0.1"]
    verdicts = {one.claim: one.holds for one in qdsformer.checks(results)}
    assert verdicts["part of fashion-mnist: quantum(layers=8): a higher accuracy than softmax"] == (
        "yes"
    )
    assert verdicts["all of mnist: quantum(layers=8): a higher accuracy than softmax"] == (
        "no, the opposite"
    )
    assert verdicts["all of mnist: quantum(layers=8): closer seeds than softmax"] == "inconclusive"


def test_mnist_is_trained_whole_and_the_full_study_has_deep_circuits(tmp_path):
    options = {cell.name: cell.options for cell in STUDY.cells(False)}
    assert options["all of mnist: softmax"]["samples"] is None
    assert options["part of fashion-mnist: softmax"]["samples"] == 4000
    deep = "quantum(layers=16, scale=0.01)"
    assert not any("layers=16" in name for name in options)
    full = {cell.name: cell.options for cell in FULL_STUDY.cells(False)}
    assert options.items() < full.items()
    assert full[deep] == {"operator": deep}
    assert full[f"all of mnist: {deep}"] == {"operator": deep, "data": "mnist", "samples": None}
    assert FULL_STUDY.sizes(Settings(out=tmp_path)).recipe.epochs == 50
    # its own accuracies stand where otherwise only the published one does
    scores = dict.fromkeys(("softmax", deep, "quantum(layers=16)"), (0.885, 0.887, 0.886))
    table, _ = qdsformer.tables(results_of(None, **scores))
    assert [row[-1] for row in table.rows[1:]] == ["circuit of 16 layers 90.0 ± 0.2"] * 2
    digits = {qdsformer.cell_of("mnist", name): values for name, values in scores.items()}
    _, table, _ = qdsformer.tables(results_of(None, **scores, **digits))
    assert [row[-1] for row in table.rows[1:]] == ["circuit 98.4 ± 0.1"] * 2


def test_plans_of_small_angles_are_judged_too():
    circuit = "quantum(layers=8, scale=0.01)"
    lines = {
        qdsformer_plans.plans_of(name): {"grid": {"distinct": 1.0}, "trained": far}
        for name in qdsformer_plans.COMPARED
        for far in [{"apart": 1.0, "order": 0.5, "nearest": 0.5}]
    }
    for name, apart in (
        ("softmax", 1.0), ("sinkhorn(backend='cpu')", 2.0), ("quantum(layers=8)", 0.5),
        (circuit, 1.5),
    ):  # fmt: skip
        trained = {"apart": apart, "order": 0.5, "nearest": 0.5}
        lines[qdsformer_plans.own_plans_of(name)] = {"trained": trained}
    rows = [Row(name, seed, {}, result) for name, result in lines.items() for seed in range(3)]
    found = {one.claim: one.holds for one in qdsformer_plans.plan_checks(Results(rows, {}))}
    text = "own scores{}: plans of the circuit further apart than {}"
    assert found[text.format(", small angles", "softmax")] == "yes"
    assert found[text.format(", small angles", "sinkhorn")] == "no, the opposite"
    assert found[text.format("", "softmax")] == "no, the opposite"
