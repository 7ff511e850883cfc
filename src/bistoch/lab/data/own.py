"""Your own data, by path: what the file is called says how it is read."""

from pathlib import Path

from bistoch.lab.data.entry import Loaded
from bistoch.lab.data.kinds import Corpus, DataError
from bistoch.lab.data.own_arrays import read_own_arrays
from bistoch.lab.data.own_pictures import read_own_pictures
from bistoch.lab.data.own_text import head_of, read_own_text
from bistoch.lab.data.packed import read_text
from bistoch.lab.data.read_series import parse_series

KINDS = ".npz, .csv, .tsv, .jsonl, .txt (the last four also as .gz or .xz), or a folder of pictures"


def load_own(path: Path) -> Loaded:
    """Read a file or a folder of yours; see the page on data for what each must look like."""
    if path.is_dir():
        return read_own_pictures(path)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes[-1:] in ([".gz"], [".xz"])
    form = suffixes[-2] if packed and len(suffixes) > 1 else suffixes[-1] if suffixes else ""
    if form == ".npz" and not packed:
        return read_own_arrays(path)
    if form in {".csv", ".tsv"}:
        # a table of dates and numbers is a series
        if form == ".csv" and head_of(path, form)[:1] == ["date"]:
            return parse_series(path.name.split(".")[0], path)
        return read_own_text(path, form)
    if form == ".jsonl":
        return read_own_text(path, form)
    if form == ".txt":
        return _own_corpus(path)
    raise DataError(f"{path}: data of your own must be {KINDS}, but its name ends in {form!r}")


def _own_corpus(path: Path) -> Corpus:
    text = read_text(path, "utf-8-sig")
    # the same cut as for tiny-shakespeare
    train, valid = int(len(text) * 0.9), int(len(text) * 0.95)
    if not 0 < train < valid < len(text):
        raise DataError(
            f"{path}: {len(text)} characters are too few to be cut 90 : 5 : 5 into train, valid "
            "and test; twenty are needed"
        )
    return Corpus(path.name.split(".")[0], "corpus", text[:train], text[train:valid], text[valid:])
