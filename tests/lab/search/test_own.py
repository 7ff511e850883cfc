"""`bistoch retrieval`: files of vectors, the page, and sentences about bad input."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from bistoch.cli import app
from bistoch.lab.search import own
from bistoch.lab.search.halves import unit
from bistoch.lab.search.own import read_collection, read_pairs
from bistoch.retrieval import HubCorrection


def run(*words):
    return CliRunner().invoke(app, ["retrieval", *map(str, words)])


@pytest.fixture
def files(tmp_path):
    generator = np.random.default_rng(0)
    documents = generator.normal(size=(53, 7)).astype("float32")
    queries = documents[:31] + 0.8 * generator.normal(size=(31, 7)).astype("float32")
    documents[52] = queries.mean(0) * 9
    np.save(tmp_path / "q.npy", queries)
    np.savez(tmp_path / "d.npz", documents)
    lines = [json.dumps({"id": f"doc {i}", "vector": x.tolist()}) for i, x in enumerate(documents)]
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.parametrize("name", ["d.npz", "d.jsonl"])
def test_a_page_a_record_and_a_correction_are_written(files, name):
    found = run(files / "q.npy", files / name, "--pairs", "same", "--out", files / "out")
    assert found.exit_code == 0, found.output
    record = json.loads((files / "out" / "report.json").read_text())
    queries = np.load(files / "q.npy")
    with np.load(files / "d.npz") as stored:
        documents = stored["arr_0"]
    queries, documents = unit(queries), unit(documents)
    scores = queries @ documents.T
    before = (scores.argmax(1) == np.arange(31)).mean()
    bias = HubCorrection().fit(queries, documents).bias
    after = ((scores + bias).argmax(1) == np.arange(31)).mean()
    assert record["recall"]["R@1"] == pytest.approx([before, after])
    assert record["lists"]["before"]["largest"] > record["lists"]["after"]["largest"]
    saved = HubCorrection.load(files / "out" / "correction.npz")
    np.testing.assert_allclose(saved.bias, bias, atol=1e-5)
    page = (files / "out" / "report.html").read_text()
    assert ("doc 52" in page) == (name == "d.jsonl")
    assert "R@10" in found.output


def test_a_bank_and_settings_are_used(files):
    np.save(files / "bank.npy", np.load(files / "q.npy")[:13])
    words = ("--bank", files / "bank.npy", "--lam", "1", "--eps", "0.3", "--inner")
    found = run(files / "q.npy", files / "d.npz", *words, "--out", files / "out")
    assert found.exit_code == 0, found.output
    record = json.loads((files / "out" / "report.json").read_text())
    assert (record["bank"], record["lam"], record["eps"]) == (13, 1.0, 0.3)
    assert "recall" not in record
    assert "--inner" in record["command"]


def test_several_documents_may_be_right(tmp_path):
    (tmp_path / "pairs.txt").write_text("0, 2\n1\n")
    assert read_pairs(str(tmp_path / "pairs.txt"), 2, 3) == [[0, 2], [1]]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("x.csv", b"1,2", "convert it"),
        ("x.npy", b"", "x.npy"),
        ("x.npy", b"no array", "no array of numpy"),
        ("x.npz", b"no zip", "damaged"),
        ("x.txt", b"a text", "--encoder"),
        ("x.jsonl", b"", "no line with a vector"),
        ("x.jsonl", b"[1, 2]\n[1]", "line 2 of .* has 1 numbers"),
        ("x.jsonl", b"[1, 2", "no JSON"),
        ("x.jsonl", b'{"text": "a"}', "list of numbers"),
        ("x.jsonl", b'["a"]', "list of numbers"),
        ("x.jsonl", b"[" * 100000, "no JSON"),
        ("x.jsonl", b"[1.0, NaN]", "NaN or infinity, the first at row 0"),
        ("x.jsonl", b"[1" + b"0" * 30 + b"]", "list of numbers"),
    ],
)
def test_a_bad_file_gets_a_sentence(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        read_collection(tmp_path / name)


def test_arrays_that_are_no_matrices_get_a_sentence(tmp_path):
    for found, sentence in (
        (np.zeros(3), "shape is"),
        (np.zeros((0, 3)), "shape is"),
        (np.array([["a"]]), "real numbers"),
        (np.array([[1j]]), "real numbers"),
    ):
        np.save(tmp_path / "x.npy", found)
        with pytest.raises(ValueError, match=sentence):
            read_collection(tmp_path / "x.npy")
    np.savez(tmp_path / "x.npz", a=np.zeros((2, 2)), b=np.zeros(2))
    with pytest.raises(ValueError, match="holds 2"):
        read_collection(tmp_path / "x.npz")


def test_reading_is_bounded(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "x.npz", np.zeros((1000, 10)))
    (tmp_path / "x.jsonl").write_text("[1, 2, 3]")
    monkeypatch.setattr(own, "LARGEST", 5000)
    with pytest.raises(ValueError, match="at most"):
        read_collection(tmp_path / "x.npz")
    monkeypatch.setattr(own, "LONGEST_LINE", 5)
    with pytest.raises(ValueError, match=r"line 1 .* is longer"):
        read_collection(tmp_path / "x.jsonl")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--pairs", "nothing"), "'same' or a file"),
        (("--eps", "warm"), "--eps must be auto or a number"),
        (("--eps", "-1"), "eps must be"),
        (("--lam", "2"), "lam must be"),
        (("--bank", "narrow.npy"), "features"),
        (("--bank", "empty.npy"), "shape is"),
        (("--bank", "absent.npy"), "no file"),
    ],
)
def test_bad_options_end_in_a_sentence(files, words, sentence, monkeypatch):
    monkeypatch.chdir(files)
    np.save("narrow.npy", np.ones((3, 6)))
    np.save("empty.npy", np.ones((0, 7)))
    found = run("q.npy", "d.npz", *words)
    assert found.exit_code == 2
    assert sentence in " ".join(found.output.split())
    assert not (files / "retrieval-report").exists()


def test_wrong_pairs_get_a_sentence(tmp_path):
    for text, sentence in (("1\n", "a line for each"), ("1\n9\n", "0 to 2"), ("1\n\n", "line 2")):
        (tmp_path / "pairs.txt").write_text(text)
        with pytest.raises(ValueError, match=sentence):
            read_pairs(str(tmp_path / "pairs.txt"), 2, 3)
    with pytest.raises(ValueError, match="a document for every query"):
        read_pairs("same", 4, 3)
