"""Labels of your own data: whole numbers or words, turned into places in the list of classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from reprlib import repr as short

import numpy as np

from bistoch.lab.data.kinds import DataError


@dataclass(frozen=True)
class Labelled:
    """What came with one sample: its label, and where it stood, for the error sentence."""

    label: str
    where: str


def class_names(train: Sequence[Labelled], source: str) -> tuple[str, ...]:
    """The distinct labels of train, in order: by value if all are whole numbers, else by name.

    >>> class_names([Labelled("10", "line 2"), Labelled("9", "line 3")], "my.csv")
    ('9', '10')
    """
    names = {sample.label for sample in train}
    if len(names) < 2:
        raise DataError(
            f"{source}: train must have samples of at least two classes, but it has "
            f"{len(train)} samples of {len(names)}"
        )
    if all(name.removeprefix("-").isdecimal() and len(name) < 20 for name in names):
        # 01 and 1 are two names of one value: a set alone would order them anew in every process
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def class_numbers(samples: Sequence[Labelled], classes: tuple[str, ...], source: str) -> np.ndarray:
    """The place of each label in the list of classes."""
    order = {name: place for place, name in enumerate(classes)}
    for sample in samples:
        if sample.label not in order:
            raise DataError(
                f"{source}, {sample.where}: the label {short(sample.label)} does not occur in "
                f"train, whose classes are {short(classes)}"
            )
    return np.array([order[sample.label] for sample in samples], np.int64)
