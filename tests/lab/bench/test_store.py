"""Results on disk are whole at every moment, and are kept only for the same configuration."""

import json
import os
from dataclasses import fields

import pytest

from bistoch.lab.bench.measure import Cell
from bistoch.lab.bench.store import Store, read_results


def cell(contender="OTT", n=256, status="measured", seconds=1.0, **more):
    shape = [1, 8, n, 64]
    made = Cell(f"n={n}", "attention", shape, "random", "forward", contender, 1.0, 10, None)
    made.status, made.seconds = status, seconds
    for name, value in more.items():
        setattr(made, name, value)
    return made


def head(**configuration):
    return {"configuration": configuration, "machine": {}, "command": "bistoch bench", "notes": []}


def test_a_file_holds_everything(tmp_path):
    store = Store(tmp_path / "new" / "bench.json", head(threads=2))
    store.add([cell(n=256), cell(n=512, seconds=4.0)])
    results = json.loads(store.path.read_text())
    assert not results["finished"]
    assert results["configuration"] == {"threads": 2}
    assert [set(one) for one in results["cells"]] == [{f.name for f in fields(Cell)}] * 2
    assert results["growth"][0]["time"] == 2.0
    store.write(finished=True)
    assert json.loads(store.path.read_text())["finished"]


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path, monkeypatch):
    store = Store(tmp_path / "bench.json", head())
    store.add([cell()])
    before = store.path.read_bytes()

    def fail(*_):
        raise OSError("the power went out")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="power"):
        store.add([cell("POT log")])
    assert store.path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


def test_what_is_finished_is_kept_and_what_is_not_is_asked_again(tmp_path):
    path = tmp_path / "bench.json"
    cells = [cell(), cell("liar", status="wrong"), cell("x", status="skipped")]
    Store(path, head()).add([*cells, cell("y", status="failed")])
    again = Store(path, head())
    assert [one.contender for one in again.cells] == ["OTT", "liar"]
    assert again.has(cell())
    assert not again.has(cell("x"))
    assert not again.has(cell(n=512))


def test_another_configuration_sets_the_file_aside(tmp_path):
    path = tmp_path / "bench.json"
    Store(path, head(threads=2)).add([cell()])
    other = Store(path, head(threads=1))
    assert other.cells == []
    assert not path.exists()
    assert len(read_results(other.set_aside)["cells"]) == 1


def test_a_new_answer_replaces_the_old_one(tmp_path):
    store = Store(tmp_path / "bench.json", head())
    store.add([cell(seconds=1.0)])
    store.add([cell(seconds=2.0)])
    assert [one.seconds for one in store.cells] == [2.0]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 0}'])
def test_a_foreign_file_is_no_result(tmp_path, text):
    path = tmp_path / "bench.json"
    path.write_text(text)
    assert read_results(path) is None
