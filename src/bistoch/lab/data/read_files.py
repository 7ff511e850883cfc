"""Read files: checked by their checksum, plain or compressed, with a limit on their size."""

import csv
import gzip
import hashlib
import io
import itertools
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from bistoch.lab.data.entry import File
from bistoch.lab.data.kinds import DataError

# what readers of compressed files raise when the bytes are damaged
BROKEN = (
    EOFError, gzip.BadGzipFile, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, zlib.error,
    UnicodeDecodeError,
)  # fmt: skip
# gigabytes that a file may hold once it is unpacked: a small file can unpack to a thousand times
# its size; BISTOCH_READ_LIMIT sets another limit
READ_LIMIT = 2.0
CHUNK = 1 << 20


def sha256_of(path: Path) -> str:
    """The checksum of a file, as 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_whole(name: str, file: File, path: Path) -> None:
    """Raise an error for a file whose checksum is not in the table."""
    with damage_errors(path):
        found, size = sha256_of(path), path.stat().st_size
    if found not in (file.sha256, file.repacked):
        wanted = " or ".join(known[:12] for known in (file.sha256, file.repacked) if known)
        remedy = f"run `bistoch data get {name}`" if file.url else "replace it by a complete copy"
        raise DataError(
            f"{name}: {path} is not the file in the table: its sha256 starts with {found[:12]}, "
            f"expected {wanted}, and it has {size} bytes, expected {file.size}; remove it and "
            f"{remedy}"
        )


@contextmanager
def damage_errors(path: Path) -> Iterator[None]:
    """Turn the errors of a reader about a cut or damaged file into one sentence."""
    try:
        yield
    except BROKEN as broken:
        raise DataError(
            f"{path} is cut or damaged ({type(broken).__name__}: {broken}); replace it by a "
            "complete copy"
        ) from broken
    except OSError as refused:
        raise DataError(f"cannot read {path}: {refused.strerror or refused}") from refused
    except MemoryError as full:
        raise DataError(f"{path} needs more memory than this machine has left") from full


def check_unpacked(path: Path, size: int) -> None:
    """Raise an error for a file with more bytes than the limit."""
    text = os.environ.get("BISTOCH_READ_LIMIT", "")
    try:
        limit = float(text or READ_LIMIT)
    except ValueError:
        raise DataError(
            f"BISTOCH_READ_LIMIT must be a number of gigabytes, but it is {text!r}"
        ) from None
    if size > limit * 1e9:
        raise DataError(
            f"{path} holds more than {limit:g} GB once it is unpacked, the limit for one file; if "
            "that is what it should hold, set BISTOCH_READ_LIMIT to more gigabytes"
        )


def form_of(path: Path) -> str:
    """The suffix of a file without that of its compression, in lower case.

    >>> form_of(Path("v1.txt.CSV.gz")), form_of(Path("mine.npz")), form_of(Path("mine"))
    ('.csv', '.npz', '')
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes[-1:] in ([".gz"], [".xz"]) and len(suffixes) > 1
    return suffixes[-2 if packed else -1] if suffixes else ""


def read_bytes(path: Path, limit: int = -1) -> bytes:
    """The content of a plain, .gz or .xz file; only the first `limit` bytes if given."""
    with damage_errors(path):
        if path.suffix.lower() == ".gz":
            with gzip.open(path) as stream:
                return _read(stream, path, limit)
        if path.suffix.lower() == ".xz":
            with lzma.open(path) as stream:
                return _read(stream, path, limit)
        with path.open("rb") as plain:
            return _read(plain, path, limit)


def _read(stream: IO[bytes] | gzip.GzipFile, path: Path, limit: int) -> bytes:
    if limit >= 0:
        return stream.read(limit)
    content = io.BytesIO()
    while chunk := stream.read(CHUNK):
        content.write(chunk)
        check_unpacked(path, content.tell())
    return content.getvalue()


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """The content of a plain, .gz or .xz text file, with the line ends it has."""
    content = read_bytes(path)
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as broken:
        line = content.count(b"\n", 0, broken.start) + 1
        raise DataError(
            f"{path}, line {line}: text must be UTF-8, but there is the byte "
            f"0x{content[broken.start]:02x} ({broken.reason}); save it as UTF-8, or replace it "
            "by a complete copy"
        ) from broken


def read_lines(path: Path) -> list[str]:
    """The lines of a plain, .gz or .xz text file that are not empty, without their ends."""
    # only the line feed ends a line: sentences contain other characters that Python splits at
    return [line.removesuffix("\r") for line in read_text(path).split("\n") if line.strip("\r")]


def read_table(path: Path, form: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a .csv or .tsv file that are not empty, each with the number of its line."""
    text = io.StringIO(read_text(path, "utf-8-sig"), newline="")
    # tables with tabs are written without quotes; a quote in them is part of a sentence
    plain = csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
    reader = plain if form == ".tsv" else csv.reader(text, strict=True)
    # a review may be longer than what the csv module expects of a field
    limit = csv.field_size_limit(2**31 - 1)
    try:
        rows = ((reader.line_num, fields) for fields in reader if fields)
        for line, fields in itertools.islice(rows, 1):
            if form == ".csv" and len(fields) == 1:
                _check_commas(path, line, fields[0])
            yield line, fields
        yield from rows
    except csv.Error as broken:
        raise DataError(f"{path}, line {reader.line_num}: {broken}") from broken
    finally:
        csv.field_size_limit(limit)


def _check_commas(path: Path, line: int, head: str) -> None:
    for sign, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if sign in head:
            raise DataError(
                f"{path}, line {line}: values must be separated by commas, but {head[:200]!r} has "
                f"{name}; save the file with commas and decimal points, for example by "
                f"pandas.read_csv(..., sep={sign!r}) and to_csv(..., index=False)"
            )


def read_arrays(path: Path) -> Mapping[str, np.ndarray]:
    """All arrays of an .npz file by name; pickled objects are refused."""
    with damage_errors(path):
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                check_unpacked(path, sum(member.file_size for member in arrays.zip.infolist()))
                return {key: arrays[key] for key in arrays.files}
        except (*BROKEN, OSError, MemoryError, DataError):
            raise
        except Exception as broken:
            # a damaged archive makes its readers raise nearly anything
            raise DataError(
                f"{path} is not a whole .npz file of plain arrays ({broken}); write it again with "
                "numpy.savez_compressed"
            ) from broken


def read_array(path: Path) -> np.ndarray:
    """The array of an .npy file, or the only one of an .npz file, or the one called x or x_test."""
    if path.suffix.lower() == ".npy":
        with damage_errors(path), path.open("rb") as stream:
            check_unpacked(path, path.stat().st_size)
            try:
                array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
            except ValueError as broken:
                raise DataError(f"{path} is not a whole .npy file ({broken})") from None
        return array
    arrays = read_arrays(path)
    name = next((key for key in ("x", "x_test") if key in arrays), None)
    if name is None and len(arrays) != 1:
        raise DataError(
            f"{path} must hold one array, or one that is called x, but it holds "
            f"{', '.join(arrays) or 'none'}"
        )
    return arrays[name or next(iter(arrays))]
