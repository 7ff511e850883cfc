"""The command that trains the same model with several operators: `bistoch compare`."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from bistoch.cli.errors import user_errors
from bistoch.cli.options import (
    PANEL,
    Corrupt,
    Data,
    Device,
    ImageSize,
    Length,
    Model,
    OnCorrupt,
    ResizeTo,
    TensorBoard,
    option,
    read_pictures,
    with_recipe,
)  # fmt: skip

if TYPE_CHECKING:
    from bistoch.lab.train import Recipe

Operators = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="OPERATORS...", help="Such as softmax 'elastic(lam=0.5)'.",
        show_default="softmax, sinkhorn and elastic with a learned lam",
    ),
]  # fmt: skip
LearningRates = Annotated[
    list[float] | None,
    option(
        "Learning rate; repeat to choose one per operator by validation score.",
        default="0.001", rich_help_panel=PANEL,
    ),
]  # fmt: skip
Out = Annotated[Path, option("Folder for report and runs.", file_okay=False)]


@user_errors()
@with_recipe
def compare(
    operators: Operators = None,
    *,
    data: Data = "fashion-mnist-small",
    model: Model = None,
    seeds: Annotated[int, option("How many seeds, from 0 on.", min=1)] = 3,
    lr: LearningRates = None,
    length: Length = None,
    resize: ResizeTo = None,
    image_size: ImageSize = None,
    corrupt: OnCorrupt = Corrupt.REFUSE,
    device: Device = "cpu",
    tensorboard: TensorBoard = False,
    out: Out = Path("compare-results"),
    recipe: "Recipe",
) -> None:
    """Train the same model with several operators in the same way, and write a report.

    Writes report.html, one file that needs nothing else, report.md, and report.json with every
    number. The same command resumes an interrupted comparison; finished runs are not repeated.
    """
    from bistoch.lab.compare import DEFAULT_OPERATORS, Comparison, run_compare
    from bistoch.lab.device import read_device
    from bistoch.lab.train import default_model

    lrs = tuple(lr or (1e-3,))
    comparison = Comparison(
        data, model or default_model(data), tuple(operators or DEFAULT_OPERATORS),
        tuple(range(seeds)), replace(recipe, lr=lrs[0]), lrs if len(lrs) > 1 else (),
    )  # fmt: skip
    run_compare(
        comparison, out, Console(highlight=False), length=length, tensorboard=tensorboard,
        pictures=read_pictures(resize, image_size, corrupt),
        device=read_device(device, "compare"), command=shlex.join(["bistoch", *sys.argv[1:]]),
    )  # fmt: skip
