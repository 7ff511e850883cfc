"""The eight-token study: its protocol, and ours beside the paper's."""

from dataclasses import asdict

import pytest
from rich.console import Console

from bistoch.lab.reproduce import qdsformer
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
    assert names == ["softmax", "sinkhorn", "orthogonal", "orthogonal", "elastic", "elastic"]
    assert sum("learn='head'" in operator for operator in qdsformer.OPERATORS) == 1

    def open_part(data):
        task = open_task(data)
        for split in ("train", "test"):
            task.samples[split], task.labels[split] = (
                task.samples[split][:30],
                task.labels[split][:30],
            )
        return task

    # the smoke run as it is, on fewer pictures
    monkeypatch.setattr(qdsformer, "_open", open_part)
    for name in list(qdsformer.OPERATORS)[2:]:
        monkeypatch.delitem(qdsformer.OPERATORS, name)
    page = run_study(STUDY, smoke, Console(quiet=True)).read_text(encoding="utf-8")
    assert "smoke run" in page
    assert "softmax 88.9 ± 0.1" in page


def results_of(epochs, **scores):
    rows = [
        Row(name, seed, {}, {
            "test": {"accuracy": x, "loss": 1.0}, "attention": {"peak": [1.0, 2.0]},
            "curve": [{"accuracy": x + 0.01}, {"accuracy": x}],
        })
        for name, values in scores.items() for seed, x in enumerate(values)
    ]  # fmt: skip
    seconds = dict.fromkeys(scores, 0.5)
    rows.append(Row("time", 0, {}, {"seconds": seconds}))
    return Results(rows, {"recipe": asdict(qdsformer.recipe_of(epochs))})


def test_the_study_compares_with_what_is_published():
    scores = {"softmax": (0.885, 0.887, 0.886), "sinkhorn(backend='cpu')": (0.90, 0.902, 0.901)}
    (table,) = qdsformer.tables(results_of(None, **scores))
    assert table.rows[0] == [
        "softmax", "88.60 ± 0.10", "", "89.60 ± 0.10", "1.000 ± 0.000", "1.50 ± 0.00",
        "1.00", "softmax 88.9 ± 0.1",
    ]  # fmt: skip
    assert table.rows[1][2] == "+1.50 [+1.50, +1.50]"
    assert table.rows[2][-1] == "circuit 90.0 ± 0.2"
    assert "loosely" not in table.caption
    (shorter,) = qdsformer.tables(results_of(12, **scores))
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
