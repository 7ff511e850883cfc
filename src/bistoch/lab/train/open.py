"""From the name of a data set to a task: one door for every kind of data."""

from bistoch.lab.data import DATASETS, Corpus, Dataset, Series, load
from bistoch.lab.data.entry import Loaded
from bistoch.lab.train.classify import Classify
from bistoch.lab.train.running import WINDOW, Forecast, NextCharacter
from bistoch.lab.train.sentences import LONGEST, Sentences
from bistoch.lab.train.task import Task
from bistoch.models import MODELS, PRESETS
from bistoch.models.build import make_config

# the model of each kind of data, where none is named
USUAL = {
    "images": "vit", "points": "set_transformer", "text": "text", "tokens": "text", "corpus": "lm",
    "series": "forecast",
}  # fmt: skip
# kinds of data of which only a part may be read
CUT = ("text", "corpus", "points")


def open_task(
    data: str, model: str | None = None, *, hold_out: bool = False, length: int | None = None
) -> Task:
    """Load data and turn them into a task.

    Args:
        data: a name of `bistoch data list`, or a path.
        model: text of the model, which decides the windows of a series.
        hold_out: whether to hold out a tenth of train if the source has no valid split.
        length: words that are read of a text, characters of a window of running text, or points
            that are read of a cloud.

    >>> open_task("shapes").kind
    'points'
    """
    task = _open_task(load(data), data, model, hold_out, length)
    if hold_out and not task.count("valid"):
        # never by the test split
        raise ValueError(
            f"{task.name}: to choose by held-out samples valid must have at least one window, but "
            "it has none; give more data, smaller windows, or nothing to choose"
        )
    return task


def _open_task(
    found: Loaded, data: str, model: str | None, hold_out: bool, length: int | None
) -> Task:
    if length is not None and found.kind not in CUT:
        raise ValueError(
            f"train: a length belongs to {', '.join(CUT)}, but {data} is {found.kind}; leave it out"
        )
    if isinstance(found, Dataset):
        if found.kind == "text":
            return Sentences(found, hold_out=hold_out, length=length or LONGEST)
        return Classify(found, hold_out=hold_out, length=length)
    if isinstance(found, Corpus):
        return NextCharacter(found, length=length or WINDOW)
    if isinstance(found, Series):
        check_model(model or USUAL["series"], "series", found.name)
        sizes = {"channels": found.values.shape[1]}
        _, config = make_config(model or USUAL["series"], MODELS, PRESETS, **sizes)
        return Forecast(found, lookback=config.lookback, horizon=config.horizon)
    raise ValueError(f"train: no model here learns from {found.name}, which is {found.kind}")


def check_model(model: str, kind: str, name: str) -> tuple[str, ...]:
    """Check that a model takes a kind of data; the sizes of it that the data decide.

    >>> check_model("set_transformer(depth=1)", "points", "shapes")
    ('coordinates', 'classes')
    """
    word = model.split("(")[0].strip()
    if word not in MODELS and word not in PRESETS:
        known = ", ".join([*MODELS, *PRESETS])
        raise ValueError(f"train: unknown model {word!r}; known are {known}")
    row = MODELS[PRESETS[word].model if word in PRESETS else word]
    if kind not in row.data:
        fitting = " or ".join(name for name, other in MODELS.items() if kind in other.data)
        raise ValueError(
            f"train: the model {word} takes {' or '.join(row.data)}, but {name} is {kind}; take "
            f"{fitting}, for example"
        )
    return row.sizes


def usual_model(data: str) -> str:
    """The model for data, where none is named.

    >>> usual_model("shapes")
    'set_transformer'
    """
    kind = DATASETS[data].kind if data in DATASETS else load(data).kind
    if kind not in USUAL:
        raise ValueError(f"train: no model here learns from {data}, which is {kind}")
    return USUAL[kind]
