"""What `load` returns: one frozen class for each kind of data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

# an array or a list of strings, as `kind` says; with a union every caller would have to check
Samples = Any
Labels = Int[np.ndarray, "n"]


class DataError(ValueError):
    """The data cannot be used as they are; the message says what is wrong and what to do."""


class DataMissingError(DataError):
    """The data are in none of the folders that were searched."""


@dataclass(frozen=True)
class Dataset:
    """Samples with labels, split into train and test (and valid, where the source has one).

    `kind` says what a sample is: "images" are uint8 (n, h, w) or (n, h, w, 3), "points" float32
    (n, p, 3), "tokens" int64 (n, length), "text" a list of strings. Labels are int64 and index
    `classes`. `notes` say what was left out or converted.
    """

    name: str
    kind: Literal["images", "points", "tokens", "text"]
    x_train: Samples
    y_train: Labels
    x_test: Samples
    y_test: Labels
    classes: tuple[str, ...]
    x_valid: Samples | None = None
    y_valid: Labels | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def from_splits(
        cls,
        name: str,
        kind: Any,
        x: Mapping[str, Samples],
        y: Mapping[str, Labels],
        classes: tuple[str, ...],
    ) -> "Dataset":
        """A data set from samples and labels by split; "valid" may be missing."""
        labels = {split: np.asarray(numbers, np.int64) for split, numbers in y.items()}
        return cls(
            name, kind, x["train"], labels["train"], x["test"], labels["test"], classes,
            x.get("valid"), labels.get("valid"),
        )  # fmt: skip


@dataclass(frozen=True)
class Corpus:
    """Text for language modelling: strings, or bytes where the unit is the byte."""

    name: str
    kind: Literal["corpus"]
    train: str | bytes
    valid: str | bytes
    test: str | bytes


@dataclass(frozen=True)
class Pairs:
    """Sentences in several languages, line by line: `train["en"][i]` means `train["de"][i]`."""

    name: str
    kind: Literal["pairs"]
    train: dict[str, list[str]]
    valid: dict[str, list[str]]
    test: dict[str, list[str]]


@dataclass(frozen=True)
class Series:
    """Several columns of numbers over time, with the usual borders of train, valid and test.

    `borders` are the ends of train, valid and test, counted in rows from the start. A forecast is
    of the split its first predicted row lies in; what it looks back at may lie before the border.
    `source` is the file, for sentences about it; `notes` say where steps are missing.
    """

    name: str
    kind: Literal["series"]
    values: Float[np.ndarray, "time column"]
    dates: np.ndarray
    columns: tuple[str, ...]
    target: str
    borders: tuple[int, int, int]
    source: str = ""
    notes: tuple[str, ...] = ()

    @property
    def train(self) -> Float[np.ndarray, "time column"]:
        """The rows before the first border."""
        return self.values[: self.borders[0]]

    @property
    def valid(self) -> Float[np.ndarray, "time column"]:
        """The rows between the first and the second border."""
        return self.values[self.borders[0] : self.borders[1]]

    @property
    def test(self) -> Float[np.ndarray, "time column"]:
        """The rows between the second and the last border."""
        return self.values[self.borders[1] : self.borders[2]]
