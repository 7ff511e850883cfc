"""`bistoch data`: what is here, where it lies, and mistakes in one sentence."""

import json
from dataclasses import replace
from hashlib import sha256
from io import BytesIO

import pytest
from typer.testing import CliRunner

import bistoch.lab.data.locations as places
from bistoch.cli import app
from bistoch.lab.data import DATASETS
from bistoch.lab.data.entry import File, Form


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run words of the terminal on a machine that has no data."""
    monkeypatch.delenv("BISTOCH_DATA", raising=False)
    monkeypatch.setenv("BISTOCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(places, "SYSTEM", tmp_path / "system")
    runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"})
    return lambda *words: runner.invoke(app, ["data", *words])


def test_list_shows_every_set_in_a_narrow_terminal(run, tmp_path):
    result = run("list")
    assert result.exit_code == 0
    for name, entry in DATASETS.items():
        (row,) = [
            line for line in result.stdout.splitlines() if line.split()[:2] == [name, entry.kind]
        ]
        assert row.rstrip().endswith(entry.licence)
    assert max(len(line) for line in result.stdout.splitlines()[:30]) <= 80
    assert f"cache: {tmp_path / 'cache'}" in result.stdout


def here(run, name):
    rows = {row["name"]: row for row in json.loads(run("list", "--json").stdout)}
    assert list(rows) == list(DATASETS)
    return rows[name]


def test_json_says_what_is_here_and_where(run, tmp_path):
    assert here(run, "fashion-mnist-small")["place"] == "package"
    assert here(run, "shapes")["place"] == "made"
    absent = here(run, "tiny-shakespeare")
    assert (absent["place"], absent["paths"]) == (None, [])
    assert absent["url"][0].endswith("tinyshakespeare/input.txt")
    assert absent["bytes"] == 1115394
    path = tmp_path / "cache" / "tinyshakespeare.txt"
    path.parent.mkdir()
    path.write_bytes(b"anything")
    assert here(run, "tiny-shakespeare")["paths"] == [str(path)]


def test_path_prints_files_or_one_sentence(run):
    result = run("path", "fashion-mnist-small")
    assert result.exit_code == 0
    assert result.stdout.strip() == str(places.SHIPPED / "fashion-mnist-small.npz")
    for name, said in (
        ("mnist", "`bistoch data get mnist`"),
        ("shapes", "made from a seed"),
        ("minst", "did you mean mnist?"),
    ):
        result = run("path", name)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("bistoch: ")
        assert said in result.stderr
        assert result.stderr.count("\n") == 1


def test_get_leaves_alone_what_is_here(run):
    result = run("get", "fashion-mnist-small")
    assert result.exit_code == 0
    assert "is here already (package)" in result.stderr
    assert result.stdout.strip().endswith("fashion-mnist-small.npz")


def test_get_fetches_and_prints_the_paths(run, monkeypatch, tmp_path):
    content = b"to be or not to be"
    file = File("s.txt", len(content), sha256(content).hexdigest(), "http://somewhere/s.txt")
    row = replace(DATASETS["tiny-shakespeare"], forms=(Form(None, (file,)),))
    monkeypatch.setitem(DATASETS, row.name, row)
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: BytesIO(content))
    result = run("get", "tiny-shakespeare")
    assert result.exit_code == 0
    assert result.stdout == f"{tmp_path / 'cache' / 's.txt'}\n"
    assert (tmp_path / "cache" / "s.txt").read_bytes() == content
    # the bar does not mix with what a script reads
    assert "s.txt" in result.stderr


def test_get_says_what_cannot_be_fetched(run):
    result = run("get", "agnews")
    assert result.exit_code == 2
    assert "no official file" in result.stderr
    # a wrong word stops before anything is fetched
    result = run("get", "mnist", "nonsense")
    assert result.exit_code == 2
    assert "'nonsense' is neither a data set nor a file" in result.stderr


def test_get_names_a_damaged_file(run, tmp_path):
    path = tmp_path / "cache" / "tinyshakespeare.txt"
    path.parent.mkdir()
    path.write_bytes(b"cut")
    result = run("get", "tiny-shakespeare")
    assert result.exit_code == 2
    assert "is not the file in the table" in result.stderr
    assert path.read_bytes() == b"cut"
