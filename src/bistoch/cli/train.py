"""The verbs about one model: `bistoch train`, `bistoch eval` and `bistoch predict`."""

import csv
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from bistoch.lab.train import Moment

# seconds between two lines of a log file within an epoch
LINE_EVERY = 60.0
Run = Annotated[Path, typer.Argument(metavar="FOLDER", help="What `bistoch train` wrote.")]


def train(
    data: Data = "fashion-mnist-small",
    model: Model = None,
    operator: Annotated[str, typer.Option(help="Such as 'elastic(lam=0.5)'.")] = "softmax",
    seed: Annotated[int, typer.Option(help="Of weights, order and dropout.")] = 0,
    epochs: Epochs = 10,
    batch: Batch = 64,
    rate: Annotated[float, typer.Option(help="Learning rate.", rich_help_panel="Recipe")] = 1e-3,
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
    tensorboard: TensorBoard = True,
    out: Annotated[Path, typer.Option(help="Folder of the run.", file_okay=False)] = Path("run"),
) -> None:
    """Train one model; the same words again go on where it was stopped.

    With torchrun in front, several processes train together.
    """
    from bistoch.lab.train import USUAL, Recipe, Setup, evaluate, joined_ranks, open_task, train_one
    from bistoch.lab.train.checkpoint import import_safetensors
    from bistoch.lab.train.log import MISSING, has_tensorboard

    console = Console(highlight=False)
    with one_sentence(), _stoppable(out, console):
        recipe = Recipe(
            epochs=epochs, batch=batch, rate=rate, optimizer=optimizer.value,
            weight_decay=weight_decay, schedule=schedule.value, warmup=warmup,
            decays=tuple(decay or ()), clip=clip or None, patience=patience,
            precision=precision.value,
        )  # fmt: skip
        import_safetensors()
        with joined_ranks(device) as ranks:
            if tensorboard and not has_tensorboard() and ranks.leads:
                console.print(MISSING, style="dim", markup=False)
            task = open_task(data, model, hold_out=patience is not None, length=length)
            setup = Setup(data, model or USUAL[task.kind], operator, recipe, seed)
            with _progress(console if ranks.leads else Console(quiet=True), epochs) as watch:
                trained = train_one(
                    setup, task, out, ranks=ranks, tensorboard=tensorboard, watch=watch
                )
            found = evaluate(trained.model, task, "test", recipe.precision)
            if ranks.leads:
                fitted = trained.fitted
                console.print(
                    f"{fitted.finished} ({len(fitted.curve)} epochs, {fitted.seconds:.0f} s); "
                    f"test {task.score_name} {found[task.score_name]:.4f}, loss "
                    f"{found['loss']:.4f}",
                    markup=False,
                )  # fmt: skip
                console.print(f"run: {out}", markup=False, soft_wrap=True)


def evaluate_run(
    folder: Run,
    data: Annotated[
        str | None, typer.Option(help="Other data.", show_default="what it was trained on")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Loss and score of a trained model on the test split of its data, or of others."""
    from bistoch.lab.train.again import evaluate_again

    with one_sentence():
        found = evaluate_again(folder, data)
    if as_json:
        typer.echo(json.dumps(found))
        return
    for name, value in found.items():
        typer.echo(f"{name}: {value:.4f}" if isinstance(value, float) else f"{name}: {value}")


def predict(
    folder: Run,
    samples: Annotated[
        list[Path],
        typer.Argument(
            metavar="SAMPLES...",
            help="Pictures or folders of them, .npz or .npy, .csv, .tsv, .jsonl or .txt.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Write a .csv file.", show_default="print", dir_okay=False)
    ] = None,
) -> None:
    """Label your own pictures, texts or points with a trained model: sample, label, probability."""
    from bistoch.lab.train import predict as guess
    from bistoch.lab.train import restore_run

    with one_sentence():
        guesses = guess(restore_run(folder), samples)
        stream = sys.stdout if out is None else out.open("w", newline="", encoding="utf-8")
        try:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(("sample", "label", "probability"))
            writer.writerows((*one[:2], f"{one.probability:.4f}") for one in guesses)
        finally:
            if out is not None:
                stream.close()


@contextmanager
def _stoppable(out: Path, console: Console) -> Iterator[None]:
    """After Ctrl-C, say what was kept and how to resume."""
    from bistoch.lab.train.setup import describe_kept

    try:
        yield
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            console.print(describe_kept(out), markup=False, soft_wrap=True)
        raise typer.Exit(130) from None


class _progress:  # noqa: N801 (used as a function)
    """A bar with the epoch, the loss and the last score; lines where the output is no terminal."""

    def __init__(self, console: Console, epochs: int):
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        words = TextColumn("{task.description}")
        self.bar = Progress(words, BarColumn(), TimeRemainingColumn(), console=console,
                            transient=True)  # fmt: skip
        self.epochs, self.task = epochs, self.bar.add_task("the first step", total=None)
        self.said, self.at = 0, time.monotonic()

    def __enter__(self) -> "_progress":
        if self.bar.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, moment: "Moment") -> None:
        last = moment.curve[-1] if moment.curve else {}
        scores = "".join(f", {name} {x:.3f}" for name, x in last.items() if name != "train_loss")
        words = f"epoch {moment.epoch}/{self.epochs}, training loss {moment.loss:.3f}{scores}"
        self.bar.update(self.task, total=moment.steps, completed=moment.step, description=words)
        if self.bar.console.is_terminal:
            return
        now = time.monotonic()
        if moment.epoch > self.said or now - self.at >= LINE_EVERY:
            self.said, self.at = moment.epoch, now
            self.bar.console.print(
                f"step {moment.step}/{moment.steps}, {words}", markup=False, soft_wrap=True
            )
