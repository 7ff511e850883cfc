"""The table keeps its promises, and where this machine has the data, they are as it says."""

import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from making.small_fashion import write_small

from bistoch.lab.data import DATASETS, Corpus, Dataset, Pairs, Series, load
from bistoch.lab.data.loading import CorpusName, LabelledName, SeriesName
from bistoch.lab.data.locations import SHIPPED
from bistoch.lab.data.read_files import sha256_of

LABELLED = {"images", "points", "tokens", "text"}
FILES = [file for entry in DATASETS.values() for form in entry.forms for file in form.files]


@pytest.mark.parametrize("entry", DATASETS.values(), ids=DATASETS)
def test_a_row_is_complete(entry):
    assert all((entry.about, entry.home, entry.licence))
    assert bool(entry.forms) != (entry.make is not None)
    assert {"train", "test"} <= set(entry.counts)
    assert all(count > 0 for count in entry.counts.values())
    assert bool(entry.classes) == (entry.kind in LABELLED)
    for file in (file for form in entry.forms for file in form.files):
        assert re.fullmatch("[0-9a-f]{64}", file.sha256)
        assert file.repacked is None or re.fullmatch("[0-9a-f]{64}", file.repacked)
        assert file.size > 0
        assert file.url is None or re.match("https?://", file.url)


def test_no_two_files_share_a_place_or_a_checksum():
    assert len({file.path for file in FILES}) == len(FILES)
    digests = [d for file in FILES for d in (file.sha256, file.repacked) if d]
    assert len(set(digests)) == len(digests)


def test_the_types_of_load_follow_the_table():
    assert set(get_args(LabelledName)) == {n for n, e in DATASETS.items() if e.kind in LABELLED}
    assert set(get_args(CorpusName)) == {n for n, e in DATASETS.items() if e.kind == "corpus"}
    assert set(get_args(SeriesName)) == {n for n, e in DATASETS.items() if e.kind == "series"}
    assert [n for n, e in DATASETS.items() if e.kind == "pairs"] == ["multi30k"]


@pytest.mark.parametrize("entry", DATASETS.values(), ids=DATASETS)
def test_the_page_says_what_the_table_says(entry):
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| \[?`{entry.name}`.*$", page, re.MULTILINE)
    cells = [cell.strip() for cell in row.strip("| ").split(" | ")]
    shipped = "made" if entry.make else "ships" if entry.name.endswith("small") else None
    source = shipped or ("`get`" if entry.official else "`BISTOCH_DATA`")
    counts = " + ".join(str(count) for count in entry.counts.values())
    about = entry.about.replace("<unk>", "`<unk>`")
    assert cells[1:] == [entry.kind, about, counts, entry.licence, source]
    assert shipped == "made" or f"({entry.home})" in cells[0]


def check(data, entry):
    assert (data.name, data.kind) == (entry.name, entry.kind)
    if isinstance(data, Dataset):
        check_labelled(data, entry)
    elif isinstance(data, Corpus):
        counts = {split: len(getattr(data, split)) for split in ("train", "valid", "test")}
        assert counts == entry.counts
    elif isinstance(data, Pairs):
        for split in ("train", "valid", "test"):
            lengths = {len(sentences) for sentences in getattr(data, split).values()}
            assert lengths == {entry.counts[split]}
    else:
        assert isinstance(data, Series)
        assert np.isfinite(data.values).all()
        assert data.values.shape == (len(data.dates), len(data.columns))
        assert data.target in data.columns
        assert (np.diff(data.dates) >= np.timedelta64(0)).all()
        counts = {split: len(getattr(data, split)) for split in ("train", "valid", "test")}
        assert counts == entry.counts


def check_labelled(data, entry):
    assert data.classes == entry.classes
    for split in entry.counts:
        x, y = getattr(data, f"x_{split}"), getattr(data, f"y_{split}")
        assert len(x) == len(y) == entry.counts[split]
        assert y.dtype == np.int64
        assert set(y.tolist()) == set(range(len(entry.classes)))
        if entry.kind == "text":
            assert isinstance(x, list)
            assert all(isinstance(text, str) and text for text in x)
        else:
            kinds = {"images": np.uint8, "points": np.float32, "tokens": np.int64}
            assert x.dtype == kinds[entry.kind]
            assert x.flags.writeable


@pytest.mark.parametrize("name", ["fashion-mnist-small", "shapes", "recall"])
def test_what_needs_no_file_is_always_there(name):
    check(load(name), DATASETS[name])


# cifar10 decodes 60000 pictures
SLOW = {"cifar10", "imdb"}
NAMES = [
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
    for name, entry in DATASETS.items()
    if entry.make is None
]


@pytest.mark.parametrize("name", NAMES)
def test_real_data_are_as_the_table_says(real, name):
    check(real(name), DATASETS[name])


def test_the_shipped_part_is_cut_from_the_whole(real, tmp_path):
    full, small = real("fashion-mnist"), load("fashion-mnist-small")
    assert np.bincount(small.y_train).tolist() == [400] * 10
    assert np.bincount(small.y_test).tolist() == [100] * 10
    write_small(full, tmp_path / "again.npz")
    with np.load(tmp_path / "again.npz") as again:
        for key in ("x_train", "y_train", "x_test", "y_test"):
            assert np.array_equal(again[key], getattr(small, key))


def test_the_shipped_part_is_small_and_carries_its_licence():
    (file,) = DATASETS["fashion-mnist-small"].forms[0].files
    path = SHIPPED / file.path
    assert sha256_of(path) == file.sha256
    assert path.stat().st_size == file.size < 4_000_000
    notice = (SHIPPED / "NOTICE").read_text(encoding="utf-8")
    assert "Zalando" in notice
    assert "Permission is hereby granted" in notice


def test_well_known_numbers(real):
    # published means: Fashion-MNIST 0.2860, from 60000 images
    assert real("fashion-mnist").x_train.mean() / 255 == pytest.approx(0.2860, abs=1e-4)


def test_borders_of_ett_are_twelve_four_and_four_months(real):
    data = real("etth1")
    assert data.borders == (8640, 11520, 14400)
    assert str(data.dates[0]) == "2016-07-01T00:00:00"
    assert data.values[0].tolist()[-1] == pytest.approx(30.531, abs=1e-3)
