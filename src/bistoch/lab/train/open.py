"""From the name of a data set to a task: one door for every kind of data."""

from typing import Any

from bistoch.lab.data import Corpus, Dataset, Series, load
from bistoch.lab.train.classify import Classify
from bistoch.lab.train.task import Task


def open_task(data: str, *, hold_out: bool = False, **options: Any) -> Task:
    """Load data and turn them into a task.

    Args:
        data: a name of `bistoch data list`, or a path.
        hold_out: whether to hold out a tenth of train if the source has no valid split.
        options: those of the task: `length`, the longest sentence that is read whole.

    >>> open_task("shapes").kind
    'points'
    """
    found = load(data)
    if isinstance(found, Dataset) and found.kind != "text":
        return Classify(found, hold_out=hold_out)
    raise NotImplementedError(found.kind)
