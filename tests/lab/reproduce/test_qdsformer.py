"""The eight-token study: its protocol, and ours beside the paper's."""

import pytest
from rich.console import Console

from bistoch.lab.reproduce import STUDIES, Settings, qdsformer
from bistoch.lab.train import Recipe, new_model, open_task


@pytest.mark.usefixtures("quick_reports")
def test_the_eight_token_study(tmp_path, monkeypatch):
    settings = Settings(out=tmp_path, seeds=(0,), smoke=True)
    comparison = qdsformer.comparison_of(settings)
    assert new_model(comparison.setup("softmax", 0), open_task(comparison.data)).place.shape == (
        8, 128,
    )  # fmt: skip
    full = qdsformer.comparison_of(Settings(out=tmp_path, seeds=(0, 1, 2)))
    assert full.data == "fashion-mnist"
    assert len(STUDIES["qdsformer-fashion"].seeds) >= 3
    names = [operator.split("(")[0] for operator in full.operators]
    assert names == ["softmax", "sinkhorn", "orthogonal", "orthogonal", "elastic", "elastic"]
    assert sum("learn='head'" in operator for operator in full.operators) == 1
    # the smoke run as it is, on fewer pictures
    small = Recipe(epochs=1, batch_size=2000, schedule="constant", warmup=0.0)
    monkeypatch.setattr(qdsformer, "SMOKE", small)

    def open_part(data):
        task = open_task(data)
        for split in ("train", "test"):
            task.samples[split], task.labels[split] = (
                task.samples[split][:30],
                task.labels[split][:30],
            )
        return task

    monkeypatch.setattr(qdsformer, "open_task", open_part)
    for name in list(qdsformer.OPERATORS)[2:]:
        monkeypatch.delitem(qdsformer.OPERATORS, name)
    page = (
        STUDIES["qdsformer-fashion"].run(settings, Console(quiet=True)).read_text(encoding="utf-8")
    )
    assert "smoke run" in page
    assert "softmax 88.9 ± 0.1" in page


def test_the_study_compares_with_what_is_published(row):
    balanced = "sinkhorn(backend='cpu')"
    rows = [row("softmax", 0.885, 0.887, 0.886), row(balanced, 0.90, 0.902, 0.901)]
    _, lines = qdsformer.beside_published(rows)
    assert lines[0] == (
        "softmax", "88.60 ± 0.10", "89.60 ± 0.10", "softmax 88.9 ± 0.1", "-0.3",
    )  # fmt: skip
    assert lines[1][-1] == "+1.0"
    notes = qdsformer._notes(qdsformer.RECIPE, smoke=False)
    assert "loosely" not in " ".join(notes)
    shorter = " ".join(qdsformer._notes(qdsformer.recipe_of(12), smoke=False))
    assert "12 epochs with a tenth of the rate from epochs 7 and 11 on, not for 50" in shorter


@pytest.mark.parametrize("epochs", range(1, 51))
def test_a_shorter_study_falls_at_the_same_shares(epochs):
    recipe = qdsformer.recipe_of(epochs)
    assert recipe.epochs == epochs
    assert all(1 < decay <= epochs for decay in recipe.milestones)
    if epochs >= 5:
        shares = [decay / epochs for decay in recipe.milestones]
        assert shares == pytest.approx([31 / 50, 45 / 50], abs=0.5 / epochs + 1e-9)
