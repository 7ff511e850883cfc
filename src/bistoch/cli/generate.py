"""The verb that lets a trained language model write: `bistoch generate`."""

from pathlib import Path
from typing import Annotated

import typer

from bistoch.cli.mistakes import one_sentence


def generate(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="What `bistoch train` wrote, on running text.")
    ],
    prompt: Annotated[str, typer.Option(help="How the text begins.", show_default="a new line")] = (
        "\n"
    ),
    count: Annotated[int, typer.Option(min=0, help="Characters or bytes to add.")] = 400,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Below 1 prefers the likeliest; 0 always takes it.")
    ] = 0.8,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
) -> None:
    """Let a trained language model go on with a text."""
    from bistoch.lab.train.write import write_on

    with one_sentence():
        text = write_on(folder, prompt, count, temperature=temperature, seed=seed)
    typer.echo(text)
