"""Load data: by a name of the table, or by the path of your own."""

import difflib
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, overload

from bistoch.lab.data.entry import Entry, Loaded
from bistoch.lab.data.kinds import Corpus, DataError, Dataset, Pairs, Series
from bistoch.lab.data.locations import find, missing
from bistoch.lab.data.own import load_own, refuse_pictures
from bistoch.lab.data.pictures import AS_THEY_ARE, Pictures
from bistoch.lab.data.read_files import check_whole
from bistoch.lab.data.table import DATASETS

LabelledName = Literal[
    "fashion-mnist-small", "fashion-mnist", "mnist", "cifar10", "modelnet10", "shapes", "recall",
    "imdb", "sst2", "agnews", "tweeteval-emotion",
]  # fmt: skip
CorpusName = Literal["wikitext2", "tiny-shakespeare", "enwik8"]
SeriesName = Literal["etth1", "etth2", "ettm1", "ettm2", "weather", "exchange", "illness"]


@overload
def load(source: LabelledName) -> Dataset: ...
@overload
def load(source: CorpusName) -> Corpus: ...
@overload
def load(source: SeriesName) -> Series: ...
@overload
def load(source: Literal["multi30k"]) -> Pairs: ...
@overload
def load(source: str | PathLike[str], *, pictures: Pictures = ...) -> Any: ...
def load(
    source: str | PathLike[str],
    *,
    pictures: Pictures = AS_THEY_ARE,
) -> Loaded:
    """A data set: by its name in the table, or by the path of data of your own.

    Files of the table are searched in BISTOCH_DATA, the cache, the system's packages and this
    package, and their checksums are compared with the table. Nothing is downloaded: that is what
    `bistoch data get` does.

    Args:
        source: a name, see `bistoch data list`, or a path: an .npz file of arrays, a folder with
            one folder of images per class, a .csv, .tsv or .jsonl file of texts and labels,
            a .csv file of dates and numbers, a .txt file.
        pictures: how a folder of images is read: scaled to one size, damaged files skipped.

    >>> data = load("fashion-mnist-small")
    >>> data.x_train.shape, data.x_train.dtype, data.classes[data.y_train[0]]
    ((4000, 28, 28), dtype('uint8'), 'Ankle boot')
    """
    name = fspath(source)
    # an empty name would be the working directory
    if name and name not in DATASETS and Path(name).expanduser().exists():
        return load_own(Path(name).expanduser(), pictures)
    entry = entry_of(name)
    refuse_pictures(name, pictures)
    if entry.make is not None:
        return entry.make(entry)
    found = find(entry)
    if found is None:
        raise missing(entry)
    for file in found.form.files:
        check_whole(entry.name, file, found.paths[file.path])
    return found.form.read(entry, found.paths)


def entry_of(name: str) -> Entry:
    """The row of the table with this name."""
    if name in DATASETS:
        return DATASETS[name]
    if Path(name).suffix or "/" in name or "\\" in name:
        raise DataError(f"{name} does not exist, and is no name of a data set either")
    close = difflib.get_close_matches(name, DATASETS, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(DATASETS)}"
    raise DataError(f"{name!r} is neither a data set nor a file; {hint}")
