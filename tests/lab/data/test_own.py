"""Your own data: read like any other, and what is wrong is named with its place."""

import builtins
import gzip
import json

import numpy as np
import pytest
from PIL import Image

from bistoch.lab.data import DataError, load

N = np.random.default_rng(0)
IMAGES = {
    "x_train": N.integers(0, 256, (7, 5, 3), np.uint8),
    "y_train": np.array([0, 1, 2, 0, 1, 2, 0]),
    "x_test": N.integers(0, 256, (2, 5, 3), np.uint8),
    "y_test": np.array([2, 1]),
}
POINTS = IMAGES | {"x_train": N.normal(size=(7, 11, 3)), "x_test": N.normal(size=(2, 11, 3))}


@pytest.fixture
def save(tmp_path):
    def write(arrays):
        np.savez(tmp_path / "my.npz", **arrays)
        return tmp_path / "my.npz"

    return write


def test_arrays_of_images(save):
    data = load(save(IMAGES))
    assert (data.name, data.kind, data.classes) == ("my", "images", ("0", "1", "2"))
    for key, array in IMAGES.items():
        assert np.array_equal(getattr(data, key), array)
    assert data.y_train.dtype == np.int64


def test_arrays_of_points_with_words_and_a_valid_split(save):
    words = {"y_train": np.array(list("abcabca")), "y_test": np.array(["c", "a"])}
    valid = {"x_valid": POINTS["x_test"], "y_valid": np.array(["b", "b"])}
    data = load(str(save(POINTS | words | valid)))
    assert (data.kind, data.classes) == ("points", ("a", "b", "c"))
    assert data.x_train.dtype == np.float32
    assert (data.y_test.tolist(), data.y_valid.tolist()) == ([2, 0], [1, 1])


def test_classes_may_be_named(save):
    assert load(save(IMAGES | {"classes": np.array(["x", "y", "z"])})).classes == ("x", "y", "z")


def without(*keys):
    return {key: array for key, array in IMAGES.items() if key not in keys}


NAN = POINTS["x_test"].copy()
NAN[1, 3, 2] = np.nan
BAD_ARRAYS = {
    "missing": (without("x_test", "y_test"), "but x_test, y_test are missing; it has x_train, y_"),
    "one missing": (without("y_train"), "but y_train is missing"),
    "half a valid": (IMAGES | {"x_valid": IMAGES["x_test"]}, "x_valid and y_valid belong together"),
    "floats": (
        IMAGES | {"x_train": np.ones((7, 5, 5))},
        r"x_train must be images, .* but it is float64 \(7, 5, 5\); .*\(255 \* x\)",
    ),
    "axis": (IMAGES | {"x_train": IMAGES["x_train"][..., None]}, r"drop the last axis with x\["),
    "colours first": (
        IMAGES | {"x_train": np.ones((7, 3, 5, 5), np.uint8)},
        r"put colours last with x.transpose\(0, 2, 3, 1\)",
    ),
    "other samples": (
        IMAGES | {"x_test": np.ones((2, 5, 4), np.uint8)},
        r"x_test must be like those of x_train, uint8 \(5, 3\), but they are uint8 \(5, 4\)",
    ),
    "empty": (
        IMAGES | {"x_test": IMAGES["x_test"][:0], "y_test": IMAGES["y_test"][:0]},
        r"x_test must not be empty, but its shape is \(0, 5, 3\)",
    ),
    "labels of others": (
        IMAGES | {"y_test": np.array([1, 1, 1])},
        r"one label for each of the 2 samples of x_test, but its shape is \(3,\)",
    ),
    "floating labels": (IMAGES | {"y_test": np.ones(2)}, "y_test must hold whole numbers or words"),
    "negative": (IMAGES | {"y_test": np.array([1, -1])}, r"y_test, row 1: .* 0 \.\. 2, .* is -1"),
    "too high": (IMAGES | {"y_test": np.array([3, 0])}, r"y_test, row 0: .*classes of train, .* 3"),
    "unnamed": (
        IMAGES | {"classes": np.array(["x", "y"])},
        r"y_train, row 2: labels must lie in 0 \.\. 1, the 2 classes named, but it is 2",
    ),
    "one class": (
        IMAGES | {"y_train": np.ones(7, int), "y_test": np.ones(2, int)},
        "y_train must have samples of at least two classes, but all 7 are of class 1",
    ),
    "years": (
        IMAGES | {"y_train": 2**20 + IMAGES["y_train"]},
        r"number the classes from zero, .* 7 samples of 3 classes; number them with numpy\.unique",
    ),
    "a name alone": (
        IMAGES | {"classes": np.array("x")},
        r"different names, but its shape is \(\)",
    ),
    "equal names": (IMAGES | {"classes": np.array(list("xyx"))}, r"\(3,\) with 2 different"),
    "too large": (POINTS | {"x_test": 1e300 * POINTS["x_test"]}, "row 0: points must be finite in"),
    "nan": (POINTS | {"x_test": NAN}, "x_test, row 1: points must be finite"),
    "new word": (
        IMAGES | {"y_train": np.array(list("abababa")), "y_test": np.array(["a", "q"])},
        "y_test, row 1: the label 'q' does not occur in train, whose classes are \\('a', 'b'\\)",
    ),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_what_is_wrong_with_arrays_is_named(save, case):
    arrays, said = BAD_ARRAYS[case]
    path = save(arrays)
    with pytest.raises(DataError, match=said) as told:
        load(path)
    assert str(told.value).startswith(str(path))
    assert "\n" not in str(told.value)


@pytest.fixture
def paint(tmp_path):
    """Write a picture of one colour, or grey."""

    def write(path, value, size=(4, 3)):
        path = tmp_path / "pets" / path
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = size if isinstance(value, int) else (*size, 3)
        Image.fromarray(np.full(shape, value, np.uint8)).save(path)
        return tmp_path / "pets"

    return write


def test_a_folder_with_train_and_test(paint):
    for split, count in (("train", 2), ("test", 1)):
        for i in range(count):
            paint(f"{split}/cat/{i}.png", 10 + i)
            folder = paint(f"{split}/dog/{i}.png", 20 + i)
    # what desktops and people leave behind
    (folder / "train" / "cat" / ".DS_Store").write_bytes(b"")
    (folder / "train" / "README").write_text("read me")
    paint("val/dog/7.png", 77)
    data = load(folder)
    assert (data.name, data.kind, data.classes) == ("pets", "images", ("cat", "dog"))
    assert (data.x_valid[:, 0, 0].tolist(), data.y_valid.tolist()) == ([77], [1])
    assert data.x_train.shape == (4, 4, 3)
    assert data.x_train[:, 0, 0].tolist() == [10, 11, 20, 21]
    assert data.y_train.tolist() == [0, 0, 1, 1]
    assert data.x_test[:, 0, 0].tolist() == [10, 20]


def test_a_folder_without_is_split_evenly_and_always_the_same_way(paint):
    for i in range(10):
        paint(f"cat/{i}.png", i)
        folder = paint(f"dog/{i}.png", 100 + i)
    data, again = load(folder), load(folder)
    assert data.y_test.tolist() == [0, 0, 1, 1]
    assert len(data.x_train) == 16
    seen = {*data.x_train[:, 0, 0].tolist(), *data.x_test[:, 0, 0].tolist()}
    assert seen == {*range(10), *range(100, 110)}
    assert np.array_equal(data.x_test, again.x_test)


def test_one_colour_picture_makes_all_colour(paint):
    for i in range(2):
        paint(f"cat/{i}.png", 10)
        folder = paint(f"dog/{i}.png", (1, 2, 3))
    data = load(folder)
    assert data.x_train.shape == (2, 4, 3, 3)
    assert data.x_train[:, 0, 0].tolist() == [[10, 10, 10], [1, 2, 3]]


def test_what_is_wrong_with_a_folder_is_named(paint, tmp_path):
    (tmp_path / "pets").mkdir()
    with pytest.raises(DataError, match="pets must hold one folder of pictures per class"):
        load(tmp_path / "pets")
    folder = paint("cat/a.png", 1)
    paint("cat/b.png", 1)
    with pytest.raises(DataError, match="at least two classes, but it has 1 samples of 1"):
        load(folder)
    paint("dog/a.png", 1, size=(4, 5))
    with pytest.raises(DataError, match=r"one size, but this one is 4 x 5 .* is 4 x 3; scale"):
        load(folder)
    (folder / "dog" / "a.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"a\.png is cut or damaged, or not a picture"):
        load(folder)
    whole = (folder / "cat" / "a.png").read_bytes()
    (folder / "dog" / "a.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"a\.png is cut or damaged"):
        load(folder)
    (folder / "dog" / "a.png").unlink()
    with pytest.raises(DataError, match="the class 'dog' has no pictures"):
        load(folder)
    (folder / "dog" / "deeper").mkdir()
    with pytest.raises(DataError, match="deeper: a class may hold pictures only"):
        load(folder)
    (folder / "train").mkdir()
    with pytest.raises(DataError, match="both folders train and test, or neither, but test is"):
        load(folder)


@pytest.mark.parametrize("dtype", ["uint16", "int32", "float32"])
def test_a_picture_of_more_bits_is_refused_and_not_spoiled(tmp_path, dtype):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for name in ("a/0", "a/1", "b/0", "b/1"):
        Image.fromarray(np.full((5, 7), 900, dtype)).save(tmp_path / f"{name}.tif")
    with pytest.raises(DataError, match=r"0\.tif: pictures must have 8 bits for each colour"):
        load(tmp_path)


def test_a_picture_too_large_to_be_one(paint, monkeypatch):
    for name in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):
        folder = paint(name, 9)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 3)
    with pytest.raises(DataError, match=r"\.png is cut or damaged, or not a picture \(.*exceeds"):
        load(folder)


def test_a_class_only_in_test_is_named(paint):
    for path in ("train/cat/a.png", "train/dog/a.png", "test/cow/a.png"):
        folder = paint(path, 1)
    with pytest.raises(DataError, match=r"test.cow.a\.png: the label 'cow' does not occur in"):
        load(folder)


def test_pictures_without_pillow_name_the_extra(paint, monkeypatch):
    paint("cat/a.png", 1)
    folder = paint("dog/a.png", 1)
    whole = builtins.__import__

    def without_pillow(name, *words, **more):
        if name == "PIL":
            raise ImportError(name)
        return whole(name, *words, **more)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(ImportError, match=r"pip install 'bistoch\[images\]'"):
        load(folder)


ROWS = [("good, really", "pos", "train"), ('a "bad" one', "neg", "train"), ("fine", "pos", "test")]


def test_sentences_in_every_form(tmp_path):
    (tmp_path / "a.csv").write_text(
        'label,text,split\npos,"good, really",train\nneg,"a ""bad"" one",train\npos,fine,test\n'
    )
    (tmp_path / "a.tsv").write_text(
        "text\tlabel\tsplit\n" + "".join("\t".join(row) + "\n" for row in ROWS)
    )
    lines = [json.dumps(dict(zip(("text", "label", "split"), row, strict=True))) for row in ROWS]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    for name in ("a.csv", "a.tsv", "a.jsonl.gz"):
        data = load(tmp_path / name)
        assert (data.name, data.kind, data.classes) == ("a", "text", ("neg", "pos"))
        assert (data.x_train, data.y_train.tolist()) == (["good, really", 'a "bad" one'], [1, 0])
        assert (data.x_test, data.y_test.tolist()) == (["fine"], [1])


def test_whole_numbers_as_labels_keep_their_order(tmp_path):
    rows = [f"text {i},{label}" for i, label in enumerate([10, 9, 9, 10, 10, 9])]
    (tmp_path / "a.csv").write_text("\n".join(["\ufefftext,label", *rows]), encoding="utf-8")
    data = load(tmp_path / "a.csv")
    assert data.classes == ("9", "10")
    assert np.bincount(data.y_train).tolist() == [2, 2]


def test_the_split_does_not_depend_on_the_order_of_lines(tmp_path):
    rows = [f"text {i},{i % 3}" for i in range(60)]
    sides = []
    for name, order in (("a.csv", rows), ("b.csv", rows[::-1])):
        (tmp_path / name).write_text("\n".join(["text,label", *order]))
        data = load(tmp_path / name)
        assert np.bincount(data.y_test).tolist() == [4, 4, 4]
        sides.append((set(data.x_train), set(data.x_test)))
    assert sides[0] == sides[1]
    assert not sides[0][0] & sides[0][1]


def test_equal_texts_stay_on_one_side(tmp_path):
    rows = [f"text {i // 5},{i // 50}" for i in range(100)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows]))
    data = load(tmp_path / "a.csv")
    assert len(data.x_test) == 20
    assert not set(data.x_train) & set(data.x_test)


def test_a_very_long_text(tmp_path):
    (tmp_path / "a.csv").write_text(
        f"text,label,split\n{'x' * 300000},a,train\ny,b,train\nz,a,test"
    )
    assert len(load(tmp_path / "a.csv").x_train[0]) == 300000


BAD_TEXTS = {
    "a.csv": [
        ("", "line 1: expected the columns text and label .* are missing; the head is empty"),
        ("sentence,label\na,b\n", "text is missing; the head is sentence, label"),
        ("text,label\na,b\nc\n", r"line 3: expected 2 values \(text, label\), but there are 1"),
        ("text,label\na,x\n,y\n", "line 3: text must be a sentence, but it is ''"),
        ("text,label\na,\n", "line 2: label must be a whole number or a word, but it is ''"),
        ("text,label\na,x\nb,x\n", "at least two classes, but it has 1 samples of 1"),
        ('text,label\n"a\nb",x\n"c,x\n', "line 4: unexpected end of data"),
        ("text,label,split\na,x,trian\n", "line 2: split must be one of train, test, .*'trian'"),
        ("text,label,split\na,x,train\nb,y,train\n", "no row of split 'test' among 2 rows"),
        ("text,label,split\na,x,train\nb,y,train\nc,z,test\n", "line 4: the label 'z' does not"),
        ("text,label,label\na,x,y\n", "the column label must be there once, but .* 2 times"),
        ("date,a\n2020-01-01,1\n", "a series needs .* and 1 rows follow"),
        ("date\n", "a series needs the columns date and at least one of numbers"),
    ],
    "a.jsonl": [
        ('{"text": "a", "label": 1}\n{"text"', "line 2: not JSON"),
        ("9" * 5000, "line 1: not JSON"),
        ("[" * 100000, "line 1: not JSON"),
        ("[1, 2]\n", "line 1: expected an object with text and label, got a list"),
        ('{"text": 3, "label": 1}\n', "line 1: text must be a sentence, but it is 3"),
        ('{"text": "a"}\n', "line 1: label must be a whole number or a word, but it is None"),
        ('{"text": "a", "label": true}\n', "line 1: label must .* but it is True"),
        ('{"text": "a", "label": 1, "split": [1]}\n', r"split must be one of .* but it is \[1\]"),
        (
            '{"text": "a", "label": 1, "split": "train"}\n\n{"text": "b", "label": 1}\n',
            "line 3: split is missing, and other lines have it",
        ),
    ],
    "a.txt": [("short", "5 characters are too few")],
    "a.parquet": [("", r"must be \.npz, .* but its name ends in '\.parquet'")],
    "a.npz.gz": [("", r"but its name ends in '\.npz'")],
    "a": [("", "but its name ends in ''")],
}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [(name, content, said) for name, cases in BAD_TEXTS.items() for content, said in cases],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=said) as told:
        load(tmp_path / name)
    assert str(told.value).startswith(str(tmp_path / name))
    assert "\n" not in str(told.value)


def series(*rows):
    return "\n".join(["date,a,b", *rows, *(f"2020-01-{day},{day},0.5" for day in range(10, 22))])


def test_a_series_of_your_own(tmp_path):
    (tmp_path / "mine.csv").write_text(series("2020-01-09T12:00:00+01:00,1,2"))
    data = load(tmp_path / "mine.csv")
    assert (data.name, data.kind, data.target) == ("mine", "series", "b")
    assert data.borders == (9, 11, 13)
    assert str(data.dates[0]) == "2020-01-09T11:00:00"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("2020-01-09,1", "line 2: expected 3 values as in the head, but there are 2"),
        ("2020-01-09,1,two", "line 2, column 'b': expected a number, got 'two'"),
        ("2020-01-09,nan,2", "line 2, column 'a': expected a number, got 'nan'"),
        ("yesterday,1,2", "line 2: expected a date such as 2016-07-01 00:00:00, got 'yesterday'"),
        (",1,2", "line 2: expected a date such as"),
        ("0001-01-01T00:00:00+01:00,1,2", "line 2: expected a date such as"),
        (f"2020-01-09,{'x' * 200000},2", "line 2, column 'a': expected a number"),
    ],
)
def test_what_is_wrong_with_a_series_is_named(tmp_path, row, said):
    (tmp_path / "a.csv").write_text(series(row))
    with pytest.raises(DataError, match=said):
        load(tmp_path / "a.csv")


def test_sentences_may_have_a_date(tmp_path):
    rows = [f"2020-01-01,sentence {i},{'ab'[i % 2]}" for i in range(10)]
    (tmp_path / "mine.csv").write_text("\n".join(["date,text,label", *rows]))
    assert load(tmp_path / "mine.csv").kind == "text"


def test_a_packed_file_in_capitals(tmp_path):
    rows = [f"sentence {i},{'ab'[i % 2]}" for i in range(10)]
    packed = gzip.compress("\n".join(["text,label", *rows]).encode())
    (tmp_path / "MINE.CSV.GZ").write_bytes(packed)
    assert load(tmp_path / "MINE.CSV.GZ").classes == ("a", "b")


def test_names_of_one_value_have_an_order(tmp_path):
    # that of a set is another in every process
    names = ["1", "01", "001", "0001", "00001"]
    rows = [f"sentence {i},{names[i % 5]}" for i in range(20)]
    (tmp_path / "mine.csv").write_text("\n".join(["text,label", *rows]))
    assert load(tmp_path / "mine.csv").classes == tuple(sorted(names))


def test_a_sentence_stays_short_whatever_it_quotes(tmp_path):
    for name, content in {
        "a.csv": f"{'x' * 10000},{'y' * 10000}\n",
        "b.csv": f"text,label,split\na,x,{'t' * 10000}\n",
        "c.csv": series(f"2020-01-09,{'x' * 10000},2"),
        "d.jsonl": f'{{"text": {["x"] * 1000}, "label": 1}}'.replace("'", '"'),
    }.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError) as told:
            load(tmp_path / name)
        assert len(str(told.value)) < 500 + len(str(tmp_path))


def test_a_text_of_your_own(tmp_path):
    (tmp_path / "a.txt").write_text("abcdefghij" * 10)
    data = load(tmp_path / "a.txt")
    assert (len(data.train), len(data.valid), len(data.test)) == (90, 5, 5)
    assert data.train + data.valid + data.test == "abcdefghij" * 10


def test_a_name_of_the_table_wins_over_a_folder_called_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shapes").mkdir()
    assert load("shapes").kind == "points"
    with pytest.raises(DataError, match="'' is neither a data set nor a file"):
        load("")
    with pytest.raises(DataError, match="one folder of pictures per class"):
        load("./shapes")
