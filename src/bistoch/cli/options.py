"""Options that several commands share, and the options of a training recipe."""

import inspect
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from bistoch.lab.data import Pictures
    from bistoch.lab.train import Recipe


class Optimizer(StrEnum):
    """The optimizer."""

    ADAMW = "adamw"
    ADAM = "adam"
    SGD = "sgd"


class Schedule(StrEnum):
    """The learning rate schedule."""

    COSINE = "cosine"
    STEPS = "steps"
    CONSTANT = "constant"
    HALVING = "halving"
    DECAY = "decay"


class Precision(StrEnum):
    """The precision of matrix products."""

    FP32 = "fp32"
    BF16 = "bf16"


class Parallel(StrEnum):
    """How several processes share a model."""

    DDP = "ddp"
    FSDP = "fsdp"


class Resize(StrEnum):
    """How pictures get one size."""

    FIT = "fit"
    CROP = "crop"


class Corrupt(StrEnum):
    """What becomes of files that cannot be read."""

    REFUSE = "refuse"
    SKIP = "skip"


PANEL, IMAGES = "Recipe", "Folders of images"


def option(text: str, *names: str, default: str | bool = True, **more: Any) -> Any:
    """An option with its help text; `default` is shown where the default is None."""
    return typer.Option(*names, help=text, show_default=default, **more)


AsJson = Annotated[bool, option("Print JSON, for scripts.", "--json")]
Data = Annotated[str, option("A name of `bistoch data list`, or a path of yours.")]
Model = Annotated[
    str | None,
    option("Such as vit or 'vit(patch=(7,7), depth=2)'.", default="what fits the data"),
]
Length = Annotated[
    int | None,
    option(
        "Words read of a text, characters of a window of a corpus, or points of a cloud.",
        default="256, 128, all", min=1,
    ),
]  # fmt: skip
ResizeTo = Annotated[
    Resize | None,
    option(
        "Scale images: fit keeps all of each and fills the rest, crop cuts what is outside.",
        "--resize", default="one size for all", rich_help_panel=IMAGES,
    ),
]  # fmt: skip
ImageSize = Annotated[
    str | None,
    option(
        "Size to scale to, such as 64 or 48x64 (height x width).",
        default="that of the median image, at most 64", rich_help_panel=IMAGES,
    ),
]  # fmt: skip
OnCorrupt = Annotated[
    Corrupt,
    option(
        "Files that cannot be read: refuse lists them and stops, skip leaves them out.",
        "--corrupt", rich_help_panel=IMAGES,
    ),
]  # fmt: skip
Device = Annotated[str, option("cpu, cuda, or cuda:1 for a certain GPU.")]
TensorBoard = Annotated[
    bool, option("Also write files for TensorBoard.", "--tensorboard/--no-tensorboard")
]


def read_pictures(resize: Resize | None, size: str | None, corrupt: Corrupt) -> "Pictures":
    """How a folder of images is read, from the words of a command."""
    from bistoch.lab.data import Pictures, read_size

    return Pictures(None if resize is None else resize.value, read_size(size), corrupt.value)


def _option(text: str) -> Any:
    return option(text, rich_help_panel=PANEL)


def _recipe(
    *,
    epochs: Annotated[int, _option("Passes over the training data.")] = 10,
    batch_size: Annotated[int, _option("Samples per step.")] = 64,
    optimizer: Annotated[Optimizer, _option("The optimizer.")] = Optimizer.ADAMW,
    weight_decay: Annotated[float, _option("Weight decay of matrices.")] = 0.01,
    schedule: Annotated[Schedule, _option("Learning rate schedule.")] = Schedule.COSINE,
    warmup: Annotated[float, _option("Fraction of the steps with linear warmup.")] = 0.05,
    milestone: Annotated[
        list[int] | None,
        _option("Epoch at which the learning rate is divided by ten; repeat. For steps."),
    ] = None,
    clip: Annotated[float, _option("Largest gradient norm; 0 does not clip.")] = 1.0,
    patience: Annotated[
        int | None,
        _option("Early stopping: epochs without a better validation score; keeps the best."),
    ] = None,
    precision: Annotated[Precision, _option("bf16 for autocast.")] = Precision.FP32,
) -> "Recipe":
    from bistoch.lab.train import Recipe

    return Recipe(
        epochs=epochs, batch_size=batch_size, optimizer=optimizer.value, weight_decay=weight_decay,
        schedule=schedule.value, warmup=warmup, milestones=tuple(milestone or ()),
        clip=clip or None, patience=patience, precision=precision.value,
    )  # fmt: skip


def with_recipe(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter `recipe` is made from options; the command adds the rate."""
    options = inspect.signature(_recipe).parameters
    own = {n: p for n, p in inspect.signature(command).parameters.items() if n != "recipe"}

    @wraps(command)
    def run(**given: Any) -> None:
        recipe = _recipe(**{name: given.pop(name) for name in options})
        command(recipe=recipe, **given)

    parameters = {**own, **options}
    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return run
