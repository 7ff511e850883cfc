"""Labels of your own data: whole numbers or words, turned into places in the list of classes."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    if all(name.removeprefix("-").isdecimal() for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


def class_numbers(samples: Sequence[Labelled], classes: tuple[str, ...], source: str) -> np.ndarray:
    """The place of each label in the list of classes."""
    order = {name: place for place, name in enumerate(classes)}
    for sample in samples:
        if sample.label not in order:
            raise DataError(
                f"{source}, {sample.where}: the label {sample.label!r} does not occur in train, "
                f"whose classes are {', '.join(classes[:12])}{', ...' * (len(classes) > 12)}"
            )
    return np.array([order[sample.label] for sample in samples], np.int64)
