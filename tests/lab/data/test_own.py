"""Your own texts and series: read like any other, and what is wrong is named with its place."""

import gzip
import json

import numpy as np
import pytest

from bistoch.lab.data import DataError, load

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
        ("", "the file is empty; a series has the column date first.* columns text and label"),
        ("\n\n", "the file is empty"),
        (
            "date;a\n2020-01-01;1,5\n",
            r"line 1: values must .* commas, but 'date;a' has semicolons; "
            r"save .*decimal points.*sep=';'",
        ),
        ("text;label\na;b\n", "line 1: values must be separated by commas, but 'text;label'"),
        ("date\ta\n2020-01-01\t1\n", "values must be separated by commas, .* has tabs"),
        ("sentence,label\na,b\n", "text is missing; the head is sentence, label"),
        ("text,label\na,b\nc\n", r"line 3: expected 2 values \(text, label\), but there are 1"),
        ("text,label\na,x\n,y\n", "line 3: text must be a non-empty string, but it is ''"),
        ("text,label\na,\n", "line 2: label must be a whole number or a word, but it is ''"),
        ("text,label\na,x\nb,x\n", "at least two classes, but it has 1 samples of 1"),
        ('text,label\n"a\nb",x\n"c,x\n', "line 4: unexpected end of data"),
        ("text,label,split\na,x,trian\n", "line 2: split must be one of train, test, .*'trian'"),
        ("text,label,split\na,x,train\nb,y,train\n", "no row of split 'test' among 2 rows"),
        ("text,label,split\na,x,train\nb,y,train\nc,z,test\n", "line 4: the label 'z' does not"),
        ("text,label,label\na,x,y\n", "the column label must be there once, but .* 2 times"),
        ("date,a\n2020-01-01,1\n", "a series needs at least 10 rows, but 1 row follows"),
        ("date,a\n", "a series needs at least 10 rows, but no rows follow the head; add rows"),
        ("date\n", r"line 1: a series needs the column date \(or .* numbers, but .* 'date'; put"),
        (
            "date,a,b,a\n2020-01-01,1,2,3\n",
            "line 1: columns must have different names, but 2 are called 'a'; rename or remove",
        ),
    ],
    "a.tsv": [
        ("", "the file is empty"),
        ("date\ta\n2020-01-01\t1\n", r"a series must be a \.csv file, .* save it as \.csv"),
    ],
    "a.jsonl": [
        ('{"text": "a", "label": 1}\n{"text"', "line 2: not JSON"),
        ("9" * 5000, "line 1: not JSON"),
        ("[" * 100000, "line 1: not JSON"),
        ("[1, 2]\n", "line 1: expected an object with text and label, got a list"),
        ('{"text": 3, "label": 1}\n', "line 1: text must be a non-empty string, but it is 3"),
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
        ("2020-01-09,1", "line 2: expected 3 values as in the head, but there are 2; give every"),
        (
            "2020-01-09,1,5,2",
            "line 2: expected 3 .* there are 4; write numbers with a decimal point",
        ),
        (
            "2020-01-09,1,two",
            "line 2, column 'b': expected a number, got 'two'; correct it; .* point",
        ),
        (
            "2020-01-09,inf,2",
            "line 2, column 'a': expected a number, got 'inf'; it must be finite: ",
        ),
        (
            "2020-01-09,1e999,2",
            "column 'a': expected a number, got '1e999'; it must be finite: put",
        ),
        ("2020-01-09,nan,2", "line 2, column 'a': expected a number, got 'nan'"),
        (
            "yesterday,1,2",
            "line 2: expected a date such as 2016-07-01 00:00:00, got 'yesterday'; "
            "write all dates as year-month-day",
        ),
        (
            "2020-01-10,1,2",
            r"line 3: the date 2020-01-10 is also that of line 2 \(1 repeated date in 13 "
            r"rows\); keep one row per date",
        ),
        ("2020-01-12,1,2", "line 3: the date .* is before that of the row above; sort the rows"),
        (",1,2", "line 2: expected a date such as"),
        ("0001-01-01T00:00:00+01:00,1,2", "line 2: expected a date such as"),
        (f"2020-01-09,{'x' * 200000},2", "line 2, column 'a': expected a number"),
    ],
)
def test_what_is_wrong_with_a_series_is_named(tmp_path, row, said):
    (tmp_path / "a.csv").write_text(series(row))
    with pytest.raises(DataError, match=said):
        load(tmp_path / "a.csv")


def test_a_column_of_words_is_to_be_removed(tmp_path):
    rows = [f"2020-01-{day},{day},sunny" for day in range(10, 22)]
    (tmp_path / "a.csv").write_text("\n".join(["date,a,sky", *rows]))
    with pytest.raises(DataError, match=r"line 2, column 'sky': .* 'sunny'; .* remove the column"):
        load(tmp_path / "a.csv")


def test_a_gap_between_dates_is_noted(tmp_path):
    (tmp_path / "a.csv").write_text(series("2020-01-05,1,2"))
    (note,) = load(tmp_path / "a.csv").notes
    assert note.startswith(
        f"{tmp_path / 'a.csv'}, line 3: 4 steps of 1 day are missing before 2020-01-10; rows are "
    )
    (tmp_path / "a.csv").write_text(series("2020-01-09,1,2"))
    assert load(tmp_path / "a.csv").notes == ()


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
    with pytest.raises(DataError, match="one folder of images per class"):
        load("./shapes")
