"""The command that repeats published experiments: `bistoch reproduce`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bistoch.cli.errors import user_errors
from bistoch.cli.options import option

Name = Annotated[str | None, typer.Argument(help="The study; without one, all are listed.")]
Seeds = Annotated[
    list[int] | None,
    option("Seed; repeat for several.", default="the study's, or 0 if smoke", min=0),
]
Epochs = Annotated[
    int | None, option("Epochs of a study that trains by epochs.", default="the study's", min=1)
]
OtherDevice = Annotated[
    str | None, option("cpu, cuda, or cuda:1 for a certain GPU.", default="a GPU, if there is one")
]
Out = Annotated[Path, option("Folder for results.", file_okay=False)]


@user_errors()
def reproduce(
    name: Name = None,
    smoke: Annotated[bool, option("A run of seconds that only tests the code.", "--smoke")] = False,
    seed: Seeds = None,
    epochs: Epochs = None,
    device: OtherDevice = None,
    out: Out = Path("reproduce-results"),
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
    settings = Settings(out=out, seeds=seeds, smoke=smoke, epochs=epochs, device=device)
    out.mkdir(parents=True, exist_ok=True)
    run_study(study, settings, console)
