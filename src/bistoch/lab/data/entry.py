"""A row of the table of data sets, and the files it may be read from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bistoch.lab.data.kinds import Corpus, Dataset, Pairs, Series

Loaded = Dataset | Corpus | Pairs | Series


@dataclass(frozen=True)
class File:
    """One file: its path below a data folder, its size in bytes and its checksum.

    `url` is the official address of exactly these bytes, if there is one. `repacked` is the
    checksum of the same content compressed by somebody else.
    """

    path: str
    size: int
    sha256: str
    url: str | None = None
    repacked: str | None = None


@dataclass(frozen=True)
class Form:
    """One set of files with the data, and the function that reads them, given their paths."""

    read: Callable[["Entry", Mapping[str, Path]], Loaded]
    files: tuple[File, ...]

    @property
    def official(self) -> bool:
        """Whether every file can be downloaded from its official address."""
        return all(file.url for file in self.files)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Entry:
    """A data set: what it is, its source and licence, and the forms it can be read from.

    `counts` are samples of each split: characters or bytes of a corpus, rows of a series.
    """

    name: str
    kind: str
    about: str
    home: str
    licence: str
    counts: Mapping[str, int]
    classes: tuple[str, ...] = ()
    forms: tuple[Form, ...] = ()
    # makes the data from a fixed seed, where there are no files
    make: Callable[["Entry"], Loaded] | None = None

    @property
    def official(self) -> Form | None:
        """The form that can be downloaded, if there is one."""
        return next((form for form in self.forms if form.official), None)
