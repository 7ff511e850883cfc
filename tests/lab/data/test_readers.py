"""Each reader on a little file of its format, made here."""

import gzip
import io
import json
import lzma
import struct
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from bistoch.lab.data import DATASETS, DataError, load, read_images, read_series, read_text


@pytest.fixture
def read(entry, put, monkeypatch, tmp_path):
    """Load a row that has these files."""

    def run(reader, files, **fields):
        row = entry(files, reader, **fields)
        put(tmp_path / "cache", files)
        monkeypatch.setitem(DATASETS, row.name, row)
        return load(row.name)

    return run


def idx(array):
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return gzip.compress(head + array.tobytes())


def idx_files(numbers):
    x, y = numbers.integers(0, 256, (7, 5, 3), np.uint8), np.arange(7, dtype=np.uint8)
    files = {
        "little/train-images-idx3-ubyte.gz": idx(x[:5]),
        "little/train-labels-idx1-ubyte.gz": idx(y[:5]),
        "little/t10k-images-idx3-ubyte.gz": idx(x[5:]),
        "little/t10k-labels-idx1-ubyte.gz": idx(y[5:]),
    }
    return x, y, files


def test_idx(read):
    x, y, files = idx_files(np.random.default_rng(0))
    data = read(read_images.read_idx, files, kind="images")
    assert np.array_equal(np.concatenate([data.x_train, data.x_test]), x)
    assert np.array_equal(np.concatenate([data.y_train, data.y_test]), y)
    assert data.x_test.shape == (2, 5, 3)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\0\0\x09\1\0\0\0\1\0", r"must start with the bytes 0 0 8, but .* \[0, 0, 9\]"),
        (b"", r"but it starts with \[\]"),
        (b"\0\0\x08\1\0\0\0\3\1\2", r"announces shape \(3,\), but 2 numbers follow"),
        (b"\0\0\x08\2\0\0\0\3", r"announces shape \(3,\), but 0 numbers follow"),
    ],
)
def test_idx_that_is_none(tmp_path, content, said):
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=said):
        read_images.read_idx_file(tmp_path / "a.gz")


def npz(**arrays):
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def test_points_become_float32(read):
    x = np.ones((3, 5, 3), np.float16)
    content = npz(x_train=x, y_train=np.arange(3), x_test=x[:1], y_test=np.arange(1))
    data = read(read_images.read_npz, {"a.npz": content}, kind="points")
    assert data.x_train.dtype == data.x_test.dtype == np.float32
    assert data.kind == "points"


def jpeg(value):
    stream = io.BytesIO()
    Image.fromarray(np.full((16, 16, 3), value, np.uint8)).save(stream, "JPEG")
    return stream.getvalue()


def test_jpeg_with_a_shared_header(read):
    pictures = [jpeg(value) for value in (0, 100, 255)]
    header = pictures[0][:600]
    assert all(picture.startswith(header) for picture in pictures)
    bodies = [np.frombuffer(picture[600:], np.uint8) for picture in pictures]
    content = npz(
        jpeg_header=np.frombuffer(header, np.uint8),
        jpg_train=np.concatenate(bodies[:2]),
        len_train=np.array([len(body) for body in bodies[:2]], np.uint16),
        y_train=np.array([1, 0]),
        jpg_test=bodies[2],
        len_test=np.array([len(bodies[2])], np.uint16),
        y_test=np.array([1]),
    )
    data = read(read_images.read_jpeg_npz, {"a.npz": content}, kind="images")
    assert data.x_train.shape == (2, 16, 16, 3)
    assert [int(x.min()) for x in (*data.x_train, *data.x_test)] == [0, 100, 255]


def tar(members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def test_cifar_as_the_official_archive(read):
    numbers = np.random.default_rng(0)
    batches = {
        f"data_batch_{i}": numbers.integers(0, 256, (2, 3073), np.uint8) for i in range(1, 6)
    }
    batches["test_batch"] = numbers.integers(0, 256, (3, 3073), np.uint8)
    members = {f"cifar-10-batches-bin/{name}.bin": b.tobytes() for name, b in batches.items()}
    members = {"cifar-10-batches-bin/batches.meta.txt": b"airplane\n"} | members
    data = read(read_images.read_cifar_binary, {"a.tar.gz": tar(members)}, kind="images")
    assert data.x_train.shape == (10, 32, 32, 3)
    # plane by plane in the file, colours last in the array
    record = batches["data_batch_2"][1]
    assert data.y_train[3] == record[0]
    assert data.x_train[3, 4, 5].tolist() == record[1 + 4 * 32 + 5 :: 1024].tolist()
    assert len(data.x_test) == 3


def test_a_cut_archive_is_one_sentence(tmp_path, entry):
    whole = tar({"a/train/pos/0_9.txt": bytes(range(256)) * 99})
    (tmp_path / "a.tar.gz").write_bytes(whole[: len(whole) // 2])
    for reader in (read_text.read_imdb_archive, read_images.read_cifar_binary):
        with pytest.raises(DataError, match=r"a\.tar\.gz is cut or damaged"):
            reader(entry({}), {"a": tmp_path / "a.tar.gz"})


REVIEWS = {"train": [("good\u2028film", 1), ("bad", 0)], "test": [("fine", 1), ("poor", 0)]}


def test_imdb_in_both_forms(read):
    lines = {
        f"imdb_{split}.jsonl.xz": lzma.compress(
            "".join(
                json.dumps({"id": 0, "label": label, "text": text}, ensure_ascii=False) + "\n"
                for text, label in rows
            ).encode()
        )
        for split, rows in REVIEWS.items()
    }
    packed = read(read_text.read_imdb, lines)
    members = {"aclImdb/train/unsup/0_0.txt": b"no label", "aclImdb/README": b"read me"}
    for split, rows in REVIEWS.items():
        for number, (text, label) in enumerate(rows):
            name = f"aclImdb/{split}/{'pos' if label else 'neg'}/{number}_7.txt"
            members[name] = text.encode()
    official = read(read_text.read_imdb_archive, {"acl.tar.gz": tar(members)})
    for data in (packed, official):
        assert (data.x_train, data.y_train.tolist()) == (["good\u2028film", "bad"], [1, 0])
        assert (data.x_test, data.y_test.tolist()) == (["fine", "poor"], [1, 0])


def test_sst2_in_both_forms(read):
    train = b'sentence\tlabel\nan " odd one \t0\nfine \t1\n'
    dev = b"sentence\tlabel\npoor\t0\n"
    files = {"sst2_train.tsv.gz": gzip.compress(train), "sst2_dev.tsv.gz": gzip.compress(dev)}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("SST-2/train.tsv", train)
        archive.writestr("SST-2/dev.tsv", dev)
    packed = read(read_text.read_sst2, files)
    official = read(read_text.read_sst2_zip, {"SST-2.zip": stream.getvalue()})
    for data in (packed, official):
        assert (data.x_train, data.y_train.tolist()) == (['an " odd one ', "fine "], [0, 1])
        assert (data.x_test, data.y_test.tolist()) == (["poor"], [0])
        assert data.x_valid is None


def test_a_table_with_splits(read):
    table = b"split\tlabel\ttext\ntrain\t1\ta\nval\t0\tb\ntest\t1\tc\n"
    data = read(read_text.read_split_table, {"a.tsv.gz": gzip.compress(table)})
    assert (data.x_train, data.x_valid, data.x_test) == (["a"], ["b"], ["c"])
    assert data.y_valid.tolist() == [0]
    data = read(read_text.read_split_table, {"b.tsv": table.replace(b"train", b"dev")})
    assert data.x_train == ["a"]


def test_pairs(read):
    table = b"split\ten\tde\ntrain\tcat\tKatze\nval\tdog\tHund\ntest2016\tcow\tKuh\n"
    data = read(read_text.read_multi30k, {"a.tsv": table}, kind="pairs")
    assert data.train == {"en": ["cat"], "de": ["Katze"]}
    assert (data.valid["de"], data.test["de"]) == (["Hund"], ["Kuh"])


def test_corpora(read):
    files = {f"{split}.txt.xz": lzma.compress(split.encode()) for split in ("a", "b", "c")}
    data = read(read_text.read_wikitext, files, kind="corpus")
    assert (data.train, data.valid, data.test) == ("a", "b", "c")
    counts = {"train": 3, "valid": 2, "test": 1}
    data = read(read_text.read_shakespeare, {"a.txt": b"abcdef"}, counts=counts)
    assert (data.train, data.valid, data.test) == ("abc", "de", "f")


def test_enwik8_is_the_same_from_both_forms(read):
    counts = {"train": 3, "valid": 2, "test": 1}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("enwik8", b"abcdef and much more")
    for files in ({"e.xz": lzma.compress(b"abcdef")}, {"e.zip": stream.getvalue()}):
        data = read(read_text.read_enwik8, files, counts=counts)
        assert (data.train, data.valid, data.test) == (b"abc", b"de", b"f")
    with pytest.raises(DataError, match="has 3 bytes, expected 6"):
        read(read_text.read_enwik8, {"short": b"abc"}, counts=counts)


def test_series(read):
    rows = [f"1990/1/{day} 0:00,{day},{day / 8}" for day in range(1, 13)]
    table = "\r\n".join(["date,a,OT", *rows]).encode()
    counts = {"train": 7, "valid": 2, "test": 1}
    data = read(read_series.read_series, {"a.csv": table}, kind="series", counts=counts)
    assert data.columns == ("a", "OT")
    assert data.target == "OT"
    assert data.borders == (7, 9, 10)
    assert str(data.dates[-1]) == "1990-01-12T00:00:00"
    assert data.values.shape == (12, 2)
    assert data.valid.tolist() == [[8, 1], [9, 1.125]]
    # what comes after the last border belongs to no split
    assert data.test.tolist() == [[10, 1.25]]
