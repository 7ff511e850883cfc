import dataclasses
import hashlib
import os

import pytest

import bistoch.lab.data.locations as places
from bistoch.lab.data import DataMissingError, load
from bistoch.lab.data.entry import Entry, File, Form

OUTSIDE = {name: os.environ.get(name) for name in ("BISTOCH_DATA", "BISTOCH_CACHE")}
SYSTEM = places.SYSTEM


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(monkeypatch, tmp_path):
    """No test finds data of this machine, or writes into its cache, unless it asks for `real`."""
    monkeypatch.delenv("BISTOCH_DATA", raising=False)
    monkeypatch.setenv("BISTOCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(places, "SYSTEM", tmp_path / "system")


@pytest.fixture
def real(monkeypatch):
    """`load`, with the data that this machine has; a test of data that it has not is skipped."""
    for name, value in OUTSIDE.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(places, "SYSTEM", SYSTEM)

    def load_or_skip(name):
        try:
            return load(name)
        except DataMissingError:
            pytest.skip(f"{name} is not on this machine")

    return load_or_skip


@pytest.fixture
def describe():
    """A row's file with the true size and checksum of some bytes."""

    def make(path, content, url=None, repacked=None):
        return File(path, len(content), hashlib.sha256(content).hexdigest(), url, repacked)

    return make


@pytest.fixture
def entry(describe):
    """A row of one form out of `path -> content`."""

    def make(files, read=None, url=None, **fields):
        described = tuple(
            describe(path, content, url and f"{url}/{path}") for path, content in files.items()
        )
        row = Entry("little", "text", "a little set", "home", "MIT", {"train": 1, "test": 1})
        return dataclasses.replace(row, forms=(Form(read, described),), **fields)

    return make


@pytest.fixture
def put():
    """Write files, with the folders they need."""

    def write(folder, files):
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)

    return write
