"""The verb that trains the same model with several operators: `bistoch compare`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bistoch.cli.mistakes import one_sentence
from bistoch.cli.recipe_options import (
    Batch,
    Clip,
    Data,
    Decay,
    Device,
    Epochs,
    Length,
    Model,
    Optimizer,
    OptimizerName,
    Patience,
    Precision,
    PrecisionName,
    Schedule,
    ScheduleName,
    TensorBoard,
    Warmup,
    WeightDecay,
)


def compare(
    operators: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OPERATORS...",
            help="Such as softmax 'elastic(lam=0.5)'.",
            show_default="softmax, sinkhorn and elastic with a learned lam",
        ),
    ] = None,
    data: Data = "fashion-mnist-small",
    model: Model = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0 on.")] = 3,
    rate: Annotated[
        list[float] | None,
        typer.Option(
            help="Learning rate; repeat to let each operator choose by held-out samples.",
            show_default="0.001",
            rich_help_panel="Recipe",
        ),
    ] = None,
    epochs: Epochs = 10,
    batch: Batch = 64,
    optimizer: OptimizerName = Optimizer.ADAMW,
    weight_decay: WeightDecay = 0.01,
    schedule: ScheduleName = Schedule.COSINE,
    warmup: Warmup = 0.05,
    decay: Decay = None,
    clip: Clip = 1.0,
    patience: Patience = None,
    precision: PrecisionName = Precision.FP32,
    length: Length = None,
    device: Device = "cpu",
    tensorboard: TensorBoard = False,
    out: Annotated[Path, typer.Option(help="Folder for report and runs.", file_okay=False)] = Path(
        "compare-results"
    ),
) -> None:
    """Train the same model with several operators on equal terms, and write a report.

    Ends with report.html, one file that needs nothing else, report.md, and report.json with every
    number. A stopped comparison goes on when the same words are given again; runs that are finished
    are not trained again.
    """
    from bistoch.lab.compare import USUAL, Comparison, run_compare
    from bistoch.lab.device import read_device
    from bistoch.lab.train import Recipe
    from bistoch.lab.train.open import usual_model

    with one_sentence():
        rates = tuple(rate or (1e-3,))
        recipe = Recipe(
            epochs=epochs, batch=batch, rate=rates[0], optimizer=optimizer.value,
            weight_decay=weight_decay, schedule=schedule.value, warmup=warmup,
            decays=tuple(decay or ()), clip=clip or None, patience=patience,
            precision=precision.value,
        )  # fmt: skip
        comparison = Comparison(
            data, model or usual_model(data), tuple(operators or USUAL), tuple(range(seeds)),
            recipe, rates if len(rates) > 1 else (),
        )  # fmt: skip
        run_compare(
            comparison, out, Console(highlight=False), command=_command(), length=length,
            device=read_device(device, "compare"), tensorboard=tensorboard,
        )  # fmt: skip


def _command() -> str:
    """The words that were typed."""
    return shlex.join(["bistoch", *sys.argv[1:]])
