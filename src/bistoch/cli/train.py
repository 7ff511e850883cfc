"""The commands about one model: `bistoch train`, `eval`, `predict` and `generate`."""

import csv
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from bistoch.cli.errors import user_errors
from bistoch.cli.options import (
    PANEL,
    AsJson,
    Corrupt,
    Data,
    Device,
    ImageSize,
    Length,
    Model,
    OnCorrupt,
    Parallel,
    ResizeTo,
    TensorBoard,
    option,
    read_pictures,
    with_recipe,
)  # fmt: skip

if TYPE_CHECKING:
    from bistoch.lab.progress import Display
    from bistoch.lab.train import Recipe, StepInfo

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a `bistoch train` run.")]
Csv = Annotated[Path | None, option("Write a .csv file.", default="print", dir_okay=False)]
Samples = Annotated[
    list[Path],
    typer.Argument(
        metavar="SAMPLES...",
        help="Images or folders of them, .npz or .npy, .csv, .tsv, .jsonl or .txt; one .csv with "
        "the latest rows of a series.",
    ),
]


@user_errors()
@with_recipe
def train(
    *,
    data: Data = "fashion-mnist-small",
    model: Model = None,
    operator: Annotated[
        str | None,
        option(
            "Such as 'elastic(lam=0.5)'; stochastic_vit takes none.",
            default="that of the model: mixing for forecast, else softmax",
        ),
    ] = None,
    seed: Annotated[int, option("Of weights, order of samples and dropout.")] = 0,
    lr: Annotated[float, option("Learning rate.", rich_help_panel=PANEL)] = 1e-3,
    length: Length = None,
    resize: ResizeTo = None,
    image_size: ImageSize = None,
    corrupt: OnCorrupt = Corrupt.REFUSE,
    device: Device = "cpu",
    parallel: Annotated[
        Parallel, option("With torchrun: every process has the model (ddp), or a shard (fsdp).")
    ] = Parallel.DDP,
    timeout: Annotated[
        float, option("With torchrun: seconds to wait for another process.", min=1.0)
    ] = 600.0,
    tensorboard: TensorBoard = True,
    out: Annotated[Path, option("Folder of the run.", file_okay=False)] = Path("run"),
    recipe: "Recipe",
) -> None:
    """Train one model; the same command resumes an interrupted run.

    Several processes train together, with the whole batch between them, if torchrun starts them:
    torchrun --nproc-per-node 2 -m bistoch train ...
    """
    from bistoch.lab import train as lab
    from bistoch.lab.progress import progress
    from bistoch.lab.train.log import NO_TENSORBOARD, has_tensorboard
    from bistoch.lab.train.run import describe_kept
    from bistoch.lab.train.tasks import DEFAULT_MODELS

    recipe, pictures = replace(recipe, lr=lr), read_pictures(resize, image_size, corrupt)
    lab.import_safetensors()
    with lab.joined_ranks(device, parallel.value, timeout=timeout) as ranks:
        console = Console(highlight=False, quiet=not ranks.is_main)
        if tensorboard and not has_tensorboard():
            console.print(NO_TENSORBOARD, style="dim", markup=False)
        task = lab.open_task(
            data, model, hold_out=recipe.patience is not None, length=length, pictures=pictures
        )
        for note in task.facts.get("notes", ()):
            console.print(note, style="dim", markup=False, soft_wrap=True)
        setup = lab.Setup(data, model or DEFAULT_MODELS[task.kind], operator, recipe, seed)
        with progress(console, recipe.epochs) as shown:
            try:
                trained, fitted = lab.train_run(
                    setup, task, out, ranks=ranks, tensorboard=tensorboard,
                    on_step=_EpochProgress(shown),
                )  # fmt: skip
            except KeyboardInterrupt:
                shown.print(describe_kept(out))
                raise typer.Exit(130) from None
        found = lab.evaluate(trained, task, "test", recipe.precision, ranks=ranks)
        console.print(
            f"{fitted.finished} ({len(fitted.curve)} epochs, {fitted.seconds:.0f} s); test "
            f"{task.score_name} {found[task.score_name]:.4f}, loss {found['loss']:.4f}",
            markup=False,
        )  # fmt: skip
        console.print(f"run: {out}", markup=False, soft_wrap=True)
        if task.kind == "series" and Path(data).is_file():
            command = f"bistoch predict {out} {data} --out forecast.csv --plot forecast.png"
            console.print(f"forecast: {command}", markup=False, soft_wrap=True)


class _EpochProgress:
    """Epochs of a run on a display."""

    def __init__(self, shown: "Display"):
        self.shown, self.epoch = shown, 0

    def __call__(self, info: "StepInfo") -> None:
        per_epoch = info.steps // self.shown.total
        before = (info.step - 1) // per_epoch
        while self.epoch < info.epoch:
            row = info.curve[self.epoch]
            self.epoch += 1
            text = ", ".join(f"{name.replace('_', ' ')} {x:.3f}" for name, x in row.items())
            # epochs of an earlier process are not repeated
            self.shown.finish(f"epoch {self.epoch}", text, kept=self.epoch <= before)
        done, text = info.step - before * per_epoch, f"training loss {info.loss:.3f}"
        if self.epoch == before:
            self.shown.start(f"epoch {before + 1}")
            self.shown.step(done, per_epoch, text)


@user_errors()
def evaluate(
    run: Run,
    data: Annotated[str | None, option("Other data.", default="what it was trained on")] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Loss and score of a trained model on the test split of its data, or of other data."""
    from bistoch.lab.device import read_device
    from bistoch.lab.train.run import evaluate_run

    found = evaluate_run(run, data, read_device(device, "eval"))
    if as_json:
        typer.echo(json.dumps(found))
        return
    for name, value in found.items():
        typer.echo(f"{name}: {value:.4f}" if isinstance(value, float) else f"{name}: {value}")


@user_errors()
def predict(
    run: Run,
    samples: Samples,
    resize: ResizeTo = None,
    corrupt: OnCorrupt = Corrupt.REFUSE,
    device: Device = "cpu",
    out: Annotated[
        Path | None, option("Write a .csv file.", default="print", dir_okay=False)
    ] = None,
    plot: Annotated[
        Path | None,
        option("Of a series: draw a .png, .pdf or .svg.", default="none", dir_okay=False),
    ] = None,
) -> None:
    """Classify your own images, texts or points, or forecast a series, with a trained model.

    Images of another size are scaled as they were in training, or as --resize says. A forecast
    begins after the last row of the file.
    """
    from bistoch.lab import train as lab
    from bistoch.lab.device import read_device
    from bistoch.lab.files import write_whole
    from bistoch.lab.train import predict_series as series

    where = read_device(device, "predict")
    pictures = read_pictures(resize, None, corrupt)
    restored = lab.restore_run(run, where)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    if restored.config["kind"] == "series":
        form = None if plot is None else series.picture_form(plot)
        forecast = series.predict_series(restored, samples, pictures=pictures)
        for note in forecast.notes:
            typer.echo(note, err=True)
        writer.writerows(forecast.table())
        if plot is not None and form is not None:
            write_whole(plot, series.draw_forecast(forecast, form))
    else:
        if plot is not None:
            raise ValueError(
                "predict: --plot draws the forecast of a series, but the model was trained on "
                f"{restored.config['kind']}; leave it out"
            )
        predictions = lab.predict(restored, samples, pictures=pictures)
        writer.writerow(lab.Prediction._fields)
        writer.writerows((p.sample, p.label, f"{p.probability:.4f}") for p in predictions)
    if out is None:
        sys.stdout.write(table.getvalue())
    else:
        write_whole(out, table.getvalue().encode())
        typer.echo(f"wrote {out}")
    if plot is not None:
        # a printed table must stay one
        typer.echo(f"wrote {plot}", err=out is None)


@user_errors()
def generate(
    run: Run,
    prompt: Annotated[str, option("The beginning of the text.", default="a new line")] = "\n",
    count: Annotated[int, option("Characters or bytes to add.", min=0)] = 400,
    temperature: Annotated[float, option("0 always takes the most likely.", min=0.0)] = 0.8,
    seed: Annotated[int, option("Of sampling.", min=0)] = 0,
    device: Device = "cpu",
) -> None:
    """Continue a text with a language model that was trained on a corpus."""
    from bistoch.lab.device import read_device
    from bistoch.lab.train.generate import generate_text

    where = read_device(device, "generate")
    text = generate_text(run, prompt, count, temperature=temperature, seed=seed, device=where)
    typer.echo(text)
