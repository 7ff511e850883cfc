"""The command that repeats published experiments: `bistoch reproduce`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bistoch.cli.errors import user_errors


@user_errors()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="The study; without one, all are listed.")
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="A run of seconds that only tests the code.")
    ] = False,
    seed: Annotated[
        list[int] | None,
        typer.Option(
            min=0, help="Seed; repeat for several.", show_default="the study's, or 0 if smoke"
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Epochs of a study that trains by epochs.", show_default="the study's"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results.", file_okay=False)] = Path(
        "reproduce-results"
    ),
) -> None:
    """Repeat a published experiment: measure, compare with the paper, and write a report.

    The same command resumes an interrupted run.
    """
    from bistoch.lab.reproduce import STUDIES, study_of
    from bistoch.lab.study import Settings, run_study

    console = Console(highlight=False)
    if name is None:
        for study in STUDIES.values():
            console.print(f"[bold]{study.name}[/bold]  {study.question}")
            console.print(f"    {study.source}", style="dim")
        return
    study = study_of(name)
    seeds = tuple(seed) if seed else (0,) if smoke else study.seeds
    if epochs is not None and study.epochs is None:
        raise ValueError(f"reproduce: {name} does not train by epochs; leave --epochs out")
    settings = Settings(out=out, seeds=seeds, smoke=smoke, epochs=epochs)
    out.mkdir(parents=True, exist_ok=True)
    run_study(study, settings, console)
