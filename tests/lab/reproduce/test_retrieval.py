"""The studies of search: tasks without leaks, counts against formulas, and runs without data."""

import json

import numpy as np
import pytest
from rich.console import Console

from bistoch.lab.reproduce import captions, hubs, retrieval
from bistoch.lab.reproduce.captions import WordAxes
from bistoch.lab.reproduce.search_tasks import REGIMES, TaskSizes, load_task
from bistoch.lab.search.halves import unit
from bistoch.lab.search.methods import search
from bistoch.lab.study import Settings, read_record, run_study


def test_halves_by_regime(tmp_path):
    sizes = TaskSizes()
    known, bank, more = (load_task("left finds right", x, sizes, tmp_path) for x in REGIMES)
    assert known.bank is known.queries
    assert len(bank.documents) == len(bank.queries) == 1000
    assert (len(more.documents), len(more.bank)) == (3000, 2000)
    np.testing.assert_array_equal(more.documents[:1000], bank.documents)
    # no query of the bank has its document among the distractors
    own = (bank.bank[:2000] * more.documents[1000:]).sum(1)
    assert (own > 0.999).mean() < 0.05
    other = load_task("left finds right", "bank", sizes, tmp_path, validation=True)
    assert len(other.bank) == 3000


def test_word_axes_are_those_of_a_dense_decomposition():
    texts = ["a red dog runs", "a red cat", "the dog runs", "the cat sleeps", "a dog and a cat"] * 2
    found = WordAxes(texts, axes=3)
    matrix = found._count(texts).toarray()
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 1)
    # "a" twice counts more than once, but not twice as much
    word = found._places["a"]
    assert (
        1
        < matrix[4, word]
        / matrix[4, found._places["dog"]]
        * found._weights[found._places["dog"]]
        / found._weights[word]
        < 2
    )
    kept = np.linalg.svd(matrix, full_matrices=False)[1][:3]
    np.testing.assert_allclose(np.linalg.norm(found(texts)), np.linalg.norm(kept), rtol=1e-6)
    assert not found(["never seen"]).any()


def test_embeddings_are_kept(tmp_path, monkeypatch):
    calls = []

    class Encoder:
        def __init__(self, texts):
            import torch

            calls.append(len(texts))
            self.before = torch.eye(len(texts)) * 3

    monkeypatch.setattr("bistoch.lab.reproduce.encoder.Encoder", Encoder)
    for _ in range(2):
        found = captions.embed_kept(["a", "b"], tmp_path / "vectors" / "x.npy")
        np.testing.assert_array_equal(found, np.eye(2))
    captions.embed_kept(["a", "b", "c"], tmp_path / "vectors" / "x.npy")
    assert calls == [2, 3]


def test_the_digits_of_a_summary_are_the_cuts_it_misses():
    generator = np.random.default_rng(0)
    queries, documents = (unit(generator.normal(size=(67, 5))) for _ in range(2))
    found = search(queries, documents, np.zeros(67))
    result = retrieval.summary(found)
    for place, cut in enumerate((1, 5, 10)):
        share = np.mean([int(digit) <= place for digit in result["found"]])
        assert share == pytest.approx(result["recall"][str(cut)])
    assert np.mean(retrieval.hits(result)) == pytest.approx(result["recall"]["1"])


def test_without_data_only_halves_are_searched_and_the_page_says_so(monkeypatch):
    monkeypatch.setattr(captions, "is_here", lambda: False)
    assert retrieval.available(False) == ["left finds right", "top finds bottom"]
    assert {cell.options["source"] for cell in hubs.cells(False)} == {hubs.HALVES}
    said = []

    class Page:
        def text(self, text, printed):
            said.append(text)

    results = type("Some", (), {"rows": [], "smoke": False})()
    retrieval.sections(results, Page(), None)
    hubs.sections(results, Page(), None)
    assert all("multi30k" in text and text.startswith("Left out") for text in said)
    assert len(said) == 2


def test_centroids_of_known_queries_are_planted():
    generator = np.random.default_rng(0)
    mine, other = (unit(generator.normal(size=(101, 7))) for _ in range(2))
    assert hubs.plant(mine, other, 0, 1.0, 0).shape == (0, 7)
    everything = hubs.plant(mine, other, 1, 1.0, 0)
    np.testing.assert_allclose(everything, unit(mine.sum(0, keepdims=True)), atol=1e-6)
    nothing = hubs.plant(mine, other, 1, 0.0, 0)
    np.testing.assert_allclose(nothing, unit(other.sum(0, keepdims=True)), atol=1e-6)
    np.testing.assert_array_equal(
        hubs.plant(mine, other, 5, 0.1, 3), hubs.plant(mine, other, 5, 0.1, 3)
    )


def test_area_and_hit_lists_against_loops():
    generator = np.random.default_rng(0)
    charge, planted = generator.integers(0, 5, 31).astype(float), generator.random(31) < 0.3
    pairs = [
        1.0 if a > b else 0.5 if a == b else 0.0 for a in charge[planted] for b in charge[~planted]
    ]
    assert hubs.area(charge, planted) == pytest.approx(np.mean(pairs))
    queries, documents = (unit(generator.normal(size=(x, 5))) for x in (41, 47))
    bias = generator.normal(size=47) / 5
    task = retrieval.Task(queries, documents[:41], queries)
    result = hubs.attacked(task, documents, bias)
    order = np.argsort(-(queries @ documents.T + bias), 1)[:, :10]
    np.testing.assert_array_equal(hubs.hit_lists(result), (order >= 41).any(1))
    np.testing.assert_array_equal(hubs.right(result), order[:, 0] == np.arange(41))


@pytest.mark.slow
@pytest.mark.parametrize("study", [retrieval.STUDY, hubs.STUDY], ids=["retrieval", "hubs"])
def test_smoke_runs_end_with_a_page(study, tmp_path):
    settings = Settings(tmp_path, seeds=(0,), smoke=True)
    page = run_study(study, settings, Console(quiet=True)).read_text(encoding="utf-8")
    assert "smoke run" in page
    assert "data:image/png;base64," in page
    file = tmp_path / study.name / "report.json"
    assert len(read_record(file).rows) == len(study.cells(True))
    assert json.loads(file.read_text())["verdicts"]
