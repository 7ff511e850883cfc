"""The first minute ends in a table and a page with pictures."""

import io
import json

import pytest
from rich.console import Console

from bistoch.lab.data import load
from bistoch.lab.search import demo
from bistoch.lab.search.halves import cut_halves


@pytest.fixture
def small(monkeypatch):
    """The demo with a part of the pictures, in seconds."""
    pictures = load("fashion-mnist-small").x_train

    def load_small(kind="left finds right", *, validation=False):
        return cut_halves(
            kind, pictures[:600], pictures[700:801] if validation else pictures[-211:]
        )

    monkeypatch.setattr(demo, "load_halves", load_small)
    monkeypatch.setattr(demo, "LAMS", (0.0, 0.9, 1.0))


def test_the_demo_needs_no_data_folder_and_ends_in_a_page(small, tmp_path, monkeypatch):
    monkeypatch.delenv("BISTOCH_DATA", raising=False)
    console = Console(file=io.StringIO(), width=120)
    page = demo.run_demo(tmp_path / "demo", console)
    said = console.file.getvalue()
    for name in ("cosine", "CSLS", "inverted softmax", "dual softmax", "balance lam 0.9"):
        assert name in said
    assert f"report: {page}" in said.replace("\n", "")
    text = page.read_text(encoding="utf-8")
    assert text.count("<img ") == 5
    assert "No figure" not in text
    recall = json.loads(page.with_suffix(".json").read_text())["recall"]
    assert recall["bank, balance lam 0.9"] > recall["bank, cosine"] == recall["bank, balance lam 0"]
    assert recall["known, balance lam 1"] > recall["known, cosine"] + 0.05


@pytest.mark.slow
def test_the_figures_of_the_demo_are_those_of_the_readme(tmp_path):
    page = demo.run_demo(tmp_path, Console(quiet=True))
    recall = json.loads(page.with_suffix(".json").read_text())["recall"]
    shown = {name: round(100 * value, 1) for name, value in recall.items()}
    assert shown["bank, cosine"] == pytest.approx(38.9, abs=0.3)
    assert shown["bank, balance lam 0.9"] == pytest.approx(49.1, abs=0.3)
    assert shown["known, balance lam 1"] == pytest.approx(54.6, abs=0.3)
