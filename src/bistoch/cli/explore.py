"""The command that opens the explorer: `bistoch explore`."""

from typing import Annotated

import typer

from bistoch.cli.errors import user_errors
from bistoch.cli.options import Device, option

Models = Annotated[
    list[str] | None,
    option("A folder with a text model of transformers, or its name on the hub; repeat."),
]
Port = Annotated[int, option("Port on this machine; 0 takes any that is free.", min=0, max=65535)]
Browser = Annotated[bool, option("Open a browser.", "--browser/--no-browser")]


@user_errors()
def explore(
    model: Models = None, port: Port = 8050, browser: Browser = True, device: Device = "cpu"
) -> None:
    """Open a page on this machine: plans, column sums and outputs while sliders move."""
    from bistoch.explorer import explore as serve
    from bistoch.lab.device import read_device

    where = read_device(device, "explore")
    serve(model or (), port=port, browser=browser, device=where, say=typer.echo)
