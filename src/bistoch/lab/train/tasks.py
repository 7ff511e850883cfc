"""From the name of a data set to a task and the models that fit it."""

from pathlib import Path

from bistoch.lab.data import AS_THEY_ARE, DATASETS, Corpus, Dataset, Pictures, Series, load
from bistoch.lab.data.entry import Loaded
from bistoch.lab.train.classification import Classification
from bistoch.lab.train.sequences import WINDOW, Forecast, NextCharacter
from bistoch.lab.train.task import Task
from bistoch.models import MODELS, PRESETS
from bistoch.models.build import find_row, make_config

# the model for each kind of data where none is named
DEFAULT_MODELS = {
    "images": "vit", "points": "set_transformer", "text": "text", "tokens": "text", "corpus": "lm",
    "series": "forecast",
}  # fmt: skip
# kinds of data whose samples may be read in part
WITH_LENGTH = ("text", "corpus", "points")


def open_task(
    data: str | Loaded,
    model: str | None = None,
    *,
    hold_out: bool = False,
    length: int | None = None,
    pictures: Pictures = AS_THEY_ARE,
) -> Task:
    """Load data as a task.

    Args:
        data: a name of `bistoch data list`, a path, or what `load` returned.
        model: text of the model, which decides the windows of a series.
        hold_out: whether a validation split is needed: that of the source, or a tenth of train.
        length: words read of a text, characters of a window of a corpus, or points of a cloud.
        pictures: how a folder of images is read.

    >>> open_task("shapes").kind
    'points'
    """
    found = load(data, pictures=pictures) if isinstance(data, str) else data
    if length is not None and found.kind not in WITH_LENGTH:
        raise ValueError(
            f"train: length belongs to {', '.join(WITH_LENGTH)}, but {found.name} is {found.kind}; "
            "leave it out"
        )
    task: Task
    if isinstance(found, Dataset):
        task = Classification(found, hold_out=hold_out, length=length)
        if pictures.resize is not None:
            task.facts["resize"] = pictures.resize
        if pictures.corrupt != "refuse":
            task.facts["corrupt"] = pictures.corrupt
    elif isinstance(found, Corpus):
        task = NextCharacter(found, length=length or WINDOW)
    elif isinstance(found, Series):
        model = model or DEFAULT_MODELS["series"]
        check_model(model, "series", found.name)
        _, config = make_config(model, MODELS, PRESETS, channels=found.values.shape[1])
        task = Forecast(found, lookback=config.lookback, horizon=config.horizon)
    else:
        raise _no_model(found.name, found.kind)
    if isinstance(found, Dataset | Series) and found.notes:
        task.facts["notes"] = list(found.notes)
    if hold_out and isinstance(task, Forecast) and not task.count("valid"):
        raise ValueError(task.too_short(valid=True))
    if hold_out and not task.count("valid"):
        # never by the test split
        raise ValueError(
            f"{task.name}: the validation split must have at least one window, but it has none; "
            "give more data, smaller windows, or neither --patience nor several --lr"
        )
    return task


def check_model(model: str, kind: str, name: str) -> tuple[str, ...]:
    """Check that a model takes a kind of data; returns the sizes that the data decide.

    >>> check_model("set_transformer(depth=1)", "points", "shapes")
    ('coordinates', 'classes')
    """
    row = find_row(model, MODELS, PRESETS)
    if kind not in row.data:
        fitting = " or ".join(name for name, other in MODELS.items() if kind in other.data)
        raise ValueError(
            f"train: the model {model.split('(')[0]} takes {' or '.join(row.data)}, but {name} is "
            f"{kind}; use {fitting}, for example"
        )
    return row.sizes


def default_model(data: str) -> str:
    """The model for data where none is named.

    >>> default_model("shapes")
    'set_transformer'
    """
    if data not in DATASETS and Path(data).expanduser().is_dir():
        # images may have several sizes, and are read once
        return DEFAULT_MODELS["images"]
    kind = DATASETS[data].kind if data in DATASETS else load(data).kind
    if kind not in DEFAULT_MODELS:
        raise _no_model(data, kind)
    return DEFAULT_MODELS[kind]


def _no_model(name: str, kind: str) -> ValueError:
    return ValueError(f"train: no model here learns from {name}, which is {kind}")
