"""The command line: it parses words of a terminal and hands them to the room that does the work.

Each file holds the verbs of one room, and imports that room inside the verbs: a verb loads only
what it needs.
"""

from importlib.metadata import version
from typing import Annotated

import typer

from bistoch.cli.bench import bench
from bistoch.cli.compare import compare
from bistoch.cli.data import data
from bistoch.cli.flow import flow
from bistoch.cli.generate import generate
from bistoch.cli.inspect import inspect
from bistoch.cli.operators import list_operators, show
from bistoch.cli.reproduce import reproduce
from bistoch.cli.train import evaluate_run, predict, train

app = typer.Typer(
    help="Attention whose columns are as accountable as its rows.",
    no_args_is_help=True,
    add_completion=False,
    # paragraphs of a docstring are filled to the width of the terminal
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bistoch {version('bistoch')}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Attention whose columns are as accountable as its rows."""


app.command("list")(list_operators)
app.command()(show)
app.command()(bench)
app.command()(compare)
app.command()(train)
app.command("eval")(evaluate_run)
app.command()(predict)
app.command()(generate)
app.add_typer(flow, name="flow")
app.add_typer(data, name="data")
app.command()(inspect)
app.command()(reproduce)
