"""The command that analyses a trained Transformer: `bistoch inspect`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bistoch.cli.errors import user_errors
from bistoch.cli.options import Device, option

Name = Annotated[
    str,
    typer.Argument(
        help="A folder with a model of transformers, its name on the hub, or a `bistoch train` run."
    ),
]
Texts = Annotated[list[str] | None, option("An input text; repeat for several.")]
File = Annotated[Path | None, option("A file with one text per line.", dir_okay=False)]
Images = Annotated[list[Path] | None, option("An image or a folder of images; repeat.")]
Lams = Annotated[
    list[float] | None, option("Elasticity to swap in; repeat.", default="0.1 .25 .5 .75 1")
]
Heads = Annotated[
    list[str] | None,
    option("Layer and head to draw, such as 3.5.", default="those with the largest key load"),
]
EachHead = Annotated[bool, option("Also convert every head alone, one forward for each.")]
Out = Annotated[Path, option("Folder for the report.", file_okay=False)]


@user_errors()
def inspect(
    model: Name,
    text: Texts = None,
    file: File = None,
    images: Images = None,
    lam: Lams = None,
    head: Heads = None,
    each_head: EachHead = True,
    device: Device = "cpu",
    out: Out = Path("inspect-report"),
) -> None:
    """Report on a trained Transformer: its heads, its sinks, and what balance would change."""
    from bistoch.lab.device import read_device
    from bistoch.lab.inspect import run_inspect

    run_inspect(
        model,
        texts=[*(text or ()), *(_lines(file) if file else ())],
        images=images or (),
        lams=lam or (0.1, 0.25, 0.5, 0.75, 1.0),
        heads=[_head(text) for text in head or ()],
        each_head=each_head,
        device=read_device(device, "inspect"),
        out=out,
        console=Console(),
    )


def _lines(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as reason:
        raise ValueError(f"inspect: cannot read {file} as text: {reason}") from None
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise ValueError(f"inspect: {file} has no line with text")
    return lines


def _head(text: str) -> tuple[int, int]:
    layer, _, head = text.partition(".")
    if not (layer.isdigit() and head.isdigit()):
        raise ValueError(f"inspect: a head is written as layer.head, such as 3.5, not {text!r}")
    return int(layer), int(head)
