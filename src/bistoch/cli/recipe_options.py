"""The options of a training recipe, shared by the verbs that train."""

from enum import StrEnum
from typing import Annotated

import typer


class Optimizer(StrEnum):
    """Who makes the steps."""

    ADAMW = "adamw"
    ADAM = "adam"
    SGD = "sgd"


class Schedule(StrEnum):
    """How the learning rate falls."""

    COSINE = "cosine"
    STEPS = "steps"
    CONSTANT = "constant"


class Precision(StrEnum):
    """What matrix products are computed in."""

    FP32 = "fp32"
    BF16 = "bf16"


PANEL = "Recipe"
Epochs = Annotated[int, typer.Option(help="Passes over the data.", rich_help_panel=PANEL)]
Batch = Annotated[int, typer.Option(help="Samples of a step.", rich_help_panel=PANEL)]
OptimizerName = Annotated[
    Optimizer, typer.Option("--optimizer", help="Who makes the steps.", rich_help_panel=PANEL)
]
WeightDecay = Annotated[
    float, typer.Option(help="Pull of matrices to zero.", rich_help_panel=PANEL)
]
ScheduleName = Annotated[
    Schedule, typer.Option("--schedule", help="How the rate falls.", rich_help_panel=PANEL)
]
Warmup = Annotated[
    float, typer.Option(help="Share of steps of rising rate.", rich_help_panel=PANEL)
]
Decay = Annotated[
    list[int] | None,
    typer.Option(
        help="Epoch from which on the rate is a tenth; repeat. With --schedule steps.",
        rich_help_panel=PANEL,
    ),
]
Clip = Annotated[
    float, typer.Option(help="Largest norm of the gradient; 0 for any.", rich_help_panel=PANEL)
]
Patience = Annotated[
    int | None,
    typer.Option(
        help="Stop after so many epochs without a better held-out score, keep the best weights.",
        rich_help_panel=PANEL,
    ),
]
PrecisionName = Annotated[
    Precision,
    typer.Option("--precision", help="Of matrix products.", rich_help_panel=PANEL),
]
Length = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Words read of a text, characters of a window of running text, or points of a cloud.",
        show_default="256, 128, all",
    ),
]
Data = Annotated[str, typer.Option(help="A name of `bistoch data list`, or a path of yours.")]
Model = Annotated[
    str | None,
    typer.Option(
        help="Such as vit or 'vit(patch=(7,7), depth=2)'.", show_default="what fits the data"
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or cuda:1 for a certain GPU.")]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard/--no-tensorboard", help="Files for TensorBoard, too.")
]
