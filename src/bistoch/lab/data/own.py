"""Your own data by path: the name of the file says how it is read."""

from pathlib import Path

from bistoch.lab.data.entry import Loaded
from bistoch.lab.data.kinds import Corpus, DataError
from bistoch.lab.data.own_arrays import read_own_arrays
from bistoch.lab.data.own_images import read_own_images
from bistoch.lab.data.own_text import read_own_text
from bistoch.lab.data.pictures import AS_THEY_ARE, Pictures
from bistoch.lab.data.read_files import form_of, read_table, read_text
from bistoch.lab.data.read_series import is_date, parse_series

KINDS = ".npz, .csv, .tsv, .jsonl, .txt (the last four also as .gz or .xz), or a folder of images"


def load_own(path: Path, pictures: Pictures = AS_THEY_ARE) -> Loaded:
    """Read a file or a folder of yours; see the page on data for what each must look like."""
    if path.is_dir():
        return read_own_images(path, pictures)
    refuse_pictures(str(path), pictures)
    form = form_of(path)
    if path.suffix.lower() == ".npz":
        return read_own_arrays(path)
    if form in {".csv", ".tsv"}:
        # a table of dates and numbers is a series; texts may have a date, too
        _, head = next(read_table(path, form), (1, []))
        if not head:
            raise DataError(
                f"{path}: the file is empty; a series has the column date first, then columns of "
                "numbers (.csv only); sentences have the columns text and label (and split, if you "
                "have one)"
            )
        if is_date(head[0]) and "text" not in head:
            if form == ".tsv":
                raise DataError(
                    f"{path}: a series must be a .csv file, with values separated by commas, but "
                    "this is a .tsv file of tabs; save it as .csv"
                )
            return parse_series(path.name.split(".")[0], path)
        return read_own_text(path, form)
    if form == ".jsonl":
        return read_own_text(path, form)
    if form == ".txt":
        return _own_corpus(path)
    raise DataError(f"{path}: data of your own must be {KINDS}, but its name ends in {form!r}")


def refuse_pictures(source: str, pictures: Pictures) -> None:
    """Only folders of images are scaled, or have files to skip."""
    if pictures != AS_THEY_ARE:
        raise DataError(
            f"{source}: resize, size and corrupt belong to folders of images, and this is none; "
            "leave them out"
        )


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
