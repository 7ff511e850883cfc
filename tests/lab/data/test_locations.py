"""Data are looked for in one order, compared with the table, and never fetched on the way."""

import dataclasses
import socket

import pytest

import bistoch.lab.data.locations as places
from bistoch.lab.data import DATASETS, DataError, DataMissingError, find, folders, load
from bistoch.lab.data.entry import Form

FILES = {"a.txt": b"one", "deep/b.txt": b"two"}


@pytest.fixture
def table(monkeypatch):
    """Put a row into the table for the time of a test."""

    def insert(row):
        monkeypatch.setitem(DATASETS, row.name, row)
        return row

    return insert


def test_the_order_of_places(entry, put, monkeypatch, tmp_path):
    row = entry(FILES)
    put(tmp_path / "system", FILES)
    assert find(row).place == "system"
    put(tmp_path / "cache", FILES)
    assert find(row).place == "cache"
    monkeypatch.setenv("BISTOCH_DATA", str(tmp_path / "mine"))
    assert find(row).place == "cache"
    put(tmp_path / "mine", FILES)
    found = find(row)
    assert found.place == "BISTOCH_DATA"
    assert found.paths == {path: tmp_path / "mine" / path for path in FILES}


def test_a_place_with_some_of_the_files_does_not_count(entry, put, tmp_path):
    row = entry(FILES)
    put(tmp_path / "cache", {"a.txt": b"one"})
    assert find(row) is None
    put(tmp_path / "system", FILES)
    assert find(row).place == "system"


def test_any_form_will_do(entry, describe, put, tmp_path):
    row = entry(FILES)
    row = dataclasses.replace(row, forms=(*row.forms, Form(None, (describe("c.zip", b"all"),))))
    put(tmp_path / "cache", {"c.zip": b"all"})
    assert find(row).form is row.forms[1]


def test_the_cache_is_the_users_own_unless_told(monkeypatch, tmp_path):
    assert folders()["cache"] == tmp_path / "cache"
    monkeypatch.delenv("BISTOCH_CACHE")
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name, **_: f"/caches/{name}")
    assert folders()["cache"].as_posix() == "/caches/bistoch"


def test_a_set_that_is_not_here_is_one_sentence_and_no_download(monkeypatch, tmp_path):
    def refuse(*_):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(DataMissingError) as told:
        load("fashion-mnist")
    said = str(told.value)
    for part in (
        "fashion-mnist/train-images-idx3-ubyte.gz",
        str(tmp_path / "cache"),
        str(tmp_path / "system"),
        "BISTOCH_DATA is not set",
        "`bistoch data get fashion-mnist`",
    ):
        assert part in said
    assert "\n" not in said


def test_a_set_that_cannot_be_fetched_does_not_promise_it(monkeypatch, tmp_path):
    monkeypatch.setenv("BISTOCH_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataMissingError) as told:
        load("modelnet10")
    said = str(told.value)
    assert "data get" not in said
    assert f"{tmp_path / 'nowhere'} (BISTOCH_DATA)" in said
    assert "not set" not in said


@pytest.mark.parametrize("url", ["http://somewhere", None])
def test_another_file_under_the_name_is_refused(table, entry, put, tmp_path, url):
    row = table(entry(FILES, url=url))
    put(tmp_path / "cache", FILES | {"a.txt": b"onx"})
    with pytest.raises(DataError, match=r"a\.txt is not the file in the table: its sha256") as told:
        load(row.name)
    assert ("data get little" in str(told.value)) == bool(url)


def test_a_known_repacking_is_as_good(table, entry, describe, put, tmp_path):
    other = describe("a.txt", b"one repacked").sha256
    file = describe("a.txt", b"one", repacked=other)
    row = entry(FILES)
    row = table(dataclasses.replace(row, forms=(Form(lambda row, paths: "read", (file,)),)))
    for content in (b"one", b"one repacked"):
        put(tmp_path / "cache", {"a.txt": content})
        assert load(row.name) == "read"


def test_a_file_that_may_not_be_read_is_one_sentence(table, entry, put, tmp_path, monkeypatch):
    row = table(entry({"a.txt": b"one"}))
    put(tmp_path / "cache", {"a.txt": b"one"})

    def forbidden(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("bistoch.lab.data.read_files.sha256_of", forbidden)
    with pytest.raises(DataError, match=r"cannot read .*a\.txt: Permission denied"):
        load(row.name)


def test_an_unknown_name_is_told_its_neighbour():
    with pytest.raises(DataError, match=r"'fashion-minst' is neither .*; did you mean fashion-mni"):
        load("fashion-minst")
    with pytest.raises(DataError, match="there are fashion-mnist-small, fashion-mnist, mnist"):
        load("xyzzy")
    with pytest.raises(DataError, match=r"no/where\.csv does not exist"):
        load("no/where.csv")


def test_shipped_data_lie_in_the_package():
    assert find(DATASETS["fashion-mnist-small"]).place == "package"
    assert places.SHIPPED.is_dir()
