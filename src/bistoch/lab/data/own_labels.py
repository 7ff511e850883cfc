"""Labels of your own data as class indices, and a test split for data that have none."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from reprlib import repr as short

import numpy as np

from bistoch.lab.data.kinds import DataError

TEST_SHARE = 5


@dataclass(frozen=True)
class Labelled:
    """The label of one sample, and where it was found, for errors."""

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
        # 01 and 1 have one value: by value alone their order would change from process to process
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def class_numbers(samples: Sequence[Labelled], classes: tuple[str, ...], source: str) -> np.ndarray:
    """The index of each label in the list of classes."""
    order = {name: index for index, name in enumerate(classes)}
    for sample in samples:
        if sample.label not in order:
            raise DataError(
                f"{source}, {sample.where}: the label {short(sample.label)} does not occur in "
                f"train, whose classes are {short(classes)}"
            )
    return np.array([order[sample.label] for sample in samples], np.int64)


def held_out(keys: Sequence[str], labels: np.ndarray) -> np.ndarray:
    """Which samples are test: of each class the fifth whose keys have the smallest checksums.

    The key is the text of a sample or the name of its file. So the split is the same on every
    machine and for every order of the samples, and equal texts of a class are on the same side.

    >>> held_out(["a", "b", "c", "d", "e", "f"], np.zeros(6, int))
    array([False, False, False,  True, False, False])
    """
    digests = np.array([hashlib.sha256(key.encode()).hexdigest() for key in keys])
    test = np.zeros(len(keys), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = max(1, round(len(members) / TEST_SHARE))
        chosen = members[digests[members] <= np.sort(digests[members])[count - 1]]
        # a class of one text only, however often, stays in train
        if len(chosen) < len(members):
            test[chosen] = True
    return test
