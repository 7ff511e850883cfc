"""A cut or damaged file is one sentence, wherever it is cut."""

import gzip
import io
import lzma

import numpy as np
import pytest

from bistoch.lab.data import DataError
from bistoch.lab.data.read_files import read_arrays, read_bytes, read_lines, read_text

CONTENT = "Grüße, \u2028 an alle\r\n\nzweite Zeile\n".encode() * 7
PACKED = {"a.gz": gzip.compress(CONTENT), "a.xz": lzma.compress(CONTENT), "a": CONTENT}


def npz():
    stream = io.BytesIO()
    np.savez_compressed(stream, x=np.arange(97), y=np.array(["a", "b"]))
    return stream.getvalue()


@pytest.mark.parametrize("name", PACKED)
def test_whatever_it_is_packed_with(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(PACKED[name])
    assert read_bytes(path) == CONTENT
    assert read_bytes(path, 5) == CONTENT[:5]
    assert read_text(path) == CONTENT.decode()


def test_only_a_line_feed_ends_a_line(tmp_path):
    (tmp_path / "a").write_bytes(CONTENT)
    assert read_lines(tmp_path / "a") == ["Grüße, \u2028 an alle", "zweite Zeile"] * 7


@pytest.mark.parametrize("name", ["a.gz", "a.xz"])
def test_cut_anywhere(tmp_path, name):
    path = tmp_path / name
    for length in range(1, len(PACKED[name]) - 1):
        path.write_bytes(PACKED[name][:length])
        with pytest.raises(DataError, match=rf"{name} is cut or damaged \(.*\); replace it"):
            read_bytes(path)


@pytest.mark.parametrize("name", ["a.gz", "a.xz"])
def test_one_wrong_byte_anywhere_is_seen_or_harmless(tmp_path, name):
    path = tmp_path / name
    for place in range(len(PACKED[name])):
        wrong = bytearray(PACKED[name])
        wrong[place] ^= 0xFF
        path.write_bytes(wrong)
        try:
            # the head of a gzip file has fields that mean nothing to the content
            assert read_bytes(path) == CONTENT
        except DataError as told:
            assert "is cut or damaged" in str(told)  # noqa: PT017


def test_arrays_cut_anywhere(tmp_path):
    path, whole = tmp_path / "a.npz", npz()
    path.write_bytes(whole)
    assert read_arrays(path)["x"].tolist() == list(range(97))
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"a\.npz is (cut or damaged|not a whole \.npz file)"):
            read_arrays(path)


def test_one_wrong_byte_in_arrays(tmp_path):
    path, whole = tmp_path / "a.npz", npz()
    for place in range(len(whole)):
        wrong = bytearray(whole)
        wrong[place] ^= 0xFF
        path.write_bytes(wrong)
        try:
            read_arrays(path)
        except DataError as told:
            assert str(path) in str(told)  # noqa: PT017


@pytest.mark.parametrize("name", ["a.gz", "a.xz", "a.npz", "a"])
def test_what_unpacks_to_more_than_the_limit_is_refused(tmp_path, monkeypatch, name):
    path, zeros = tmp_path / name, bytes(5_000_000)
    packed = {"a.gz": gzip.compress, "a.xz": lzma.compress}.get(name, bytes)
    path.write_bytes(packed(zeros))
    if name == "a.npz":
        np.savez_compressed(path, x=np.zeros(5_000_000, np.uint8))
    read = read_arrays if name == "a.npz" else read_bytes
    monkeypatch.setenv("BISTOCH_READ_LIMIT", "0.004")
    with pytest.raises(DataError, match=rf"{name} holds more than 0.004 GB once .* set BISTOCH_RE"):
        read(path)
    monkeypatch.setenv("BISTOCH_READ_LIMIT", "0.01")
    assert len(read(path)) in (1, 5_000_000)
    monkeypatch.setenv("BISTOCH_READ_LIMIT", "much")
    with pytest.raises(DataError, match="must be a number of gigabytes, but it is 'much'"):
        read(path)


def test_too_little_memory_is_a_sentence(tmp_path, monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr("lzma.LZMAFile.read", full)
    monkeypatch.setattr("numpy.lib.format.read_array", full)
    (tmp_path / "a.xz").write_bytes(PACKED["a.xz"])
    with pytest.raises(DataError, match=r"a\.xz needs more memory than this machine has left"):
        read_bytes(tmp_path / "a.xz")


def test_what_is_not_an_npz(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    (tmp_path / "a.npy").rename(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", x=np.array([{}], object))
    for name in ("b.npz", "c.npz"):
        with pytest.raises(DataError, match=r"not a whole \.npz file of plain arrays"):
            read_arrays(tmp_path / name)


def test_text_in_another_encoding(tmp_path):
    (tmp_path / "a.txt").write_bytes("one\nGrüße".encode("latin-1"))
    with pytest.raises(
        DataError, match=r"a\.txt, line 2: text must be UTF-8, .* 0xfc .*save it as"
    ):
        read_text(tmp_path / "a.txt")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*none\.gz: No such file"):
        read_bytes(tmp_path / "none.gz")
