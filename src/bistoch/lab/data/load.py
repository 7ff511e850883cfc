"""One door to all data: a name of the table, or a path to your own."""

from os import PathLike
from typing import Literal, overload

from bistoch.lab.data.entry import Loaded
from bistoch.lab.data.kinds import Corpus, DataError, Dataset, Pairs, Series
from bistoch.lab.data.packed import check_whole
from bistoch.lab.data.places import find, missing
from bistoch.lab.data.table import DATASETS

CorpusName = Literal["wikitext2", "tiny-shakespeare", "enwik8"]
SeriesName = Literal["etth1", "etth2", "ettm1", "ettm2", "weather", "exchange", "illness"]


@overload
def load(source: CorpusName) -> Corpus: ...  # type: ignore[overload-overlap]
@overload
def load(source: SeriesName) -> Series: ...  # type: ignore[overload-overlap]
@overload
def load(source: Literal["multi30k"]) -> Pairs: ...  # type: ignore[overload-overlap]
@overload
def load(source: str | PathLike[str]) -> Dataset: ...
def load(source: str | PathLike[str]) -> Loaded:
    """A data set by its name in the table.

    Files are looked for in BISTOCH_DATA, the cache and the system's packages, and their checksums
    are compared with the table. Nothing is fetched: that is what `bistoch data get` is for.

    Args:
        source: a name, see `bistoch data list`.

    >>> data = load("fashion-mnist-small")
    >>> data.x_train.shape, data.x_train.dtype, data.classes[data.y_train[0]]
    ((4000, 28, 28), dtype('uint8'), 'Ankle boot')
    """
    if source not in DATASETS:
        raise DataError(f"{source!r} is not a data set; known names are {', '.join(DATASETS)}")
    entry = DATASETS[str(source)]
    if entry.make is not None:
        return entry.make(entry)
    found = find(entry)
    if found is None:
        raise missing(entry)
    for file in found.form.files:
        check_whole(entry.name, file, found.paths[file.path])
    return found.form.read(entry, found.paths)
