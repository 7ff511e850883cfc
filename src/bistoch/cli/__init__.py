"""The command line: it parses options and calls the package that does the work.

Every command imports what it needs when it runs, so that `bistoch --help` stays quick.
"""

from typing import Annotated

import typer

from bistoch import __version__
from bistoch.cli.bench import bench
from bistoch.cli.compare import compare
from bistoch.cli.data import data
from bistoch.cli.demo import demo
from bistoch.cli.explore import explore
from bistoch.cli.flow import flow
from bistoch.cli.inspect import inspect
from bistoch.cli.operators import list_operators, show
from bistoch.cli.reproduce import reproduce
from bistoch.cli.retrieval import retrieval
from bistoch.cli.train import evaluate, generate, predict, train

ABOUT = "Attention with controlled column sums, from softmax to doubly stochastic."

app = typer.Typer(
    help=ABOUT,
    no_args_is_help=True,
    add_completion=False,
    # paragraphs of a docstring fill the width of the terminal
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"bistoch {__version__}")
        raise typer.Exit


@app.callback(help=ABOUT)
def main(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options of the command itself."""


app.command()(demo)
app.command("list")(list_operators)
app.command()(show)
app.command()(bench)
app.command()(compare)
app.command()(train)
app.command("eval")(evaluate)
app.command()(predict)
app.command()(generate)
app.add_typer(flow, name="flow")
app.add_typer(data, name="data")
app.command()(inspect)
app.command()(explore)
app.command()(reproduce)
app.command()(retrieval)
